"""The times of the rows that a batch brings from a user's topic or from splits, and the clocks that follow from a topic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues.batch import Batch
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.spec import TaskSpec
from sardonyx.core.text import shorten
from sardonyx.core.timing import TimeSpec
from sardonyx.state.times import Mask, Times, in_force, judged, microseconds, shown, times_of
from spark_tasks.applied import Applied
from spark_tasks.failures import Bad

_MICROSECONDS = 1_000_000
_WALL = pa.timestamp("us", "UTC")


class Timed(NamedTuple):
    """Rows of a topic with their times."""

    table: pa.Table
    """Without the rows that have no time; with the column that the input adds, if it adds one."""
    bad: dict[int, Failure]
    """By the number of a row: why it is not in the table."""
    clocks: dict[Partition, SourceClock]
    """Of the partitions after these rows."""
    in_force: Times
    """The clock before each of the rows that stay."""
    left_out: Mask | None = None
    """Which of the rows that have a time are not of the times that are read, and so not in the table. None: none is."""


def timed(
    link: Link,
    spec: TimeSpec,
    rows: pa.Table,
    messages: Sequence[Any],
    kept: Mask,
    batch: Batch,
    now: float,
    since: int | None = None,
    *,
    leaves_out: bool = False,
) -> Timed:
    """Give rows of a topic their times, and move the clocks of its partitions.

    Args:
        link: the topic.
        spec: where the times come from.
        rows: what could be decoded, in the order of the messages.
        messages: those of the batch on this link.
        kept: which of the messages gave a row.
        batch: says which partitions the messages came from, and the clocks before them.
        now: seconds since 1970, by this machine.
        since: rows before it are left out, as are those of times that ``spec`` leaves out; they move the clocks all the same.
        leaves_out: whether bad rows are left out. If not, what a calendar does not have is up to its windows.

    Raises:
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``: the rows do not have the column, or it holds no times.
    """
    names = list(dict.fromkeys(partition for partition, _ in batch.spans[link.name]))
    places = np.repeat(
        [names.index(partition) for partition, _ in batch.spans[link.name]],
        [count for _, count in batch.spans[link.name]],
    )
    if spec.kind != "column":
        _refuse_second(spec, rows, link)
        added = _added(spec, batch, names, places, messages, now)
        rows = rows.append_column(spec.column, added if kept.all() else added.filter(pa.array(kept)))
    came, places = np.bincount(places, minlength=len(names)), places[kept]
    found = judged(rows, spec, now, f"topic {link.topic}", of_calendar=leaves_out and link.of_calendar)
    times = found.times
    if found.bad:
        good = found.good
        rows, times, places = rows.filter(pa.array(good)), times[good], places[good]
    delay = 0 if spec.kind == "ordinal" else microseconds(spec.delay)
    clocks: dict[Partition, SourceClock] = {}
    force = np.full(len(times), NEVER, np.int64)
    for number, partition in enumerate(names):
        here = places == number
        own, before = times[here], batch.clocks.get(partition, SourceClock())
        force[here] = in_force(before, own, delay)
        if spec.kind == "ordinal":
            clocks[partition] = before.after(_next_number(before) + int(came[number]) - 1, delay)
        else:
            clocks[partition] = before.after(int(own.max()), delay) if len(own) else before
    left_out = _left_out(times, since, spec)
    if left_out.any():
        stay = ~left_out
        return Timed(rows.filter(pa.array(stay)), found.bad, clocks, force[stay], left_out)
    return Timed(rows, found.bad, clocks, force)


def _left_out(times: Times, since: int | None, spec: TimeSpec) -> Mask:
    """Which rows are not of the times that are read."""
    found = np.zeros(len(times), np.bool_)
    for first in (since, spec.since):
        if first is not None:
            found |= times < first
    if spec.until is not None:
        found |= times >= spec.until
    return found


def have_same_times(given: pa.Table, made: pa.Table, spec: TimeSpec) -> bool:
    """Whether what a function made of rows has as many rows, with the same times in the same order.

    Args:
        given: the rows.
        made: what the function made of them.
        spec: of their input.
    """
    if made.num_rows != given.num_rows or spec.column not in made.column_names:
        return False
    try:
        first, second = (
            times_of(rows[spec.column], spec.unit, ordinal=spec.kind == "ordinal") for rows in (given, made)
        )
    except FunctionError:  # the function has made something else of the column
        return False
    return not second[1].any() and np.array_equal(first[0], second[0])


def without_bad_times(rows: pa.Table, task: TaskSpec, now: float, *, of_calendar: bool = False) -> Applied:
    """Rows that an input task has read from splits, less those with a bad time, if the input says where its times come from.

    Args:
        rows: as they were read; the numbers of the bad ones count these.
        task: the input.
        now: seconds since 1970, by this machine.
        of_calendar: whether times that no calendar has are bad, too.

    Raises:
        FunctionError: as :func:`timed`.
    """
    if task.time is None or not rows.num_rows:
        return Applied(rows)
    found = judged(rows, task.time, now, f"input {task.name}", of_calendar=of_calendar)
    if not found.bad:
        return Applied(rows)
    good = pa.array(found.good)
    bad = [
        Bad(index, "InputError", 1, msgspec.structs.replace(failure, cause=_cause(failure, rows, index)))
        for index, failure in found.bad.items()
    ]
    return Applied(rows.filter(good), bad, rows.filter(pc.invert(good)))


def _cause(failure: Failure, rows: pa.Table, index: int) -> str:
    """A topic's record is named by its offset, and a row of a split is shown."""
    return shorten(f"{failure.cause}; the row is {shown(rows, index)}", 500)


def _refuse_second(spec: TimeSpec, rows: pa.Table, link: Link) -> None:
    """The check of a job knows the columns of a declared schema only."""
    if spec.column in rows.column_names:
        raise FunctionError(
            "SX-TIME-COLUMN",
            f"the records of topic {link.topic} have a column {spec.column!r} already, which their input is to add",
            cause=f"they have {', '.join(rows.column_names)}",
            fix="give the added column another name in `time=` of the input, or take the one of the records: `event_time(...)`",
        )


def _added(
    spec: TimeSpec,
    batch: Batch,
    names: list[Partition],
    places: np.ndarray[Any, Any],
    messages: Sequence[Any],
    now: float,
) -> pa.Array:
    """The column that an input adds, for each of the messages."""
    match spec.kind:
        case "kafka":
            stamps = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
            return pa.array(stamps * 1000, _WALL)
        case "wall":
            return pa.array(np.full(len(messages), int(now * _MICROSECONDS), np.int64), _WALL)
    numbers = np.empty(len(messages), np.int64)
    for number, partition in enumerate(names):
        here = places == number
        first = _next_number(batch.clocks.get(partition, SourceClock()))
        numbers[here] = np.arange(first, first + np.count_nonzero(here))
    return pa.array(numbers)


def _next_number(clock: SourceClock) -> int:
    """The number of the next message of a partition, also if it is no row. A job that goes on from a stopped one has its clocks,
    so it counts on.
    """
    return max(clock.seen + 1, 0)
