"Reproductions of small papers that the tests write: mostly in this process, twice with real kernels."
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from selfcorr.calls import SelfcorrError
from selfcorr.notebooks import reasons
from selfcorr.notebooks.parameters import check_parameters, declared_parameters
from selfcorr.notebooks.items import places
from selfcorr.reproduce import plan, record, report_again, reproduce

psutil = pytest.importorskip("psutil", reason="comes with ipykernel")
pytest.importorskip("papermill", reason="executing notebooks needs papermill")

GOOD = ["seed = 0  # type: int seed of the draw\nscale = 1.0  # type: float factor",
        "from selfcorr.reproduce import record, figure, table, attach\nimport random",
        "mean = record('mean', scale * random.Random(seed).random(), low=0.0, high=1.0, n=9)",
        "import pandas as pd\ntable('rows', pd.DataFrame(dict(a=[1, 2], b=['x', '<b>|&'])))",
        "attach('note.txt', 'a note')"]


def notebook(path: Path, *cells: str, parameters: bool = True):
    "Write a notebook; its first cell is the parameters cell"
    out = [dict(cell_type="code", id=f"cell-{i}", metadata=dict(tags=["parameters"]) if parameters and i == 0 else {}, source=textwrap.dedent(c),
                outputs=[], execution_count=None) for i, c in enumerate(cells)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(cells=out, metadata={}, nbformat=4, nbformat_minor=5)))


def paper(root: Path, toml: str, name: str = "demo", **notebooks):
    "Write a paper's folder"
    folder = root / "nbs" / "papers" / name
    for stem, cells in notebooks.items(): notebook(folder / f"{stem}.ipynb", *cells)
    (folder / "reproduce.toml").write_text(textwrap.dedent(toml))


ITEM = """
    [[item]]
    id = "table1"
    title = "A table"
    notebook = "good.ipynb"
    parameters = { seed = 3 }
    inputs = ["data/*.csv"]
    values = ["mean"]
    tables = ["rows"]
    files = ["note.txt"]
    """


@pytest.fixture(autouse=True)
def code(monkeypatch):
    "One state of the package's code for a whole test, whoever edits it meanwhile; the hashes can be changed"
    hashes = dict(reasons.code_hashes())
    monkeypatch.setattr(reasons, "code_hashes", lambda: dict(hashes))
    return hashes


@pytest.fixture
def root(tmp_path):
    "A repository with one paper of one good notebook"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.csv").write_text("a\n1\n")
    paper(tmp_path, ITEM, good=GOOD)
    return tmp_path


def go(root, **options):
    "Reproduce in this process; the result, and what it told"
    told = io.StringIO()
    done = reproduce(root=root, stream=told, **{"engine": "in-process", **options})
    return done, told.getvalue()


def tree(folder: Path) -> dict[str, str]:
    "Every file below a folder with its content"
    return {p.relative_to(folder).as_posix(): p.read_bytes().hex() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_good_notebook_delivers_and_is_not_run_again(root):
    done, told = go(root)
    assert done.ok and done.jobs[0]["state"] == "ran" and "not run before" in told
    out = root / "_reproduced"
    assert {"notebooks/demo/good.ipynb", "values/demo/good.jsonl", "logs/demo/good.log", "tables/demo/rows.csv", "tables/demo/rows.md", "tables/demo/rows.tex",
            "files/demo/note.txt", "state/demo/good.json", "report.md", "report.json", "report.html"} <= set(tree(out))
    value = json.loads((out / "values/demo/good.jsonl").read_text().splitlines()[0])
    assert (value["name"], value["cell"], value["n"]) == ("mean", "cell-2", 9)
    assert not list((out / ".staging").iterdir())
    again, told = go(root)
    assert again.ok and again.jobs[0]["state"] == "skipped" and "up to date" in told


@pytest.mark.parametrize("change, reason", [
    (lambda r: (r / "data/in.csv").write_text("a\n2\n"), "inputs changed: data/in.csv"),
    (lambda r: (r / "data/more.csv").write_text("a\n"), "inputs added: data/more.csv"),
    (lambda r: notebook(r / "nbs/papers/demo/good.ipynb", *GOOD, "1 + 1"), "notebook changed"),
    (lambda r: (r / "_reproduced/tables/demo/rows.csv").unlink(), "output missing: tables/demo/rows.csv"),
    (lambda r: (r / "_reproduced/tables/demo/rows.csv").write_text("x"), "output altered: tables/demo/rows.csv"),
])
def test_each_change_is_a_named_reason(root, change, reason):
    go(root)
    change(root)
    done, told = go(root)
    assert done.ok and done.jobs[0]["reason"] == reason


def test_parameters_and_force_are_reasons(root):
    go(root)
    done, _ = go(root, parameters=dict(seed="4"))
    assert done.jobs[0]["reason"] == "parameters changed: seed 3→4" and done.jobs[0]["parameters"] == dict(seed=4, scale=1.0)
    assert go(root)[0].jobs[0]["reason"] == "parameters changed: seed 4→3"
    assert go(root, force=True)[0].jobs[0]["reason"] == "forced"


def test_changed_code_is_a_reason(root, code):
    go(root)
    code["selfcorr/calls.py"] = "other"
    assert go(root)[0].jobs[0]["reason"] == "code changed: selfcorr/calls.py"


@pytest.mark.parametrize("given, line", [
    (dict(sed="1"), "unknown parameter 'sed' (did you mean seed?)"),
    (dict(seed="one"), "demo/good.ipynb: parameter seed is declared as int, but the value given is str 'one'"),
    (dict(seed=1.5), "parameter seed is declared as int, but the value given is float 1.5"),
    (dict(seed=(1, 2)), "parameter seed: the value given holds a tuple"),
    (dict(seed=True), "is bool True"),
])
def test_a_wrong_parameter_is_refused_before_anything_runs(root, given, line):
    with pytest.raises(SelfcorrError) as e: go(root, parameters=given)
    assert line in str(e.value) and "\n" not in str(e.value)
    assert not (root / "_reproduced").exists()


@pytest.mark.parametrize("cells, line", [
    (["seed = 0  # type: int seed", "print('no seed here')"], "parameter seed is never read by a later cell"),
    (["seed = 0  # type: int seed", "def f(seed): return seed\nf(3)"], "parameter seed is never read by a later cell"),
    (["seed = 0  # type: int seed", "seed = 5\nprint(seed)"], "parameter seed is overwritten by `seed = 5` before any cell reads it"),
    (["seed = 0  # type: int seed", "#| eval: false\nprint(seed)"], "parameter seed is never read by a later cell"),
    (["seed = 0  # type: int seed\nhalf = seed / 2", "print(seed, half)"], "`half = seed / 2` in the parameters cell is no literal"),
    (["seed = 0  # type: number seed", "print(seed)"], "unknown type 'number'"),
])
def test_a_misleading_notebook_is_refused_before_anything_runs(root, cells, line):
    notebook(root / "nbs/papers/demo/good.ipynb", *cells)
    with pytest.raises(SelfcorrError) as e: go(root)
    assert line in str(e.value) and "\n" not in str(e.value)


def test_papermill_reads_the_same_declarations():
    from papermill.translators import PythonTranslator
    text = "seed = 0  # type: int seed of the draw\nmodel = 'a'  # type: str|None which model\nrate: float = 0.5  # the rate"
    ours = declared_parameters(dict(cells=[dict(cell_type="code", metadata=dict(tags=["parameters"]), source=text)]))
    theirs = PythonTranslator.inspect(dict(source=text))
    assert [(p.name, p.type, p.meaning) for p in ours.values()] == [(p.name, p.inferred_type_name, p.help) for p in theirs]


def test_numpy_values_are_refused():
    np = pytest.importorskip("numpy")
    nb = dict(cells=[dict(cell_type="code", metadata=dict(tags=["parameters"]), source="k = 1  # type: int k"), dict(cell_type="code", metadata={}, source="k")])
    with pytest.raises(SelfcorrError, match="holds a int64"): check_parameters(nb, dict(k=np.int64(3)))


def test_a_missing_promise_fails_by_name(root):
    toml = (root / "nbs/papers/demo/reproduce.toml")
    toml.write_text(toml.read_text().replace('["mean"]', '["mean", "table2.*"]').replace('["rows"]', '["rows", "other"]'))
    done, told = go(root)
    assert not done.ok and "promised but not made: value table2.*, table other" in done.problems[0]
    assert "_reproduced/notebooks/demo/good.failed.ipynb" in done.problems[0]
    assert not (root / "_reproduced/notebooks/demo/good.ipynb").exists() and not (root / "_reproduced/tables").exists()
    assert go(root)[0].jobs[0]["reason"] == "failed last time"


def test_a_promise_made_later_is_a_reason(root):
    go(root)
    toml = (root / "nbs/papers/demo/reproduce.toml")
    toml.write_text(toml.read_text().replace('["mean"]', '["mean", "median"]'))
    done, told = go(root)
    assert "promised since and not made: value median" in told and not done.ok


def test_a_failing_notebook_is_kept_for_reading_and_its_old_numbers_go(root):
    go(root)
    notebook(root / "nbs/papers/demo/good.ipynb", *GOOD, "raise ValueError('two\\nlines')")
    done, told = go(root)
    assert not done.ok and "cell cell-5 raised ValueError: two lines" in done.problems[0]
    kept = json.loads((root / "_reproduced/notebooks/demo/good.failed.ipynb").read_text())
    assert any(o["output_type"] == "error" for c in kept["cells"] for o in c.get("outputs", []))
    assert json.loads((root / "_reproduced/report.json").read_text())["values"] == []
    notebook(root / "nbs/papers/demo/good.ipynb", *GOOD)
    assert go(root)[0].ok
    assert not (root / "_reproduced/notebooks/demo/good.failed.ipynb").exists()


def test_two_values_of_one_name_are_refused(root):
    notebook(root / "nbs/papers/demo/good.ipynb", *GOOD, "record('mean', 2)")
    done, _ = go(root)
    assert "value 'mean' is recorded twice, in cells cell-2 and cell-5" in done.problems[0]


def test_two_notebooks_that_record_one_name_are_told(root):
    paper(root, ITEM + '\n[[item]]\nid = "b"\nnotebook = "b.ipynb"\n', good=GOOD, b=["x = 1  # type: int x", "from selfcorr.reproduce import record\nrecord('mean', x)"])
    done, _ = go(root)
    assert any("value mean is recorded by" in p for p in done.problems)


def test_one_notebook_with_two_parameter_sets_runs_twice(root):
    paper(root, """
        [[item]]
        id = "a"
        notebook = "n.ipynb"
        values = ["v0"]
        [[item]]
        id = "b"
        notebook = "n.ipynb"
        parameters = { k = 1 }
        values = ["v1"]
        [[item]]
        id = "c"
        notebook = "n.ipynb"
        parameters = { k = 1 }
        """, n=["k = 0  # type: int k", "from selfcorr.reproduce import record\nrecord(f'v{k}', k)"])
    done, _ = go(root)
    assert done.ok and [(j["job"], j["items"]) for j in done.jobs] == [("demo/n-a", ["a"]), ("demo/n-b", ["b", "c"])]
    done, _ = go(root, only=["b"], force=True)
    assert [(j["job"], j["state"]) for j in done.jobs] == [("demo/n-b", "ran"), ("demo/n-a", "kept")]


def test_names_of_papers_and_items_are_checked(root):
    for options, line in ((dict(papers=["dem"]), "unknown paper 'dem' (did you mean demo?)"), (dict(only=["table"]), "unknown item 'table' (did you mean table1?)"),
                          (dict(engine="kernal"), "unknown engine 'kernal' (did you mean kernel?)"), (dict(jobs=0), "--jobs is 0")):
        with pytest.raises(SelfcorrError) as e: go(root, **options)
        assert line in str(e.value)


@pytest.mark.parametrize("old, new, line", [
    ('id = "table1"', "", "an item has no `id`"), ('title = "A table"', 'titel = "x"', "unknown key 'titel' (did you mean title?)"),
    ('values = ["mean"]', 'values = "mean"', "`values` must be a list of texts"), ('notebook = "good.ipynb"', 'notebook = "gone.ipynb"', "no notebook"),
    ('["data/*.csv"]', '["data/*.txt"]', "input data/*.txt does not exist"), ("[[item]]", "[[item", "demo/reproduce.toml cannot be read"),
])
def test_a_faulty_reproduce_toml_is_one_line(root, old, new, line):
    toml = root / "nbs/papers/demo/reproduce.toml"
    toml.write_text(toml.read_text().replace(old, new))
    with pytest.raises(SelfcorrError) as e: go(root)
    assert line in str(e.value) and "\n" not in str(e.value)


def test_an_input_may_name_a_parameter(root):
    paper(root, '[[item]]\nid = "a"\nnotebook = "n.ipynb"\ninputs = ["data/{name}.csv"]\n', n=["name = 'in'  # type: str which file", "print(name)"])
    assert go(root)[0].ok
    with pytest.raises(SelfcorrError, match="input data/out.csv does not exist"): go(root, parameters=dict(name="out"))


def test_published_numbers_get_exactly_one_verdict(root):
    (root / "data/published").mkdir()
    (root / "data/published/demo.csv").write_text("paper,item,row,column,value,number,decimals,unit,n,low,high,note,id\n"
        "demo,Table 1,A,Final,81.6,81.6,1,%,100,,,,demo/a\ndemo,Table 1,B,Final,50.0,50.0,1,%,100,,,,demo/b\n")
    promise = '[[item]]\nid = "a"\nnotebook = "n.ipynb"\npublished = ["Table 1"]\n'
    code = "from selfcorr.reproduce import record\nrecord('demo/a', k, verdict='replicated')"
    paper(root, promise, n=["k = 1  # type: int k", code])
    done, _ = go(root)
    assert "promised but not made: verdict for demo/b" in done.problems[0]
    paper(root, promise, n=["k = 1  # type: int k", code + "\nrecord('demo/b', None, verdict='pending')"])
    done, _ = go(root)
    report = json.loads((root / "_reproduced/report.json").read_text())
    assert done.ok and report["counts"]["demo"]["replicated"] == 1 and report["counts"]["demo"]["pending"] == 1 and report["counts"]["demo"]["none"] == 0
    assert [(n["id"], n["verdict"], n["cell"]) for n in report["numbers"]] == [("demo/a", "replicated", "cell-1"), ("demo/b", "pending", "cell-1")]
    paper(root, promise, n=["k = 1  # type: int k", code + "\nrecord('demo/b', None, verdict='pending')\nrecord('x', 1, verdict='pending', published='demo/b')"])
    assert any("published number demo/b has two verdicts" in p for p in go(root)[0].problems)
    with pytest.raises(SelfcorrError, match="unknown verdict"): record("x", 1, verdict="fine")


def test_a_figure_is_kept_as_svg_and_pdf_and_is_the_same_twice(root):
    pytest.importorskip("matplotlib")
    cells = ["k = 2  # type: int k", "import matplotlib.pyplot as plt\nfrom selfcorr.reproduce import figure", "fig, ax = plt.subplots()\nax.plot([0, k])\nfigure('line', fig, 'a line');"]
    paper(root, '[[item]]\nid = "f"\nnotebook = "n.ipynb"\nfigures = ["line"]\n', n=cells)
    assert go(root)[0].ok
    first = tree(root / "figures")
    assert {"demo/line.svg", "demo/line.pdf"} <= set(first)
    notebooks = tree(root / "_reproduced/notebooks")
    assert go(root, force=True)[0].ok
    assert tree(root / "figures") == first and tree(root / "_reproduced/notebooks") == notebooks
    # what a notebook no longer makes goes away
    paper(root, '[[item]]\nid = "f"\nnotebook = "n.ipynb"\n', n=cells[:-1] + ["print(k)"])
    go(root)
    assert not tree(root / "figures")


def test_an_output_folder_of_ones_own_takes_everything(root, tmp_path):
    go(root, output=root / "elsewhere {1}")
    assert (root / "elsewhere {1}/report.html").exists() and not (root / "_reproduced").exists()


def test_executed_notebooks_hold_no_trace_of_the_machine(root):
    os.environ["SOME_API_KEY"] = "sk-very-secret-value"
    try:
        notebook(root / "nbs/papers/demo/good.ipynb", *GOOD, "import os, sys\nprint(os.getcwd(), sys.prefix, os.environ['SOME_API_KEY'])\nobject()", "%time 1")
        assert go(root)[0].ok
    finally: del os.environ["SOME_API_KEY"]
    out = root / "_reproduced"
    for text in [p.read_text() for p in [out / "notebooks/demo/good.ipynb", out / "report.html", out / "logs/demo/good.log"]]:
        for private in (str(root), sys.prefix, "sk-very-secret", " at 0x7", '"papermill"', "start_time"): assert private not in text
    assert "Wall time: …" in (out / "notebooks/demo/good.ipynb").read_text()


def test_the_report_escapes_what_it_shows(root):
    notebook(root / "nbs/papers/demo/good.ipynb", *GOOD, "record('evil', '<script>alert(1)</script>', note='a | b <img src=x>')")
    assert go(root)[0].ok
    page, text = ((root / f"_reproduced/report.{s}").read_text() for s in ("html", "md"))
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page and "http" not in page
    assert "<script" not in text and "a \\| b" in text


def test_the_report_can_be_written_again(root):
    with pytest.raises(SelfcorrError, match="nothing has been reproduced"): report_again(root=root)
    go(root)
    before = json.loads((root / "_reproduced/report.json").read_text())
    (root / "_reproduced/report.json").unlink()
    report_again(root=root)
    assert json.loads((root / "_reproduced/report.json").read_text())["values"] == before["values"]


def test_a_second_reproduction_into_one_folder_is_kept_out(root):
    fcntl = pytest.importorskip("fcntl")
    (root / "_reproduced").mkdir()
    with open(root / "_reproduced/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SelfcorrError, match="another reproduction writes to"): go(root)
    assert go(root)[0].ok


def test_namespaces_do_not_leak_between_notebooks(root):
    paper(root, '[[item]]\nid = "a"\nnotebook = "a.ipynb"\n[[item]]\nid = "b"\nnotebook = "b.ipynb"\nvalues = ["clean"]\n',
          a=["k = 1  # type: int k", "leak = k"], b=["k = 1  # type: int k", "from selfcorr.reproduce import record\nrecord('clean', 'leak' not in globals() and k)"])
    done, _ = go(root)
    assert done.ok


# ---- real kernels -------------------------------------------------------------------------------------------------

def test_real_kernels_run_side_by_side_and_agree_with_the_other_engine(root):
    paper(root, ITEM + '\n[[item]]\nid = "bad"\nnotebook = "bad.ipynb"\n[[item]]\nid = "dies"\nnotebook = "dies.ipynb"\n', good=GOOD,
          bad=["k = 1  # type: int k", "print('told', k)", "1 / 0", "print('never')"], dies=["k = 1  # type: int k", "import os\nos._exit(k)"])
    done, told = go(root, engine="kernel", jobs=2)
    states = {j["job"]: j for j in done.jobs}
    assert states["demo/good"]["state"] == "ran" and states["demo/bad"]["state"] == states["demo/dies"]["state"] == "failed"
    assert "cell cell-2 raised ZeroDivisionError" in states["demo/bad"]["error"] and "Dead" in states["demo/dies"]["error"]
    assert "told 1" in (root / "_reproduced/logs/demo/bad.log").read_text()
    kernel = tree(root / "_reproduced/values"), (root / "_reproduced/notebooks/demo/good.ipynb").read_text()
    assert str(root) not in kernel[1] and '"execution"' not in kernel[1]
    assert go(root, only=["table1"])[0].jobs[0]["state"] == "skipped"  # the kernel's result is good enough for the other engine
    done, _ = go(root, only=["table1"], force=True)
    assert tree(root / "_reproduced/values") == kernel[0]
    steps = plan(root, places(root), only=["table1"], engine="kernel")
    assert steps[0].why == "ran with the in-process engine before"


def start(root, *words):
    "Start the command line in a process group of its own"
    env = {**os.environ, "PYTHONPATH": str(Path(sys.modules["selfcorr"].__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", "import sys; from selfcorr.cli import main; sys.exit(main())", "reproduce", *words], cwd=root, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def family(process) -> list:
    "All processes below one"
    return psutil.Process(process.pid).children(recursive=True)


def wait_for(condition, seconds=20):
    "Wait until something is so"
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_stop_leaves_nothing_half_written_and_no_kernel(root, sign):
    mark = root / "reached"
    paper(root, '[[item]]\nid = "slow"\nnotebook = "slow.ipynb"\ntables = ["rows"]\n',
          slow=[f"mark = {str(mark)!r}  # type: str file", GOOD[1], GOOD[3], "open(mark, 'w').close()\nimport time\ntime.sleep(60)"])
    process = start(root)
    wait_for(mark.exists)
    below = family(process)
    assert any("ipykernel_launcher" in " ".join(p.cmdline()) for p in below)
    process.send_signal(sign)
    out, err = process.communicate(timeout=15)
    if sign == signal.SIGINT:
        assert process.returncode == 130 and "Traceback" not in err and "stopped; finished notebooks are kept" in err
    wait_for(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below))
    left = [p for p in tree(root / "_reproduced") if not p.startswith((".staging", ".lock"))]
    assert left == []
    paper(root, '[[item]]\nid = "slow"\nnotebook = "slow.ipynb"\n', slow=["k = 1  # type: int k", "k"])
    assert go(root)[0].ok and not list((root / "_reproduced/.staging").iterdir())
