"""What a reader knows of its partitions: batches are cut from what was read, and positions follow from them.

It holds no client. :class:`queues.reader.Reader` brings it the messages of Kafka. A test brings it those that stand in memory.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from queues.batch import Batch, Chunk, HeldPartition, StartingPoint, assigned
from queues.batch_growth import BatchGrowth
from queues.losses import hear
from queues.messages import without_markers
from queues.read_buffer import ReadBuffer, chunk_of, size_of
from sardonyx.core.clocks import SourceClock
from sardonyx.core.events import LinkFacts
from sardonyx.core.front_text import read_front
from sardonyx.core.fronts import greatest
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.clock import REAL, Runtime
from sentinel.rules import END_MARKER

if TYPE_CHECKING:
    from confluent_kafka import Message


_INCARNATIONS = itertools.count(1)
"""Numbers of assignments, of all readers in this process: what is known of a partition may outlive a reader, and another peer may
have had the partition before the next one gets it."""


_PATIENCE = 1.0
"""Seconds from one batch to the next for which the first messages of a superstep wait for the last ones."""


class Reading:
    """The partitions that one peer holds of its task's ingress, and what was read of them. Not thread-safe.

    Args:
        links: the ingress links with their facts.
        elect: ``elect(link, uuid) -> leader``: the vote on a link's sentinels.
        batch_rows: number of rows to assume for a message of unknown size.
        timed: the job has clocks, or keeps its lineage.
        lineage: it keeps its lineage.
        most_rows: rows that a batch has at most where much is unread; 0: no more than where little is.
        runtime: time.
    """

    def __init__(
        self,
        links: Mapping[str, tuple[Link, LinkFacts]],
        elect: Callable[[str, str], str],
        batch_rows: int,
        *,
        timed: bool = False,
        lineage: bool = False,
        most_rows: int = 0,
        runtime: Runtime = REAL,
    ) -> None:
        self._links = {link.topic: (link, facts) for link, facts in links.values()}
        self._everything = [
            Partition(link.topic, number) for link, facts in links.values() for number in range(facts.partitions)
        ]
        self._elect = elect
        self._batch_rows = batch_rows
        self._timed = timed
        self._lineage = lineage
        self._runtime = runtime
        self._held: dict[Partition, HeldPartition] = {}
        self._buffer = ReadBuffer()
        self._growth = BatchGrowth(most_rows)
        self._cut_at = runtime.now()
        """When the last batch with rows began; before the first, when reading began."""
        self._turn = -1
        """The number that the last batch was of, if it was of one alone."""

    @property
    def member(self) -> bool:
        """Whether the group has this reader as a member."""
        return True

    def batch_due_in(self, size: int, interval: float) -> float:
        """Seconds until a batch is to be cut. 0: now; infinity: there is nothing to commit.

        A batch of ``size`` rows is due at once, and so is one of only ends of partitions. One of fewer rows is due
        ``interval`` seconds after the last batch with rows began. So the first row after a pause does not wait. Nor do rows that
        the last batch has left because they have come over other numbers of feedback links, nor the last messages of a superstep.
        Those that come before them wait for them, for a second or ``interval``. If no more come, they go into the
        state.
        """
        self._buffer.is_patient = self._runtime.now() < self._cut_at + max(interval, _PATIENCE)
        rows, something = self._buffer.due(size)
        if 0 < rows < size and not self._buffer.mixed and not self._buffer.is_whole:
            return max(0.0, self._cut_at + interval - self._runtime.now())
        due = something or any(held.to_commit for held in self._held.values())
        return 0.0 if due else math.inf

    def number_due(self, pending: Collection[Partition]) -> int | None:
        """The partition number whose turn it is, for a batch of it alone; None: nothing waits.

        Args:
            pending: partitions that need a batch although nothing is read.
        """
        commits = {partition.number for partition, held in self._held.items() if held.to_commit}
        waits = sorted(commits | {partition.number for partition in pending} | self._buffer.numbers)
        return next((number for number in waits if number > self._turn), waits[0] if waits else None)

    def owed(self) -> dict[Partition, StartingPoint]:
        """The partitions for which Kafka lacks what the keeper of their positions has committed."""
        return {partition: held.start for partition, held in self._held.items() if held.start.behind}

    def cut(self, size: int, number: int | None = None) -> Batch:
        """Take about ``size`` rows from the buffer, or more if much is unread, and evaluate the sentinels among them.

        ``number``: the batch is only of the partitions with this number; None: of all.

        Raises whatever the vote raises. No row is lost then, because a reader that is rewound reads it again.

        Raises:
            InputError: ``SX-LINK-LOSS``, ``SX-LINK-TWICE``: an internal link has lost or doubled blocks.
        """
        batch = Batch(single=len(self._everything) == 1 and self._held.keys() <= {*self._everything})
        passed = self._runtime.now() - self._cut_at
        most = self._growth.next(size, self._buffer.rows, self._buffer.size, passed)
        if self._buffer.rows and (number is None or number <= self._turn):
            self._cut_at = self._runtime.now()
        self._turn = -1 if number is None else number
        for chunk in self._buffer.take(size, number, most):
            self._sift(chunk, batch)
        for partition, held in self._held.items():
            if number is not None and partition.number != number:
                continue
            uuid = held.view.take_displaced()
            if uuid is not None:
                batch.displaced[partition] = uuid
                if held.leader_stops:
                    batch.stopped.add(partition)
            if partition in batch.rows or uuid is not None or held.to_commit:
                self._touch(batch, partition, held)
        return batch

    def add(self, batch: Batch, partitions: Iterable[Partition]) -> bool:
        """Let a batch commit these partitions, too. False if this reader does not hold all of them."""
        for partition in partitions:
            held = self._held.get(partition)
            if held is None:
                return False
            if partition not in batch.positions:
                self._touch(batch, partition, held)
        return True

    def holds(self, batch: Batch) -> bool:
        """Whether this group member still holds every partition of the batch, each under the same assignment."""
        return self.member and all(
            partition in self._held and self._held[partition].incarnation == incarnation
            for partition, incarnation in batch.incarnations.items()
        )

    def made(self, batch: Batch, results: int, size: int) -> None:
        """A batch has made so many results, of so many bytes: how many rows the next one takes depends on it, too."""
        self._growth.made(sum(batch.rows.values()), results, size)

    def committed(self, positions: Mapping[Partition, Position]) -> None:
        """Record that the transaction with these positions has committed."""
        for partition, position in positions.items():
            if partition in self._held:
                self._held[partition].start = StartingPoint(position)
                self._held[partition].reset_statements()

    @property
    def held(self) -> dict[Partition, Position | None]:
        """The partitions that this reader holds, with the last committed position of each."""
        return {partition: held.committed for partition, held in self._held.items()}

    @property
    def standing(self) -> dict[Partition, Position]:
        """The same; of a partition that was never committed, where reading began."""
        return {partition: held.standing for partition, held in self._held.items()}

    @property
    def idle(self) -> bool:
        """Whether the buffer is empty and nothing waits for a commit."""
        return not self._buffer and not any(held.later or held.to_commit for held in self._held.values())

    @property
    def worked_off(self) -> bool:
        """Whether it has committed all that its partitions hold. A member without a partition has nothing to read."""
        return self.member and self.idle and all(held.at_end or held.past_end for held in self._held.values())

    @property
    def clocks(self) -> dict[Partition, SourceClock]:
        """The committed clocks of the partitions that this reader holds."""
        return {partition: held.committed_clock for partition, held in self._held.items()}

    def quiet(self, limits: Mapping[str, float]) -> set[Partition]:
        """The partitions that have had nothing to read for longer than their topic's limit, in seconds."""
        now = self._runtime.now()
        return {
            partition
            for partition, held in self._held.items()
            if partition.topic in limits
            and held.quiet_for(now, buffered=self._buffer.holds(partition)) >= limits[partition.topic]
        }

    @property
    def everything(self) -> list[Partition]:
        """All partitions of the ingress links, also those that others hold."""
        return self._everything

    @property
    def incarnations(self) -> dict[Partition, int]:
        """The partitions that this reader holds, each with the number of its assignment."""
        return {partition: held.incarnation for partition, held in self._held.items()}

    def incarnation(self, partition: Partition) -> int | None:
        """The number of the assignment under which this reader holds a partition; None if it does not hold it."""
        held = self._held.get(partition)
        return held.incarnation if held is not None and self.member else None

    def _touch(self, batch: Batch, partition: Partition, held: HeldPartition) -> None:
        batch.positions[partition] = held.commit_point()
        batch.incarnations[partition] = held.incarnation
        if self._timed:
            batch.clocks[partition] = held.committed_clock
            batch.stated[partition] = held.clock.value
        if self._lineage:
            batch.before[partition] = held.committed
        batch.started[partition] = held.committed.offset if held.committed else None
        batch.outbox += held.start.outbox

    def _begin(self, partition: Partition, start: StartingPoint) -> int:
        """The peer gets a partition. Returns the offset to read from."""
        _, facts = self._links[partition.topic]
        held = assigned(partition, start, facts, next(_INCARNATIONS), timed=self._timed, lineage=self._lineage)
        if not self._is_out(partition):
            self._held[partition] = held
        return held.view.position

    def _is_out(self, partition: Partition) -> bool:
        """Whether nothing is read of a partition that the group has given to this reader: its input stands still, or its queue
        has had more partitions than it has now.
        """
        link, facts = self._links[partition.topic]
        return (link.rests and not facts.stops) or (link.kind == "internal" and partition.number >= facts.partitions)

    @property
    def _full(self) -> bool:
        return self._growth.is_enough(self._batch_rows, self._buffer.rows, self._buffer.size)

    def _take_records(self, partition: Partition, messages: list[Message]) -> None:
        held = self._held.get(partition)
        if held is None or held.past_end:
            return
        held.at_end = False
        held.disturb()
        link, facts = self._links[partition.topic]
        if link.has_sentinels:
            splits = link.kind == "splits"
            chunks = [chunk_of(partition, message, self._batch_rows, splits=splits) for message in messages]
            if link.source == link.target:
                for chunk in chunks:
                    if chunk.messages:
                        held.markers.hear(chunk, facts.partitions)
        else:
            last = messages[-1].offset()
            if 0 in map(len, messages):  # an end marker has no value
                marked, messages = without_markers(messages)
                if link.ends_at_marker and held.view.end is None and marked is not None:
                    held.view.end, held.view.bound = marked + 1, END_MARKER
            end = held.view.end
            if end is not None and last >= end:
                messages = messages[: bisect_left(messages, end, key=_offset)]
                held.past_end = True
                self._past_end(partition)
            chunks = [Chunk(partition, messages, len(messages), size_of(messages))] if messages else []
            if held.past_end:
                chunks.append(Chunk(partition, end=end))
        for chunk in chunks:
            self._keep(held, chunk)

    def _keep(self, held: HeldPartition, chunk: Chunk) -> None:
        """Put a chunk into the buffer, or after the partition's chunks that are not due yet."""
        if held.later or chunk.due > self._runtime.wall():
            held.later.append(chunk)
        else:
            self._buffer.add(chunk)

    def _take_due(self) -> None:
        """Move the chunks that are due now into the buffer."""
        now = self._runtime.wall()
        for held in self._held.values():
            while held.later and held.later[0].due <= now:
                self._buffer.add(held.later.popleft())

    def _sift(self, chunk: Chunk, batch: Batch) -> None:
        """Pass a chunk to its partition's view, and add its records, if any, to the batch."""
        partition = chunk.partition
        link, _ = self._links[partition.topic]
        held = self._held[partition]
        view = held.view
        if chunk.end is not None:
            view.end_of_partition(chunk.end)
        elif chunk.sentinel is not None:
            offset, uuid = chunk.sentinel
            leader = self._elect(link.name, uuid)
            view.sentinel(offset, uuid, leader)
            if uuid == leader:
                held.leader_stops = chunk.stopped
        elif chunk.stated is not None:
            offset, clock = chunk.stated
            view.record(offset)
            held.clock = held.clock.stated(clock)
            if held.front is not None and chunk.front is not None:
                held.front = greatest(held.front, read_front(chunk.front))
        elif view.record(chunk.messages[-1].offset()):
            batch.messages.setdefault(link.name, []).extend(chunk.messages)
            batch.rows[partition] = batch.rows.get(partition, 0) + chunk.rows
            batch.hops = chunk.hops
            if self._timed:
                batch.spans.setdefault(link.name, []).append((partition, len(chunk.messages)))
            if self._timed and link.has_sentinels:
                batch.in_force.setdefault(link.name, []).extend([held.clock.value] * len(chunk.messages))
            if chunk.chain is not None:
                hear(held, link, chunk)

    def _past_end(self, partition: Partition) -> None:
        """A record after the bound end came: no more of this partition are needed."""


def _offset(message: Message) -> int:
    offset: int = message.offset()
    return offset
