"""Columns as Python's own values, or which of their values Python does not have. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from queues.shown_values import shown_value
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten

Column: TypeAlias = "pa.Array | pa.ChunkedArray"

_FIRST = -62_135_596_800_000_000
_LAST = 253_402_300_799_999_999
"""The first and last microseconds of the years 1 to 9999, which Python's dates and moments have."""


class NoValue(ValueError):
    """A value that Python has none for.

    Args:
        index: its place in the column.
        column: where it is.
        reason: why it has none.
    """

    def __init__(self, index: int, column: Column, reason: str) -> None:
        super().__init__(f"{shorten(str(shown_value(column, index)))}: {reason}")


def values(column: Column) -> list[Any]:
    """The values of a column; maps as dicts.

    Raises:
        NoValue: for the first that there is none for: a date or moment outside the years 1 to 9999, a map that has a key twice.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in (None, "UTC"):
        return _moments(column)
    try:
        return list(column.to_pylist(maps_as_pydicts="strict"))
    except (OverflowError, ValueError, KeyError, pa.ArrowException):
        for index in range(len(column)):
            try:
                column.slice(index, 1).to_pylist(maps_as_pydicts="strict")
            except (OverflowError, ValueError, KeyError, pa.ArrowException) as error:
                raise NoValue(index, column, str(error.args[0] if error.args else error)) from None
        raise


def _moments(column: Column) -> list[dt.datetime | None]:
    """This is about fifty times faster than ``to_pylist``, which makes these values one scalar at a time."""
    per = {"s": 1_000_000, "ms": 1_000, "us": 1}[column.type.unit]
    numbers = column.cast(pa.int64())
    first, last = _FIRST // per, _LAST // per
    least, most = (each.as_py() for each in pc.min_max(numbers).values())
    if least is not None and (least < first or most > last):
        outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        raise NoValue(pc.index(outside, value=True).as_py(), column, "Python has the years 1 to 9999")
    found: list[Any] = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
    if column.type.tz is None:
        return found
    return [None if value is None else value.replace(tzinfo=dt.UTC) for value in found]


def values_of(column: Column, name: str) -> list[Any]:
    """The same for an output. Raises OutputError ``SX-OUTPUT-TYPE``, which names the column."""
    try:
        return values(column)
    except NoValue as error:
        raise OutputError(
            "SX-OUTPUT-TYPE",
            f"column {name!r} holds a value that cannot be written: {error}",
            fix="correct it in the task before",
            where={"column": name},
        ) from None
