"""Write a task's results: one sink for each destination.

A sink selects the results or failed records of a batch that go to its destination. It turns them into messages for the
transaction. A file cannot be part of a Kafka transaction. So the sink stages it first, lists it in a message of the
transaction, and publishes it after the commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from peer.row_functions import Grouping, Load, condition_of
from peer.window_split import WindowSplit, row_times, rows_in
from queues import block
from queues.messages import (
    END_HEADER,
    JOB_HEADER,
    LINK_HEADER,
    OF_HEADER,
    REFUSED_HEADER,
    ROWS_HEADER,
    SENTINEL_HEADER,
    STOP_HEADER,
    WRITER_HEADER,
    Outgoing,
    Records,
)
from queues.record_columns import RecordColumns
from sardonyx.connectors.base import TopicFormat
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import OutputError
from sardonyx.core.graph import Link
from sardonyx.core.timing import Bounds
from sardonyx.runtime.secret_values import unquoted
from sardonyx.state.calendars import no_calendar_has
from sardonyx.state.columns import SLICE
from sardonyx.state.times import NOT_KNOWN, InForce, Mask, shown

FAILED = pa.schema(
    [
        ("task", pa.string()),
        ("code", pa.string()),
        ("error", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("attempts", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("record", pa.string()),
    ]
)
"""A failed record, as a row for the failed edges of its task.

``error`` is the class of the exception. ``attempts`` counts the runs that raised with the record among their rows.
``topic``, ``partition`` and ``offset`` name the message that held the record, null if unknown.
``record`` is the record itself, as JSON.
"""


class Sink(Protocol):
    """Writes a task's results to one destination."""

    @property
    def may_hang(self) -> bool:
        """Whether :meth:`committed` may take long, as on a share that does not answer. Meanwhile the task serves its group."""
        ...

    def messages(
        self,
        results: pa.Table,
        failed: pa.Table | None = None,
        late: pa.Table | None = None,
        in_force: InForce = NOT_KNOWN,
    ) -> Iterator[Outgoing | Records]:
        """Yield messages for the batch's transaction, with the rows that go to this destination.

        Args:
            results: the rows that the task's function returned for the batch.
            failed: the failed records of the batch, with the columns of :data:`FAILED`; None if there are none.
            late: the rows that came after their windows had closed; None if there are none.
            in_force: the clock before the results. Rows before it may be late.

        Raises:
            FunctionError: a user's condition or group function raised or gave an invalid result.
        """
        ...

    def takes(self, failed: pa.Table) -> pa.BooleanArray | None:
        """Return for each failed record whether this sink takes it; None if it takes none.

        The sink must then write every record that it takes.

        Raises:
            FunctionError: a user's condition raised or gave an invalid result.
        """
        ...

    def committed(self) -> None:
        """Publish what the sink staged. The task calls it after the transaction with the messages has committed."""
        ...

    def refused(self) -> None:
        """Remove what the sink staged. The task calls it when it is certain that the messages are not committed."""
        ...

    def settled(self) -> bool:
        """Whether nothing is left to do before the sentinels. If not, the task asks again a moment later."""
        ...

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:
        """Yield the sentinels, which tell the readers of this sink that no more rows follow.

        ``stopped``: of a job with clocks that is being stopped, so its windows stay open.
        """
        ...

    def sealed(self) -> None:
        """Finish the output. The task calls it after the transaction with the sentinels has committed."""
        ...


def taken(sinks: Iterable[Sink], failed: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each failed record whether any sink takes it. The task's ``on_error`` decides about the others.

    Raises:
        FunctionError: a user's condition raised or gave an invalid result.
    """
    found = np.zeros(failed.num_rows, np.bool_)
    for sink in sinks:
        mask = sink.takes(failed)
        if mask is not None:
            found |= mask.to_numpy(zero_copy_only=False)
    return found


class EdgeFilter:
    """Selects the rows of a batch that go over one link, by the link's route.

    Args:
        link: a link between two tasks, or from a task to an output.
        load: finds the user's condition.

    Raises:
        FunctionError: the condition cannot be imported, or its annotation does not say what it takes.
    """

    def __init__(self, link: Link, load: Load) -> None:
        self._failed = link.route.of == "failed"
        self._late = link.route.of == "late"
        where, self._bounds, self._source = link.route.where, link.route.bounds, link.source
        self._condition = None if where is None else condition_of(link.name.partition(".")[0], where, load)
        self._last: tuple[pa.Table, pa.BooleanArray] | None = None

    def rows(self, results: pa.Table, failed: pa.Table | None, late: pa.Table | None) -> pa.Table:
        """Return the rows that go over the link, in their order. Raises what the condition raises."""
        return self.clocked(results, failed, late, NOT_KNOWN)[0]

    def clocked(
        self, results: pa.Table, failed: pa.Table | None, late: pa.Table | None, in_force: InForce
    ) -> tuple[pa.Table, InForce]:
        """The same, and what is known of the clock in force before them."""
        if self._failed:
            rows = failed.filter(self.takes(failed)) if failed is not None else FAILED.empty_table()
            return rows, in_force._replace(of_rows=None)
        if self._late:
            results, in_force = results.slice(0, 0) if late is None else late, in_force._replace(of_rows=None)
        if self._bounds is not None and results.num_rows:
            stay = within(results, self._bounds, self._source)
            results, in_force = results.filter(pa.array(stay)), in_force.of(stay)
        if self._condition is None or not results.num_rows:  # a table without rows may lack the condition's columns
            return results, in_force
        holds = self._condition.holds(results)
        return results.filter(holds), in_force.of(holds.to_numpy(zero_copy_only=False))

    def takes(self, failed: pa.Table) -> pa.BooleanArray | None:
        """Like :meth:`Sink.takes`. It does not evaluate the condition twice for the same table."""
        if not self._failed:
            return None
        if self._condition is None or not failed.num_rows:
            return pa.array(np.ones(failed.num_rows, np.bool_))
        if self._last is None or self._last[0] is not failed:
            self._last = failed, self._condition.holds(failed)
        return self._last[1]


def within(rows: pa.Table, bounds: Bounds, task: str) -> Mask:
    """Return which rows of a task go over an edge while the job is changed at a time.

    Raises:
        FunctionError: ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``, ``SX-TIME-VALUE``: the rows have no times.
    """
    if bounds.before is not None and bounds.over:
        return np.zeros(rows.num_rows, np.bool_)
    times = row_times(rows, bounds.time, task)
    stay: Mask = times >= (NEVER if bounds.since is None else bounds.since)
    if bounds.before is not None:
        stay &= times < bounds.before
    return stay


def sentinel_message(link: Link, partition: int, uuid: str, writer: str, *, stopped: bool = False) -> Outgoing:
    """Build a sentinel: a message without rows, with a uuid and the name of its writer."""
    headers = [(SENTINEL_HEADER, uuid.encode()), (LINK_HEADER, link.name.encode()), (WRITER_HEADER, writer.encode())]
    if stopped:
        headers.append((STOP_HEADER, b"1"))
    return Outgoing(link.topic, None, partition, headers=headers)


class LinkSink:
    """Writes Arrow blocks to the next task: to the partitions in turn, or by the rows' keys if that task groups.

    Args:
        link: the link to the next task.
        partitions: number of the link's partitions.
        writer: id of the writing peer, for the messages' headers.
        load: finds the functions that the link's route and grouping name.
        first: the partition that gets the first block.
        rows: largest number of rows in one block.
        leaves_out: whether a row that is too large for a message, or whose time no window holds, is a bad record of the next
            task. Otherwise it is an error.

    Raises:
        FunctionError: such a function cannot be imported, or its annotation does not say what it takes.
    """

    may_hang = False

    def __init__(
        self,
        link: Link,
        partitions: int,
        writer: str,
        load: Load,
        first: int = 0,
        rows: int | None = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        self._rows = rows
        self._leaves_out = leaves_out
        self.topic = link.topic
        self._link = link
        self._partitions = partitions
        self._writer = writer
        self._next = itertools.count(first)
        self._filter = EdgeFilter(link, load)
        stateful = link.window is not None or link.keyed
        self._grouping = Grouping(link.target, link.group_by, load) if link.group_by and not stateful else None
        self._windows = WindowSplit(link, partitions) if stateful else None
        self.takes = self._filter.takes

    def messages(
        self,
        results: pa.Table,
        failed: pa.Table | None = None,
        late: pa.Table | None = None,
        in_force: InForce = NOT_KNOWN,
    ) -> Iterator[Outgoing | Records]:
        rows, in_force = self._filter.clocked(results, failed, late, in_force)
        if self._windows is not None:
            beyond = self._windows.beyond(rows)
            if beyond is not None:
                yield from self._refused(rows.filter(pa.array(beyond)))
                rows, in_force = rows.filter(pa.array(~beyond)), in_force.of(~beyond)
            yield from self._split(self._windows, rows, in_force)
        elif self._grouping is None:
            for item in block.encode(rows, max_rows=self._rows, leave_out=self._leaves_out):
                yield self._message(item, next(self._next) % self._partitions)
        elif rows.num_rows:
            # A task that relates rows by their times judges each by the clock before it.
            clocks = None if self._link.row_time is None else in_force.of_rows
            for partition, part, known in self._grouping.split(rows, self._partitions, clocks):
                for item in block.encode(part, max_rows=self._rows, clocks=known, leave_out=self._leaves_out):
                    yield self._message(item, partition)

    def _split(self, windows: WindowSplit, rows: pa.Table, in_force: InForce) -> list[Outgoing]:
        """A combined row that is too large stands for several. So these are combined by halves, until those that do not fit by
        themselves are known: they alone are left out.
        """
        found: list[Outgoing] = []
        try:
            for partition, part, clocks in windows.split(rows, in_force):
                start, alone = 0, rows if rows.num_rows == 1 else None
                leaves_out = self._leaves_out and (alone is not None or SLICE not in part.column_names)
                for item in block.encode(part, max_rows=self._rows, clocks=clocks, leave_out=leaves_out, made_of=alone):
                    found.append(self._message(item, partition, rows_in(part.slice(start, item.rows))))
                    start += item.rows
        except OutputError:
            if not self._leaves_out or rows.num_rows == 1:
                raise
            half = rows.num_rows // 2
            first, rest = slice(None, half), slice(half, None)
            return [
                *self._split(windows, rows.slice(0, half), in_force.of(first)),
                *self._split(windows, rows.slice(half), in_force.of(rest)),
            ]
        return found

    def _refused(self, rows: pa.Table) -> Iterator[Outgoing]:
        """Rows with times that the windows behind the link cannot hold: bad records of these, each in a message of its own.

        Raises:
            FunctionError: ``SX-WINDOW-TIME``, the next task leaves no record out.
        """
        fix = f'or let {self._link.target} leave such rows out by on_error="skip" or "dead_letter", or its input'
        for index in range(rows.num_rows):
            row = rows.slice(index, 1)
            error = no_calendar_has(shown(row, 0), fix)
            if not self._leaves_out:
                raise error
            for item in block.encode(row, leave_out=True):
                yield self._message(
                    item._replace(refused=item.refused or error), next(self._next) % self._partitions, 1
                )

    def _message(self, item: block.Block, partition: int, of: int | None = None) -> Outgoing:
        headers = [(ROWS_HEADER, str(item.rows).encode()), (WRITER_HEADER, self._writer.encode())]
        if of is not None:
            headers.append((OF_HEADER, str(of).encode()))
        if item.refused is not None:
            headers.append((REFUSED_HEADER, msgspec.json.encode(unquoted(item.refused.to_failure()))))
        return Outgoing(self._link.topic, item.value, partition, headers=headers)

    def committed(self) -> None:
        pass

    def refused(self) -> None:
        pass

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:
        if self._link.feedback:  # its reader has proven the end of the loop: it is what this task could be sealed by
            return
        for partition in range(self._partitions):
            yield sentinel_message(self._link, partition, uuid, self._writer, stopped=stopped)

    def sealed(self) -> None:
        pass


class TopicSink:
    """Writes to a user's topic: one record per message, with the key from the format. It writes no sentinels.

    Args:
        link: the link to the topic.
        form: how rows are written as records.
        load: finds the user's condition.
        job: the job's id, for end markers.
        partitions: returns how many partitions the topic has now.
    """

    may_hang = False

    def __init__(
        self, link: Link, form: TopicFormat, load: Load, job: str = "", partitions: Callable[[], int] = lambda: 0
    ) -> None:
        self._marks = bool(link.options.get("end_marker"))
        self._job = job
        self._partitions = partitions
        self.topic = link.topic
        self._name = link.name
        self._format = form
        self._filter = EdgeFilter(link, load)
        self.takes = self._filter.takes

    def messages(
        self,
        results: pa.Table,
        failed: pa.Table | None = None,
        late: pa.Table | None = None,
        in_force: InForce = NOT_KNOWN,  # noqa: ARG002
    ) -> Iterator[Outgoing | Records]:
        rows = self._filter.rows(results, failed, late)
        if rows.num_rows:  # a table without rows may lack columns, and so the key
            yield Records(self.topic, self.records(rows), link=self._name)

    def records(self, rows: pa.Table) -> RecordColumns:
        """Key and value of the record of each row."""
        return self._format.encode(rows)

    def committed(self) -> None:
        pass

    def refused(self) -> None:
        pass

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def end_markers(self, uuid: str) -> Iterator[Outgoing]:
        for partition in range(self._partitions() if self._marks else 0):
            headers = [(END_HEADER, uuid.encode()), (JOB_HEADER, self._job.encode())]
            yield Outgoing(self.topic, None, partition, headers=headers)

    def sealed(self) -> None:
        pass
