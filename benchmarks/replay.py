"""Replay of a HotpotQA-sized run on one core: microseconds a call, peak memory, and whether ten times the examples cost ten times the time.

    python benchmarks/replay.py              # 7,405 examples, about 80,000 calls, and a tenth of that beside it
    python benchmarks/replay.py --ten        # also ten times as many (needs about 10 minutes and 2 GB of disk)

The run is made by the simulated agent (no language model) on the twin of tracking shuffled objects, kept as Parquet, and replayed in a fresh process.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selfcorr.runs import Run, keep_run, run_experiment

SIZE = 7405
MODEL = "simulated:judge_recall=0.5,judge_false_alarm=0.1"


def make(folder: Path, examples: int) -> Run:
    "A kept simulated run"
    if (folder/"kept"/"outputs.parquet").is_file(): return Run(folder/"kept")
    start = time.perf_counter()
    run = run_experiment("disc", "twins", MODEL, task="tracking_shuffled_objects", limit=examples, to=folder/"live", in_flight=64, k=3)
    made = time.perf_counter() - start
    kept = keep_run(run, folder/"kept")
    print(f"made {examples:,} examples in {made:.1f} s live, kept {(folder/'kept'/'outputs.parquet').stat().st_size/1e6:.1f} MB", flush=True)
    return kept


def replay(folder: str) -> None:
    "In a process of its own, on one core: replay into an outcome table"
    if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run = Run(Path(folder))
    start, cpu = time.perf_counter(), time.process_time()
    examples = run.examples()
    loaded, loaded_cpu = time.perf_counter() - start, time.process_time() - cpu
    start, cpu = time.perf_counter(), time.process_time()
    calls = sum(len(e.calls) for e in run.episodes(examples=examples))
    engine, engine_cpu = time.perf_counter() - start, time.process_time() - cpu
    start, cpu = time.perf_counter(), time.process_time()
    outcomes = run.outcomes()
    table, table_cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(outcomes):>7,} examples {calls:>9,} calls | replay {1e6*engine_cpu/calls:6.1f} us a call | end to end, to the outcome table "
          f"{1e6*table_cpu/calls:6.1f} us of CPU, {1e6*table/calls:6.1f} us of wall time a call ({table_cpu:.2f} s; {loaded_cpu:.2f} s of it making the examples) | peak {peak:,.0f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ten", action="store_true", help="also ten times as many examples")
    parser.add_argument("--examples", type=int, default=SIZE)
    parser.add_argument("--folder", type=Path, help="keep the simulated runs here, for a second look")
    parser.add_argument("--replay", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay: return replay(options.replay)
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        for examples in [options.examples // 10, options.examples, *([options.examples * 10] if options.ten else [])]:
            run = make(root/str(examples), examples)
            subprocess.run([sys.executable, __file__, "--replay", str(run.folder)], check=True)


if __name__ == "__main__": main()
