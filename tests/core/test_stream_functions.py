"""What the operators of a pipeline do on rows: reduce, running totals, filters. The functions run without Spark here."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sardonyx.connectors.records import to_records, to_table
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.pipeline import functions
from sardonyx.pipeline.keyed import CARRIED
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from tests.core.keyed_machine import Machine

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
Row = dict[str, Any]


def add(one: Row, other: Row) -> Row:
    return {"key": one["key"], "n": one["n"] + other["n"]}


def without_key(one: Row, other: Row) -> Row:
    return {"n": one["n"] + other["n"]}


def windowed(n: int, key: str, window: int) -> Row:
    start = NOON + timedelta(minutes=window)
    return {"key": key, "n": n, "window_start": start, "window_end": start + timedelta(minutes=1)}


def machine(fn: Any, params: Row, on_timer: Any = None) -> Machine:
    """A shard by the column ``key`` that runs a function."""
    spec = KeyedSpec(on_timer=None if on_timer is None else "m:f")
    signature = signature_of(spec, fn, on_timer)
    function = KeyedFunction(signature, fn, on_timer, params, to_records=to_records)
    return Machine(signature, function, ["key"], MemoryStore)


def feed(shard: Machine, rows: list[Row], chance: random.Random) -> None:
    """The rows, cut into batches somewhere, with crashes before and after commits."""
    while rows:
        size = chance.randrange(1, len(rows) + 1)
        table, rows = pa.Table.from_pylist(rows[:size]), rows[size:]
        piece = KeyedPiece(table, NEVER, np.zeros(table.num_rows, np.int64))
        shard.batch([piece], NEVER, crash=lambda: chance.random() < 0.2)


def given(shard: Machine) -> list[Row]:
    assert shard.failed == []
    return [row for row, _ in shard.results]


# --- Reduce -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [add, without_key])
def test_a_window_gives_one_row_for_each_key(fn: Any) -> None:
    """Of all rows of the windows that close, which may be several. The key stays, and the time is right before the end."""
    rows = [windowed(1, "a", 0), windowed(2, "b", 0), windowed(3, "a", 1), windowed(4, "a", 0), windowed(5, "a", 1)]
    found = functions.reduce_windows(pa.Table.from_pylist(rows), fn, ["key"]).to_pylist()
    last = [NOON + timedelta(minutes=minutes, microseconds=-1) for minutes in (1, 2)]
    assert [(row["key"], row["n"], row["window_start"], row["window_time"]) for row in found] == [
        ("a", 5, NOON, last[0]),
        ("b", 2, NOON, last[0]),
        ("a", 8, NOON + timedelta(minutes=1), last[1]),
    ]


def test_a_window_by_size_has_numbers() -> None:
    """Its time is the number of its last row."""
    rows = pa.table({"key": ["a", "a"], "n": [1, 2], "window_start": [0, 0], "window_end": [10, 10]})
    (found,) = functions.reduce_windows(rows, add, ["key"]).to_pylist()
    assert found == {"key": "a", "n": 3, "window_start": 0, "window_end": 10, "window_time": 9}


def test_nothing_and_nan_are_keys() -> None:
    """Rows without a value in the key's column are together, and so are those of NaN."""
    rows = pa.table({"key": [None, float("nan"), None, float("nan")], "n": [1, 2, 3, 4]})
    rows = rows.append_column("window_start", pa.array([0] * 4)).append_column("window_end", pa.array([5] * 4))
    assert functions.reduce_windows(rows, add, ["key"])["n"].to_pylist() == [4, 6]


@pytest.mark.parametrize("seed", range(20))
def test_reduce_across_windows_counts_all_windows_so_far(seed: int) -> None:
    """One result for each result of a window, wherever batches are cut and peers crash."""
    chance = random.Random(seed)
    rows = [windowed(chance.randrange(100), chance.choice("abc"), n // 3) for n in range(30)]
    shard = machine(functions.reduce_to_here, {"reduce": chance.choice([add, without_key]), "keys": ["key"]})
    feed(shard, rows, chance)
    totals: dict[str, int] = {}
    wanted = []
    for row in rows:
        totals[row["key"]] = totals.get(row["key"], 0) + row["n"]
        wanted.append({**row, "n": totals[row["key"]]})
    assert given(shard) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_reduce_of_a_batch_gives_each_key_once_at_the_end(seed: int) -> None:
    """Nothing before the end; the state holds one row of each key."""
    chance = random.Random(seed)
    rows = [{"key": chance.choice("abc"), "n": chance.randrange(100)} for _ in range(30)]
    params = {"reduce": add, "keys": ["key"]}
    shard = machine(functions.reduce_until_end, params, functions.give_reduced)
    feed(shard, rows, chance)
    assert given(shard) == []
    shard.batch([], END, crash=lambda: chance.random() < 0.2)
    wanted = {key: sum(row["n"] for row in rows if row["key"] == key) for key in "abc"}
    assert len(given(shard)) == len(wanted)
    assert {row["key"]: row["n"] for row in given(shard)} == wanted


def test_what_a_row_holds_comes_back_from_the_state() -> None:
    """Values of every type that rows have, also those that a state of any value would give back as texts."""
    row = {
        "key": "a",
        "n": 1,
        "money": Decimal("1.10"),
        "day": date(2026, 11, 27),
        "at": NOON,
        "local": datetime(2026, 11, 27, 12, 0, 0, 5),  # noqa: DTZ001 - a time without a zone
        "clock": time(12, 30),
        "took": timedelta(days=-1, microseconds=7),
        "raw": b"\x00\xff",
        "flag": True,
        "ratio": 0.5,
        "nothing": None,
        "tagged": {"$date": "no date"},
        "odd": {"$$x": [Decimal(1)], "$": date(2026, 1, 1)},
        "list": [Decimal("2.50"), None],
    }

    def keep(one: Row, other: Row) -> Row:
        return {**one, "n": other["n"]}

    shard = machine(functions.reduce_to_here, {"reduce": keep, "keys": ["key"]})
    feed(shard, [row, {**row, "n": 2}, {**row, "n": 3}], random.Random(1))
    assert given(shard) == [{**row, "n": n} for n in (1, 2, 3)]
    assert [type(value) for value in given(shard)[2].values()] == [type(value) for value in row.values()]


def test_a_function_that_gives_no_row_fails() -> None:
    """With what it gave."""
    rows = pa.Table.from_pylist([windowed(1, "a", 0), windowed(2, "a", 0)])
    with pytest.raises(FunctionError, match="gave int") as raised:
        functions.reduce_windows(rows, lambda one, other: 3, ["key"])  # type: ignore[arg-type,return-value]
    assert raised.value.code == "SX-FN-RESULT"


# --- Totals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_totals_run_across_windows(seed: int) -> None:
    """Each result of a window gives one with the totals of the key so far, of every aggregate that can be carried on."""
    chance = random.Random(seed)
    rows = []
    for n in range(24):
        values = [chance.choice([None, chance.randrange(9)]) for _ in range(chance.randrange(1, 4))]
        rows.append({"key": chance.choice("ab"), "values": values, "window": n // 4})
    results = [{"key": row["key"], "window_start": row["window"], **aggregated(row["values"])} for row in rows]
    shard = machine(
        functions.add_to_here, {"merge": {kind: [kind, 4 if kind == "collect" else None] for kind in CARRIED}}
    )
    schema = to_table(results, pa.schema([])).schema
    while results:
        size = chance.randrange(1, len(results) + 1)
        table, results = pa.Table.from_pylist(results[:size], schema=schema), results[size:]
        piece = KeyedPiece(table, NEVER, np.zeros(table.num_rows, np.int64))
        shard.batch([piece], NEVER, crash=lambda: chance.random() < 0.2)
    so_far: dict[str, list[Any]] = {}
    wanted = []
    for row in rows:
        so_far.setdefault(row["key"], []).extend(row["values"])
        wanted.append({"key": row["key"], "window_start": row["window"], **aggregated(so_far[row["key"]])})
    assert given(shard) == wanted


LARGE = Decimal("9" * 34 + ".99")


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        ("sum", [LARGE, Decimal("-0.98"), Decimal("0.50")], Decimal("9" * 34 + ".51")),
        ("sum", [2**63 - 1, -1, 1], 2**63 - 1),
        ("sum", [-(2**63), 1, -1], -(2**63)),
        ("min", [math.nan, 2.0, math.nan, 1.0], 1.0),
        ("max", [1.0, math.nan, 2.0], 2.0),
    ],
)
def test_totals_are_exact(kind: str, values: list[Any], total: Any) -> None:
    """Decimals and integers keep all digits, and NaN hides no least or greatest value."""
    shard = machine(functions.add_to_here, {"merge": {"n": [kind, None]}})
    feed(shard, [{"key": "a", "n": value} for value in values], random.Random(1))
    assert given(shard)[-1]["n"] == total


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ([Decimal("9" * 36 + ".99"), Decimal("0.01")], "38 digits"),
        ([2**63 - 1, 1], "64 bits"),
        ([-(2**63), -1], "64 bits"),
    ],
)
def test_totals_that_leave_their_type_fail(values: list[Any], limit: str) -> None:
    """As a sum of a window does."""
    totals: Any = SimpleNamespace(exists=False, value=None)
    functions.add_to_here({"n": values[0]}, {"n": ["sum", None]}, totals)
    totals.exists = True
    with pytest.raises(FunctionError, match=limit) as raised:
        functions.add_to_here({"n": values[1]}, {"n": ["sum", None]}, totals)
    assert raised.value.code == "SX-WINDOW-OVERFLOW"


def aggregated(values: list[int | None]) -> Row:
    """As a window gives it."""
    there = [value for value in values if value is not None]
    return {
        "count": len(values),
        "sum": sum(there) if there else None,
        "min": min(there, default=None),
        "max": max(there, default=None),
        "first": values[0],
        "last": values[-1],
        "collect": there[:4],
    }


# --- Filters ----------------------------------------------------------------------------------------------------------


def test_filters_keep_what_their_condition_holds_for() -> None:
    """A null counts as false; a condition of tables may give any column of booleans."""
    assert functions.keep_row({"n": 1}, lambda row: row["n"]) == {"n": 1}
    assert functions.keep_row({"n": 1}, lambda _: None) is None
    rows = pa.table({"n": [1, 2, 3]})
    for column in ([True, None, False], pa.chunked_array([[True, None], [False]]), np.array([True, False, False])):
        assert functions.keep_rows(rows, lambda _, column=column: column)["n"].to_pylist() == [1]
