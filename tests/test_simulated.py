"The simulated agent: it does what was stated, the same way in any order, in any process, through every method."
import asyncio
import os
import subprocess
import sys
from math import sqrt

import pytest

from selfcorr.benchmarks.base import get_benchmark
from selfcorr.calls import Ask, SelfcorrError, request_for
from selfcorr.forms import FORMS, read_critique_and_trace, read_mistake_binary, read_mistake_steps, read_questions, says_correct
from selfcorr.methods.base import get_method, method_names
from selfcorr.models.base import get_model
from selfcorr.models.simulated import FAILS, HOLDS, Simulated
from selfcorr.prompts import get_pack

twins = get_benchmark("twins")


@pytest.fixture(scope="module")
def examples(): return twins.load(limit=20)


def request(agent, example, form, role, *, round=0, index=0, sample=0, about=None, messages="…", **params):
    about = example.problem.initial if about is None else about
    return request_for(Ask(role, messages, round, index, sample, form, about), example.id, agent.name, params)


def play(agent, example, method, **params):
    "One example through a method, with no driver: the trajectory and all requests"
    spec = get_method(method)
    run = spec.start(example.problem, get_pack().prompts(spec.pack_method, "bbm"), spec.params(params))
    requests, send = [], None
    while True:
        try: asked = run.send(send)
        except StopIteration as end: return end.value, requests
        batch = [request_for(a, example.id, agent.name) for a in (asked if isinstance(asked, list) else [asked])]
        requests += batch
        replies = [agent.reply(r) for r in batch]
        send = replies if isinstance(asked, list) else replies[0]


def right(example, text):
    answer = example.given if text == example.problem.initial else twins.read(example.problem, text).answer
    return twins.right(example, answer)


def near(share, expected, n): return abs(share - expected) < 4.5 * sqrt(max(expected * (1 - expected), 1e-4) / n)


def test_every_probability_is_what_was_stated(examples):
    c = dict(generator=0.35, verifier=0.8, judge_recall=0.6, judge_false_alarm=0.2, corrector=0.45, corrector_break=0.25)
    agent, n = Simulated(twins, examples, c, seed=5), 3000
    wrong = next(e for e in examples if not right(e, e.problem.initial))
    good = next(e for e in examples if right(e, e.problem.initial))
    def share(example, form, role, said): return sum(said(agent.reply(request(agent, example, form, role, index=i)).text) for i in range(n)) / n
    assert near(share(wrong, "trace", "generator", lambda t: right(wrong, t)), 0.35, n)
    assert near(share(wrong, "evidence", "verifier", FAILS.__eq__), 0.8, n)
    assert near(share(good, "evidence", "verifier", HOLDS.__eq__), 0.8, n)
    for form, read in (("mistake_steps", read_mistake_steps), ("mistake_binary", read_mistake_binary)):
        assert near(share(wrong, form, "judge", lambda t: read(t).mistake), 0.6, n)
        assert near(share(good, form, "judge", lambda t: read(t).mistake), 0.2, n)
    assert near(share(wrong, "feedback", "judge", lambda t: not says_correct(t)), 0.6, n)
    assert near(share(wrong, "trace", "corrector", lambda t: right(wrong, t)), 0.45, n)
    assert near(share(good, "trace", "corrector", lambda t: not right(good, t)), 0.25, n)
    assert near(share(wrong, "critique_and_trace", "corrector", lambda t: right(wrong, read_critique_and_trace(t)[1])), 0.6 * 0.45, n)


def test_misbehaviour_is_marked(examples):
    agent, n = Simulated(twins, examples, dict(refusal=0.2, truncation=0.3, unreadable=0.1)), 3000
    replies = [agent.reply(request(agent, examples[0], "mistake_steps", "judge", index=i)) for i in range(n)]
    for finish, expected in (("refusal", 0.2), ("length", 0.3), ("stop", 0.5)): assert near(sum(r.finish == finish for r in replies) / n, expected, n)
    assert all(r.text == "" and r.refusal and not r.ok for r in replies if r.finish == "refusal")
    assert near(sum(r.finish == "stop" and read_mistake_steps(r.text).mistake is None for r in replies) / n, 0.1, n)
    nothing = Simulated(twins, examples, dict(unreadable=1))
    for form, role in (("questions", "verifier"), ("mistake_steps", "judge"), ("mistake_binary", "judge"), ("trace", "corrector")):
        text = nothing.reply(request(nothing, examples[0], form, role)).text
        assert not read_questions(text) and read_mistake_steps(text).mistake is None and read_mistake_binary(text).mistake is None
    assert all(twins.read(e.problem, nothing.reply(request(nothing, e, "trace", "corrector")).text).answer is None for e in examples)


def test_evidence_moves_a_judge_that_listens(examples):
    wrong = next(e for e in examples if not right(e, e.problem.initial))
    deaf, listens = Simulated(twins, examples, dict(judge_recall=0.5)), Simulated(twins, examples, dict(judge_recall=0.5, judge_pull=0.5))
    def says(agent, messages): return sum(agent.reply(request(agent, wrong, "mistake_steps", "judge", index=i, messages=messages)).text != "No mistakes" for i in range(400)) / 400
    assert says(listens, FAILS * 3) == 1 and says(listens, HOLDS * 3) == 0
    assert says(deaf, FAILS * 3) == says(deaf, HOLDS * 3) == says(listens, "no evidence") == says(listens, HOLDS + FAILS)


@pytest.mark.parametrize("method", method_names())
def test_every_method_runs_and_is_the_same_again(examples, method):
    agent, again = Simulated(twins, examples, seed=2), Simulated(twins, examples[::-1], seed=2)
    first = {e.id: play(agent, e, method) for e in examples}
    second = {e.id: play(again, e, method) for e in examples[::-1]}
    assert first == second
    assert not any({"plan_unread", "verdict_unread", "correction_empty", "correction_off_form"} & set(t.notes) for t, _ in first.values())


def test_equal_requests_are_about_the_same_text(examples):
    "A live run answers an equal request from what it has, so it must never be about another answer"
    agent = Simulated(twins, examples, dict(judge_recall=1, judge_false_alarm=1, corrector=0.5, corrector_break=0.5))
    for e in examples:
        about = {}
        for r in play(agent, e, "disc", k=6)[1]: assert about.setdefault(r.key, r.about) == r.about


def test_a_perfect_agent_mends_all_and_a_false_alarm_breaks(examples):
    perfect = Simulated(twins, examples, dict(judge_recall=1, judge_false_alarm=0, corrector=1, corrector_break=0))
    careless = Simulated(twins, examples, dict(judge_recall=0, judge_false_alarm=1, corrector_break=1))
    for e in examples:
        done, _ = play(perfect, e, "disc")
        assert right(e, done.final) and done.stop == "no_mistake" and len(done.rounds) == (1 if right(e, e.problem.initial) else 2)
        if right(e, e.problem.initial): assert not right(e, play(careless, e, "disc", k=1)[0].final)


def test_more_competence_is_never_worse_at_the_same_address(examples):
    weak, strong = Simulated(twins, examples, dict(generator=0.3)), Simulated(twins, examples, dict(generator=0.7))
    pairs = [[right(e, a.reply(request(a, e, "trace", "generator", sample=s)).text) for a in (weak, strong)] for e in examples for s in range(3)]
    assert all(s >= w for w, s in pairs) and any(s > w for w, s in pairs)


def test_seed_sample_and_request_seed_give_other_luck(examples):
    agent = Simulated(twins, examples)
    def answers(agent, **k): return [agent.reply(request(agent, e, "evidence", "verifier", **k)).text for e in examples]
    base = answers(agent)
    assert base == answers(agent, temperature=0, max_tokens=1)  # accepted, without effect
    for other in (answers(agent, sample=1), answers(agent, round=1), answers(agent, index=1), answers(agent, seed=1), answers(Simulated(twins, examples, seed=1))):
        assert other != base


def test_the_answer_is_not_told_by_verifier_and_judge(examples):
    "The gold answer is replaced by a canary; only a trace may state it"
    from dataclasses import replace
    marked = [replace(e, gold="CANARY") for e in examples]
    agent = Simulated(twins, marked, dict(generator=0, corrector=0, corrector_break=0))
    for e in marked:
        for form in FORMS:
            for role in ("verifier", "judge"):
                if form not in ("trace", "critique_and_trace"): assert "CANARY" not in agent.reply(request(agent, e, form, role)).text
        for method in ("disc", "cove", "self_refine"):
            assert not any("CANARY" in str(r.messages) for r in play(agent, e, method)[1])


def test_another_process_gives_the_same(examples, root):
    code = ("from selfcorr.benchmarks.base import get_benchmark\nfrom selfcorr.calls import Ask, request_for\nfrom selfcorr.models.simulated import Simulated\n"
            "t = get_benchmark('twins'); e = t.load(limit=20); a = Simulated(t, e, seed=9)\n"
            "print([a.reply(request_for(Ask('generator', '…', form='trace'), x.id, a.name)).text for x in e[::9]])")
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True, env={**os.environ, "PYTHONHASHSEED": s}).stdout for s in "12"}
    agent = Simulated(twins, examples, seed=9)
    assert said == {str([agent.reply(request(agent, e, "trace", "generator", about="")).text for e in examples[::9]]) + "\n"}


def test_the_name_says_simulated(examples):
    agent = get_model("simulated:verifier=0.9,seed=4", benchmark="twins", examples=examples)
    assert agent.name == "simulated/verifier=0.9,seed=4" and agent.simulated and agent.price_name is None
    reply = asyncio.run(agent.ask(request(agent, examples[0], "evidence", "verifier", messages="12345")))
    assert (reply.model, reply.latency, reply.tokens_in, reply.tokens_out) == (agent.name, 0.0, 2, -(-len(reply.text) // 4))
    told = agent.describe()
    assert told["simulated"] is True and told["competence"]["verifier"] == 0.9 and "estimated" in told["tokens"]


@pytest.mark.parametrize("spec, says", [
    ("simulated:verifer=0.9", "did you mean verifier"), ("simulated:verifier=2", "from 0 to 1"), ("simulated:verifier=nan", "from 0 to 1"),
    ("simulated:verifier=high", "cannot read"), ("simulated:0.9", "cannot read"), ("simulated:refusal=0.7,truncation=0.7", "must not exceed 1"),
    ("simulated:seed=1.5", "cannot read"),
])
def test_wrong_specifications_give_one_line(examples, spec, says):
    with pytest.raises(SelfcorrError, match=says) as e: get_model(spec, benchmark="twins", examples=examples)
    assert "\n" not in str(e.value)


def test_what_it_cannot_know_is_an_error(examples):
    with pytest.raises(SelfcorrError, match="needs the answers"): get_model("simulated")
    agent = Simulated(twins, examples[:1])
    with pytest.raises(SelfcorrError, match="holds no answer to example"): agent.reply(request(agent, examples[1], "evidence", "verifier"))
    with pytest.raises(SelfcorrError, match="did you mean evidence"): agent.reply(request(agent, examples[0], "evidense", "verifier"))


@pytest.mark.needs_data
def test_the_real_benchmark_too(data):
    bbm = get_benchmark("bbm")
    examples = [e for task in bbm.tasks for e in bbm.load(task, limit=8, data=data)]
    agent = Simulated(bbm, examples, dict(corrector=1, corrector_break=1))
    for e in examples:
        was = bbm.right(e, e.given)
        text = agent.reply(request(agent, e, "trace", "corrector")).text
        assert bbm.right(e, bbm.read(e.problem, text).answer) != was
