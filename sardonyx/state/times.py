"""The times of rows: read from a column, and compared with the clock that was in force before each row. Pure.

Times are int64 microseconds since 1970 (UTC); on an ordinal time, numbers of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.timing import TimeSpec
from sardonyx.core.units import seconds
from sardonyx.state.calendars import no_calendar_has, outside

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SECOND = 1_000_000
_PER_UNIT = {"s": _SECOND, "ms": 1_000, "us": 1}
_LIMIT = 2**62
"""Times at or beyond this are no times of this world (the year 148,000), and sums with them could overflow."""


class InForce(NamedTuple):
    """What is known of the clock in force before the rows of a batch."""

    greatest: int = NEVER
    """The greatest of all of them: a row before it may be late."""
    of_rows: Times | None = None
    """Of each row, in their order, if they come from a source with one partition: what they say depends on the log alone."""

    def of(self, stay: Mask | slice) -> InForce:
        """Of these rows only."""
        return self if self.of_rows is None else self._replace(of_rows=self.of_rows[stay])


NOT_KNOWN = InForce()


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
    return times < set_back(in_force, grace)


def set_back(clocks: Times, span: int) -> Times:
    """Clocks less a span, not below :data:`NEVER`."""
    return np.where(clocks < NEVER + span, NEVER, clocks - span)


def microseconds(duration: str) -> int:
    """A duration as the clocks count it."""
    return round(seconds(duration) * _SECOND)


def times_of(
    column: pa.ChunkedArray | pa.Array, unit: str | None = None, *, ordinal: bool = False, what: str = "a column"
) -> tuple[Times, Mask]:
    """The times in a column, and which rows have none: null, or outside of what 64 bits of microseconds hold.

    Args:
        column: timestamps (those without a zone count as UTC), dates, or integers.
        unit: what integers count since 1970: s, ms, us, ns.
        ordinal: whether integers are numbers of rows, and are taken as they are.
        what: the column, for errors.

    Raises:
        FunctionError: ``SX-TIME-TYPE``: values of this type are not times, or are integers and it is not known what they count.
    """
    kind = column.type
    if kinds.is_null(kind):
        return np.zeros(len(column), np.int64), np.ones(len(column), np.bool_)
    if kinds.is_timestamp(kind):
        numbers, unit = column.cast(pa.int64()), kind.unit
    elif kinds.is_date(kind):
        numbers, unit = column.cast(pa.timestamp("s")).cast(pa.int64()), "s"
    elif kinds.is_integer(kind):
        if unit is None and not ordinal:
            raise FunctionError(
                "SX-TIME-TYPE",
                f"{what} holds whole numbers ({kind}), and it is not known what they count",
                cause="a time is a timestamp, a date, or an integer with `unit=`",
                fix='give `unit=`, such as "ms", in `event_time(...)` of the input; or make a timestamp of the column before',
            )
        numbers = column.cast(pa.int64(), safe=False) if not kinds.is_uint64(kind) else _unsigned(column)
    else:
        raise FunctionError(
            "SX-TIME-TYPE",
            f"{what} holds values of type {kind}, which are not times",
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
        most = _LIMIT // factor
        too_far = (values >= most) | (values <= -most)  # (`np.abs` of the least int64 is negative)
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
            fix="let each function after the input give the column on; windows, keyed state, `distinct` and `latest` may name "
            "another one with `time=`",
        )
    return table.column(name)


class Judged(NamedTuple):
    """The times of the rows that an input has read."""

    times: Times
    bad: dict[int, Failure]
    """By the number of a row: why it has no time, or not one that it may have."""

    @property
    def good(self) -> Mask:
        """Which of the rows are not bad."""
        mask = np.ones(len(self.times), np.bool_)
        mask[list(self.bad)] = False
        return mask


def judged(rows: pa.Table, spec: TimeSpec, now: float, whose: str, *, of_calendar: bool = False) -> Judged:
    """Read the times of rows, and find the bad ones: null, out of bounds, or too far ahead.

    Args:
        rows: as an input has read them, with the column that it adds, if it adds one.
        spec: of the input.
        now: seconds since 1970, by the machine that reads.
        whose: what the rows are of, for errors: "topic hits".
        of_calendar: whether times that no calendar has are bad, too.

    Raises:
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``: the rows do not have the column, or it holds no times.
    """
    column = column_of(rows, spec.column, whose)
    what = f"column {spec.column!r} of {whose}"
    times, missing = times_of(column, spec.unit, ordinal=spec.kind == "ordinal", what=what)
    ahead = np.zeros(len(times), np.bool_)
    if spec.most_ahead is not None and spec.kind != "ordinal":
        ahead = times > int(now * _SECOND) + microseconds(spec.most_ahead)
    beyond = outside(times) & ~missing & ~ahead if of_calendar else np.zeros(len(times), np.bool_)
    bad = {i: _bad_time(spec, _value(column[i]), not missing[i]) for i in np.flatnonzero(missing | ahead).tolist()}
    for index in np.flatnonzero(beyond).tolist():
        bad[index] = no_calendar_has(shown(rows, index), "on_error of the input leaves such rows out").to_failure()
    return Judged(times, dict(sorted(bad.items())))


def shown(rows: pa.Table, index: int) -> str:
    """A row as a text for errors."""
    return repr({name: _value(rows.column(name)[index]) for name in rows.column_names})


def _value(scalar: Any) -> object:
    """A value for an error; the number of a moment that Python has no date for."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return getattr(scalar, "value", str(scalar.type))


def _bad_time(spec: TimeSpec, value: object, ahead: bool) -> Failure:
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
        cause="it is null, or not a date that a timestamp can hold",
        fix='correct the producer, or set on_error="skip" or "dead_letter" on the input',
    )


__all__ = [
    "END",
    "NOT_KNOWN",
    "InForce",
    "Judged",
    "Mask",
    "Times",
    "column_of",
    "in_force",
    "judged",
    "late",
    "microseconds",
    "set_back",
    "shown",
    "times_of",
]
