"Runs resume after kill -9 to the same result, find their folder again, and say what is wrong in one line."
import json
import os
import signal
import subprocess
import sys
import time
from random import Random

import pandas as pd
import pytest

from selfcorr.calls import SelfcorrError
from selfcorr.engine import ChangedRequest, MissingOutputs
from selfcorr.outcomes import OUTCOME_COLUMNS
from selfcorr.runs import Run, find_runs, keep_run, run_experiment
from selfcorr.store import DamagedStore, Store

RUN = """
import sys
from selfcorr.runs import run_experiment
run_experiment("disc", "twins", "simulated:judge_recall=0.6,judge_false_alarm=0.2", limit=60, to=sys.argv[1], in_flight=8, k=3)
print("finished")
"""
SPEC = "simulated:judge_recall=0.6,judge_false_alarm=0.2"


def started(folder):
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "SELFCORR_QUIET": "1"})


def made(folder, **options): return run_experiment("disc", "twins", SPEC, **{**dict(task="word_sorting", limit=8, to=folder, k=3), **options})


@pytest.fixture(scope="module")
def run(tmp_path_factory): return made(tmp_path_factory.mktemp("run")/"r")


def test_killed_ten_times_and_resumed_equals_unbroken(tmp_path):
    unbroken = run_experiment("disc", "twins", SPEC, limit=60, to=tmp_path/"whole", in_flight=8, k=3).outcomes()
    rng, folder, killed = Random(3), tmp_path/"broken", 0
    for _ in range(10):
        p = started(folder)
        deadline = time.time() + 30
        had = rows(folder)
        while rows(folder) <= had + rng.randrange(5, 150) and p.poll() is None and time.time() < deadline: time.sleep(0.005)
        if p.poll() is None: os.kill(p.pid, signal.SIGKILL); killed += 1
        p.communicate()
    assert killed >= 5, "the run ended too soon for the test to mean anything"
    with pytest.raises(MissingOutputs): Run(folder).outcomes()
    assert started(folder).communicate(timeout=120)[0].strip() == "finished"
    pd.testing.assert_frame_equal(Run(folder).outcomes().drop(columns="latency"), unbroken.drop(columns="latency"))


def rows(folder):
    try:
        with Store(folder/"outputs.sqlite", create=False) as store: return len(store)
    except SelfcorrError: return 0


def test_the_same_line_asks_nothing_again(tmp_path):
    first, again = (run_experiment("cove", "twins", "simulated", task="dyck_languages", limit=4, root=tmp_path) for _ in range(2))
    assert first.folder == again.folder and len(find_runs(tmp_path)) == 1
    before = rows(first.folder)
    wider = run_experiment("cove", "twins", "simulated", task="dyck_languages", limit=6, root=tmp_path)
    assert wider.folder == first.folder and rows(first.folder) > before
    assert len(wider.outcomes()) == 6 and len(wider.outcomes(limit=4)) == 4
    other = run_experiment("cove", "twins", "simulated", task="dyck_languages", limit=4, root=tmp_path, sampling=dict(temperature=1))
    assert other.folder != first.folder


def test_outcome_table_has_the_stated_columns(run):
    outcomes = run.outcomes()
    assert list(outcomes.columns) == OUTCOME_COLUMNS and len(outcomes) == 8
    assert (outcomes.calls == outcomes[[c for c in OUTCOME_COLUMNS if c.startswith("calls_")]].sum(axis=1)).all()
    assert outcomes.attrs["simulated"] is True and run.simulated is True
    assert outcomes.initial_right.sum() + (outcomes.initial_reading == "wrong").sum() == 8


def test_no_gate_reuses_disc_and_says_so(run, tmp_path):
    ablation = run_experiment("disc_no_gate", "twins", SPEC, task="word_sorting", limit=8, to=tmp_path/"n", reuse=[run])
    summary = ablation.summary()
    assert summary["reused"] >= 8 and summary["calls"] > summary["reused"]
    with ablation.outputs() as outputs: assert {s.reply.reused for s in outputs} == {None, run.name}


def test_a_partial_run_is_never_silently_short(run, tmp_path):
    with Store(run.folder/"outputs.sqlite") as store: assert len(store) > 20
    broken = made(tmp_path/"b")
    with Store(broken.folder/"outputs.sqlite") as store: store.db.execute("DELETE FROM outputs WHERE example='word_sorting/3' AND role='judge'")
    with pytest.raises(MissingOutputs, match="word_sorting/3 round 0 judge"): Run(broken.folder).outcomes()
    partial = Run(broken.folder).outcomes(partial=True)
    assert len(partial) == 7 and partial.attrs["unfinished"] == ["word_sorting/3"]
    kept = keep_run(broken, tmp_path/"kept")
    assert (kept.manifest["asked_for"], kept.manifest["finished"], len(kept.outcomes())) == (8, 7, 7)
    assert len(made(tmp_path/"b").outcomes()) == 8


def test_changed_words_are_noticed(run, tmp_path):
    kept = keep_run(run, tmp_path/"kept")
    manifest = json.loads((kept.folder/"run.json").read_text())
    manifest["parts"]["judge"]["params"]["max_tokens"] = 7
    (kept.folder/"run.json").write_text(json.dumps(manifest))
    with pytest.raises(ChangedRequest, match="max_tokens was 1024 and is 7"): Run(kept.folder).outcomes()
    assert len(Run(kept.folder).outcomes(accept_changed=True)) == 8


def test_kept_runs_hold_no_prompts_unless_told(run, tmp_path):
    with keep_run(run, tmp_path/"a").outputs() as outputs: assert all(s.messages is None for s in outputs)
    with keep_run(run, tmp_path/"b", keep_messages=True).outputs() as outputs: assert all("content" in s.messages for s in outputs)


@pytest.mark.parametrize("harm, says", [
    (lambda f: (f/"run.json").write_text("{"), "run.json is damaged"),
    (lambda f: (f/"run.json").write_text("{}"), "run.json is damaged"),
    (lambda f: (f/"run.json").unlink(), "has no run.json"),
    (lambda f: (f/"outputs.sqlite").unlink(), "holds no raw outputs"),
    (lambda f: (f/"outputs.sqlite").write_bytes(b"junk" * 5000), "is damaged"),
])
def test_damaged_folders_say_what_to_do(tmp_path, harm, says):
    folder = made(tmp_path/"r").folder
    for extra in folder.glob("outputs.sqlite-*"): extra.unlink()
    harm(folder)
    with pytest.raises((SelfcorrError, DamagedStore), match=says) as e: Run(folder).outcomes()
    assert "\n" not in str(e.value)


def test_a_folder_with_another_experiment_is_refused(run):
    with pytest.raises(SelfcorrError, match="another experiment"): made(run.folder, k=2)


def test_manifest_holds_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-4711")
    from selfcorr.runs import Experiment, open_run
    pytest.importorskip("openai")
    opened, _, _ = open_run(Experiment("disc", "twins", {"*": "openai:gpt-4o"}, task="word_sorting"), limit=1, to=tmp_path/"r")
    text = (opened.folder/"run.json").read_text()
    assert "canary" not in text and opened.manifest["parts"]["judge"]["params"] == dict(max_tokens=1024, temperature=0, seed=0)


def test_two_processes_never_lower_the_limit(tmp_path):
    from selfcorr.experiments import Experiment
    from selfcorr.runs import execute, open_run
    experiment = Experiment("disc", "twins", {"*": SPEC}, task="word_sorting", params=dict(k=2))
    narrow, wide = (open_run(experiment, limit=n, to=tmp_path/"r") for n in (3, 6))
    execute(*wide); execute(*narrow)
    assert Run(tmp_path/"r").limit == 6 and len(Run(tmp_path/"r").outcomes()) == 6


def test_a_kept_run_is_not_overwritten_nor_frozen(run, tmp_path):
    kept = keep_run(run, tmp_path/"kept")
    with pytest.raises(SelfcorrError, match="holds a kept run already"): keep_run(run, tmp_path/"kept")
    with pytest.raises(SelfcorrError, match="--reuse"): made(kept.folder, limit=9)
    assert len(made(kept.folder, limit=4).outcomes(limit=4)) == 4
    broken = made(tmp_path/"b")
    with Store(broken.folder/"outputs.sqlite") as store: store.db.execute("DELETE FROM outputs WHERE example='word_sorting/3'")
    with pytest.raises(SelfcorrError, match="cannot go on"): keep_run(broken, broken.folder)


def test_silent_damage_is_noticed(run, tmp_path):
    kept = keep_run(run, tmp_path/"kept")
    other = keep_run(made(tmp_path/"o", k=2), tmp_path/"other")
    (kept.folder/"outputs.parquet").write_bytes((other.folder/"outputs.parquet").read_bytes())
    with pytest.raises(DamagedStore, match="another SHA-256"): Run(kept.folder).outcomes()
    live = made(tmp_path/"l")
    with Store(live.folder/"outputs.sqlite") as store: store.db.execute("UPDATE outputs SET text='So mistakes' WHERE role='judge' AND example='word_sorting/2'")
    with pytest.raises(DamagedStore, match="is not what was written"): Run(live.folder).outcomes()


def test_a_lost_manifest_does_not_strand_the_raw_outputs(tmp_path):
    first = made(tmp_path/"r")
    before = rows(first.folder)
    (first.folder/"run.json").unlink(); (first.folder/".run.json.123.tmp").write_text("x")
    assert len(made(tmp_path/"r").outcomes()) == 8 and rows(first.folder) == before


def test_two_models_of_one_name_are_refused(tmp_path):
    pytest.importorskip("openai")
    with pytest.raises(SelfcorrError, match="go by the name"):
        made(tmp_path/"r", models=dict(verifier="openai:m@http://127.0.0.1:9/v1", judge="openai:m@http://127.0.0.1:10/v1"))


@pytest.mark.parametrize("change", [dict(limit="5"), dict(counts=None), dict(only=5), dict(pack=None), dict(parts=[]), dict(simulated="no"), dict(experiment=dict(method=3))])
def test_manifests_of_the_wrong_shape_are_one_line(run, tmp_path, change):
    kept = keep_run(run, tmp_path/"kept")
    manifest = {**json.loads((kept.folder/"run.json").read_text()), **change}
    (kept.folder/"run.json").write_text(json.dumps(manifest))
    with pytest.raises(SelfcorrError, match="is damaged"): Run(kept.folder)
