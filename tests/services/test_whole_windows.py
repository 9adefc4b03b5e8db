"""A function of windows sees each window once, and whole: whatever the windows, the key, the kind of function, the cores, how
batches are cut, which rows are bad, and where peers crash.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sardonyx import Collect, Job, calendar, counted, event_time, everything, hopping, kafka, session, tumbling
from sardonyx.testing import ClockedRun
from spark_tasks import apply
from tests.sizes import histories

HOUR = 3_600
START = 490_000 * HOUR
WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("1 h"),
    "hopping": hopping("2 h", "1 h"),
    "session": session("9 min"),
    "counted": counted(5),
    "sliding": counted(4, every=2),
    "calendar": calendar("day"),
    "everything": everything(),
}
Row = dict[str, Any]
Window = tuple[tuple[str, ...], tuple[int, ...]]
"""What tells a window apart, and its rows."""


def of_arrow(rows: pa.Table, by: list[str]) -> pa.Table:
    """The rows of each window; raises for a negative number."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in rows.to_pylist():
        found[tuple(str(row.get(name)) for name in by)].append(row["n"])
        if row["n"] < 0:
            raise ValueError("a negative number")
    return pa.table({"window": pa.array([*found], pa.list_(pa.string())), "rows": pa.array([*found.values()])})


def of_pandas(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    return of_arrow(pa.Table.from_pandas(rows, preserve_index=False), by).to_pandas(types_mapper=pd.ArrowDtype)


def of_spark(rows: DataFrame, by: list[str]) -> DataFrame:
    n = sf.when(rows.n < 0, sf.raise_error(sf.lit("a negative number"))).otherwise(rows.n)
    told = sf.array(*(sf.coalesce(sf.col(name).cast("string"), sf.lit("None")) for name in by))
    return rows.withColumn("n", n).groupBy(told.alias("window")).agg(sf.collect_list("n").alias("rows"))


def of_results(row: dict, by: list[str]) -> dict:
    """Of the results of ``aggregate``, one for each window."""
    if min(row["rows"]) < 0:
        raise ValueError("a negative number")
    return {"window": [str(row.get(name)) for name in by], "rows": row["rows"]}


def whole(chance: random.Random, bad: bool) -> tuple[Job, dict[str, dict[str, Any]]]:
    """A job with a task for each kind of windows, with and without a key, and what is said of each task."""
    job = Job("whole", partitions=chance.randrange(1, 4))
    read = job.input(
        "read",
        kafka("in", schema="at long, key string, n long", start="earliest", end="latest"),
        time=event_time("at", unit="s", delay="1 h"),
    )
    said = {}
    for kind, windows in WINDOWS.items():
        for keys in ([], ["key"]):
            fn = chance.choice([of_arrow, of_pandas, of_results] if kind != "tumbling" or keys else [of_spark])
            then = chance.choice(["skip", "dead_letter"]) if bad else "fail"
            retries = chance.randrange(2)
            numbered = ["window_number"] if kind in ("counted", "sliding") and fn is not of_results else []
            name = f"{kind}-by-{'key' if keys else 'none'}"
            job.window(
                name,
                windows,
                after=read,
                fn=fn,
                group_by=keys or None,
                aggregate={"rows": Collect("n")} if fn is of_results else None,
                params={"by": [*keys, "window_start", *numbered]},
                on_error={"then": then, "retries": retries, "backoff": "1 ms"},
            )
            job.output(f"{name}-out", kafka(f"{name}-out"), after=name)
            said[name] = {"kind": kind, "keys": keys, "then": then, "fn": fn}
    return job, said


def expected(kind: str, keys: Sequence[str], rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each window, by loops."""
    by_key: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_key[tuple(row[name] for name in keys)].append(row)
    return [window for own in by_key.values() for window in _of_key(kind, own)]


def _of_key(kind: str, rows: list[Row]) -> list[list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    if kind in ("counted", "sliding"):
        size, every = (5, 5) if kind == "counted" else (4, 2)
        return [rows[start : start + size] for start in range(0, len(rows), every)]
    if kind == "session":
        last = session_ = 0
        for row in sorted(rows, key=lambda row: row["at"]):
            session_ += row["at"] >= last + 9 * 60
            last = row["at"]
            found[session_].append(row)
        return list(found.values())
    for row in rows:
        hour = row["at"] // HOUR
        for start in {"tumbling": [hour], "hopping": [hour - 1, hour], "calendar": [hour // 24]}.get(kind, [0]):
            found[start].append(row)
    return list(found.values())


@pytest.mark.parametrize("seed", range(histories(1, whole=4)))
@pytest.mark.parametrize("bad", [False, True])
def test_a_function_sees_each_window_once_and_whole(
    seed: int,
    bad: bool,
    spark: SparkSession,
    sardonyx_clocked: Callable[..., ClockedRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window with a bad row is left out with all its rows, each of them a dead letter, and takes no other window with it."""
    chance = random.Random(f"whole {seed} {bad}")
    monkeypatch.setattr(apply, "SMALLEST_SLICE", 1)  # any batch is cut for all cores, if it may be cut
    job, said = whole(chance, bad)
    rows = [
        {"at": START + max(0, 120 * n + chance.randrange(-900, 900)), "key": chance.choice("abc"), "n": n}
        for n in range(1, 91)
    ]
    for row in chance.sample(rows, 4 if bad else 0):
        row["n"] = -row["n"]
    run = sardonyx_clocked(job, batch_size=chance.choice([9, 40, 1_000]), spark=spark)
    left = rows
    while left:
        count = chance.randrange(20, 70)
        run.crash(chance.choice([*said]), chance.choice(["settled", "applied", "committed"]))
        run.give("read", left[:count])
        left = left[count:]
    run.end()
    for name, of in said.items():
        windows = expected(of["kind"], of["keys"], rows)
        good = [window for window in windows if min(row["n"] for row in window) > 0]
        found = [each["rows"] for each in run.rows(name)]
        assert _sorted(found) == _sorted([[row["n"] for row in window] for window in good]), (name, of)
        if of["then"] == "dead_letter":
            letters = Counter(letter.record["n"] for letter in run.dead_letters(name) if of["fn"] is not of_results)
            gone = [row["n"] for window in windows if window not in good for row in window]
            assert letters == (Counter(gone) if of["fn"] is not of_results else Counter()), (name, of)


def _sorted(windows: Sequence[Sequence[int]]) -> list[list[int]]:
    return sorted(sorted(window) for window in windows)
