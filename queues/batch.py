"""What a reader gives, and what it keeps before: batches, chunks of partitions, and what it knows of each one it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Message

from queues.messages import Outgoing
from sardonyx.core.positions import Partition, Position
from sentinel.rules import PartitionView


@dataclass
class Batch:
    """Messages to be worked on together, and what is to be committed with their results."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    """By link name, in the order in which they were read."""
    rows: dict[Partition, int] = field(default_factory=dict)
    """Rows read, by partition; estimated where only reading the chunk will tell."""
    positions: dict[Partition, Position] = field(default_factory=dict)
    """Where each touched partition stands behind this batch; the counts are still those from before it."""
    displaced: dict[Partition, str] = field(default_factory=dict)
    """Partitions at whose end the leader's sentinel (its uuid) must be written again."""
    incarnations: dict[Partition, int] = field(default_factory=dict)
    """Which assignment of the partition it was read under."""
    started: dict[Partition, int | None] = field(default_factory=dict)
    """For each of ``positions``, the committed offset that the batch goes on from; None: nothing was ever committed."""
    outbox: list[Outgoing] = field(default_factory=list)
    """What an earlier batch had still to say, of which only the output's own transaction is committed."""


class StartingPoint(NamedTuple):
    """Where reading of a partition begins, and what is still to be done there."""

    position: Position | None
    """None: nothing was ever committed."""
    behind: bool = False
    """Kafka's own position is another one."""
    outbox: Sequence[Outgoing] = ()


class Recovered(NamedTuple):
    """Where a partition stands in an output that keeps positions itself, which is where reading begins."""

    position: Position
    outbox: list[Outgoing]
    """What is still to be written with the next commit, if Kafka's own position is another one."""


@dataclass(slots=True)
class Chunk:
    """What came from one partition in a row: records, or one sentinel, or the news that nothing follows.

    Records of users' topics come in long chunks, so that what is done for each of them is next to nothing.
    """

    partition: Partition
    messages: list[Message] = field(default_factory=list)
    rows: int = 0
    """Of all messages; each holds one if there are several."""
    sentinel: tuple[int, str] | None = None
    """Its offset and uuid."""
    end: int | None = None
    """The offset behind everything, or one at or behind a bound end."""
    due: float = 0.0
    """Not to be read earlier than that, in seconds since 1970."""


@dataclass
class HeldPartition:
    """A partition that the group has given to this reader."""

    start: StartingPoint
    incarnation: int
    first: int
    """Where reading begins if nothing was ever committed."""
    end: int | None
    """The bound end of the input, if it has one."""
    view: PartitionView = field(init=False)
    later: deque[Chunk] = field(default_factory=deque)
    """What is not due yet, and everything after it. Not counted, so that it keeps no other partition from being read."""
    past_end: bool = False
    """A record after the bound end came: no more are asked for."""

    def __post_init__(self) -> None:
        self.rewind()

    @property
    def committed(self) -> Position | None:
        return self.start.position

    def rewind(self) -> None:
        """Forget everything since the last commit."""
        position = self.committed.offset if self.committed else self.first
        self.view = PartitionView(position) if self.end is None else PartitionView(position, self.end)
        self.later.clear()

    @property
    def to_commit(self) -> bool:
        """Whether Kafka's position must be brought up, or the partition was found drained and that is not committed yet."""
        drained = self.view.drained
        return self.start.behind or (
            drained is not None and (self.committed is None or self.committed.drained != drained)
        )

    def commit_point(self) -> Position:
        """The position to commit with what was read so far; the counts are still those of the last commit."""
        position = Position(
            self.view.position, self.committed.counts if self.committed else Position(0).counts, self.view.drained
        )
        if self.start.behind and self.committed and position == self.committed._replace(drained=None):
            return self.committed  # otherwise what is in the outbox could not be told from what was written
        return position


def split(chunk: Chunk, count: int) -> tuple[Chunk, Chunk]:
    """The first ``count`` records of a chunk that holds more, and the rest."""
    head, tail = chunk.messages[:count], chunk.messages[count:]
    return Chunk(chunk.partition, head, len(head)), Chunk(chunk.partition, tail, len(tail))
