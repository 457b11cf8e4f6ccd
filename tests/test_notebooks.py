"Every library notebook and guide runs from top to bottom. Paper notebooks are run by the reproduction."
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from selfcorr.dev import notebooks, project_root

ROOT = project_root()
PATHS = [path.relative_to(ROOT).as_posix() for path in notebooks("lib", "guides", "index.ipynb")]
WORKERS = 2
LIMIT_S = 300  # for one notebook


def run_notebook(name):
    "(exit code, output) of one notebook in a process of its own"
    try:
        done = subprocess.run([sys.executable, "-c", "import sys; from nbdev.test import nbdev_test; nbdev_test(sys.argv[1], n_workers=0)", name], cwd=ROOT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired: return 124, f"{name} ran longer than {LIMIT_S} s"


@pytest.fixture(scope="module")
def results(request):
    "All collected notebooks, run before the first of these tests reports; no other test runs meanwhile"
    names = [item.callspec.params["name"] for item in request.session.items if item.originalname == "test_notebook_runs"]
    with ThreadPoolExecutor(WORKERS) as pool: return dict(zip(names, pool.map(run_notebook, names)))


@pytest.mark.timeout(3600)  # the first one waits for all
@pytest.mark.parametrize("name", PATHS)
def test_notebook_runs(name, results):
    code, output = results[name]
    assert code == 0, output[-6000:]
