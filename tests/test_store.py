"Raw outputs survive other processes, kill -9 and torn files."
import os
import signal
import subprocess
import sys
import time
from random import Random

import pytest

from selfcorr.calls import Address, Reply
from selfcorr.store import COLUMNS, DamagedStore, KeptOutputs, Store, Stored, salvage, write_parquet

WRITER = """
import sys
from selfcorr.calls import Address, Reply
from selfcorr.store import Store, Stored
path, who, many = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(path) as store:
    for i in range(many):
        s = store.put(Stored(Address(f"e/{i}", 0, "judge", 0, 0), "k", "m", "{}", None, Reply(f"{who} says {i}", tokens_in=i)))
        print(i, s.reply.text, flush=True)
"""


def stored(i, text="text", **reply): return Stored(Address(f"e/{i}", 0, "judge", 0, 0), f"k{i}", "m", "{}", None, Reply(text, **reply))


def writer(path, who, many):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), who, str(many)], stdout=subprocess.PIPE, text=True)


def test_four_processes_write_the_same_addresses_and_agree(tmp_path):
    path = tmp_path/"o.sqlite"
    said = [p.communicate(timeout=120)[0].splitlines() for p in [writer(path, w, 300) for w in "abcd"]]
    assert all(len(s) == 300 for s in said)
    assert said[0] == said[1] == said[2] == said[3], "each process must be told the reply that stands"
    with Store(path) as store:
        assert len(store) == 300 and [f"{i} {store.at(Address(f'e/{i}', 0, 'judge', 0, 0)).reply.text}" for i in range(300)] == said[0]


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path):
    rng, path, acknowledged = Random(7), tmp_path/"o.sqlite", {}
    for round in range(5):
        p = writer(path, f"w{round}", 100_000)
        assert p.stdout.readline()
        time.sleep(rng.uniform(0.01, 0.2))
        os.kill(p.pid, signal.SIGKILL)
        for line in p.communicate()[0].splitlines()[:-1]:
            i, _, text = line.partition(" ")
            acknowledged.setdefault(int(i), text)
            assert acknowledged[int(i)] == text
    assert len(acknowledged) > 50
    with Store(path) as store:
        for i, text in acknowledged.items(): assert store.at(Address(f"e/{i}", 0, "judge", 0, 0)).reply.text == text


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9])
def test_salvage_from_torn_files(tmp_path, where):
    path = tmp_path/"o.sqlite"
    with Store(path) as store:
        for i in range(2000): store.put(stored(i, "x" * 200))
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with open(path, "r+b") as f: f.seek(max(4096, int(size * where))); f.write(b"\x5a" * 20_000)
    saved, lost = salvage(path, tmp_path/"new.sqlite")
    assert 0 < saved < 2000
    with Store(tmp_path/"new.sqlite") as new:
        rows = list(new)
        assert len(rows) == saved and all(s == stored(int(s.address.example[2:]), "x" * 200) for s in rows)


def test_damage_is_one_line_that_names_the_file(tmp_path):
    path = tmp_path/"o.sqlite"
    with Store(path) as store:
        for i in range(500): store.put(stored(i, "x" * 200))
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(path.read_bytes()[:9000] + b"\0" * 20_000)
    with pytest.raises(DamagedStore) as e:
        with Store(path) as store: list(store)
    assert str(path) in str(e.value) and "salvage" in str(e.value) and "\n" not in str(e.value)
    kept = tmp_path/"outputs.parquet"
    for content in (b"", b"PAR1", os.urandom(1000)):
        kept.write_bytes(content)
        with pytest.raises(DamagedStore) as e: KeptOutputs(kept)
        assert "\n" not in str(e.value)


def test_hostile_text_comes_back_as_it_was(tmp_path):
    texts = ["", "\0", "a\0b", "'; DROP TABLE outputs; --", "🙂" * 1000, "\u202eabc", "x" * 1_000_000, "{question}\r\n\u2028"]
    rows = [stored(i, t, logprobs=[{"token": t[:5], "logprob": -0.5, "top": {t[:5]: -0.5}}], latency=0.1, finish="length") for i, t in enumerate(texts)]
    with Store(tmp_path/"o.sqlite") as store:
        for s in rows: store.put(s)
        assert list(store) == rows
    write_parquet(rows, tmp_path/"o.parquet")
    with KeptOutputs(tmp_path/"o.parquet") as kept: assert list(kept) == rows and kept.rows("e/4")[(0, "judge", 0, 0)][1] == rows[4].reply


def test_kept_runs_open_with_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    write_parquet([stored(i) for i in range(20)], tmp_path/"outputs.parquet")
    table = datasets.load_dataset("parquet", data_files=str(tmp_path/"outputs.parquet"), split="train", cache_dir=str(tmp_path/"cache"))
    assert len(table) == 20 and set(table.column_names) == set(COLUMNS)
