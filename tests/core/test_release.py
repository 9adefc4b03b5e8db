"""When rows that a task holds are out: never sooner than the clock of the answer."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.core.spec import TaskSpec
from sardonyx.core.timing import AggregateSpec, WindowSpec, combines
from sardonyx.state.columns import SLICE
from sardonyx.state.combine import combine
from sardonyx.state.joins import JoinShard
from sardonyx.state.lookups import LookupShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.planned import Piece
from sardonyx.state.release import holds_rows, relation_release, window_release
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece
from sardonyx.state.times import times_of
from sardonyx.state.windows import WindowShard, entry_schema
from tests.sizes import histories

SECOND = 1_000_000
COUNT = {"n": AggregateSpec(of="count"), "batch": AggregateSpec(of="min", column="batch")}
BY_TIME = [
    WindowSpec(kind="tumbling", size="10 s", aggregate=COUNT),
    WindowSpec(kind="tumbling", size="10 s", grace="7 s", allowed_lateness="5 s", aggregate=COUNT),
    WindowSpec(kind="hopping", size="10 s", every="3 s", aggregate=COUNT),
    WindowSpec(kind="hopping", size="4 s", every="9 s", aggregate=COUNT),
    WindowSpec(kind="hopping", size="12 s", every="4 s", grace="1 s", aggregate=COUNT),
    WindowSpec(kind="calendar", unit="hour", zone="Europe/Berlin", aggregate=COUNT),
    WindowSpec(kind="session", gap="5 s", most="20 s", grace="2 s", aggregate=COUNT),
    WindowSpec(kind="session", gap="5 s", most="1 s", aggregate=COUNT),
]


def times(rows: pa.Table) -> np.ndarray:
    return times_of(rows["at"])[0]


def rows_at(seconds: list[int], batch: int = 1) -> pa.Table:
    at = pa.array([second * SECOND for second in seconds], pa.timestamp("us"))
    count = len(seconds)
    return pa.table({"key": pa.array(["a"] * count), "at": at, "batch": pa.array([batch] * count, pa.int64())})


@pytest.mark.parametrize("window", BY_TIME, ids=lambda window: f"{window.kind} {window.size or window.gap}")
@pytest.mark.parametrize("combined", [False, True])
def test_all_windows_have_closed_by_the_clock_that_is_told(window: WindowSpec, combined: bool, seed: int) -> None:
    """At that clock no row of the batch is in an open window, whatever came before and after it in time."""
    if combined and not combines(window):
        return
    rng = random.Random(seed)
    for _ in range(histories(8, whole=20)):
        rows = rows_at([rng.randint(0, 200) for _ in range(rng.randint(1, 8))])
        given = combine(rows, times(rows), window, ["key"]) if combined else rows
        store = MemoryStore(entry_schema(window, ["key"], given.schema))
        shard = WindowShard(window, ["key"], store, times)
        store.apply(shard.plan([Piece(given, NEVER)], NEVER).changes)
        starts = given[SLICE].to_numpy() if combined else times(rows)
        if not given.num_rows:
            continue
        until = window_release(window, [starts], NEVER)
        assert until is not None
        assert until < END
        for number in range(rng.randint(0, 8)):  # rows that come before the end let a session go on
            later = rows_at([rng.randint(0, 230)], batch=2 + number)
            more = combine(later, times(later), window, ["key"]) if combined else later
            if more.num_rows:
                store.apply(shard.plan([Piece(more, NEVER)], NEVER).changes)
        store.apply(shard.plan([], until).changes)
        left = shard.plan([], END).results
        assert 1 not in left["batch"].to_pylist(), (seed, rows.to_pylist(), until, left.to_pylist())


@pytest.mark.parametrize(
    ("window", "until"),
    [
        (WindowSpec(kind="everything", aggregate=COUNT), END),
        (WindowSpec(kind="everything", aggregate=COUNT, emit="changes"), None),
        (WindowSpec(kind="everything", aggregate=COUNT, emit="every 10 s"), 30 * SECOND),
        (WindowSpec(kind="counted", size=10, aggregate=COUNT), END),
        (WindowSpec(kind="session", gap="5 s", aggregate=COUNT), END),
    ],
)
def test_windows_that_no_clock_closes(window: WindowSpec, until: int | None) -> None:
    """Their rows are out at the end of the input, or with the next results that come."""
    assert window_release(window, [np.array([3 * SECOND])], 20 * SECOND) == until
    assert holds_rows(TaskSpec(name="w", type="function", window=window)) == (until is not None)


@pytest.mark.parametrize("within", ["5 s", ["-1 s", "10 s"], ["2 s", "3 s"], ["-9 s", "-4 s"]])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_row_of_a_join_makes_no_result_after_the_clock_that_is_told(within: object, how: str, seed: int) -> None:
    """Whatever row of the other side still comes in time: it pairs with none of the batch."""
    rng = random.Random(seed)
    join = RelationSpec(kind="join", left="a", right="b", within=within, how=how, grace="2 s")  # type: ignore[arg-type]
    for _ in range(histories(8, whole=20)):
        store = MemoryStore(SCHEMA)
        shard = JoinShard(join, (["key"], ["key"]), store, (times, times))
        side = rng.choice([LEFT, RIGHT])
        rows = rows_at([rng.randint(20, 100) for _ in range(rng.randint(1, 5))])
        store.apply(shard.plan([SidedPiece(rows, NEVER, side)], (NEVER, NEVER)).changes)
        until = relation_release(join, [times(rows)], NEVER)
        assert until is not None
        store.apply(shard.plan([], (until, until)).changes)
        other = rows_at([rng.randint(0, 130) for _ in range(20)])
        planned = shard.plan([SidedPiece(other, until, RIGHT if side == LEFT else LEFT)], (until, until))
        pairs = [row for row in planned.results.to_pylist() if all(value is not None for value in row.values())]
        assert not pairs, (seed, pairs)


def test_a_row_of_a_lookup_has_its_value_by_the_clock_that_is_told() -> None:
    """A row waits until the clock of the table has passed it."""
    lookup = RelationSpec(kind="lookup", left="a", right="b", grace="2 s")
    store = MemoryStore(SCHEMA)
    shard = LookupShard(lookup, (["key"], ["key"]), store, (times, times))
    rows = rows_at([30, 40])
    store.apply(shard.plan([SidedPiece(rows, NEVER, LEFT)], (NEVER, NEVER)).changes)
    until = relation_release(lookup, [times(rows)], NEVER)
    assert until is not None
    assert shard.plan([], (until - 1, until - 1)).results.num_rows == 1
    assert shard.plan([], (until, until)).results.num_rows == 2


@pytest.mark.parametrize(("emit", "until"), [("changes", None), ("every 10 s", 30 * SECOND), ("final", END)])
def test_latest_rows_come_with_their_emission(emit: str, until: int | None) -> None:
    latest = RelationSpec(kind="latest", emit=emit)
    assert relation_release(latest, [np.array([3 * SECOND])], 20 * SECOND) == until
    assert holds_rows(TaskSpec(name="l", type="function", relation=latest)) == (until is not None)


def test_what_passes_at_once_holds_nothing() -> None:
    distinct = RelationSpec(kind="distinct", within="1 min")
    assert relation_release(distinct, [np.array([3 * SECOND])], 0) is None
    assert not holds_rows(TaskSpec(name="d", type="function", relation=distinct))
    assert not holds_rows(TaskSpec(name="f", type="function", fn="m:f"))
