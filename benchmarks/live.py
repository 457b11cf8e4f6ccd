"""Overhead of the live driver: calls a second against a server that answers after 20 ms, beside a bare loop over the same SDK.

    python benchmarks/live.py

The server runs in a process of its own on the loopback address and ends with this program. Both sides keep 64 calls in flight. The bare side is the OpenAI
SDK's `chat.completions.create` on its fastest transport and keeps nothing; our side is the whole driver: method, request key, retry policy, and a row
written to the store before each reply is used. The two take turns; the ratio of each pair is printed. Needs the extra `openai`.
"""
import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selfcorr.calls import Ask, Problem, normal_params
from selfcorr.engine import Answerer, Part, run
from selfcorr.methods.base import MethodSpec, Trajectory
from selfcorr.models.base import get_model
from selfcorr.prompts import get_pack
from selfcorr.store import Store

WORDS = "Check each step of this worked answer. " * 20
PARAMS = normal_params(dict(temperature=0, max_tokens=64))


def once(problem, prompts):
    "A method of one call"
    reply = yield Ask("generator", problem.question)
    return Trajectory("", reply.text, (), "single_pass")


async def bare(url: str, calls: int, in_flight: int) -> float:
    from openai import AsyncOpenAI, DefaultAioHttpClient
    client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, http_client=DefaultAioHttpClient())
    todo = iter(range(calls))

    async def worker():
        for i in todo:
            r = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"{i} {WORDS}"}], temperature=0, max_tokens=64)
            assert r.choices[0].message.content
    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    seconds = time.perf_counter() - start
    await client.close()
    return seconds


async def driver(url: str, calls: int, in_flight: int) -> float:
    model = get_model(f"openai:m@{url}")
    spec = MethodSpec("once", once, "disc", ("generator",), "one call")
    problems = [Problem(f"p/{i}", "bench", "t", f"{i} {WORDS}") for i in range(calls)]
    with tempfile.TemporaryDirectory() as d, Store(Path(d)/"o.sqlite") as store:
        async with model:
            start = time.perf_counter()
            tally = await run(spec, {}, problems, get_pack().prompts("disc", "bbm"), Answerer({"generator": Part(model.name, PARAMS)}, {model.name: model}, store), in_flight)
            seconds = time.perf_counter() - start
        assert (tally.asked, tally.errored, len(store)) == (calls, 0, calls)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    server = subprocess.Popen([sys.executable, str(Path(__file__).parent.parent/"tests"/"faultserver.py"), "--seconds", "300", "--delay", "0.02"], stdout=subprocess.PIPE, text=True)
    try:
        url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        url = url.rstrip("/") + ("" if url.rstrip("/").endswith("/v1") else "/v1")
        asyncio.run(bare(url, 300, o.in_flight)); asyncio.run(driver(url, 300, o.in_flight))  # warm up
        ratios = []
        for i in range(o.rounds):
            order = [bare, driver] if i % 2 == 0 else [driver, bare]
            took = {f.__name__: asyncio.run(f(url, o.calls, o.in_flight)) for f in order}
            ratios.append(took["bare"] / took["driver"])
            print(f"round {i}: bare SDK {o.calls/took['bare']:6.0f} calls/s, driver {o.calls/took['driver']:6.0f} calls/s, ratio {ratios[-1]:.2f}", flush=True)
        print(f"driver/bare at {o.in_flight} in flight: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}")
    finally: server.terminate(); server.wait()


if __name__ == "__main__": main()
