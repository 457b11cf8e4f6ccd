"The command line, with a model of our own that answers at once, slowly, or with an error."
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selfcorr.cli import main

FAKE = '''
import asyncio
from selfcorr.calls import Reply
from selfcorr.models.base import Model

class Fake(Model):
    backend, supports = "fake", frozenset({"temperature", "seed"})
    def __init__(self, how): self.how, self.name = how, "fake/" + (how or "quick")
    async def ask(self, request):
        if self.how == "slow": await asyncio.sleep(0.3)
        if self.how == "error": return Reply("", "error", error="the server is on fire", latency=0.0)
        if request.form == "trace": return Reply(request.about.replace("Thought 0:", f"Thought 0: (round {request.address.round})"), model=self.name, tokens_in=10, tokens_out=5, latency=0.0)
        texts = dict(questions="1. Is step 0 right?\\n2. Is step 1 right?\\n3. Is step 2 right?", mistake_steps="Mistake steps: 1")
        return Reply(texts.get(request.form, request.about or "It is."), model=self.name, tokens_in=10, tokens_out=5, latency=0.0)

def from_spec(rest): return Fake(rest)
'''


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    "An empty working folder, and the fake backend"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "fake_backend.py").write_text(FAKE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    from selfcorr.models.base import BACKENDS
    monkeypatch.setitem(BACKENDS, "fake", ("fake_backend", "from_spec"))
    monkeypatch.delenv("SELFCORR_QUIET", raising=False)
    return tmp_path


def tell(capsys, *words):
    "Exit code, stdout and stderr of a command"
    code = main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


RUN = ("run", "disc", "--benchmark", "twins", "--task", "word_sorting", "--limit", "3", "-k", "2")


def test_help_is_quick_and_complete(capsys):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", "import sys\nfrom selfcorr.cli import main\nmain(['--help'])\nprint(*sys.modules)"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(sys.modules["selfcorr"].__file__).parents[1])})
    assert time.perf_counter() - start < 5  # 0.1 s alone; a busy machine gets some room, the next line is the real test
    assert not {"pandas", "numpy", "openai", "matplotlib", "asyncio", "papermill"} & set(done.stdout.split())
    for command in ("run", "replay", "reproduce", "report", "cases", "prompts", "runs", "benchmarks", "methods", "models"): assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize("words", [("run",), ("replay",), ("reproduce",), ("report",), ("cases",), ("prompts", "list"), ("prompts", "show"), ("prompts", "import"), ("runs", "list"),
                                   ("runs", "show"), ("runs", "salvage"), ("runs", "pack"), ("benchmarks",), ("methods",), ("models",)])
def test_each_command_has_an_example(capsys, words):
    code, out, _ = tell(capsys, *words, "--help")
    assert code == 0 and f"example:\n  selfcorr {' '.join(words)}" in out


@pytest.mark.parametrize("words, line", [
    (("run", "dsc", "-b", "twins", "-m", "fake"), "unknown method 'dsc' (did you mean disc?)"),
    (("run", "disc", "-b", "twin", "-m", "fake"), "unknown benchmark 'twin' (did you mean twins?)"),
    (("run", "disc", "-b", "twins", "-t", "word_sort", "-m", "fake"), "did you mean word_sorting?"),
    (("run", "disc", "-b", "twins", "-m", "fke"), "unknown model backend 'fke' (did you mean fake?)"),
    (("run", "disc", "-b", "twins"), "no model for the role 'verifier'"),
    (("run", "disc", "-b", "twins", "-m", "fake", "-p", "kk=3"), "unknown parameter 'kk' (did you mean k?)"),
    (("run", "disc", "-b", "twins", "-m", "fake", "-p", "k=many"), "k=many is no int"),
    (("run", "disc", "-b", "twins", "-m", "fake", "-k", "2", "-p", "k=2"), "parameter k is given twice"),
    (("run", "disc", "-b", "twins", "-m", "fake", "--pack", "nope"), "unknown prompt pack 'nope'"),
    (("run", "disc", "-b", "twins", "-m", "fake", "--reuse", "nope"), "there are no runs yet"),
    (("run", "disc", "-b", "twins", "-m", "openai:gpt-4o", "-n", "1"), "OPENAI_API_KEY"),
    (("run", "cove", "-b", "twins", "-m", "fake", "--judge", "fake", "-n", "1"), "method cove has no role 'judge'"),
    (("replay", "nope"), "no run 'nope'"), (("runs", "show", "./nope"), "no run folder"), (("runs", "list", "nope"), "no folder nope"),
    (("runs", "salvage", "nope"), "nothing to salvage"), (("prompts", "show", "selfcorr", "disc/bbm/jdge"), "did you mean disc/bbm/judge?"),
    (("prompts", "import", "nope.md", "--to", "x"), "no file nope.md"), (("benchmarks", "twns"), "did you mean twins?"), (("methods", "dsc"), "did you mean disc?"),
])
def test_a_mistake_is_one_line_and_code_1(capsys, words, line):
    code, out, err = tell(capsys, *words)
    assert code == 1 and line in err and err.startswith("selfcorr: ") and err.count("\n") == 1 and not out


@pytest.mark.parametrize("words, line", [
    (("rn",), "unknown command 'rn' (did you mean run?)"), (("run", "disc"), "required: --benchmark/-b"), (("run", "disc", "-b", "twins", "-k", "0"), "0 is below 1"),
    (("run", "disc", "-b", "twins", "--modle", "x"), "--modle"), (("reproduce", "--jobs", "two"), "'two' is no whole number"), (("reproduce", "-p", "seed"), "not of the form name=value"),
    (("reproduce", "--engine", "kernl"), "did you mean kernel?"), (("prompts", "shw"), "did you mean show?"),
])
def test_a_wrong_command_line_is_one_line_and_code_2(capsys, words, line):
    code, _, err = tell(capsys, *words)
    assert code == 2 and line in err and err.startswith("selfcorr: ") and err.count("\n") == 1


def test_debug_shows_the_traceback(capsys):
    from selfcorr.calls import SelfcorrError
    for words in (("--debug", "replay", "nope"), ("replay", "nope", "--debug")):
        with pytest.raises(SelfcorrError): main(words)


def test_a_run_is_watched_summed_up_and_asks_nothing_twice(capsys):
    code, out, err = tell(capsys, *RUN, "--model", "fake")
    assert code == 0 and "asked 27 calls" in out and "270 tokens in, 135 out, cost unknown; 9 reused" in out
    assert "3 of 3 examples: 27 calls asked" in err and "word_sorting  3" in out and "calls/ex" in out
    code, out, err = tell(capsys, *RUN, "--model", "fake")
    assert code == 0 and "nothing to ask: all 36 calls were answered before" in out


def test_models_by_role_other_folders_and_reuse(capsys, here):
    assert tell(capsys, *RUN, "-m", "fake", "--judge", "fake:other", "--to", "mine")[0] == 0
    _, out, _ = tell(capsys, "runs", "show", "./mine")
    assert "fake/other" in out and "fake/quick" in out and "judge=6" in out
    code, out, _ = tell(capsys, *RUN, "-m", "fake", "--to", "again", "--reuse", "./mine")
    assert code == 0 and "reused" in out and "asked 6 calls" in out  # only the judge is another model
    assert tell(capsys, *RUN, "-m", "fake", "--to", "mine")[0] == 1  # another experiment lives there


def test_waves_give_the_same_outcomes(capsys):
    tell(capsys, *RUN, "-m", "fake", "--to", "a")
    tell(capsys, *RUN, "-m", "fake", "--to", "b", "--waves")
    tell(capsys, "replay", "./a", "--csv", "a.csv")
    tell(capsys, "replay", "./b", "--csv", "b.csv")
    assert Path("a.csv").read_text() == Path("b.csv").read_text()


def test_replay_pack_list_and_show(capsys):
    assert "no runs yet" in tell(capsys, "runs", "list", ".")[1]
    tell(capsys, *RUN, "-m", "fake", "--to", "runs/one")
    code, out, _ = tell(capsys, "replay", "one", "-k", "1", "--csv", "o.csv")
    assert code == 0 and "replayed 3 examples of one from 18 kept calls; nothing was asked" in out and len(Path("o.csv").read_text().splitlines()) == 4
    code, out, _ = tell(capsys, "runs", "pack", "one", "--to", "kept/one")
    assert code == 0 and "kept 36 calls of 3 finished examples out of 3" in out
    _, out, _ = tell(capsys, "runs", "list", ".")
    assert "kept/one" in out and "runs/one" in out and "fake/quick" in out
    assert "18 kept calls" in tell(capsys, "replay", "kept/one", "-k", "1")[1]
    code, _, err = tell(capsys, "replay", "kept/one", "-k", "3")
    assert code == 1 and err.count("\n") == 1  # the third round was never asked
    Path("kept/one/run.json").write_text("{")
    code, _, err = tell(capsys, "replay", "kept/one")
    assert code == 1 and "run.json is damaged" in err and err.count("\n") == 1
    assert "damaged" in tell(capsys, "runs", "list", "kept")[1]


def test_errored_calls_end_with_code_1_and_can_be_asked_again(capsys):
    code, out, err = tell(capsys, *RUN, "-m", "fake:error", "--to", "bad")
    assert code == 1 and "3 examples ended in an error" in err and "--retry-errors" in err
    assert "the server is on fire" in tell(capsys, "runs", "show", "./bad")[1]
    assert "nothing to ask" in tell(capsys, *RUN, "-m", "fake:error", "--to", "bad")[1]
    assert "asked" in tell(capsys, *RUN, "-m", "fake:error", "--to", "bad", "--retry-errors")[1]


def test_a_damaged_store_is_salvaged(capsys):
    tell(capsys, *RUN, "-m", "fake", "--to", "runs/one")
    store = Path("runs/one/outputs.sqlite")
    with sqlite3.connect(store) as db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    assert "is not damaged" in tell(capsys, "runs", "salvage", "runs/one")[2]
    content = bytearray(store.read_bytes())
    size = len(content)
    content[size // 2: size // 2 + 4096] = os.urandom(4096)
    store.write_bytes(content)
    code, out, err = tell(capsys, "runs", "salvage", "runs/one")
    assert code == 0, err
    assert "saved" in out and Path("runs/one/outputs.damaged").exists()
    code, out, _ = tell(capsys, *RUN, "-m", "fake", "--to", "runs/one")
    assert code == 0 and "word_sorting  3" in out
    assert "nothing to ask" in tell(capsys, *RUN, "-m", "fake", "--to", "runs/one")[1]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_what_was_answered_and_goes_on(capsys, here, sign):
    code = "import sys, selfcorr.models.base as b; b.BACKENDS['fake'] = ('fake_backend', 'from_spec'); from selfcorr.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [*RUN, "-m", "fake:slow", "--to", "slow", "--in-flight", "1"]
    paths = os.pathsep.join([str(here / "code"), str(Path(sys.modules["selfcorr"].__file__).parents[1])])
    process = subprocess.Popen([sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    store, end = Path("slow/outputs.sqlite"), time.monotonic() + 20

    def rows():
        if not store.exists(): return 0
        db = sqlite3.connect(store)
        try: return db.execute("SELECT count(*) FROM outputs").fetchone()[0]
        except sqlite3.Error: return 0
        finally: db.close()
    while rows() < 3:
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(sign)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130 and "Traceback" not in err and "everything answered so far is kept in slow" in err
    kept = rows()
    assert 3 <= kept < 36
    code, out, err = tell(capsys, *[w if w != "1" else "16" for w in words])
    assert code == 0 and f"{kept} found" in out, err


def test_listings(capsys):
    assert "word_sorting" in tell(capsys, "benchmarks", "twins")[1]
    assert "verifier, judge, corrector" in tell(capsys, "methods", "disc")[1]
    assert "simulated" in tell(capsys, "models")[1]
    assert "selfcorr" in tell(capsys, "prompts", "list")[1]
    assert "Mistake steps:" in tell(capsys, "prompts", "show", "selfcorr", "disc/bbm/judge")[1]
    assert "mistake_steps" in tell(capsys, "prompts", "show")[1]
    assert tell(capsys, "runs")[0] == 0


def test_cases(capsys):
    pytest.importorskip("selfcorr.benchmarks.cases")
    Path("c.jsonl").write_text(json.dumps(dict(id="a", kind="number", text="#### 72", expect=72)) + "\n" + json.dumps(dict(id="b", kind="number", text="#### 72", expect=73)) + "\n")
    code, out, _ = tell(capsys, "cases", "c.jsonl")
    assert code == 1 and out.splitlines()[-1] == "1 passed, 1 failed"
    code, _, err = tell(capsys, "cases", "nope.jsonl")
    assert code == 1 and err.count("\n") == 1


def test_reproduce_from_the_command_line(capsys, here):
    code, _, err = tell(capsys, "reproduce")
    folder = Path("nbs/papers/demo")
    folder.mkdir(parents=True)
    code, _, err = tell(capsys, "reproduce")
    assert code == 1 and "nothing to reproduce yet" in err
    cells = [dict(cell_type="code", id="p", metadata=dict(tags=["parameters"]), source="seed = 0  # type: int seed", outputs=[], execution_count=None),
             dict(cell_type="code", id="r", metadata={}, source="from selfcorr.reproduce import record\nrecord('mean', seed)", outputs=[], execution_count=None)]
    (folder / "n.ipynb").write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
    (folder / "reproduce.toml").write_text('[[item]]\nid = "table1"\ntitle = "A table"\nnotebook = "n.ipynb"\nvalues = ["mean"]\n')
    code, out, _ = tell(capsys, "reproduce", "--list")
    assert code == 0 and "demo/table1" in out and "not run before" in out and not Path("_reproduced").exists()
    code, out, err = tell(capsys, "reproduce", "demo", "--engine", "in-process", "-p", "seed=2")
    assert code == 0 and "report: _reproduced/report.html" in out and "ok      demo/n" in err
    code, out, _ = tell(capsys, "report")
    assert code == 0 and "report: _reproduced/report.html" in out
    assert tell(capsys, "reproduce", "-p", "sed=2")[::2] == (1, "selfcorr: unknown parameter 'sed' (did you mean seed?); known: seed; none of the chosen notebooks declares it\n")
    (folder / "reproduce.toml").write_text('[[item]]\nid = "table1"\nnotebook = "n.ipynb"\nvalues = ["mean", "median"]\n')
    code, _, err = tell(capsys, "reproduce", "--engine", "in-process")
    assert code == 1 and "selfcorr: demo/n: promised but not made: value median" in err
