"""A batch as the slices that Spark's workers run functions on: dealt out by the peer, or read by the workers themselves."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from sardonyx.connectors.base import SplitInput
from sardonyx.connectors.records import rows_at
from sardonyx.core.timing import TimeSpec
from spark_tasks.read_splits import Part
from spark_tasks.worker import Done, ReadAndDone, Share, Slice, read_and_run, run
from spark_tasks.worker_pool import from_buffer, to_buffer

Send = Callable[[Any, Sequence[Any]], list[Any]]
"""``send(work, items)`` calls ``work(plans, item)`` for each item on a worker of its own."""


class ReadFirst(Exception):
    """The splits of a batch must be read as a whole, before a function sees a row: their columns have different types, so the
    types of the batch are known only when all are read; or a row has a bad time, and no function may see it.
    """


class Slices(ABC):
    """The slices of one batch, in the order of their rows.

    Args:
        send: runs work on Spark's workers.
    """

    traced = False
    """Whether it is asked which record each result is made of."""

    def __init__(self, send: Send) -> None:
        self.send = send

    @abstractmethod
    def run(self, *, isolate: bool, keep: bool) -> list[Done]:
        """The first attempt at all slices. It comes before everything else here.

        Args:
            isolate: whether to find the rows that the functions raise for.
            keep: whether a slice that raises is to be run again.
        """

    @abstractmethod
    def starts(self) -> list[int]:
        """For each slice the index in the batch of its first row."""

    @abstractmethod
    def rows(self, number: int) -> pa.Buffer:
        """The rows of a slice that raised as a whole, as an Arrow IPC stream."""

    @abstractmethod
    def bad_rows(self, number: int, done: Done) -> pa.Table:
        """The rows that a slice's outcome lists as bad, in their order."""


class DealtOut(Slices):
    """Slices of rows that this process holds."""

    def __init__(self, send: Send, tables: Sequence[pa.Table], *, traced: bool = False) -> None:
        super().__init__(send)
        self.traced = traced
        self._tables = tables
        self._data = [to_buffer(table) for table in tables]

    def starts(self) -> list[int]:
        return _starts([table.num_rows for table in self._tables])

    def run(self, *, isolate: bool, keep: bool) -> list[Done]:  # noqa: ARG002 (the rows are here anyway)
        return self.send(run, [Slice(data, isolate, traced=self.traced) for data in self._data])

    def rows(self, number: int) -> pa.Buffer:
        return self._data[number]

    def bad_rows(self, number: int, done: Done) -> pa.Table:
        return _taken(self._tables[number], done)


class ReadThere(Slices):
    """Slices that the workers read themselves. Of their rows only those come here that are needed again.

    Args:
        send: as above.
        connector: reads the splits.
        shares: what each worker reads.
        time: where the rows have their times, if the input says so.
        now: seconds since 1970, by this machine.
        like: the columns that splits had before; None: there were none.
        of_calendar: whether times that no calendar has are bad.
    """

    def __init__(
        self,
        send: Send,
        connector: SplitInput,
        shares: Sequence[Sequence[Part]],
        time: TimeSpec | None = None,
        now: float = 0.0,
        like: pa.Schema | None = None,
        *,
        of_calendar: bool = False,
    ) -> None:
        super().__init__(send)
        self._like = like
        self._connector = connector
        self._of_calendar = of_calendar
        self._shares = shares
        self._time = time
        self._now = now
        self._read: list[ReadAndDone] = []

    def run(self, *, isolate: bool, keep: bool) -> list[Done]:
        """As above.

        Raises:
            ReadFirst: the batch must be read first, as a whole.
        """
        judge = self._time, self._now, self._of_calendar
        items = [Share([part.data for part in share], isolate, keep, *judge) for share in self._shares]
        self._read = self.send(partial(read_and_run, self._connector), items)
        if any(read.bad_times or (len(read.schema) and read.schema != self.schema) for read in self._read):
            raise ReadFirst
        return [read.done for read in self._read]

    def starts(self) -> list[int]:
        return _starts([sum(read.rows) for read in self._read])

    @property
    def schema(self) -> pa.Schema:
        """Of the rows read."""
        if self._like is not None:
            return self._like
        return next((read.schema for read in self._read if len(read.schema)), pa.schema([]))

    @property
    def seconds(self) -> float:
        """That reading took on the worker where it took longest."""
        return max((read.seconds for read in self._read), default=0.0)

    def split_rows(self, splits: int) -> list[int]:
        """How many rows each split of the batch held."""
        counts = [0] * splits
        for share, read in zip(self._shares, self._read, strict=True):
            for part, rows in zip(share, read.rows, strict=True):
                counts[part.split] += rows
        return counts

    def rows(self, number: int) -> pa.Buffer:
        return self._read[number].kept

    def bad_rows(self, number: int, done: Done) -> pa.Table:
        read = self._read[number]
        kept = from_buffer(read.kept)
        return kept if done is read.done else _taken(kept, done)


def _starts(rows: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(rows[:-1], initial=0))


def _taken(table: pa.Table, done: Done) -> pa.Table:
    return rows_at(table, [bad.index for bad in done.bad])
