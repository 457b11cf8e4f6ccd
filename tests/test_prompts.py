"Packs are checked when they are loaded, and values are never read as templates."
import os
import shutil
from pathlib import Path

import pytest

from selfcorr.calls import SelfcorrError
from selfcorr.prompts import PACKS, STAGES, Pack, get_pack, import_disc, read_template

PAPER = Path(os.environ.get("SELFCORR_PAPERS", "."))/"disc.md"


def copied(tmp_path): return Path(shutil.copytree(PACKS/"selfcorr", tmp_path/"pack"))


def test_the_shipped_pack_covers_every_method_and_both_families():
    from selfcorr.methods.base import get_method, method_names
    for method in method_names():
        for family in ("bbm", "default"): assert get_pack().prompts(get_method(method).pack_method, family).by_stage


def test_the_hash_tells_words_apart(tmp_path):
    folder = copied(tmp_path)
    assert Pack(folder).hash == get_pack().hash
    path = folder/"disc"/"bbm"/"plan.txt"
    path.write_text(path.read_text().replace("one thing", "a single thing"))
    assert Pack(folder).hash != get_pack().hash


@pytest.mark.parametrize("harm, says", [
    (lambda t: t.replace("{response}", "{respnse}"), "did you mean response"),
    (lambda t: t.replace("{response}", "{ response }"), "unknown placeholder"),
    (lambda t: t.replace("{response}", "{response!r}"), "unknown placeholder"),
    (lambda t: t + "{Gold}", "unknown placeholder"),
    (lambda t: t.replace("{response}", "it"), "lacks the placeholder {response}"),
    (lambda t: t.replace("form: mistake_steps", "form: trace"), "cannot have the form trace"),
    (lambda t: t.replace("form: mistake_steps", "form: mistake_step"), "did you mean mistake_steps"),
    (lambda t: t.replace("form:", "colour:"), "header line"),
    (lambda t: t.replace("\n---\n", "\n"), "no header"),
    (lambda t: "", "no header"),
])
def test_faulty_templates_are_one_line_at_load(tmp_path, harm, says):
    folder = copied(tmp_path)
    path = folder/"disc"/"bbm"/"judge.txt"
    path.write_text(harm(path.read_text()))
    with pytest.raises(SelfcorrError) as e: Pack(folder)
    assert says in str(e.value) and "disc/bbm/judge" in str(e.value) and "\n" not in str(e.value)


def test_odd_files_in_a_pack(tmp_path):
    folder = copied(tmp_path)
    (folder/"disc"/"bbm"/"._judge.txt").write_bytes(b"\0junk")
    (folder/"disc"/"bbm"/"judge.txt").write_bytes(b"\xef\xbb\xbf" + (folder/"disc"/"bbm"/"judge.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert Pack(folder).prompts("disc", "bbm").judge.form == "mistake_steps"
    (folder/"disc"/"bbm"/"plan.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SelfcorrError, match="UTF-8"): Pack(folder)


@pytest.mark.parametrize("value", ["{question}", "{{response}}", "{0} {} %s $x", "{" * 1000, "\\1 \\g<0>"])
def test_braces_in_values_stay(value):
    prompt = get_pack().prompts("disc", "bbm").judge(question=value, response=value, verification_results=value, context="")
    assert prompt.count(value) >= 3 if value != "{" * 1000 else prompt.count("{") == 3000


def test_missing_values_and_stages_are_named():
    prompts = get_pack().prompts("disc", "bbm")
    with pytest.raises(SelfcorrError, match="needs a value for 'response'"): prompts.judge(question="q", verification_results="v")
    with pytest.raises(SelfcorrError, match="lack the stage 'revise'"): prompts.revise


@pytest.mark.skipif(not PAPER.is_file(), reason="SELFCORR_PAPERS is not set: the folder that holds the paper's text disc.md")
def test_the_papers_own_words_become_a_pack(tmp_path):
    pack = import_disc(PAPER, tmp_path/"disc")
    prompts = pack.prompts("disc", "bbm")
    assert sorted(prompts.by_stage) == ["correct", "evidence", "judge", "plan"] and pack.hash != get_pack().hash
    judge = prompts.judge(question="Q", response="R", verification_results="V")
    assert '\n- "No mistakes"\n' in judge and "\nExamples:\n" in judge and "isto" not in pack.texts["disc/bbm/plan"]
    assert import_disc(PAPER, tmp_path/"again").hash == pack.hash
    with pytest.raises(SelfcorrError, match="exists already"): import_disc(PAPER, tmp_path/"disc")


def test_a_failed_import_leaves_nothing(tmp_path):
    (tmp_path/"paper.md").write_text("You are x\n" * 20_000 + "Figure 2: a caption\n")
    with pytest.raises(SelfcorrError, match="Figure 3"): import_disc(tmp_path/"paper.md", tmp_path/"pack")
    assert not (tmp_path/"pack").exists()
