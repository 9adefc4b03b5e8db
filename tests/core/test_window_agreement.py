"""The checks of a job and the code that runs its windows agree: what the checks let through can run."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from window_jobs import SCHEMA, a_job, found, top

from sardonyx import (
    Collect,
    Count,
    Distinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Sum,
    Var,
    calendar,
    counted,
    event_time,
    every,
    everything,
    hopping,
    on_count,
    ordinal,
    session,
    tumbling,
)
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.graph import graph_of
from sardonyx.core.timing import RESULT_COLUMNS, combines
from sardonyx.state.combine import combine
from sardonyx.state.entry_keys import WAITS
from sardonyx.state.memory import MemoryStore
from sardonyx.state.times import times_of
from sardonyx.state.windows import Piece, WindowShard, entry_schema

ROWS = pa.Table.from_pylist(
    [
        {
            "user": user,
            "at": datetime(2026, 11, 23, 12, 0, second, tzinfo=UTC),
            "ms": ms,
            "n": n,
            "tags": [user],
            "nr": n,
        }
        for user, second, ms, n in [("ada", 3, 5.0, 0), ("bob", 9, 7.5, 1), ("ada", 20, None, 2), ("ada", 41, 2.0, 3)]
    ],
    schema=pa.schema([*arrow_schema(SCHEMA), pa.field("nr", pa.int64())]),
)
EVERY_AGGREGATE = {
    "rows": Count(),
    "known": Count("ms"),
    "sum": Sum("ms"),
    "min": Min("user"),
    "max": Max("ms"),
    "mean": Mean("n"),
    "var": Var("n"),
    "first": First("tags"),
    "last": Last("user"),
    "users": Distinct("user", most=10),
    "p99": Quantile("ms", 0.99),
    "all": Collect("ms", most=10),
}
WINDOWS = {
    "tumbling": lambda: tumbling("10 s"),
    "hopping": lambda: hopping("10 s", "3 s"),
    "session": lambda: session("15 s", most="1 min"),
    "counted": lambda: counted(2),
    "calendar": lambda: calendar("hour", zone="Europe/Berlin"),
    "everything": everything,
}
EMITS = ["final", "changes", every("10 s"), on_count(2)]


def results_of(job: Any) -> pa.Table:
    """What the windows of a job give for the rows, which come in two blocks."""
    spec = job.spec()
    window = spec.task("per-user").window
    assert window is not None
    where = graph_of(spec, "d", "j").stage("per-user").ingress[0].row_time

    def times(rows: pa.Table) -> np.ndarray | None:
        return None if where is None else times_of(rows.column(where.column), where.unit, ordinal=where.ordinal)[0]

    blocks = [ROWS.slice(0, 2), ROWS.slice(2)]
    if combines(window):
        blocks = [combine(block, times(block), window, ["user"]) for block in blocks]
    store = MemoryStore(entry_schema(window, ["user"], blocks[0].schema))
    shard = WindowShard(window, ["user"], store, times)
    found = []
    for block, clock in zip(blocks, (NEVER, END), strict=True):
        planned = shard.plan([Piece(block, NEVER)], clock)
        store.apply(planned.changes)
        found += [planned.results] if planned.results.num_rows else []
        assert not planned.more
    rest = [key for key in store.scan()["k"].to_pylist() if not key.startswith(WAITS)]
    assert len(rest) <= 1 + 2 * (window.kind == "counted"), "one mark may be left, and the number of each key's rows"
    return pa.concat_tables(found)


@pytest.mark.parametrize("kind", WINDOWS)
def test_what_the_checks_let_through_runs(kind: str):
    """Every kind of window with every way to say when results come gives the columns that docs/time.md names."""
    ran = 0
    for emit, accumulate, (lateness, grace) in itertools.product(EMITS, (True, False), ((0, 0), ("1 min", "5 s"))):
        given = {"emit": emit, "accumulate": accumulate, "allowed_lateness": lateness, "grace": grace}
        job = a_job(WINDOWS[kind](), aggregate=EVERY_AGGREGATE, **given)
        if found(job):
            continue
        ran += 1
        results = results_of(job)
        assert results.column_names == ["user", *RESULT_COLUMNS[:2], *sorted(EVERY_AGGREGATE), *RESULT_COLUMNS[2:]]
        final = results.filter(results["final"]).to_pylist()
        if kind != "hopping":
            assert sum(row["rows"] for row in (final if accumulate else results.to_pylist())) == ROWS.num_rows
    assert ran >= 8


@pytest.mark.parametrize("kind", WINDOWS)
def test_rows_of_windows_go_to_functions(kind: str):
    """Without aggregates all rows come, with the bounds of their windows, and counted ones with their numbers."""
    job = a_job(WINDOWS[kind](), fn=top)
    assert found(job) == []
    rows = results_of(job)
    ours = ["window_start", "window_end", *(["window_number"] if kind == "counted" else [])]
    assert rows.column_names[-len(ours) :] == ours
    assert rows.num_rows >= ROWS.num_rows


@pytest.mark.parametrize(
    ("time", "windows", "count"),
    [
        (event_time("n", unit="s"), tumbling("2 s"), 3),
        (ordinal("nr"), tumbling(2), 3),
        (ordinal("nr"), session(2), 3),
        (ordinal("nr"), hopping(2, 1), 7),
    ],
)
def test_times_that_are_numbers(time, windows, count):
    """Seconds since 1970, and numbers of rows."""
    job = a_job(windows, time=time)
    assert found(job) == []
    assert results_of(job).num_rows == count
