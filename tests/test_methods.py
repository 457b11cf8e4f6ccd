"Methods see the question and their own text, never the gold answer; and they keep to their contracts."
import asyncio
import json
from random import Random

import pytest

from selfcorr.benchmarks.base import Example
from selfcorr.calls import Problem, Reply, SelfcorrError
from selfcorr.engine import Answerer, Part, replay, run, waves
from selfcorr.methods.base import get_method, method_names
from selfcorr.prompts import get_pack
from selfcorr.store import Store

CANARY = "CANARY-7f3a91"
METHODS = method_names()


class Fickle:
    "A backend that answers in form, differently each time, and records what it was sent"
    name = "fickle"

    def __init__(self): self.sent = []

    async def ask(self, r):
        self.sent.append(r)
        rng = Random(r.key)
        text = dict(questions="1. First?\n2. Second?\n3. Third?", evidence="It is so.",
                    mistake_steps=rng.choice(["No mistakes", "Mistake steps: 1", "Mistake steps: 0, 1", "Mistake steps: 0", "What?"]),
                    mistake_binary=rng.choice(["No_Mistake\nfine", "Mistake\nbad", "?"]), rationale="The sum is off.",
                    feedback=rng.choice(["it is correct", "Step 1 is wrong."]),
                    critique_and_trace="Critique: no\nSolution: Thought 0: b\nThe answer is 3").get(r.form, f"Thought 0: {rng.random()}\nThe answer is 3")
        return Reply(text, finish=rng.choice(["stop", "stop", "stop", "length"]), model="fickle-1", tokens_in=3, tokens_out=2)

    async def ask_many(self, requests): return [await self.ask(r) for r in requests]


def examples(given=True, n=12):
    return [Example(Problem(f"t/{i}", "canary", "t", f"What is {i} + 1?", context="some text",
                            initial=f"Thought 0: {i} + 1 = 3\nThe answer is 3" if given else None), CANARY, given="3") for i in range(n)]


def played(method, given, family="bbm", driver=run, tmp=None, params=None, n=12):
    spec, model = get_method(method), Fickle()
    parts = {r: Part("fickle", dict(temperature=0)) for r in ("generator", "verifier", "judge", "corrector")}
    prompts = get_pack().prompts(spec.pack_method, family)
    problems, params = [e.problem for e in examples(given, n)], spec.params(params or {})
    with Store(tmp/"o.sqlite") as store:
        asyncio.run(driver(spec, params, problems, prompts, Answerer(parts, {"fickle": model}, store)))
        episodes = list(replay(spec, params, problems, prompts, parts, store))
        rows = {s.address: (s.key, s.reply.text) for s in store}
    return model, episodes, rows


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bbm", "default"])
@pytest.mark.parametrize("given", [True, False])
def test_no_request_holds_the_gold_answer(method, family, given, tmp_path):
    model, episodes, _ = played(method, given, family, tmp=tmp_path)
    assert len(model.sent) >= 12, "the method asked nothing, so the search proves nothing"
    for r in model.sent:
        assert CANARY not in json.dumps(r.messages) and CANARY not in r.about and CANARY not in str(r.params)
    assert {e.problem.id for e in episodes} == {e.id for e in examples()}


def test_the_search_would_find_a_leak():
    leaky = Problem("t/0", "canary", "t", f"What is 1 + 1? {CANARY}", initial="Thought 0: x\nThe answer is 3")
    ask = next(get_method("disc").start(leaky, get_pack().prompts("disc", "bbm"), dict(k=1)))
    assert CANARY in ask.messages


def test_a_problem_has_no_field_for_gold():
    assert set(Problem.__slots__) == {"id", "benchmark", "task", "question", "context", "initial", "options"}
    with pytest.raises(AttributeError): examples()[0].problem.gold


@pytest.mark.parametrize("method", METHODS)
def test_waves_and_live_write_the_same_raw_outputs(method, tmp_path):
    (tmp_path/"a").mkdir(); (tmp_path/"b").mkdir()
    _, live, rows_live = played(method, False, tmp=tmp_path/"a", driver=run)
    _, wave, rows_wave = played(method, False, tmp=tmp_path/"b", driver=waves)
    assert rows_live == rows_wave and len(rows_live) >= 12
    assert live == wave


def test_k_sweep_from_one_run(tmp_path):
    "K=3 inside a K=8 run equals a K=3 run, call for call"
    (tmp_path/"a").mkdir(); (tmp_path/"b").mkdir()
    spec = get_method("disc")
    parts = {r: Part("fickle", dict(temperature=0)) for r in ("verifier", "judge", "corrector")}
    prompts, problems = get_pack().prompts("disc", "bbm"), [e.problem for e in examples(n=40)]
    _, _, short = played("disc", True, tmp=tmp_path/"a", params=dict(k=3), n=40)
    played("disc", True, tmp=tmp_path/"b", params=dict(k=8), n=40)
    with Store(tmp_path/"b"/"o.sqlite") as store:
        inside = list(replay(spec, dict(k=3), problems, prompts, parts, store))
        longer = list(replay(spec, dict(k=8), problems, prompts, parts, store))
    with Store(tmp_path/"a"/"o.sqlite") as store: alone = list(replay(spec, dict(k=3), problems, prompts, parts, store))
    assert inside == alone
    assert max(len(e.trajectory.rounds) for e in longer) > 3, "no example went beyond round 3, so the sweep proves nothing"
    assert sum(len(e.calls) for e in inside) == len(short)


def test_a_refused_correction_leaves_the_answer_alone(tmp_path):
    class Refuser(Fickle):
        async def ask(self, r):
            if r.address.role == "corrector": return Reply("", finish="refusal", refusal="no")
            return Reply({"questions": "1. a?\n2. b?\n3. c?", "mistake_steps": "Mistake steps: 0"}.get(r.form, "x"))
    spec = get_method("disc")
    parts = {r: Part("fickle", {}) for r in ("verifier", "judge", "corrector")}
    prompts, problem = get_pack().prompts("disc", "bbm"), examples()[0].problem
    with Store(tmp_path/"o.sqlite") as store:
        asyncio.run(run(spec, dict(k=2), [problem], prompts, Answerer(parts, {"fickle": Refuser()}, store)))
        episode, = replay(spec, dict(k=2), [problem], prompts, parts, store)
    assert episode.trajectory.final == problem.initial and episode.trajectory.stop == "budget"
    assert episode.trajectory.notes.count("correction_empty") == 2


def test_an_errored_call_ends_its_example_and_only_that(tmp_path):
    class Faulty(Fickle):
        async def ask(self, r):
            if r.address.example == "t/3" and r.address.role == "judge": return Reply("", finish="error", error="server said 500")
            return await super().ask(r)
    spec, parts = get_method("disc"), {r: Part("fickle", dict(temperature=0)) for r in ("verifier", "judge", "corrector")}
    prompts, problems = get_pack().prompts("disc", "bbm"), [e.problem for e in examples()]
    with Store(tmp_path/"o.sqlite") as store:
        tally = asyncio.run(run(spec, dict(k=2), problems, prompts, Answerer(parts, {"fickle": Faulty()}, store)))
        episodes = list(replay(spec, dict(k=2), problems, prompts, parts, store))
        assert (tally.examples, tally.errored) == (12, 1)
        assert [e.problem.id for e in episodes if e.error] == ["t/3"] and episodes[3].error == "server said 500"
        again = Answerer(parts, {"fickle": Fickle()}, store, retry_errors=True)
        assert asyncio.run(run(spec, dict(k=2), problems, prompts, again)).errored == 0
        assert not [e for e in replay(spec, dict(k=2), problems, prompts, parts, store) if e.error]


def test_wrong_roles_are_named(tmp_path):
    spec, problem = get_method("disc"), examples()[0].problem
    with Store(tmp_path/"o.sqlite") as store, pytest.raises(SelfcorrError, match="nobody plays the role 'verifier'"):
        asyncio.run(run(spec, dict(k=1), [problem], get_pack().prompts("disc", "bbm"), Answerer({}, {}, store)))


def test_waves_keep_what_was_answered_before_a_stop(tmp_path):
    from selfcorr.calls import AuthenticationFailed

    class Refusing(Fickle):
        async def ask(self, r):
            if len(self.sent) == 7: raise AuthenticationFailed("the key was refused")
            return await super().ask(r)
    spec, parts = get_method("disc"), {r: Part("fickle", dict(temperature=0)) for r in ("verifier", "judge", "corrector")}
    with Store(tmp_path/"o.sqlite") as store:
        with pytest.raises(AuthenticationFailed):
            asyncio.run(waves(spec, dict(k=1), [e.problem for e in examples()], get_pack().prompts("disc", "bbm"), Answerer(parts, {"fickle": Refusing()}, store), in_flight=2))
        assert len(store) == 7


def test_two_asks_at_one_address_are_an_error(tmp_path):
    from selfcorr.calls import Ask
    from selfcorr.methods.base import MethodSpec

    def twice(problem, prompts): yield [Ask("judge", "a"), Ask("judge", "b")]
    for driver in (run, waves):
        with Store(tmp_path/"o.sqlite") as store, pytest.raises(ValueError, match="two asks at one address"):
            asyncio.run(driver(MethodSpec("twice", twice, "disc", ("judge",), ""), {}, [examples()[0].problem], None, Answerer({"judge": Part("fickle", {})}, {"fickle": Fickle()}, store)))


def test_no_calls_at_a_time_is_an_error(tmp_path):
    with Store(tmp_path/"o.sqlite") as store, pytest.raises(SelfcorrError, match="in_flight is 0"):
        asyncio.run(run(get_method("disc"), dict(k=1), [examples()[0].problem], None, Answerer({}, {}, store), in_flight=0))
