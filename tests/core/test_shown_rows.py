"""Rows of a link as they are shown: each kind of message, and values that are long or have no form in JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from queues import block
from queues.messages import CLOCK_HEADER, END_HEADER, OF_HEADER, ROWS_HEADER, SENTINEL_HEADER, WRITER_HEADER
from queues.shown_rows import CELL, EXACT, ITEMS, plain, row_count, rows


class Message:
    """A message as the Kafka client gives it."""

    def __init__(self, value: bytes | None, headers: dict[str, bytes] | None = None, key: bytes | None = None) -> None:
        self._value, self._headers, self._key = value, headers or {}, key

    def __len__(self) -> int:
        return len(self._value or b"")

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self._headers.items())

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_500


def test_a_block_is_shown_row_by_row() -> None:
    """With offset, number within the message, time and writer. Rows that were combined count as they stand there."""
    (whole,) = block.encode(pa.table({"n": [1, 2]}))
    message = Message(whole.value, {ROWS_HEADER: b"2", OF_HEADER: b"90", WRITER_HEADER: b"h-0"})
    assert row_count(message) == 2
    shown = rows("internal", message)
    assert [(row.offset, row.row, row.at, row.by, row.record) for row in shown] == [
        (7, 0, 1.5, "h-0", {"n": 1}),
        (7, 1, 1.5, "h-0", {"n": 2}),
    ]


@pytest.mark.parametrize(
    "message",
    [
        Message(None, {SENTINEL_HEADER: b"u"}),
        Message(None, {CLOCK_HEADER: b"5"}),
        Message(None, {END_HEADER: b"u"}),
    ],
    ids=["sentinel", "clock", "end marker"],
)
def test_what_holds_no_row_is_left_out(message: Message) -> None:
    """Sentinels, statements of the clock and end markers are no rows."""
    assert rows("input", message) == rows("internal", message) == []
    assert row_count(message) == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"n": 1}', {"n": 1}),
        (b'{"n": ', '{"n": '),
        (b"17", "17"),
        (b"", ""),
        (None, None),
        (b"\x00\xff", "0x00ff"),
        (b"\x1b[31m", "0x1b5b33316d"),
        ("größer\n".encode(), "größer\n"),
    ],
)
def test_a_record_of_a_topic_of_yours(value: bytes | None, shown: Any) -> None:
    """JSON where it is an object in JSON, text where it is text, otherwise hexadecimal: no byte can act on a terminal."""
    (row,) = rows("input", Message(value, key=b"k"))
    assert (row.row, row.key, row.record) == (None, "k", shown)


def test_values_fit_into_json_and_are_cut() -> None:
    """Whatever a row holds can be encoded, and nothing of it is endless; numbers that JSON readers would round are text."""
    value = {
        "text": "x" * (CELL + 1),
        "list": list(range(ITEMS + 5)),
        "bytes": b"\xff" * (2 * CELL),
        "nan": math.nan,
        "large": EXACT + 1,
        "exact": -EXACT,
        "true": True,
        "day": dt.date(2026, 11, 27),
        "price": decimal.Decimal("1.50"),
        "inner": {"at": dt.datetime(2026, 11, 27, tzinfo=dt.UTC), "none": None},
    }
    shown = plain(value)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
    assert len(shown["text"]) == len(shown["bytes"]) == CELL
    assert shown["list"][ITEMS:] == ["and 5 more"]
    assert (shown["nan"], shown["large"], shown["exact"], shown["true"]) == ("nan", str(EXACT + 1), -EXACT, True)
    assert (shown["day"], shown["price"]) == ("2026-11-27", "1.50")
    assert shown["inner"] == {"at": "2026-11-27 00:00:00+00:00", "none": None}


def test_values_that_python_does_not_have_are_shown_as_texts() -> None:
    """A date or a moment after 9999: the row can be looked at all the same, and its neighbours are as they were."""
    days = pa.array([0, 2_932_897], pa.date32())
    moments = pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    (value,) = [each.value for each in block.encode(pa.table({"day": days, "at": moments}))]
    shown = [row.record for row in rows("internal", Message(value))]
    assert shown == [
        {"day": "1970-01-01", "at": "1970-01-01 00:00:00+00:00"},
        {"day": "10000-01-01", "at": "10000-01-01 00:00:00.000000Z"},
    ]
