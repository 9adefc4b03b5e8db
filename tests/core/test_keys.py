"""The stable hash: equal values have equal keys, however they are held; pinned to the byte."""

from __future__ import annotations

import datetime as dt
import math
import zlib
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.keys import canonical, checksums, checksums_of, numbered
from sardonyx.core.errors import FunctionError

UTC = dt.UTC
VECTORS = [  # the same as in docs/jobs.md: key, canonical bytes, CRC-32
    ((None,), "6e 00000000", 0xE0203E31),
    ((True,), "62 00000001 01", 0x9AE20E25),
    ((0,), "23 00000001 30", 0x0F38D7D6),
    ((-12,), "23 00000003 2d3132", 0x3E7196B3),
    ((0.5,), "23 00000003 302e35", 0x79B13DAD),
    ((math.nan,), "23 00000003 6e616e", 0x94CBE5A1),
    (("AA",), "73 00000002 4141", 0xABD1CEE4),
    ((b"\x00\xff",), "78 00000002 00ff", 0x6C6D7AD1),
    ((dt.date(1970, 1, 2),), "64 00000001 31", 0x6A62DD94),
    ((dt.datetime(1970, 1, 1, 1, tzinfo=UTC),), "7a 0000000d 33363030303030303030303030", 0x8129A748),
    ((dt.datetime(1970, 1, 1, 0, 0, 1),), "74 0000000a 31303030303030303030", 0xB5769F12),  # noqa: DTZ001
    (("AA", 7), "73 00000002 4141 23 00000001 37", 0x01692126),
]


@pytest.mark.parametrize(("key", "written", "crc"), VECTORS)
def test_the_bytes_are_those_on_the_page(key, written, crc):
    """What another program must do to find the partition of a key; from Arrow and from Python alike."""
    assert canonical(*key) == bytes.fromhex(written.replace(" ", ""))
    assert zlib.crc32(canonical(*key)) == crc
    assert checksums([pa.array([value]) for value in key]).tolist() == [crc]
    assert checksums_of([key]).tolist() == [crc]


MOMENT = dt.datetime(2026, 1, 31, 8, tzinfo=UTC)
NAIVE = dt.datetime(2026, 1, 31, 8)  # noqa: DTZ001
EQUAL = [
    [pa.array([7], kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())]
    + [pa.array([7.0], kind) for kind in (pa.float32(), pa.float64())]
    + [pa.array([np.float16(7)]), pa.array([Decimal("7.00")]), pa.array([7]).cast(pa.decimal256(40, 3))],
    [pa.array([0.0]), pa.array([-0.0]), pa.array([0]), pa.array([Decimal("-0.0")])],
    [pa.array([0.1], pa.float32()), pa.array([float(np.float32(0.1))])],
    [pa.array([1e300]), pa.array([1e300]).slice(0)],
    [pa.array([math.nan]), pa.array([-math.nan], pa.float32())],
    [pa.array(["é"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    + [pa.array(["é"]).dictionary_encode(), pa.chunked_array([["é"]]), pa.chunked_array([[], ["é"]], pa.string())],
    [pa.array([b"ab"], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view())],
    [pa.array([dt.date(2026, 1, 31)], kind) for kind in (pa.date32(), pa.date64())],
    [
        pa.array([MOMENT], pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in ("UTC", "Asia/Tokyo")
    ],
    [pa.array([NAIVE], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")],
    [pa.array([dt.time(8, 30)], kind) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))],
    [pa.array([dt.timedelta(seconds=3)], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")],
    [
        pa.nulls(1),
        pa.nulls(1, pa.int64()),
        pa.nulls(1, pa.string()),
        pa.nulls(1, pa.dictionary(pa.int32(), pa.string())),
    ],
    [pa.array([True]), pa.RunEndEncodedArray.from_arrays([1], [True])],
]


@pytest.mark.parametrize("columns", EQUAL, ids=lambda columns: str(columns[0].type))
def test_equal_values_are_one_key_whatever_holds_them(columns):
    """Widths, units, zones, dictionaries and chunks make no difference, nor whether Arrow or Python holds the value."""
    found = {checksums([column]).tolist()[0] for column in columns if len(column)}
    found |= {zlib.crc32(canonical(column.to_pylist()[0])) for column in columns if len(column)}
    assert len(found) == 1


def test_different_values_are_different_keys():
    """Of all that differ in kind or value no two have the same bytes, and keys of several values are not run together."""
    keys = [column[0].to_pylist()[0] for column in EQUAL]
    different = [(key,) for key in keys] + [
        ("7",), (b"7",), (False,), (1,), ("",), (b"",), ("a", "b"), ("ab", ""), ("", "ab"), ("ab",),
        (None, None), ("n",), (MOMENT + dt.timedelta(microseconds=1),), (math.inf,), (-math.inf,), ("nan",), (10**30,),
    ]  # fmt: skip
    assert len({canonical(*key) for key in different}) == len(different)


def test_values_of_pandas_and_numpy():
    """What pandas and numpy hold is the same key as what Arrow holds."""
    moment = pd.Timestamp("2026-01-31T08:00:00.000000001Z")
    column = pa.array([moment.value], pa.timestamp("ns", "UTC"))
    assert checksums_of([moment]).tolist() == checksums([column]).tolist()
    assert canonical(moment.tz_convert("Asia/Tokyo")) == canonical(moment)
    assert canonical(MOMENT.astimezone(ZoneInfo("Asia/Tokyo"))) == canonical(MOMENT)
    assert canonical(pd.NaT) == canonical(pd.NA) == canonical(None)
    assert canonical(np.int16(7)) == canonical(np.float32(7)) == canonical(7) == canonical(pa.scalar(7))
    assert canonical(np.datetime64("2026-01-31T08:00:00")) == canonical(NAIVE)
    assert canonical(np.str_("x")) == canonical("x")
    assert canonical(np.bool_(True)) == canonical(True)
    assert canonical(pd.Timedelta(3, "ns")) == canonical(*pa.array([3], pa.duration("ns")))
    assert canonical(UUID(int=7)) == canonical(UUID(int=7).bytes)
    assert checksums([pa.array([UUID(int=7).bytes], pa.uuid())]).tolist() == checksums_of([UUID(int=7)]).tolist()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(st.characters(codec="utf-8")),
    st.binary(), st.dates(), st.datetimes(), st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=1e12),
)  # fmt: skip


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20))
def test_columns_and_records_agree(rows):
    """Whatever the values, one by one or as columns: the same checksum in the same place."""
    expected = [zlib.crc32(canonical(*row)) for row in rows]
    assert checksums_of(rows).tolist() == expected
    assert checksums_of([row[0] for row in rows]).tolist() == [zlib.crc32(canonical(row[0])) for row in rows]
    for row, wanted in zip(rows, expected, strict=True):
        assert checksums([pa.array([value]) for value in row]).tolist() == [wanted]


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=30), st.lists(st.text(max_size=2), min_size=30))
def test_many_rows_of_few_keys(numbers, texts):
    """Each row gets the checksum of its own key, nulls too."""
    columns = [pa.array(numbers, pa.int32()), pa.array(texts[: len(numbers)], pa.string())]
    expected = [zlib.crc32(canonical(*row)) for row in zip(numbers, texts, strict=False)]
    assert checksums(columns).tolist() == expected
    assert checksums([column.dictionary_encode() for column in columns]).tolist() == expected


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, object(), dt.time(1, tzinfo=UTC), pa.array([(1, 2, 3)], pa.month_day_nano_interval())]
)
def test_what_cannot_be_a_key_is_refused(value):
    """Lists, structs and other things: with the type, and what to do."""
    columns = [value] if isinstance(value, pa.Array) else [pa.array([value])] if isinstance(value, list | dict) else []
    for refused in [
        lambda: checksums_of([value]),
        lambda: canonical(value),
        *(lambda c=c: checksums([c]) for c in columns),
    ]:
        with pytest.raises(FunctionError) as caught:
            refused()
        assert caught.value.code == "SX-KEY-TYPE"
        assert "group by" in caught.value.fix


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "", "a", "ä", "\0", "long" * 90]), st.sampled_from([None, 0, -1, 2**62])),
        max_size=9,
    )
)
def test_numbered_keys_have_the_canonical_bytes(rows):
    """Numbers and Arrow bytes of keys say what the canonical bytes of each row's values say."""
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())]
    for chosen in (columns[:1], columns[1:], columns):
        codes, keys = numbered(chosen)
        values = list(zip(*(column.to_pylist() for column in chosen), strict=True))
        assert [keys[code].as_py() for code in codes] == [canonical(*value) for value in values]
        assert len(keys) == len(set(values))


@given(st.lists(st.lists(st.sampled_from([None, 1.5, math.nan, 0.0, -0.0]), max_size=3), max_size=4))
def test_keys_in_several_pieces(pieces):
    """A column in pieces, with nulls and NaN or without a row, has the keys of the column in one."""
    whole = pa.array([value for piece in pieces for value in piece], pa.float64())
    for cast in (pa.float64(), pa.float32()):
        chunked = pa.chunked_array([pa.array(piece, cast) for piece in pieces], cast)
        codes, keys = numbered([chunked])
        assert [keys[code].as_py() for code in codes] == [canonical(value) for value in whole.to_pylist()]


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.time64("us"), pa.duration("s")]
)
def test_keys_of_no_rows(kind):
    """Of every type that a key can have."""
    codes, keys = numbered([pa.chunked_array([], kind)])
    assert (len(codes), len(keys)) == (0, 0)
