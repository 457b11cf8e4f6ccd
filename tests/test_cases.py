"""The answer readers against files of replies: our own always, the shared one where it is there."""
import json
import os
from pathlib import Path

import pytest

from selfcorr.benchmarks.cases import KINDS, main, read_cases, run_case
from selfcorr.calls import SelfcorrError

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT/"data"/"cases"/"answers.jsonl"
SHARED = Path(os.environ.get("SELFCORR_CASES") or ROOT.parent/"shared"/"cases"/"answers.jsonl")
if SHARED.is_dir(): SHARED = SHARED/"answers.jsonl"


def wrong_reading(case):
    "Another expectation, which the same reply must fail"
    if case.kind == "span": return dict(case.expect, em=1 - case.expect["em"])
    if case.expect is None: return {"number": 0, "integer": "0", "letter": "A"}.get(case.kind, "none")
    return None


@pytest.mark.parametrize("case", read_cases(OWN), ids=lambda c: c.id)
def test_own_case(case):
    result = run_case(case)
    assert result.passed, str(result)
    assert not run_case(case._replace(expect=wrong_reading(case))).passed


def test_own_cases_cover_all_kinds():
    cases = read_cases(OWN)
    assert len(cases) >= 40
    assert {c.kind for c in cases} == set(KINDS)
    assert all(c.why for c in cases)
    assert len({c.id for c in cases}) == len(cases)
    for kind in ("number", "letter", "words", "brackets"): assert any(c.expect is None for c in cases if c.kind == kind)


@pytest.mark.skipif(not SHARED.is_file(), reason=f"no {SHARED}; set SELFCORR_CASES to a file of cases")
def test_shared_cases():
    results = [run_case(case) for case in read_cases(SHARED)]
    assert not [str(r) for r in results if not r.passed]
    assert len(results) >= 20


def written(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = dict(id="good", kind="number", text="#### 72", expect=72)


def test_counts_and_exit_codes(tmp_path, capsys):
    assert main(written(tmp_path/"c.jsonl", GOOD, GOOD)) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"
    bad = dict(GOOD, id="bad", expect=73, why="two\nlines")
    assert main(written(tmp_path/"c.jsonl", GOOD, bad)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 1 failed" and len(lines) == 2
    for part in ("bad", "number", "72", "73", "two lines"): assert part in lines[0]
    assert main(tmp_path/"none.jsonl") == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1


@pytest.mark.parametrize("line, part", [
    ('{"kind": "number"', "not JSON"), ("[]", "must be an object"), (dict(kind="number", text="5"), "lacks expect"), (dict(GOOD, kind="letters"), "did you mean letter"),
    (dict(GOOD, kind=None), "unknown kind"), (dict(GOOD, text=5), "text must be a string"), (dict(GOOD, expect="five"), "must be a number"), (dict(GOOD, expect=True), "must be a number"),
    (dict(GOOD, kind="letter"), "must be text"), (dict(GOOD, kind="span"), "gold, em and f1"), (dict(GOOD, kind="span", expect=dict(gold="a", em="1", f1=1)), "must be numbers"), (dict(GOOD, options=["ab"]), "single letters"),
])
def test_a_malformed_line_is_named(tmp_path, line, part):
    with pytest.raises(SelfcorrError) as e: read_cases(written(tmp_path/"c.jsonl", GOOD, "", line))
    assert "line 3" in str(e.value) and part in str(e.value) and "\n" not in str(e.value)


def test_no_answer_is_not_a_wrong_answer(tmp_path):
    none, zero = dict(GOOD, expect=None), dict(GOOD, text="I cannot work on that.", expect=0)
    assert not any(run_case(case).passed for case in read_cases(written(tmp_path/"c.jsonl", none, zero)))


def test_unreadable_files(tmp_path):
    (tmp_path/"binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path/"binary.jsonl", tmp_path, written(tmp_path/"empty.jsonl", "", "")):
        with pytest.raises(SelfcorrError) as e: read_cases(path)
        assert "\n" not in str(e.value)
