"""Rows on their way into a window or to the state of their keys: split by key, and combined for a window where possible."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues.keys import Checksums
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import Link
from sardonyx.core.timing import RowTime
from sardonyx.state.columns import ROWS, SLICE, SX_KEY
from sardonyx.state.combine import Combiner, keys_of
from sardonyx.state.times import Times, column_of, shown, times_of


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
        self._keeps_late = window is not None and window.late != "drop"

    def split(self, rows: pa.Table, in_force: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield tables with the partition that each goes to, in the order of the rows.

        Args:
            rows: that go over the link.
            in_force: rows before this may be late. If the window keeps late rows, these are not combined.

        Raises:
            FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``, ``SX-TIME-VALUE``: the rows have no times. ``SX-KEY-COLUMN``,
                ``SX-KEY-TYPE``: they have no keys. Also what the aggregates refuse.
        """
        if not rows.num_rows:
            return
        times = None if self._link.row_time is None else row_times(rows, self._link.row_time, self._link.source)
        raw = rows if self._combiner is None else None
        if self._combiner is not None:
            if times is not None and self._keeps_late and in_force > NEVER:
                apart = times < in_force
                if apart.any():
                    raw, rows, times = rows.filter(pa.array(apart)), rows.filter(pa.array(~apart)), times[~apart]
            if rows.num_rows:
                combined = self._combiner(rows, times)
                yield from self._by_partition(combined, _checksums(combined.column(SX_KEY)))
        if raw is not None:
            codes, keys = keys_of(raw, self._columns)
            yield from self._by_partition(raw, _checksums(keys)[codes])

    def _by_partition(self, rows: pa.Table, sums: Checksums) -> Iterator[tuple[int, pa.Table]]:
        if not rows.num_rows:
            return
        numbers = sums % self._partitions
        ordered = rows.take(pa.array(np.argsort(numbers, kind="stable")))
        found, counts = np.unique(numbers, return_counts=True)
        start = 0
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            yield number, ordered.slice(start, count)
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
    """The times of rows that a task gives to a window.

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
            f"a row of task {task} has no time in column {where.column!r}: it is null, or no date that a timestamp can hold",
            cause=f"the row is {shown(rows, first)}"[:500],
            fix=f"let {task} or a function after it give each row a time, or leave the row out",
            where={"task": task},
        )
    return times


def _checksums(keys: pa.ChunkedArray | pa.Array | Sequence[bytes]) -> Checksums:
    values = keys.to_pylist() if isinstance(keys, pa.ChunkedArray | pa.Array) else keys
    sums: Checksums = np.fromiter(map(zlib.crc32, values), np.uint32, len(values))
    return sums
