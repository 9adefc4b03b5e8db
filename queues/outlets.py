"""Writing a task's results: one outlet for each place they go to.

An outlet turns a table into messages for the batch's transaction. What cannot be part of a Kafka transaction (a file) is
written aside first, listed by a message in the transaction, and made visible after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from queues import block
from queues.media.base import Output, TopicFormat
from queues.reader import ROWS_HEADER, SENTINEL_HEADER
from queues.transaction import Outgoing, Records
from sardonyx.graph import Link


class Outlet(Protocol):
    """One way out of a task."""

    def messages(self, table: pa.Table) -> Iterator[Outgoing | Records]:
        """The batch's results as messages for its transaction."""
        ...

    def committed(self) -> None:
        """The transaction with these messages is committed: make visible what was written aside."""
        ...

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:
        """What tells the readers of this outlet that nothing follows."""
        ...

    def sealed(self) -> None:
        """The transaction with the sentinels is committed."""
        ...


def sentinel_message(link: Link, partition: int, uuid: str, writer: str) -> Outgoing:
    """A sentinel: no rows, a uuid, and who wrote it."""
    headers = [(SENTINEL_HEADER, uuid.encode()), ("sx-link", link.name.encode()), ("sx-writer", writer.encode())]
    return Outgoing(link.topic, None, partition, headers=headers)


class LinkOutlet:
    """To the next task: Arrow blocks of at most ``rows``, dealt out over the partitions in turn, beginning with ``first``."""

    def __init__(self, link: Link, partitions: int, writer: str, first: int = 0, rows: int | None = None) -> None:
        self._rows = rows
        self._link = link
        self._partitions = partitions
        self._writer = writer
        self._next = itertools.count(first)

    def messages(self, table: pa.Table) -> Iterator[Outgoing | Records]:
        for item in block.encode(table, max_rows=self._rows):
            headers = [(ROWS_HEADER, str(item.rows).encode()), ("sx-writer", self._writer.encode())]
            yield Outgoing(self._link.topic, item.value, next(self._next) % self._partitions, headers=headers)

    def committed(self) -> None:
        pass

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:
        for partition in range(self._partitions):
            yield sentinel_message(self._link, partition, uuid, self._writer)

    def sealed(self) -> None:
        pass


class TopicOutlet:
    """To a topic of the user's: one record a message, the key chosen by the format. Its readers know of no sentinels."""

    def __init__(self, link: Link, form: TopicFormat) -> None:
        self._topic = link.topic
        self._format = form

    def messages(self, table: pa.Table) -> Iterator[Outgoing | Records]:
        if not table.num_rows:  # it may have no columns either, and so no key to be chosen by
            return
        yield Records(self._topic, list(self._format.encode(table)))

    def committed(self) -> None:
        pass

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        pass


class MediumOutlet:
    """To a medium that is no topic: staged, listed on the task's ``parts`` link, published after the commit.

    Args:
        output: the medium.
        parts: the link that lists what was written; None if the medium lists nothing.
        listed: reads the whole list, as committed.
    """

    def __init__(self, output: Output, parts: Link | None, listed: Callable[[], list[bytes]]) -> None:
        self._output = output
        self._parts = parts
        self._listed = listed
        self._staged: list[bytes] = []

    def messages(self, table: pa.Table) -> Iterator[Outgoing | Records]:
        self._staged = self._output.stage(table) if table.num_rows else []
        if self._parts is not None:
            for entry in self._staged:
                yield Outgoing(self._parts.topic, entry, 0)

    def committed(self) -> None:
        if self._staged:
            self._output.publish(self._staged)
            self._staged = []

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        """Publishes also what a predecessor committed and did not live to publish."""
        self._output.seal(self._listed())
