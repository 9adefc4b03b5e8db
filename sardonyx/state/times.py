"""The times of rows: read from a column, and compared with the clock that was in force before each row. Pure.

Times are int64 microseconds since 1970 (UTC); on an ordinal time, numbers of rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.timing import TimeSpec

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_LIMIT = 2**62
"""Times at or beyond this are no times of this world (the year 148,000), and sums with them could overflow."""


def in_force(clock: SourceClock, times: Times, delay: int) -> Times:
    """The clock right before each of further rows of a source partition. It depends on their order in the log, and not on how
    batches are cut.

    Args:
        clock: before the first of them.
        times: of the rows, in the order of the log.
        delay: microseconds by which rows may be older than rows before them.
    """
    before = np.empty_like(times)
    if not len(times):
        return before
    before[0] = clock.seen
    np.maximum.accumulate(times[:-1], out=before[1:])
    np.maximum(before, clock.seen, out=before)
    reached = np.where(before < NEVER + delay, NEVER, before - delay)
    return np.maximum(reached, clock.value)


def late(times: Times, in_force: Times, grace: int = 0) -> Mask:
    """Which rows are older than the clock that was in force before them, by more than ``grace`` microseconds."""
    return times < np.where(in_force < NEVER + grace, NEVER, in_force - grace)


def times_of(column: pa.ChunkedArray | pa.Array, unit: str | None = None) -> tuple[Times, Mask]:
    """The times in a column, and which rows have none: null, or outside of what 64 bits of microseconds hold.

    Args:
        column: timestamps (those without a zone count as UTC), dates, or integers.
        unit: what integers count since 1970: s, ms, us, ns. None: a column of integers holds ordinals, and is taken as it is.

    Raises:
        FunctionError: ``SX-TIME-TYPE``: values of this type are no times.
    """
    kind = column.type
    if kinds.is_null(kind):
        return np.zeros(len(column), np.int64), np.ones(len(column), np.bool_)
    if kinds.is_timestamp(kind):
        numbers, unit = column.cast(pa.int64()), kind.unit
    elif kinds.is_date(kind):
        numbers, unit = column.cast(pa.timestamp("s")).cast(pa.int64()), "s"
    elif kinds.is_integer(kind):
        numbers = column.cast(pa.int64(), safe=False) if not kinds.is_uint64(kind) else _unsigned(column)
    else:
        raise FunctionError(
            "SX-TIME-TYPE",
            f"values of type {kind} are no times",
            cause="a time is a timestamp, a date, or an integer with `unit=`",
            fix='declare the column as a timestamp in the schema, or make one of it before; of integers say `unit="ms"`',
        )
    missing: Mask = (
        numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else np.zeros(len(numbers), np.bool_)
    )
    values = _numpy(numbers)
    if unit == "ns":
        values = values // 1000
    elif unit in _PER_UNIT and unit != "us":
        factor = _PER_UNIT[unit]
        too_far = np.abs(values) >= _LIMIT // factor
        values = np.where(too_far, _LIMIT, values * np.int64(factor))
    return values, missing | (values >= _LIMIT) | (values <= -_LIMIT)


def _unsigned(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return pc.min_element_wise(column, pa.scalar(_LIMIT, pa.uint64()), skip_nulls=False).cast(pa.int64())


def _numpy(numbers: pa.ChunkedArray | pa.Array) -> Times:
    filled = numbers.fill_null(0) if numbers.null_count else numbers
    found: Times = filled.to_numpy() if isinstance(filled, pa.ChunkedArray) else filled.to_numpy(zero_copy_only=False)
    return found


def column_of(table: pa.Table, name: str, whose: str) -> pa.ChunkedArray:
    """The column with the times of rows.

    Raises:
        FunctionError: ``SX-TIME-COLUMN``: there is none of that name.
    """
    if name not in table.column_names:
        raise FunctionError(
            "SX-TIME-COLUMN",
            f"the rows of {whose} have no column {name!r}, which is to hold their times",
            cause=f"they have {', '.join(table.column_names) or 'no columns'}",
            fix="let each function between the input and the window give the column on, or name another with `time=`",
        )
    return table.column(name)


def bad_time(spec: TimeSpec, value: object, ahead: bool = False) -> Failure:
    """What is wrong with the time of a record.

    Args:
        spec: of the input.
        value: what the record has in the column.
        ahead: it is a time, but too far ahead of the clock of the machine.
    """
    if ahead:
        return Failure(
            "SX-TIME-AHEAD",
            f"the time of a record, {value}, is more than {spec.most_ahead} ahead of the clock of the machine that reads it",
            cause="one such record would close all windows before that time",
            fix='correct the producer, raise `ahead=`, or set on_error="skip" or "dead_letter" on the input',
        )
    return Failure(
        "SX-TIME-VALUE",
        f"column {spec.column!r} of a record holds no time: {value!r}"[:500],
        cause="it is null, or no date that a timestamp can hold",
        fix='correct the producer, or set on_error="skip" or "dead_letter" on the input',
    )


__all__ = ["END", "Mask", "Times", "bad_time", "column_of", "in_force", "late", "times_of"]
