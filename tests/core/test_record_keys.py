"""The key of a record on a user's topic: the same bytes for equal values, whatever type a batch gave them."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from queues.keys import canonical
from sardonyx import Job, generator, kafka
from sardonyx.connectors.records import to_table
from sardonyx.connectors.registry import topic_format
from sardonyx.connectors.topics.record_keys import keys_of
from sardonyx.core.column_types import UnfitTypes, common, converted
from sardonyx.testing import ClockedRun

NUMBERS: list[Any] = [
    *(0, 7, -7, 100, 2**53, 10**15, 10**18, 2**63 - 1, -(2**63)),
    *(0.0, -0.0, 7.0, 0.5, -100.25, 0.1, 1e15, 1e16, 2.0**63, 2.0**80, 1e300, 1e-7, 12345678901.5, 2.0**-30, 5e-324),
    *(math.nan, math.inf, -math.inf),
    *map(Decimal, ("0.00", "7.00", "-7", "1.1", "1.10", "100.250", "0.5000", "1E+18", "1E-8", "12345678901.50")),
]
TYPES = [
    *(pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(3, 2), pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(70, 40), pa.decimal128(19, -2)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    *(pa.timestamp("s", "UTC"), pa.timestamp("us", "+02:00"), pa.timestamp("ms"), pa.date32(), pa.date64()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())),
    *(pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())),
]
OTHERS: list[Any] = [
    *(
        dt.time(0, 0, 5),
        dt.time(23, 59, 59, 999_999),
        dt.timedelta(0),
        dt.timedelta(seconds=-90),
        dt.timedelta(microseconds=1),
    ),
    *(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)),  # noqa: DTZ001 - a local one
    *("", "1.10", "ab", b"", b"ab", b"\xff\0"),
]


def key(value: Any, kind: pa.DataType) -> bytes | None:
    """The key of a record with this value."""
    (found,) = keys_of(pa.table({"k": _array(value, kind)}), "k")
    return found


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    """Raises if the type cannot hold exactly this value."""
    if pa.types.is_dictionary(kind):
        return pa.array([value], kind.value_type).dictionary_encode()
    if pa.types.is_nested(kind) or pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return pa.array([value], kind)
    exact = pa.array([value])
    return (
        converted(exact, kind, "k")
        if pa.types.is_decimal(kind) or pa.types.is_floating(kind)
        else pa.array([value], kind)
    )


def holders(value: Any) -> list[pa.DataType]:
    """The types that hold a value unchanged."""
    found = []
    for kind in TYPES:
        try:
            array = _array(value, kind)
            back = array[0].as_py()
            same = canonical(back) == canonical(value)
        except Exception:  # noqa: BLE001, S112 (whatever it is: the type does not hold the value)
            continue
        if same:
            found.append(array.type)
    return found


@pytest.mark.parametrize("value", [*NUMBERS, *OTHERS], ids=repr)
def test_equal_values_have_equal_keys_in_all_types_that_hold_them(value: Any) -> None:
    """Numbers, times, durations, texts, bytes: what holds the value makes no difference."""
    found = {str(kind): key(value, kind) for kind in holders(value)}
    assert found, "no type holds it"
    assert len(set(found.values())) == 1, found


def test_different_numbers_have_different_keys() -> None:
    """Among those that a type holds."""
    found: dict[pa.DataType, dict[bytes | None, bytes]] = {}
    for value in NUMBERS:
        for kind in holders(value):
            known = found.setdefault(kind, {}).setdefault(key(value, kind), canonical(value))
            assert known == canonical(value), (value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (7, pa.int32(), b"7"),
        (Decimal("1.10"), pa.decimal128(10, 2), b"1.1"),
        (Decimal("100.00"), pa.decimal128(10, 2), b"100"),
        (Decimal("0E-10"), pa.decimal128(12, 10), b"0"),
        (Decimal("1E-8"), pa.decimal128(12, 10), b"0.00000001"),
        (100.0, pa.float64(), b"100"),
        (-0.0, pa.float64(), b"0"),
        (0.1, pa.float64(), b"0.1"),
        (1e16, pa.float64(), b"10000000000000000"),
        (1e-7, pa.float64(), b"0.0000001"),
        (math.nan, pa.float32(), b"nan"),
        (-math.inf, pa.float64(), b"-inf"),
        ("1.10", pa.string(), b"1.10"),
        (dt.time(12), pa.time64("us"), b"12:00:00.000000"),
        (dt.timedelta(seconds=1), pa.duration("us"), b"1000000"),
        (None, pa.decimal128(3, 2), None),
        (None, pa.float64(), None),
        (None, pa.duration("s"), None),
        (None, pa.time64("ns"), None),
        (None, pa.null(), None),
    ],
)
def test_how_keys_are_written(value: Any, kind: pa.DataType, found: bytes | None) -> None:
    """As docs/connectors.md says."""
    assert key(value, kind) == found


def test_nanoseconds_are_kept() -> None:
    """Two times of day, or two durations, are one key only if they are equal."""
    times = pa.table({"k": pa.array([5_000, 5_001, None], pa.time64("ns"))})
    assert keys_of(times, "k") == [b"00:00:00.000005", b"00:00:00.000005001", None]
    assert keys_of(pa.table({"k": pa.array([5_000, 5_010, -1], pa.duration("ns"))}), "k") == [b"5", b"5.01", b"-0.001"]


@pytest.mark.parametrize("form", ["json", "raw"])
def test_a_key_that_is_bytes_is_written_as_it_is(form: str) -> None:
    """Whatever type of bytes it is, in each format."""
    for kind in (pa.binary(), pa.binary(2), pa.binary_view(), pa.large_binary()):
        rows = pa.table({"value": ["x"], "k": pa.array([b"\0\xff"], kind)})
        assert [found for found, _ in topic_format({"format": form, "key": "k"}).encode(rows)] == [b"\0\xff"]


@pytest.mark.parametrize("seed", range(3))
def test_a_key_has_one_entry_however_batches_are_cut(seed: int, sardonyx_clocked: Callable[..., ClockedRun]) -> None:
    """A function or a connector that declares nothing: the type of the key follows from the values of each batch."""
    chance = random.Random(seed)
    values: list[Any] = [Decimal("1.1"), Decimal("1.25"), 7, Decimal("100.125"), None, Decimal("7.0")]
    rows = [{"k": value} for value in chance.choices(values, k=8)]
    job = Job("keys", partitions=1)
    job.output("out", kafka("out", key="k"), after=job.input("rows", generator(count=1, columns={"k": "key"})))
    found = []
    for cuts in ((), sorted(chance.sample(range(1, 8), 3)), range(1, 8)):
        run = sardonyx_clocked(job)
        for start, end in itertools.pairwise([0, *cuts, 8]):
            run.give("rows", to_table(rows[start:end], pa.schema([])))
        found.append([key for key, _ in run.messages("out")])
    wanted = {"None": None, "1.1": b"1.1", "1.25": b"1.25", "7": b"7", "7.0": b"7", "100.125": b"100.125"}
    assert found == [[wanted[str(row["k"])] for row in rows]] * 3


def test_types_that_become_a_common_one_keep_their_keys() -> None:
    """The rule for columns that come together widens a type; the key of a value does not change by it."""
    for value in [*NUMBERS, *OTHERS]:
        for one, other in itertools.combinations(holders(value), 2):
            wide = common(one, other)
            if wide is None or pa.types.is_dictionary(one) or wide in (one, other):
                continue
            with contextlib.suppress(UnfitTypes):  # an integer that a double may not hold
                column = converted(_array(value, one), wide, "k")
                assert keys_of(pa.table({"k": column}), "k") == [key(value, one)], (value, one, wide)
