"""What it costs to find the partition of each row of a batch by its key: ``PYTHONPATH=. python bench/bench_keys.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from queues.keys import checksums, checksums_of

ROWS = 50_000
TIMES = 7


def median_ms(work: Callable[[], Any]) -> float:
    """Of several calls, after one that does not count."""
    work()
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[TIMES // 2] * 1000


def columns(distinct: int) -> dict[str, pa.Array]:
    """Keys of different types, in random order."""
    numbers = np.random.default_rng(7).permutation(np.arange(ROWS) % distinct)
    return {
        "int64": pa.array(numbers),
        "string": pa.array([f"key-{number}" for number in numbers]),
        "double, whole": pa.array(numbers.astype(float)),
        "double": pa.array(numbers + 0.25),
        "decimal": pa.array(numbers).cast(pa.decimal128(21, 2)),
        "timestamp": pa.array(numbers * 1000).cast(pa.timestamp("us", "UTC")),
    }


def main() -> None:
    print(f"{ROWS:,} rows; median of {TIMES} calls")
    for distinct in (1, 1_000, ROWS):
        held = columns(distinct)
        work: dict[str, Callable[[], Any]] = {name: lambda c=column: checksums([c]) for name, column in held.items()}
        work["string and int64"] = lambda h=held: checksums([h["string"], h["int64"]])
        texts = held["string"].to_pylist()
        work["Python's str"] = lambda t=texts: checksums_of(t)
        for name, call in work.items():
            spent = median_ms(call)
            print(f"{distinct:>6} keys  {name:<18} {spent:8.1f} ms  {ROWS / spent / 1000:7.2f} million rows/s")


if __name__ == "__main__":
    main()
