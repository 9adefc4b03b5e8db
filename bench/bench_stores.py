"""What a store of state costs a key, and a restore of a million keys: ``PYTHONPATH=. python bench/bench_stores.py [KEYS]``.

Processor time of this process, in one run. RocksDB works in threads of its own, whose time is in it.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from queues.messages import Logged
from sardonyx.state.base import GONE, KEY
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, Message
from sardonyx.state.restore import Restore
from sardonyx.state.rocks import RocksStore

KEYS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
BATCH = 30_000
SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.binary(), nullable=False),
        ("window", pa.int64()),
        ("count", pa.int64()),
        ("most", pa.float64()),
        ("user", pa.string()),
    ]
)


def changes(numbers: np.ndarray) -> pa.Table:
    """A window's partial aggregates of these users."""
    starts = 1_763_913_600_000_000 + numbers // 200_000 * 60_000_000
    names = [f"user-{number}" for number in numbers.tolist()]
    keys = [
        start.to_bytes(8, "big") + b"s\0\0\0%c%s" % (len(name), name.encode())
        for start, name in zip(starts.tolist(), names, strict=True)
    ]
    columns = [pa.array(keys, pa.binary()), starts, numbers, numbers * 0.5, names, np.zeros(len(numbers), np.bool_)]
    return pa.table(columns, schema=SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False)))


def timed(what: str, work: Callable[[], Any], each: int) -> Any:
    began, wall = time.process_time(), time.perf_counter()
    found = work()
    took = time.process_time() - began
    print(
        f"{what:<58} {took / each * 1e9:9,.0f} ns a key {took * 1e3:9,.1f} ms {(time.perf_counter() - wall) * 1e3:9,.1f} ms wall",
        flush=True,
    )
    return found


def main() -> None:
    chance = np.random.default_rng(1)
    order = chance.permutation(KEYS)
    loads = [changes(order[start : start + BATCH]) for start in range(0, KEYS, BATCH)]
    few = changes(np.unique(chance.integers(0, KEYS, BATCH)))

    log, store, made = ShardLog(lambda: 0, spare=10**9), MemoryStore(SCHEMA), list[Message]()

    def encode() -> None:
        for load in loads:
            made.extend(log.messages({"windows": load}, {}))
            log.committed()

    timed("state log: encode", encode, KEYS)
    size = sum(len(message.value) for message in made)
    print(f"  {len(made)} messages, {size / KEYS:.0f} bytes a key")
    logged = [Logged(offset, *message) for offset, message in enumerate(made)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def restore(into: MemoryStore | RocksStore, mark: Mark, messages: list[Logged]) -> None:
        reading = Restore(mark, {"windows": into}, topic="t", partition=0)
        reading.read(messages)
        reading.finish()
        assert len(into) == KEYS

    timed("restore into memory: decode and apply", lambda: restore(store, log.mark, logged), KEYS)
    print(f"  {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / KEYS:.0f} bytes a key")
    stores(store, loads, few)
    small(chance)
    with tempfile.TemporaryDirectory() as folder:
        rocks = RocksStore(SCHEMA, Path(folder) / "a", pending=10 * KEYS)
        timed("restore into RocksDB: decode and apply", lambda: restore(rocks, log.mark, logged), KEYS)
        stores(rocks, [], few)
        rocks.close()


def stores(store: Any, loads: list[pa.Table], few: pa.Table) -> None:
    name = type(store).__name__
    keys = few.column(KEY).combine_chunks()
    timed(f"{name}: read {len(few):,}, first", lambda: store.read(keys), len(few))
    timed(f"{name}: change them", lambda: store.apply(few), len(few))
    timed(f"{name}: read them", lambda: store.read(keys), len(few))
    timed(f"{name}: first scan of 1", lambda: store.scan(limit=1), 1)
    timed(f"{name}: scan of 1", lambda: store.scan(limit=1), 1)
    timed(f"{name}: scan of 1,000 in the middle", lambda: store.scan(keys[5].as_py(), None, 1_000), 1_000)
    first = timed(f"{name}: scan of the least 50,000", lambda: store.scan(limit=50_000), 50_000)
    gone = first.append_column(GONE, pa.repeat(True, len(first)))
    timed(f"{name}: remove them", lambda: store.apply(gone), len(first))
    timed(f"{name}: scan of 1", lambda: store.scan(limit=1), 1)
    for load in loads[:1]:
        timed(f"{name}: put 30,000", lambda load=load: store.apply(load), len(load))  # type: ignore[misc]
        timed(f"{name}: scan of 1", lambda: store.scan(limit=1), 1)


def small(chance: np.random.Generator) -> None:
    """Many commits of 100 changes each."""
    log, made = ShardLog(lambda: 0, spare=10**9), list[Message]()
    loads = [changes(np.unique(chance.integers(0, 5_000, 100))) for _ in range(2_000)]

    def commits() -> Iterator[None]:
        for load in loads:
            made.extend(log.messages({"windows": load}, {}))
            log.committed()
        yield

    timed("state log: encode, 100 changes a commit", lambda: list(commits()), 200_000)
    logged = [Logged(offset, *message) for offset, message in enumerate(made)]
    reading = Restore(log.mark, {"windows": MemoryStore(SCHEMA)}, topic="t", partition=0)
    timed("restore: decode and apply, 100 changes a commit", lambda: (reading.read(logged), reading.finish()), 200_000)


if __name__ == "__main__":
    main()
