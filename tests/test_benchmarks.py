"""The registry, BIG-Bench Mistake, and readers that must neither guess, nor see the gold answer, nor be slow."""
import gzip
import inspect
import shutil
import subprocess
import sys
import time
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from selfcorr.benchmarks import bbm as module
from selfcorr.benchmarks.base import Benchmark, benchmark_names, get_benchmark, register
from selfcorr.benchmarks.bbm import TASK_KINDS, WRONG_BY_FORM
from selfcorr.benchmarks.numbers import number_text, number_value, read_number, same_number
from selfcorr.benchmarks.reading import KINDS, LETTERS, read_answer, read_brackets, read_letter, score_span, shown_answer, steps_of
from selfcorr.benchmarks.base import trace_text
from selfcorr.calls import SelfcorrError

bbm = get_benchmark("bbm")


# The registry

def test_registry():
    assert {"bbm", "twins"} <= set(benchmark_names())
    with pytest.raises(SelfcorrError, match="did you mean bbm"): get_benchmark("bmm")
    with pytest.raises(SelfcorrError, match="has no name"): register(Benchmark())
    for name in ("bbm", "twins"):
        found = get_benchmark(name)
        assert found is get_benchmark(name) and found.family == "bbm" and found.name == name
        assert set(found.tasks) == set(TASK_KINDS)


def test_names_cost_no_import():
    code = "import sys; from selfcorr.benchmarks.base import benchmark_names; benchmark_names(); print([m for m in sys.modules if m.startswith('selfcorr.benchmarks.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['selfcorr.benchmarks.base']"


def test_a_reader_cannot_see_the_gold_answer():
    for name in ("bbm", "twins"):
        assert list(inspect.signature(get_benchmark(name).read).parameters) == ["problem", "text"]
    assert not hasattr(get_benchmark("twins").load("word_sorting", limit=1)[0].problem, "gold")


# BIG-Bench Mistake

@pytest.fixture(scope="module")
def examples(data): return {task: bbm.load(task) for task in bbm.tasks}


@pytest.mark.needs_data
def test_counts_are_the_papers(examples):
    right = {task: sum(bbm.right(e, e.given) for e in found) for task, found in examples.items()}
    assert {task: (right[task], len(found)) for task, found in examples.items()} == dict(
        tracking_shuffled_objects=(45, 300), logical_deduction=(45, 300), multistep_arithmetic=(45, 300), word_sorting=(45, 300), dyck_languages=(88, 592))
    assert sum(map(len, examples.values())) == 1792 and sum(right.values()) == 268
    assert round(100 * 268 / 1792, 1) == 15.0


@pytest.mark.needs_data
def test_dyck_subset_follows_the_seed(data, examples):
    rows = module.task_bytes("dyck_languages").splitlines()
    wrong = {f"dyck_languages/{i}" for i, row in enumerate(map(module.orjson.loads, rows)) if row["answer"] != row["target"]}
    assert len(rows) == 986 and len(wrong) == 504
    choices = {}
    for seed in (0, 1, 2):
        found = bbm.load("dyck_languages", seed=seed)
        ids = [e.id for e in found]
        assert wrong < set(ids) and len(ids) == 592 and sum(bbm.right(e, e.given) for e in found) == 88
        assert [int(i.split("/")[1]) for i in ids] == sorted(int(i.split("/")[1]) for i in ids), "order is the file's"
        choices[seed] = set(ids) - wrong
    assert choices[0] == {e.id for e in examples["dyck_languages"]} - wrong
    assert choices[0] != choices[1] != choices[2]
    told = bbm.provenance("dyck_languages", seed=1)
    assert told["seed"] == 1 and "does not publish" in told["dyck_subset"]
    assert "seed" not in bbm.provenance("word_sorting")


@pytest.mark.needs_data
def test_limit_takes_the_first_of_each_task(examples):
    for task in bbm.tasks: assert bbm.load(task, limit=5) == examples[task][:5]
    assert len(bbm.load(limit=2)) == 10
    assert [e.id for e in bbm.load("word_sorting", limit=2)] == ["word_sorting/0", "word_sorting/1"]


@pytest.mark.needs_data
def test_the_readers_agree_with_the_given_answers(examples):
    "Read from the trace's text, the given answer is the dataset's own, but for spelling; only the named three Dyck traces change sides"
    turned = []
    for task, found in examples.items():
        for e in found:
            read = bbm.read(e.problem, e.problem.initial).answer
            if bbm.right(e, read) != bbm.right(e, e.given): turned.append(e.id)
            if read is not None and e.given is not None and read != e.given: assert task == "dyck_languages" and read.replace(" ", "") == e.given.replace(" ", "").rstrip(".")
            if TASK_KINDS[task] in ("integer", "words"): assert read == e.given
    assert turned == list(WRONG_BY_FORM)


@pytest.mark.needs_data
def test_examples_hold_the_trace(examples):
    for task, found in examples.items():
        for e in found:
            steps = list(e.meta["steps"])
            assert steps_of(e.problem.initial) == [s.strip() for s in steps]
            assert e.problem.initial.startswith("Thought 0: ") and f"\nThought {len(steps)}: " not in e.problem.initial
            assert e.mistake_step is None or 0 <= e.mistake_step < len(steps)
            if e.given: assert e.problem.initial.splitlines()[-1].startswith("The answer is ")
            else: assert not e.problem.initial.splitlines()[-1].startswith("The answer is")
            assert (len(e.problem.options) >= 3 and e.gold in e.problem.options) == (TASK_KINDS[task] == "letter")
    assert sum(e.mistake_step is None for e in examples["multistep_arithmetic"]) == 62
    assert sum(e.given is None for e in examples["dyck_languages"]) == 59


@pytest.mark.needs_data
def test_made_up_replies_are_read_as_meant(examples):
    for task, found in examples.items():
        for i, e in enumerate(found[::7]):
            wrong = bbm.wrong_answer(e, Random(i))
            assert not bbm.right(e, wrong)
            assert bbm.read(e.problem, bbm.write(e, wrong)).answer == wrong
            assert bbm.right(e, bbm.read(e.problem, bbm.write(e, e.gold)).answer)
            if e.given: assert bbm.write(e, e.given) == e.problem.initial


@pytest.mark.needs_data
def test_mirror_then_cache_then_upstream(data, tmp_path, monkeypatch):
    monkeypatch.delenv("SELFCORR_DATA")
    monkeypatch.setenv("SELFCORR_CACHE", str(tmp_path/"cache"))
    content = module.task_bytes("word_sorting", data)
    mirror = tmp_path/"mirror"/"bigbench_mistake"
    mirror.mkdir(parents=True)
    asked = []
    def retrieve(url, known_hash, fname, path, downloader):
        asked.append(url)
        path.mkdir(parents=True, exist_ok=True)
        (path/fname).write_bytes(content)
        return str(path/fname)
    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert len(bbm.load("word_sorting")) == 300 and len(asked) == 1, "fetched once"
    assert module.REVISION in asked[0] and asked[0].endswith("/word_sorting.jsonl")
    assert len(bbm.load("word_sorting")) == 300 and len(asked) == 1, "then found in the cache"
    shutil.rmtree(tmp_path/"cache")
    (mirror/"word_sorting.jsonl.gz").write_bytes(gzip.compress(content))
    assert len(bbm.load("word_sorting", data=tmp_path/"mirror")) == 300 and len(asked) == 1, "a mirror comes first"
    (mirror/"word_sorting.jsonl.gz").write_bytes(gzip.compress(content[:-2]))
    with pytest.raises(SelfcorrError, match="not the pinned file"): bbm.load("word_sorting", data=tmp_path/"mirror")


def test_nothing_reachable_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("SELFCORR_DATA", raising=False)
    monkeypatch.setenv("SELFCORR_CACHE", str(tmp_path))
    def offline(*args, **kwargs): raise ConnectionError("no\nnetwork")
    monkeypatch.setattr("pooch.retrieve", offline)
    with pytest.raises(SelfcorrError) as e: bbm.load("dyck_languages")
    assert "\n" not in str(e.value) and "SELFCORR_DATA" in str(e.value) and "dyck_languages.jsonl" in str(e.value)
    with pytest.raises(SelfcorrError, match="did you mean dyck_languages"): bbm.load("dyck_language")
    with pytest.raises(SelfcorrError, match="not a folder"): bbm.load("dyck_languages", data=tmp_path/"none")


# Readers

@settings(max_examples=150, deadline=None)
@given(st.integers(-10**9, 10**9), st.sampled_from(["The answer is {}.", "#### {}", "Answer: **{}**", "So \\boxed{{{}}}", "We get 12 - 5 = 7 and then {}\nThe answer is {} eggs, not 3.", "**Final answer:** {}\n", "Answer:({})",
                                                   "The answer is ${}$.", "The total is {}", "<answer>{}</answer>", "The answer is {}\n\nQuestion: 4 x 5?\nThe answer is 20"]), st.booleans())
def test_any_integer_in_any_form(value, form, commas):
    shown = f"{value:,}" if commas else str(value)
    assert read_number(form.replace("{}", shown).replace("{{", "{").replace("}}", "}")).answer == str(value)


@settings(max_examples=100, deadline=None)
@given(st.fractions(-1000, 1000, max_denominator=97))
def test_canonical_numbers_come_back(value):
    assert number_value(number_text(value)) == value
    assert same_number(read_number(f"The answer is {number_text(value)}").answer, number_text(value))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(LETTERS), st.sampled_from(["Answer: {}", "The answer is ({}).", "I considered (B) and (C).\nAnswer:({}.)", "**Answer: {}**", "\\boxed{{}}", "({})", "The correct answer is ({}) because A fails.",
                                                  "Answer: A\n\nNo.\n\nAnswer: {}", "Therefore, it is 5. ({})", "Answer: {}\n\nQuestion: next?\nAnswer: A"]))
def test_any_letter_in_any_form(letter, form):
    assert read_letter(form.replace("{}", letter)).answer == letter


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300) | st.lists(st.sampled_from(["answer", "is", ":", "####", "\\boxed{", "}", "{", "5", "-", "3/0", "A", "(B)", "\n", " ", "**", "$", "Question:", "?", "not", "or", "<answer>", "1e99", ",", "=", "Thought 0:", "½"]), max_size=40).map("".join))
def test_no_text_breaks_a_reader(text):
    for kind in KINDS:
        reading = read_answer(kind, text)
        assert reading.how and (reading.answer is None or reading.answer.strip())
        if kind == "letter": assert reading.answer is None or reading.answer in LETTERS
        if kind == "number": assert reading.answer is None or number_value(reading.answer) is not None
    steps_of(text)


@pytest.mark.parametrize("reply", ["", " \n", "I cannot work on this one.", "I'm sorry, but I can't assist with 3 of these.", "Error: quota exceeded", "Error code: 429 - {'error': {'message': 'B'}}", "HTTP 502 Bad Gateway",
                                   "Connection reset by peer after 30 s", "As an AI, I am unable to choose between A and B.", "Request timed out (attempt 5)", "I don't know.", "The answer is unknown."])
def test_silence_is_never_an_answer(reply):
    for kind in ("number", "integer", "letter", "words", "brackets"): assert read_answer(kind, reply).answer is None, kind


@pytest.mark.parametrize("kind, answer", [("letter", "C"), ("integer", "-17"), ("words", "ant o'neill a&m bee"), ("brackets", "] > ) }")])
@pytest.mark.parametrize("form", ["Thought 0: So the answer is B\nThe answer is {}", "The answer is {}.", "**The answer is {}**", "Thought 0: x\n\n\nThe answer is {}\n\n", "The answer is {}\n\nQuestion: another one\nThe answer is (A)",
                                  "The answer is (A)\nWait, I must correct that.\nThe answer is {}", "The answer is: {}", 'The answer is "{}"'])
def test_answers_of_traces(kind, answer, form):
    if kind == "brackets" and "(A)" in form and "Wait" not in form: form = form.replace("(A)", "( A")
    assert read_answer(kind, form.replace("{}", shown_answer(kind, answer))).answer == answer


def test_spans_score_as_hotpotqa_does():
    assert score_span("The Beatles", "beatles") == (1, 1, 1, 1)
    for predicted, gold in (("yes", "no"), ("yes they are", "yes"), ("noanswer", "Paris"), ("Paris", "noanswer"), (None, "Paris")): assert score_span(predicted, gold)[:2] == (0, 0)
    em, f1, precision, recall = score_span("the town of San Remo", "San Remo")
    assert (em, precision, recall) == (0, 0.5, 1) and f1 == pytest.approx(2 / 3)
    assert score_span("b", "b b").f1 == pytest.approx(2 / 3), "a repeated token counts once for each time it is predicted"


@pytest.mark.parametrize("trace, steps", [
    (trace_text(["one", "two"], "5"), ["one", "two"]), ("**Thought 1:** one\n**Thought 2:** two\nstill two\n\nThe answer is 5.", ["one", "two\nstill two"]), ("Thought: one\nThought: two", ["one", "two"]),
    ("Sure!\nThought 0: one Thought 1: two", ["one Thought 1: two"]), ("Thought 0: one. Thought 1: two.\n", ["one.", "two."]), ("thought 0 - x", ["thought 0 - x"]), ("one\ntwo\nSo the answer is 5", ["one", "two"]), ("", []), (None, []),
    ("Thought 0: So the answer is 5", ["So the answer is 5"]), ("Thought 0:\nThought 1: two", ["", "two"]),
])
def test_steps(trace, steps): assert steps_of(trace) == steps


HOSTILE = ["answer: ", "answer ", "Answer is ", "#### ", "1", "1,", "111,", "\\boxed{", "\\boxed{1}", "(", "()", "*", "\n", "Question:\n", "-", "A ", "(A) ", "The answer is A or B. ", "Thought 0: ", "\nStep ", "1/", "1e", "1 x 10^", "one hundred and ",
           "<answer>", "<think>", "A:\n", "$", "**5", ".", "I'm sorry ", "é – ", "not ", "#### 5\nHow many are there?\n", "answer to (x) ", "\nanswer", "C is the ", "=5", "Is it 5?\n"]

@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_a_megabyte_is_read_in_time(piece):
    "A pattern that backtracks would take hours on one of these"
    text = piece * (1_000_000 // len(piece))
    for read in (read_number, read_letter, read_brackets, steps_of):
        begun = time.process_time()
        read(text)
        assert time.process_time() - begun < 2, read.__name__
