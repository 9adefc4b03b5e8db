"""Rows on their way into a window or to the state of their keys: split by key, and combined for a window where possible."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues.keys import Checksums
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import Link
from sardonyx.core.timing import RowTime
from sardonyx.state.calendars import outside
from sardonyx.state.closing import Closing, carried
from sardonyx.state.columns import ROWS, SLICE, SX_KEY
from sardonyx.state.combine import Combiner, keys_of
from sardonyx.state.times import InForce, Mask, Times, column_of, shown, times_of


class Part(NamedTuple):
    """Rows for one partition of a link."""

    number: int
    """Of the partition."""
    rows: pa.Table
    clocks: Times | None = None
    """The clock in force before each of them, if the block is to say it."""


class WindowSplit:
    """Prepares the rows of one link for the task that reads it, which has windows or keeps a state for each key.

    Args:
        link: the link, with the windows of its reader, if it has any.
        partitions: number of its partitions.
    """

    def __init__(self, link: Link, partitions: int) -> None:
        self._link = link
        self._partitions = partitions
        self._columns = list(link.group_by or ())
        window = link.window
        self._combiner = Combiner(window, self._columns) if window is not None and link.combined else None
        self._closing = None if window is None or link.row_time is None else Closing(window)
        self._keeps_late = window is not None and window.late != "drop"
        self._is_calendar = window is not None and window.kind == "calendar"

    def beyond(self, rows: pa.Table) -> Mask | None:
        """Which rows have times that the windows cannot hold; None: all are held. Raises as :meth:`split`."""
        if not self._is_calendar or self._link.row_time is None or not rows.num_rows:
            return None
        found = outside(row_times(rows, self._link.row_time, self._link.source))
        return found if found.any() else None

    def split(self, rows: pa.Table, in_force: InForce) -> Iterator[Part]:
        """Yield tables with the partition that each goes to, in the order of the rows.

        Args:
            rows: that go over the link.
            in_force: the clock before them. Rows that may be late by it are not combined, if the clock before each row is known
                or the window keeps late rows.

        Raises:
            FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``, ``SX-TIME-VALUE``: the rows have no times. ``SX-KEY-COLUMN``,
                ``SX-KEY-TYPE``: they have no keys. Also what the aggregates refuse.
        """
        if not rows.num_rows:
            return
        times = None if self._link.row_time is None else row_times(rows, self._link.row_time, self._link.source)
        clocks = None if times is None else in_force.of_rows
        late = None if times is None else self._late(times, in_force)
        if self._combiner is None:
            if clocks is not None and late is not None:
                clocks = carried(clocks, late)
            codes, keys = keys_of(rows, self._columns)
            yield from parts(rows, _checksums(keys)[codes] % self._partitions, clocks)
            return
        if late is not None and times is not None and clocks is not None and self._keeps_late:
            late = times < clocks  # it may have closed for a version of the job before, which waited less
        if late is None or not late.any():
            yield from self._combined(rows, times)
            return
        apart, stay = pa.array(late), pa.array(~late)
        yield from self._combined(rows.filter(stay), None if times is None else times[~late])
        rows = rows.filter(apart)
        codes, keys = keys_of(rows, self._columns)
        numbers = _checksums(keys)[codes] % self._partitions
        yield from parts(rows, numbers, None if clocks is None else clocks[late])

    def _late(self, times: Times, in_force: InForce) -> Mask | None:
        """Which rows may be late for a window; None: the link leads to none, or keeps them together."""
        if self._closing is None:
            return None
        if in_force.of_rows is not None:
            return self._closing.late(times, in_force.of_rows)
        return times < in_force.greatest if self._keeps_late else None

    def _combined(self, rows: pa.Table, times: Times | None) -> Iterator[Part]:
        if rows.num_rows and self._combiner is not None:
            combined = self._combiner(rows, times)
            yield from parts(combined, _checksums(combined.column(SX_KEY)) % self._partitions)


def parts(rows: pa.Table, numbers: Checksums, clocks: Times | None = None) -> Iterator[Part]:
    """The rows by the number of their partition, in their order."""
    if not rows.num_rows:
        return
    if (numbers == numbers[0]).all():
        yield Part(int(numbers[0]), rows, clocks)
        return
    order = np.argsort(numbers, kind="stable")
    ordered = rows.take(pa.array(order))
    clocks = None if clocks is None else clocks[order]
    found, counts = np.unique(numbers, return_counts=True)
    start = 0
    for number, count in zip(found.tolist(), counts.tolist(), strict=True):
        yield Part(number, ordered.slice(start, count), None if clocks is None else clocks[start : start + count])
        start += count


def rows_in(rows: pa.Table) -> int:
    """How many rows went into rows on a link: combined ones are counted one by one."""
    return int(pc.sum(rows[ROWS]).as_py() or 0) if SLICE in rows.column_names else int(rows.num_rows)


def late_in(late: pa.Table, pieces: Sequence[pa.Table]) -> int:
    """How many rows are late: combined ones are counted one by one.

    Args:
        late: says which rows of which piece are late.
        pieces: the rows of each.
    """
    found = 0
    for index, rows in enumerate(pieces):
        here = late["row"].filter(pc.equal(late["piece"], index))
        found += rows_in(rows.take(here)) if len(here) else 0
    return found


def row_times(rows: pa.Table, where: RowTime, task: str) -> Times:
    """The times of rows that a task gives to a window, keyed state, or a join and the like.

    Raises:
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``, ``SX-TIME-VALUE``.
    """
    column = column_of(rows, where.column, f"task {task}")
    what = f"column {where.column!r} of task {task}"
    times, missing = times_of(column, where.unit, ordinal=where.ordinal, what=what)
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise FunctionError(
            "SX-TIME-VALUE",
            f"a row of task {task} has no time in column {where.column!r}: it is null, or not a date that a timestamp can hold",
            cause=f"the row is {shown(rows, first)}"[:500],
            fix=f"let {task} or a function after it give each row a time, or leave the row out",
            where={"task": task},
        )
    return times


def _checksums(keys: pa.ChunkedArray | pa.Array | Sequence[bytes]) -> Checksums:
    values = keys.to_pylist() if isinstance(keys, pa.ChunkedArray | pa.Array) else keys
    sums: Checksums = np.fromiter(map(zlib.crc32, values), np.uint32, len(values))
    return sums
