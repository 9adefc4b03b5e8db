"""Types that come together: no value changes, and it does not matter where batches are cut."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queues import block
from sardonyx.connectors.custom import custom_input
from sardonyx.connectors.records import to_records, to_table
from sardonyx.core.column_types import EXACT, UnfitTypes, common, converted, together
from sardonyx.core.errors import FunctionError
from sardonyx.core.settled_types import SettledTypes

UTC = dt.UTC
EAST = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2026, 11, 29, 12)  # noqa: DTZ001 - a time without a zone
TYPES = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()),
    *(
        pa.float32(),
        pa.float64(),
        pa.decimal128(3, 2),
        pa.decimal128(38, 0),
        pa.decimal128(21, 10),
        pa.decimal256(70, 1),
    ),
    *(
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.binary(4),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time64("us"),
    ),
    *(pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "+02:00"), pa.duration("s"), pa.duration("us")),
    *(pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.string()), pa.large_list(pa.int8())),
    *(
        pa.struct([("a", pa.int64())]),
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        pa.struct([("b", pa.int8())]),
    ),
    *(pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.float64()), pa.dictionary(pa.int32(), pa.string())),
]


def joined(*types: pa.DataType | None) -> pa.DataType | None:
    found: pa.DataType | None = pa.null()
    for kind in types:
        found = None if found is None or kind is None else common(found, kind)
    return found


def by_name(kind: pa.DataType | None) -> object:
    """A type without the order of its fields."""
    if kind is None or not pa.types.is_struct(kind):
        return kind
    return {field.name: field.type for field in kind}


def test_the_common_type_does_not_depend_on_the_order() -> None:
    """Of two and of three types, whichever come together first."""
    for one, other in itertools.product(TYPES, repeat=2):
        assert by_name(common(one, other)) == by_name(common(other, one)), (one, other)
    for one, other, third in itertools.product(TYPES, repeat=3):
        right = common(other, third)
        found = None if right is None else common(one, right)
        assert by_name(joined(one, other, third)) == by_name(found), (one, other, third)


# --- Values -----------------------------------------------------------------------------------------------------------

VALUES: list[list[Any]] = [
    [None, 1, -7, 2**40, EXACT, EXACT + 1, 2.5, float("inf")],
    [None, 3, Decimal("1.10"), Decimal("100.25"), Decimal("0.001"), Decimal("1E+30")],
    [None, dt.date(2026, 11, 29), NOON, NOON.replace(tzinfo=UTC)],
    [None, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=EAST)],
    [None, True, 9, 10],
    [None, "text", 9, b"bytes", True],
    [None, [], [1], [2.5], [None], [EXACT + 1], [[EXACT + 1]], [[0.5]]],
    [None, {"a": 1}, {"a": EXACT + 1}, {"a": 2.5, "b": "x"}, {"b": None}, {"a": [1], "b": "x"}],
    [None, [dt.date(2026, 11, 29)], [NOON], {"at": NOON}, {"at": NOON.replace(tzinfo=UTC)}],
    [None, Decimal("1.5"), 2.5, True, "x"],
]
KNOWN = [
    None,
    pa.string(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(10, 2),
    pa.timestamp("us", "UTC"),
]


def equal(one: object, other: object) -> bool:
    """Whether two values are the same one. A field that is missing is null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(equal(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def outcome(pieces: list[list[Any]], known: pa.DataType | None) -> tuple[str, Any]:
    """What a function makes that gives these values, in as many batches; read from its link as a whole."""
    like = pa.schema([] if known is None else [("v", known)])
    types = SettledTypes()
    blocks: list[bytes] = []
    given: list[Any] = []
    try:
        for piece in pieces:
            table = types.settle(to_table([{"v": value} for value in piece], like))
            blocks += [each.value for each in block.encode(table)]
            given += piece
            rows = [row["v"] for row in to_records(block.decode(blocks))]
            assert len(rows) == len(given)
            assert all(map(equal, rows, given)), f"{given} became {rows}"
        return "rows", block.decode(blocks).schema.field("v").type
    except UnfitTypes as error:
        return error.code, error.column


@pytest.mark.parametrize("seed", range(40))
def test_what_comes_of_values_does_not_depend_on_where_batches_are_cut(seed: int) -> None:
    """The same values and the same type, or the same error about the same column. No value ever changes."""
    chance = random.Random(seed)
    for _ in range(12):
        known = chance.choice(KNOWN)
        values = chance.choices(chance.choice(VALUES), k=chance.randrange(1, 7))
        whole = outcome([values], known)
        for cuts in (range(1, len(values)), sorted(chance.sample(range(1, len(values)), len(values) // 2))):
            edges = [0, *cuts, len(values)]
            pieces = [values[start:end] for start, end in itertools.pairwise(edges)]
            assert outcome(pieces, known) == whole, (seed, known, pieces)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (pa.array([Decimal("0.123")]), pa.decimal128(38, 2)),
        (pa.array([0.123]), pa.decimal128(38, 2)),
        (pa.array([Decimal("0.123")]), pa.float64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([2.5]), pa.int64()),
        (pa.array([NOON]), pa.date32()),
        (pa.array([NOON]), pa.timestamp("us", "UTC")),
        (pa.array([9]), pa.string()),
        (pa.array([9]), pa.bool_()),
        (pa.array([True]), pa.int64()),
        (pa.array([EXACT + 1]), pa.float64()),
        (pa.array([[0.1]]), pa.list_(pa.float32())),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
    ],
)
def test_no_value_becomes_another_one(value: pa.Array, kind: pa.DataType) -> None:
    """Neither rounded nor cut, nor read as something else."""
    with pytest.raises(UnfitTypes) as raised:
        converted(value, kind, "v")
    assert raised.value.code == "SX-COLUMN-TYPE"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (pa.array([1, None]), pa.decimal128(3, 2)),
        (pa.array([0.5, float("nan"), None]), pa.float32()),
        (pa.array([9.0]), pa.int64()),
        (pa.nulls(2), pa.string()),
        (pa.array([None], pa.string()), pa.int64()),
        (pa.array([NOON.replace(tzinfo=EAST)]), pa.timestamp("us", "UTC")),
        (pa.array([[1], None]), pa.list_(pa.float64())),
    ],
)
def test_values_that_fit_are_converted(value: pa.Array, kind: pa.DataType) -> None:
    """Also into narrower types, and nulls into all."""
    assert converted(value, kind, "v").type == kind


class Moments:
    """An input as a user writes it: rows with a column that others lack, and with values of several types."""

    def __init__(self, mixed: bool) -> None:
        self._mixed = mixed

    def splits(self) -> list[dict[str, Any]]:
        return [{}]

    def read(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"at": dt.date(2026, 11, 29)}, {"at": NOON} if self._mixed else {"n": 1}]


def test_rows_of_a_connector_follow_the_same_rule() -> None:
    """Dicts of an input lose neither columns that the first row lacks nor the time of day."""
    found = custom_input("m:Moments", {"mixed": False}, lambda _: Moments).read({})
    assert found.to_pylist() == [{"at": dt.date(2026, 11, 29), "n": None}, {"at": None, "n": 1}]
    with pytest.raises(FunctionError, match="column 'at' of the rows of connector m:Moments") as raised:
        custom_input("m:Moments", {"mixed": True}, lambda _: Moments).read({})
    assert raised.value.code == "SX-COLUMN-TYPE"


def test_the_error_names_the_column_and_how_to_declare_it() -> None:
    """What the user can follow."""
    with pytest.raises(FunctionError) as raised:
        together([pa.table({"id": [1], "v": [Decimal("1.10")]}), pa.table({"id": [2], "v": ["x"]})])
    assert raised.value.code == "SX-COLUMN-TYPE"
    assert "column 'v' of rows that come together has the types decimal(3,2) and string" in raised.value.message
    assert 'schema="v decimal(3,2)"' in raised.value.fix


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (pa.map_(pa.string(), pa.float64()), {"a": math.nan}, True),
        (pa.struct([("a", pa.float32())]), {"a": -math.nan}, True),
        (pa.list_(pa.float32()), [math.nan, 0.5], True),
        (pa.list_(pa.float32()), [0.1], False),
        (pa.list_(pa.int64()), [1.0], False),
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}, False),
    ],
)
def test_a_nested_type_is_kept_if_no_value_changes(kind: pa.DataType, given: Any, kept: bool) -> None:
    """NaN does not equal itself, and yet stays what it is. A whole float does not become an integer."""
    found = to_table([{"v": given}], pa.schema([("v", kind)]))
    assert (found.schema.field("v").type == kind) == kept
