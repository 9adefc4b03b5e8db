"""The times of the rows that a batch brings from a user's topic, and the clocks that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from queues.batch import Batch
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.errors import Failure
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.timing import TimeSpec
from sardonyx.core.units import seconds
from sardonyx.state.times import Mask, Times, bad_time, column_of, in_force, times_of

_MICROSECONDS = 1_000_000
_WALL = pa.timestamp("us", "UTC")


class Timed(NamedTuple):
    """Rows of a topic with their times."""

    table: pa.Table
    """Without the rows that have no time; with the column that the input adds, if it adds one."""
    bad: list[tuple[int, Failure]]
    """Indices of the rows without a time, and what is wrong."""
    clocks: dict[Partition, SourceClock]
    """Of the partitions after these rows."""
    in_force: Times
    """The clock before each of the rows that stay."""


def microseconds(duration: str) -> int:
    """A duration as the clocks count it."""
    return round(seconds(duration) * _MICROSECONDS)


def timed(
    link: Link, spec: TimeSpec, rows: pa.Table, messages: Sequence[Any], kept: Mask, batch: Batch, now: float
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

    Raises:
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``: the rows do not have the column, or it holds no times.
    """
    names = list(dict.fromkeys(partition for partition, _ in batch.spans[link.name]))
    places = np.repeat(
        [names.index(partition) for partition, _ in batch.spans[link.name]],
        [count for _, count in batch.spans[link.name]],
    )
    if spec.kind != "column":
        added = _added(spec, batch, names, places, messages, now)
        rows = rows.append_column(spec.column, added if kept.all() else added.filter(pa.array(kept)))
    places = places[kept]
    column = column_of(rows, spec.column, f"topic {link.topic}")
    times, missing = times_of(column, spec.unit)
    ahead = _ahead(spec, times, now)
    wrong = missing | ahead
    bad = [(i, bad_time(spec, column[i].as_py(), bool(ahead[i]))) for i in np.flatnonzero(wrong).tolist()]
    if bad:
        rows, times, places = rows.filter(pa.array(~wrong)), times[~wrong], places[~wrong]
    delay = 0 if spec.kind == "ordinal" else microseconds(spec.delay)
    clocks: dict[Partition, SourceClock] = {}
    force = np.full(len(times), NEVER, np.int64)
    for number, partition in enumerate(names):
        here = places == number
        own, before = times[here], batch.clocks.get(partition, SourceClock())
        force[here] = in_force(before, own, delay)
        clocks[partition] = before.after(int(own.max()), delay) if len(own) else before
    return Timed(rows, bad, clocks, force)


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
        first = batch.positions[partition].counts.rows_in
        numbers[here] = np.arange(first, first + np.count_nonzero(here))
    return pa.array(numbers)


def _ahead(spec: TimeSpec, times: Times, now: float) -> Mask:
    if spec.most_ahead is None or spec.kind == "ordinal":
        return np.zeros(len(times), np.bool_)
    return times > int(now * _MICROSECONDS) + microseconds(spec.most_ahead)
