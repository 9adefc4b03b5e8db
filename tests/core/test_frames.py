"""What pandas gives follows the rule of records: no value becomes another one because of a neighbour or of where rows are cut."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from peer.row_functions import Grouping
from queues.keys import checksums_of
from sardonyx.connectors.records import to_table
from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.core.spec import TaskSpec
from sardonyx.testing.rows import messages_of, table_of
from spark_tasks.worker import Done, Plan, Slice, run
from spark_tasks.worker_pool import from_buffer, to_buffer

DAY = dt.date(2026, 1, 1)
NOON = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - a time without a zone
MOMENT = NOON.replace(tzinfo=dt.UTC)
EAST = MOMENT.astimezone(dt.timezone(dt.timedelta(hours=2)))
NOTHING: pa.Schema = pa.schema([])
GIVEN: dict[str, Any] = {}
"""What the function below gives: by name, as pandas takes it."""

MIXED: list[list[Any]] = [
    [DAY, NOON],
    [MOMENT, NOON],
    [pd.Timestamp(MOMENT), NOON],
    [pd.Timestamp(NOON), DAY],
    [True, 2.5],
    [2.5, True],
    [9, "9"],
    ["x", b"x"],
    [Decimal("1.1"), 7.5],
    [2**53 + 1, 0.5],
    [[DAY], [NOON]],
    [{"a": DAY}, {"a": NOON}],
    [np.array([DAY, NOON], object), None],
    [np.array([1, 2]), np.array([True])],
]
"""Two values that no type holds unchanged."""


def frame(rows: pd.DataFrame) -> pd.DataFrame:
    """What the test says, of the rows with these numbers."""
    picked = {name: column[rows["n"].to_numpy(int)] for name, column in GIVEN.items()}
    return pd.DataFrame({name: pd.Series(column, dtype=column.dtype) for name, column in picked.items()})


def called(given: pa.Table, schema: str | None = None, **columns: Any) -> Done:
    """What comes of a frame with such columns."""
    GIVEN.clear()
    GIVEN.update({name: column if hasattr(column, "dtype") else _objects(column) for name, column in columns.items()})
    return run(
        [Plan("t", f"{__name__}:frame", None, "pandas", {}, schema=schema)], Slice(to_buffer(given), isolate=True)
    )


def made(*values: Any, like: pa.DataType | None = None, schema: str | None = None) -> pa.ChunkedArray:
    """The column that comes of objects. ``like``: the type that the rows before have in it."""
    rows: dict[str, Any] = {"n": np.arange(len(values))} | ({} if like is None else {"v": pa.nulls(len(values), like)})
    return from_buffer(called(pa.table(rows), schema, v=list(values)).data)["v"]


def _objects(values: list[Any]) -> np.ndarray[Any, Any]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


@pytest.mark.parametrize("values", MIXED, ids=repr)
@pytest.mark.parametrize("way", [list, lambda values: values[::-1]], ids=["as they are", "the other way round"])
def test_values_that_do_not_go_together_are_refused(way: Callable[[list[Any]], list[Any]], values: list[Any]) -> None:
    """As those of a function of records: a date beside a moment, a time with a zone beside one without. The error names the
    column, both types, and the function.
    """
    with pytest.raises(UnfitTypes) as raised:
        made(*way(values))
    assert raised.value.code == "SX-COLUMN-TYPE"
    assert "column 'v' of what function frame of task t returned has the types" in str(raised.value)
    with pytest.raises(UnfitTypes):
        to_table([{"v": value} for value in way(values)], NOTHING)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([np.int32(1), 2**40], pa.int64(), [1, 2**40]),
        ([Decimal("1.1"), 7], pa.decimal128(20, 1), [Decimal("1.1"), Decimal("7.0")]),
        ([MOMENT, EAST], pa.timestamp("us", "UTC"), [MOMENT, MOMENT]),
        ([pd.Timestamp(NOON), NOON], pa.timestamp("us"), [NOON, NOON]),
        (["a", np.str_("b")], pa.string(), ["a", "b"]),
        ([[1], (2.5,), np.array([3])], pa.list_(pa.float64()), [[1.0], [2.5], [3.0]]),
        ([{"a": 1}, {"b": "x"}], None, [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([1, None, np.nan, pd.NA], pa.int64(), [1, None, None, None]),
        ([NOON, pd.NaT], pa.timestamp("us"), [NOON, None]),
        (["a", np.float32("nan")], pa.string(), ["a", None]),
        ([Decimal("1.5"), Decimal("NaN")], pa.decimal128(2, 1), [Decimal("1.5"), None]),
        ([[1.5, np.nan], [pd.NA], {2.5}], pa.list_(pa.float64()), [[1.5, None], [None], [2.5]]),
        ([{"a": pd.NaT}, {"a": DAY}], pa.struct([("a", pa.date32())]), [{"a": None}, {"a": DAY}]),
        ([np.array([1.5, np.nan]), None], pa.list_(pa.float64()), [[1.5, None], None]),
        ([pd.NaT, None, np.nan], pa.null(), [None, None, None]),
        ([], pa.null(), []),
    ],
    ids=repr,
)
def test_values_that_go_together_are_widened(values: list[Any], kind: pa.DataType | None, found: list[Any]) -> None:
    """And what pandas writes for a missing value is null, in a list or dict, too."""
    column = made(*values)
    assert (column.to_pylist(), kind in (None, column.type)) == (found, True), column.type


def test_a_column_of_objects_keeps_the_type_that_it_had() -> None:
    """If no value changes; a wider one holds both."""
    assert made(1, None, like=pa.int32()).type == pa.int32()
    assert made(1, 2**40, like=pa.int32()).type == pa.int64()
    assert made(Decimal("1.5"), like=pa.decimal128(38, 18)).type == pa.decimal128(38, 18)
    assert made(None, like=pa.string()).type == pa.string()
    assert made("x", like=pa.int64()).type == pa.string()


def test_a_nan_of_numpy_is_null_and_one_of_arrow_stays() -> None:
    """Numbers of numpy have nothing else for a missing number; Arrow has both."""
    rows = pa.table({"n": [0, 1, 2]})
    arrow = pd.arrays.ArrowExtensionArray(pa.array([1.5, float("nan"), None]))
    table = from_buffer(called(rows, numpy=np.array([1.5, np.nan, np.inf]), arrow=arrow).data)
    assert table["numpy"].to_pylist() == [1.5, None, float("inf")]
    assert [str(value) for value in table["arrow"].to_pylist()] == ["1.5", "nan", "None"]
    assert table.schema.names == ["numpy", "arrow"]


def test_columns_without_objects_are_given_to_arrow_as_they_are() -> None:
    """Beside objects, too, in their order and with their types; also in a frame whose index is not from 0 on."""
    rows = pa.table({"n": [2, 0]})
    given = {
        "a": np.array([1, 2, 3], np.int16),
        "b": _objects(["x", DAY.isoformat(), "z"]),
        "c": pd.Categorical(["u", None, "v"]),
        "d": np.array(["2026-01-01", "NaT", "2026-01-02"], "datetime64[ns]"),
        "e": pd.Categorical([DAY, None, DAY]),
    }
    table = from_buffer(called(rows, **given).data)
    kinds = [pa.int16(), pa.string(), None, pa.timestamp("ns"), pa.dictionary(pa.int8(), pa.date32())]
    assert [kind or field.type for kind, field in zip(kinds, table.schema, strict=True)] == table.schema.types
    assert [column.to_pylist() for column in table.columns[:3]] == [[3, 1], ["z", "x"], ["v", "u"]]
    assert table["e"].to_pylist() == [DAY, DAY]
    categories = pd.Categorical([DAY, NOON], categories=pd.Index([DAY, NOON], dtype=object))
    with pytest.raises(UnfitTypes, match="date and timestamp_ntz"):
        called(pa.table({"n": [0, 1]}), v=categories)


def test_a_column_that_is_declared_makes_bad_records_of_what_does_not_fit() -> None:
    """Each row by itself, as of records."""
    done = called(
        pa.table({"n": range(4)}), "v date, w double", v=[DAY, NOON, None, pd.NaT], w=[1, 2.5, Decimal("0.5"), np.nan]
    )
    assert [(bad.index, bad.failure.code) for bad in done.bad] == [(1, "SX-COLUMN-TYPE"), (2, "SX-COLUMN-TYPE")]
    assert from_buffer(done.data).to_pylist() == [{"v": DAY, "w": 1.0}, {"v": None, "w": None}]


@pytest.mark.parametrize(
    "value", [object(), pd.Interval(0, 1), np.ones((2, 2)), {1: 2}], ids=lambda value: type(value).__name__
)
def test_a_value_without_a_type_is_a_wrong_result(value: Any) -> None:
    """The error names the column."""
    with pytest.raises(FunctionError, match="'v'") as raised:
        made(value)
    assert raised.value.code == "SX-FN-RESULT"


# --- Keys -------------------------------------------------------------------------------------------------------------


def keys(_: pa.Table) -> Any:
    """A group function whose answer the test says."""
    return GIVEN["keys"]


def places(answer: Any, rows: int) -> list[int]:
    """The partition of each row."""
    GIVEN["keys"] = answer
    grouping = Grouping("t", f"{__name__}:keys", lambda _: keys)
    found = [0] * rows
    for part in grouping.split(pa.table({"n": range(rows)}), 1_000_003):
        for number in part.rows["n"].to_pylist():
            found[number] = part.number
    return found


@pytest.mark.parametrize("values", [*MIXED[:10], [DAY, None, "x", 7], [(1, DAY), (1, NOON)], [2**70, 1]], ids=repr)
@pytest.mark.parametrize(
    "how", [list, _objects, lambda values: pd.Series(_objects(values))], ids=["list", "numpy", "pandas"]
)
def test_a_key_does_not_depend_on_its_neighbours(how: Callable[[list[Any]], Any], values: list[Any]) -> None:
    """The partition of a key is the same whatever other keys a group function gives with it, and as of a function of records."""
    wanted = [int(number) for number in checksums_of(values) % 1_000_003]
    assert places(how(values), len(values)) == wanted
    assert places(how(values[::-1]), len(values)) == wanted[::-1]
    assert [places(how([value]), 1)[0] for value in values] == wanted


def test_a_missing_key_is_null() -> None:
    """As pandas writes it, in all columns of objects and of numpy."""
    null = places([None], 1)[0]
    for answer in (
        [np.nan, "x"],
        pd.Series([pd.NaT, "x"], dtype=object),
        pd.Series([np.nan, 1.0]),
        np.array([np.nan, 1.0]),
    ):
        assert places(answer, 2)[0] == null


@pytest.mark.parametrize("answer", [pd.DataFrame({"a": [1, 2]}), [1], [{}, 1], np.ones((2, 2)), 7])
def test_what_is_no_key_is_a_wrong_result(answer: Any) -> None:
    """And never an exception of Arrow's."""
    with pytest.raises(FunctionError) as raised:
        places(answer, 2)
    assert raised.value.code in ("SX-FN-RESULT", "SX-KEY-TYPE")


# --- Rows that tests give ---------------------------------------------------------------------------------------------


def test_rows_that_a_test_gives_follow_the_rule_too() -> None:
    """A frame for an input is not changed on the way in."""
    task = TaskSpec(name="in", type="input", connector="generator", options={})
    mixed = pd.DataFrame({"v": [DAY, NOON]})
    for way in (lambda: table_of(task, mixed), lambda: messages_of("in", {"topic": "t"}, mixed)):
        with pytest.raises(SardonyxError, match="date and timestamp_ntz") as raised:
            way()
        assert raised.value.code == "SX-TEST-ROWS"
    assert table_of(task, pd.DataFrame({"v": [MOMENT, EAST]}))["v"].to_pylist() == [MOMENT, MOMENT]
