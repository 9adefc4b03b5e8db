"""Writing a task's results: one sink for each place they go to.

A sink selects the results or failed records of a batch that go its way.
It turns them into messages for the transaction. A file cannot be part of a Kafka transaction. So the sink stages it
first, lists it in a message of the transaction, and
publishes it after the commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from peer.row_functions import Condition, Grouping, Load
from queues import block
from queues.messages import LINK_HEADER, ROWS_HEADER, SENTINEL_HEADER, WRITER_HEADER, Outgoing, Records
from sardonyx.connectors.base import Output, TopicFormat
from sardonyx.core.graph import Link

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
"""A record that a task could not work on, as a row for those who take failed records. ``error``: the class of what was
raised; ``attempts``: how often it was in a run that raised; ``topic``, ``partition``, ``offset``: of the message that carried
it, null if that is not known; ``record``: it itself, as JSON."""


class Sink(Protocol):
    """One way out of a task."""

    def messages(self, results: pa.Table, failed: pa.Table | None = None) -> Iterator[Outgoing | Records]:
        """What of a batch goes this way, as messages for its transaction.

        Args:
            results: what the task's function made of it.
            failed: the records that it could not work on, with the columns of :data:`FAILED`; None: there are none.

        Raises:
            FunctionError: of a condition or a group function of the user's.
        """
        ...

    def takes(self, failed: pa.Table) -> pa.BooleanArray | None:
        """For each failed record whether it goes this way; None: none does. Whatever is taken must then be written.

        Raises:
            FunctionError: of a condition of the user's.
        """
        ...

    def committed(self) -> None:
        """The transaction with these messages is committed: publish what the sink staged."""
        ...

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:
        """The messages that tell the readers of this sink that nothing follows."""
        ...

    def sealed(self) -> None:
        """The transaction with the sentinels is committed."""
        ...


def taken(sinks: Iterable[Sink], failed: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each failed record whether it goes some way; what does not is for the task's ``on_error`` to decide.

    Raises:
        FunctionError: of a condition of the user's.
    """
    found = np.zeros(failed.num_rows, np.bool_)
    for sink in sinks:
        mask = sink.takes(failed)
        if mask is not None:
            found |= mask.to_numpy(zero_copy_only=False)
    return found


class EdgeFilter:
    """What of a batch goes over one link, by the link's route.

    Args:
        link: a link between two tasks, or from a task to an output.
        load: finds the user's condition.

    Raises:
        FunctionError: the condition cannot be imported, or does not say what it takes.
    """

    def __init__(self, link: Link, load: Load) -> None:
        self._failed = link.route.of == "failed"
        where = link.route.where
        self._condition = None if where is None else Condition(link.name.partition(".")[0], where, load)
        self._last: tuple[pa.Table, pa.BooleanArray] | None = None

    def rows(self, results: pa.Table, failed: pa.Table | None) -> pa.Table:
        """Those that go this way, in their order; raises what the condition raises."""
        if not self._failed:
            if self._condition is None or not results.num_rows:  # without rows there may be no columns to ask for
                return results
            return results.filter(self._condition.holds(results))
        return failed.filter(self.takes(failed)) if failed is not None else FAILED.empty_table()

    def takes(self, failed: pa.Table) -> pa.BooleanArray | None:
        """As :meth:`Sink.takes`. The same table is not asked about twice."""
        if not self._failed:
            return None
        if self._condition is None or not failed.num_rows:
            return pa.array(np.ones(failed.num_rows, np.bool_))
        if self._last is None or self._last[0] is not failed:
            self._last = failed, self._condition.holds(failed)
        return self._last[1]


def sentinel_message(link: Link, partition: int, uuid: str, writer: str) -> Outgoing:
    """A sentinel: no rows, a uuid, and who wrote it."""
    headers = [(SENTINEL_HEADER, uuid.encode()), (LINK_HEADER, link.name.encode()), (WRITER_HEADER, writer.encode())]
    return Outgoing(link.topic, None, partition, headers=headers)


class LinkSink:
    """To the next task, as Arrow blocks: dealt out over the partitions in turn, or by their keys if that task groups.

    Args:
        link: where to.
        partitions: how many it has.
        writer: who writes, for the messages' headers.
        load: finds the functions that the link's route and grouping name.
        first: the partition that is the first to be dealt to.
        rows: the most in one block.

    Raises:
        FunctionError: such a function cannot be imported, or does not say what it takes.
    """

    def __init__(
        self, link: Link, partitions: int, writer: str, load: Load, first: int = 0, rows: int | None = None
    ) -> None:
        self._rows = rows
        self._link = link
        self._partitions = partitions
        self._writer = writer
        self._next = itertools.count(first)
        self._filter = EdgeFilter(link, load)
        self._grouping = Grouping(link.target, link.group_by, load) if link.group_by else None
        self.takes = self._filter.takes

    def messages(self, results: pa.Table, failed: pa.Table | None = None) -> Iterator[Outgoing | Records]:
        rows = self._filter.rows(results, failed)
        if self._grouping is None:
            for item in block.encode(rows, max_rows=self._rows):
                yield self._message(item, next(self._next) % self._partitions)
        elif rows.num_rows:
            for partition, part in self._grouping.split(rows, self._partitions):
                for item in block.encode(part, max_rows=self._rows):
                    yield self._message(item, partition)

    def _message(self, item: block.Block, partition: int) -> Outgoing:
        headers = [(ROWS_HEADER, str(item.rows).encode()), (WRITER_HEADER, self._writer.encode())]
        return Outgoing(self._link.topic, item.value, partition, headers=headers)

    def committed(self) -> None:
        pass

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:
        for partition in range(self._partitions):
            yield sentinel_message(self._link, partition, uuid, self._writer)

    def sealed(self) -> None:
        pass


class TopicSink:
    """To a topic of the user's: one record a message, the key chosen by the format. Its readers know of no sentinels."""

    def __init__(self, link: Link, form: TopicFormat, load: Load) -> None:
        self._topic = link.topic
        self._format = form
        self._filter = EdgeFilter(link, load)
        self.takes = self._filter.takes

    def messages(self, results: pa.Table, failed: pa.Table | None = None) -> Iterator[Outgoing | Records]:
        rows = self._filter.rows(results, failed)
        if rows.num_rows:  # without rows there may be no columns either, and so no key to be chosen by
            yield Records(self._topic, list(self._format.encode(rows)))

    def committed(self) -> None:
        pass

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        pass


class ConnectorSink:
    """To a connector that is no topic: staged, listed on the task's ``parts`` link, published after the commit.

    Args:
        output: the connector.
        parts: the link that lists what was written; None if the connector lists nothing.
        listed: reads the whole list, as committed.
    """

    def __init__(self, output: Output, parts: Link | None, listed: Callable[[], list[bytes]]) -> None:
        self._output = output
        self._parts = parts
        self._listed = listed
        self._staged: list[bytes] = []

    def messages(self, results: pa.Table, failed: pa.Table | None = None) -> Iterator[Outgoing | Records]:  # noqa: ARG002
        self._staged = self._output.stage(results) if results.num_rows else []
        if self._parts is not None:
            for entry in self._staged:
                yield Outgoing(self._parts.topic, entry, 0)

    def takes(self, failed: pa.Table) -> None:
        """None: what leaves a job fails in the task before."""

    def committed(self) -> None:
        if self._staged:
            self._output.publish(self._staged)
            self._staged = []

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        """Also publishes what a predecessor committed but did not publish before it died."""
        self._output.seal(self._listed())
