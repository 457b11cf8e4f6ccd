"""The served backends, through their real SDKs, against a server that fails on command."""
import asyncio, pickle, subprocess, sys, time
from math import isnan

import pytest

pytest.importorskip("openai", reason="the extra openai is not installed")
pytest.importorskip("anthropic", reason="the extra anthropic is not installed")

from faultserver import SURROGATE, UNICODE, FaultServer
from selfcorr.calls import Ask, AuthenticationFailed, MissingExtra, SelfcorrError, Unsupported, request_for
from selfcorr.models.base import get_model
from selfcorr.models import served
from selfcorr.models.openai import OpenAIModel
from selfcorr.models.prices import cost_of
from selfcorr.models.retry import Retry

KEY = "sk-test-0123456789abcdefSECRET"
BACKENDS = ("openai", "anthropic")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "SELFCORR_PRICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_COMPATIBLE_API_KEY", KEY)


def quiet_retry(slept, **options):
    async def note(seconds): slept.append(seconds)
    return Retry(seed=7, sleep=note, **options)


def asked(backend, plan, text="hello", timeout=5.0, retry=None, sample=0, **params):
    "One ask against a server that follows `plan`: (reply, pauses, requests the server saw)"
    slept = []
    with FaultServer(plan) as server:
        async def go():
            async with get_model(f"{backend}:tiny@{server.url}", timeout=timeout, retry=retry or quiet_retry(slept)) as m:
                return await m.ask(request_for(Ask("judge", text, sample=sample, params=params), "demo/1", m.name))
        return asyncio.run(go()), slept, server.requests


@pytest.mark.parametrize("backend", BACKENDS)
class TestAnswers:
    def test_a_plain_answer_has_all_its_fields(self, backend):
        reply, slept, requests = asked(backend, ["ok"], max_tokens=9)
        assert (reply.text, reply.finish, reply.model, reply.tokens_in, reply.tokens_out) == ("reply to hello", "stop", "tiny", 7, 3)
        assert 0 < reply.latency < 5 and reply.time.endswith("+00:00") and reply.error is None and slept == []
        assert requests[0][2] == {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}

    @pytest.mark.parametrize("step,finish", [("length", "length"), ("empty_length", "length"), ("empty", "stop"), ("refusal", "refusal"),
                                             ("filter", "filter"), ("filter_400", "filter")])
    def test_unwelcome_answers_are_recorded_and_not_asked_for_again(self, backend, step, finish):
        reply, slept, requests = asked(backend, [step])
        assert reply.finish == finish and len(requests) == 1 and slept == []
        if step == "length": assert reply.text == "cut of" and reply.ok
        if step == "refusal": assert reply.refusal == "I cannot help with that." and not reply.ok

    def test_unicode_survives_and_half_characters_are_replaced(self, backend):
        assert asked(backend, ["unicode"])[0].text == UNICODE
        text = asked(backend, ["surrogate"])[0].text
        assert text == SURROGATE.replace("\ud83d", "?") and text.encode()
        assert asked(backend, ["ok"], text=UNICODE)[0].text == f"reply to {UNICODE}"


@pytest.mark.parametrize("backend", BACKENDS)
class TestRetries:
    @pytest.mark.parametrize("step", ["408", "409", "429_bare", "500", "503", "529", "cut", "cut_body", "malformed", "html", "nothing", "list", "nested",
                                      "gzip", "no_choices", "null_choices", "wrong_types", "wrong_text", "error_200", "error_200_429"])
    def test_a_fault_that_passes_is_tried_again(self, backend, step):
        reply, slept, requests = asked(backend, [step, "ok"])
        assert (reply.text, reply.finish, len(requests), len(slept)) == ("reply to hello", "stop", 2, 1)
        assert 0 <= slept[0] <= 0.5

    @pytest.mark.parametrize("step", ["hang", "drip"])
    def test_a_server_that_hangs_or_drips_is_left_in_time(self, backend, step):
        started = time.perf_counter()
        reply, slept, requests = asked(backend, [step, "ok"], timeout=0.25)
        assert reply.text == "reply to hello" and len(requests) == 2 and time.perf_counter() - started < 3

    def test_the_slower_transport_does_the_same(self, backend, monkeypatch):
        monkeypatch.setattr(served, "find_spec", lambda name: None)
        for step in ("ok", "500", "cut", "cut_body", "malformed", "gzip"):
            assert asked(backend, [step, "ok"])[0].text == "reply to hello", step
        assert asked(backend, ["hang", "ok"], timeout=0.25)[0].ok
        with pytest.raises(SelfcorrError, match="cannot reach"): self.test_an_unreachable_server_is_one_clear_line(backend, catch=False)
        assert asked(backend, ["cut"] * 20)[0].finish == "error"

    def test_retry_after_is_honoured_up_to_a_ceiling(self, backend):
        for step, low, high in (("429", 7, 8), ("429_ms", 0.25, 0.75), ("429_date", 6, 10), ("429_long", 120, 121)):
            reply, slept, _ = asked(backend, [step, "ok"])
            assert reply.ok and low <= slept[0] <= high, (step, slept)

    def test_pauses_grow_and_are_the_same_for_the_same_seed(self, backend):
        plan = ["500"] * 5 + ["ok"]
        first, second = asked(backend, list(plan))[1], asked(backend, list(plan))[1]
        assert first == second and len(first) == 5 and all(p <= 0.5 * 2 ** n for n, p in enumerate(first))

    @pytest.mark.parametrize("step,tries", [("500", 7), ("cut", 7), ("malformed", 3), ("no_choices", 3), ("error_200", 3), ("error_200_429", 7)])
    def test_patience_ends_in_an_error_reply(self, backend, step, tries):
        reply, slept, requests = asked(backend, [step] * 20)
        assert reply.finish == "error" and not reply.ok and len(requests) == tries and len(slept) == tries - 1
        assert f"after {tries} tries" in reply.error and "\n" not in reply.error and len(reply.error) <= 300

    def test_total_time_is_bounded(self, backend):
        slept, now = [], [0.0]
        async def note(seconds): slept.append(seconds); now[0] += seconds
        retry = Retry(attempts=1000, total=60, sleep=note, clock=lambda: now[0], seed=1)
        reply, _, requests = asked(backend, ["500"] * 1000, retry=retry)
        assert reply.finish == "error" and sum(slept) <= 60 and 5 < len(requests) < 100

    def test_other_4xx_and_no_retry_become_error_replies_at_once(self, backend):
        for step in ("400", "422", "no_retry"):
            reply, slept, requests = asked(backend, [step])
            assert reply.finish == "error" and len(requests) == 1 and slept == [] and len(reply.error) <= 300 and "\n" not in reply.error

    @pytest.mark.parametrize("step", ["401", "403", "error_200_401", "quota", "broke"])
    def test_refused_credentials_and_an_empty_account_stop_at_once(self, backend, step):
        with pytest.raises(AuthenticationFailed) as e: asked(backend, [step])
        assert KEY not in str(e.value) and "SECRET" not in repr(e.value) and e.value.__cause__ is None
        if step in ("401", "403"): assert f"{backend.upper()}_COMPATIBLE_API_KEY" in str(e.value)

    def test_an_unknown_model_or_a_moved_server_stops_the_run(self, backend):
        for step in ("404", "moved"):
            with pytest.raises(SelfcorrError, match="check the model's name and the server's address"): asked(backend, [step])

    def test_an_unreachable_server_is_one_clear_line(self, backend, catch=True):
        slept = []
        m = get_model(f"{backend}:tiny@http://127.0.0.1:9/v1", retry=quiet_retry(slept))
        async def go():
            async with m: await m.ask(request_for(Ask("judge", "x"), "demo/1", m.name))
        if not catch: return asyncio.run(go())
        with pytest.raises(SelfcorrError, match="cannot reach localhost.*is the server running") as e: asyncio.run(go())
        assert len(slept) == 2 and "\n" not in str(e.value)

    def test_a_server_that_dies_later_gives_error_replies(self, backend):
        async def go():
            with FaultServer() as server:
                m = get_model(f"{backend}:tiny@{server.url}", retry=quiet_retry([]))
                await m.ask(request_for(Ask("judge", "x"), "demo/1", m.name))
            reply = await m.ask(request_for(Ask("judge", "y"), "demo/1", m.name))
            await m.aclose()
            return reply
        reply = asyncio.run(go())
        assert reply.finish == "error" and "after 7 tries" in reply.error


@pytest.mark.parametrize("backend", BACKENDS)
class TestConcurrency:
    def test_many_asks_get_their_own_replies(self, backend):
        plan = (["500", "cut", "ok", "malformed"] * 5) + ["ok"] * 500
        with FaultServer(plan, delay=0.01) as server:
            async def go():
                async with get_model(f"{backend}:tiny@{server.url}", retry=quiet_retry([], attempts=30, garbled_attempts=30)) as m:
                    return await m.ask_many([request_for(Ask("judge", f"q{i}"), "demo/1", m.name) for i in range(150)], limit=32)
            replies = asyncio.run(go())
        assert [r.text for r in replies] == [f"reply to q{i}" for i in range(150)]
        assert 16 <= server.most_in_flight <= 32

    def test_one_refused_key_cancels_the_rest(self, backend):
        with FaultServer(["401"] + ["hang"] * 50) as server:
            async def go():
                async with get_model(f"{backend}:tiny@{server.url}") as m:
                    with pytest.raises(AuthenticationFailed):
                        await m.ask_many([request_for(Ask("judge", f"q{i}"), "demo/1", m.name) for i in range(40)], limit=8)
                    return len([t for t in asyncio.all_tasks() if t is not asyncio.current_task()])
            started = time.perf_counter()
            assert asyncio.run(go()) == 0 and time.perf_counter() - started < 3

    def test_cancelling_ends_a_call_and_a_pause_and_leaves_the_model_usable(self, backend):
        with FaultServer(["hang", "429_long", "ok"]) as server:
            async def go():
                async with get_model(f"{backend}:tiny@{server.url}") as m:
                    r = request_for(Ask("judge", "x"), "demo/1", m.name)
                    for _ in range(2):
                        t = asyncio.ensure_future(m.ask(r)); await asyncio.sleep(0.2); t.cancel()
                        with pytest.raises(asyncio.CancelledError): await t
                    return await m.ask(r)
            assert asyncio.run(go()).ok

    def test_one_model_serves_several_event_loops(self, backend):
        with FaultServer() as server:
            m = get_model(f"{backend}:tiny@{server.url}")
            async def go():
                async with m: return await m.ask(request_for(Ask("judge", "x"), "demo/1", m.name))
            assert asyncio.run(go()).ok and asyncio.run(go()).ok
            async def twice():
                await m.open(); await m.open(); await m.aclose(); await m.aclose()
                reply = await m.ask(request_for(Ask("judge", "x"), "demo/1", m.name))     # opens by itself
                await m.aclose()
                return reply
            assert asyncio.run(twice()).ok


class TestRequests:
    def test_openai_sends_each_parameter_and_the_sample_moves_the_seed(self):
        params = dict(temperature=0.5, top_p=0.9, stop="\n", seed=40, max_tokens=5, logprobs=True, top_logprobs=3)
        reply, _, requests = asked("openai", ["logprobs"], sample=2, **params)
        body = requests[0][2]
        assert body == dict(model="tiny", messages=[dict(role="user", content="hello")], temperature=0.5, top_p=0.9, stop=["\n"], seed=42,
                            max_tokens=5, logprobs=True, top_logprobs=3)
        assert reply.logprobs == [dict(token="Yes", logprob=-0.1, top={"Yes": -0.1, "\ufffd": -3.0})]

    def test_anthropic_sends_system_and_temperature_as_body_fields(self):
        talk = [dict(role="system", content="Be brief."), dict(role="user", content="hello")]
        _, _, requests = asked("anthropic", ["ok"], text=talk, temperature=0, stop=["Q:"])
        assert requests[0][0] == "/v1/messages"
        assert requests[0][2] == dict(model="tiny", max_tokens=4096, system="Be brief.", messages=talk[1:], temperature=0, stop_sequences=["Q:"])

    def test_keys_go_where_they_belong(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-the-real-one-123456")
        _, _, requests = asked("openai", ["ok"])
        assert requests[0][1]["authorization"] == f"Bearer {KEY}"      # never the provider's own key to another server
        monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY")
        assert "the-real-one" not in str(asked("openai", ["ok"])[2])
        with FaultServer() as server:                                  # but a server and a key named together belong together
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            async def go():
                async with get_model("openai:tiny") as m:
                    assert m.name == "openai/tiny@localhost"
                    await m.ask(request_for(Ask("judge", "x"), "demo/1", m.name))
            asyncio.run(go())
            assert server.requests[0][1]["authorization"] == "Bearer sk-the-real-one-123456"

    def test_the_token_limit_has_the_name_that_the_server_knows(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        r = request_for(Ask("judge", "x", params=dict(max_tokens=5)), "demo/1", "m")
        assert get_model("openai:gpt-4o").body(r)["max_completion_tokens"] == 5
        assert get_model("openai:gpt-4o", token_field="max_tokens").body(r)["max_tokens"] == 5
        assert OpenAIModel("m", "http://127.0.0.1:1/v1").body(r)["max_tokens"] == 5
        assert get_model("openai:gpt-4o").describe()["token_field"] == "max_completion_tokens"

    def test_extra_fields_change_the_name_and_so_the_keys(self):
        a, b = (OpenAIModel("m", "http://127.0.0.1:1/v1", extra_body=x) for x in ({}, dict(top_k=40)))
        assert a.name != b.name and a.price_name == b.price_name and b.name.startswith(a.name + "+")
        assert b.body(request_for(Ask("judge", "x"), "demo/1", b.name))["top_k"] == 40


class TestFeatures:
    def test_what_a_backend_lacks_is_said_before_anything_is_sent(self, monkeypatch):
        with FaultServer() as server:
            for params in (dict(logprobs=True), dict(top_logprobs=2), dict(seed=1)):
                with pytest.raises(Unsupported, match="openai"):
                    async def go():
                        async with get_model(f"anthropic:tiny@{server.url}") as m:
                            await m.ask(request_for(Ask("judge", "x", params=params), "demo/1", m.name))
                    asyncio.run(go())
            assert server.requests == []
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY); monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(Unsupported, match="cannot take temperature"): get_model("anthropic:claude-opus-4-7").check(dict(temperature=0))
        get_model("anthropic:claude-sonnet-4-5").check(dict(temperature=0, max_tokens=9, stop=["x"]))
        get_model("anthropic:claude-opus-4-7", sampling=True).check(dict(temperature=0))
        with pytest.raises(Unsupported, match="cannot take temperature"): get_model("openai:o3-mini").check(dict(temperature=0))
        get_model("openai:gpt-4o").check(dict(temperature=0, seed=1, logprobs=True, top_logprobs=5, stop=["x"], top_p=1))

    def test_a_late_system_message_and_a_blank_stop_are_turned_down(self):
        m = get_model("anthropic:tiny@http://127.0.0.1:1")
        with pytest.raises(Unsupported, match="head of a conversation"): m.check({}, [dict(role="user", content="a"), dict(role="system", content="b")])
        with pytest.raises(Unsupported, match="white space"): m.check(dict(stop=["\n"]))


class TestSpecifications:
    @pytest.mark.parametrize("spec,line", [
        ("opnai:gpt-4o", "did you mean openai"), ("gpt-4o", "unknown model backend"), ("", "unknown model backend"), ("openai:", "needs a model's name"),
        ("openai:m@http://u:secret@h/v1", "carries credentials"), ("openai:m@http://h:99999/v1", "must look like"), ("vllm:m", "vllm:NAME@http"),
        ("anthropic:m@https://h/v1?key=secret", "carries credentials")])
    def test_mistakes_are_one_line(self, spec, line, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        with pytest.raises(SelfcorrError, match=line) as e: get_model(spec)
        assert "\n" not in str(e.value) and "secret" not in str(e.value)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_missing_key_names_its_variable(self, backend):
        with pytest.raises(SelfcorrError, match=f"set the environment variable {backend.upper()}_API_KEY"): get_model(f"{backend}:some-model")

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_missing_package_names_its_extra(self, backend, monkeypatch):
        monkeypatch.setitem(sys.modules, backend, None)
        with pytest.raises(MissingExtra) as e: get_model(f"{backend}:m@http://127.0.0.1:1/v1")
        assert str(e.value) == f"the {backend} backend needs the package {backend}: pip install 'selfcorr[{backend}]'"

    def test_an_unknown_option_is_one_line(self):
        with pytest.raises(SelfcorrError, match="did you mean timeout"): get_model("openai:m@http://127.0.0.1:1/v1", timeuot=3)

    def test_names_do_not_depend_on_ports(self):
        assert {get_model(f"openai:m@http://{h}/v1").name for h in ("127.0.0.1:8000", "localhost:9", "[::1]:5")} == {"openai/m@localhost"}
        assert get_model("vllm:m@http://gpu7:8000/v1").name == "vllm/m@gpu7:8000"
        assert get_model("vllm:m@http://gpu7:8000/v1").describe()["backend"] == "vllm"

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_no_key_shows_anywhere(self, backend):
        m = get_model(f"{backend}:tiny@http://127.0.0.1:1/v1")
        assert "SECRET" not in repr(m) + repr(m.describe()) + repr(vars(m)) + str(m)
        assert not any("SECRET" in repr(v) for v in vars(m).values())
        with pytest.raises(Exception): pickle.dumps(m)

    def test_the_base_room_imports_no_sdk_and_quickly(self):
        code = "import sys, selfcorr.models.base, selfcorr.models.prices; print([m for m in ('openai','anthropic','aiohttp','httpx','httpx2') if m in sys.modules])"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


class TestPrices:
    def test_own_prices_win_and_unknown_ones_stay_unknown(self, tmp_path, monkeypatch):
        own = tmp_path / "p.toml"
        own.write_text('[prices."openai/gpt-4o"]\ninput = 1\noutput = 1\ndate = 2026-01-01\nsource = "contract"\n')
        assert cost_of("openai/gpt-4o", 10**6, 0) == 2.5
        monkeypatch.setenv("SELFCORR_PRICES", str(own))
        assert cost_of("openai/gpt-4o", 10**6, 0) == 1.0 and cost_of("anthropic/claude-sonnet-4-5", 10**6, 0) == 3.0
        assert isnan(cost_of("openai/never-heard-of", 1, 1)) and cost_of("local/x", None, None) == 0.0 and cost_of("simulated/y", 1, 1) == 0.0

    def test_a_bad_price_file_is_one_line(self, tmp_path):
        bad = tmp_path / "bad.toml"
        bad.write_bytes(b"\xff\xfe")
        for path in (str(bad), str(tmp_path), str(tmp_path / "none.toml")):
            with pytest.raises(SelfcorrError, match="cannot read the price file"): cost_of("x", 1, 1, own=path)


class TestFaultServer:
    def test_it_stops_by_itself(self):
        with FaultServer(seconds=0.2) as server:
            server._thread.join(3)
            assert not server._thread.is_alive()
