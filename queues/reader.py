"""Reading a task's ingress: messages into batches, positions into partitions, through every rebalance.

The reader is the consumer of one peer in its task's group. It keeps what it has read ahead in a buffer, and what it knows of
each partition's end in a :class:`sentinel.rules.PartitionView`. A batch is cut from the buffer; if it is not committed, for
whatever reason, :meth:`Reader.rewind` takes everything back to the committed positions.

Not thread-safe: everything, the rebalance callbacks too, runs on the thread that calls :meth:`Reader.poll`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from queues.batch import Batch, Chunk, HeldPartition, Recovered, split
from queues.client import CLIENT_LOG, RECONNECT_MS
from queues.committed import NotLetIn, ReaderLost, committed
from queues.membership import AssignmentAudit, as_member, leave, requires_copartitioning
from queues.messages import DUE_HEADER, ROWS_HEADER, SENTINEL_HEADER, Outgoing
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings
from sentinel.rules import PartitionView

log = structlog.get_logger()

_AT_ONCE = 10_000
"""Messages taken from the client in one call."""

JOIN = 20.0
"""Seconds that a group has to answer a consumer that would join; then a new one tries. One whose coordinator was missing from the
cluster's metadata for a moment, as a broker is that has just started again, never finds it (seen with librdkafka 2.16)."""

_LOST = KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE
"""Errors that a consumer does not get over: somebody else is the slot's holder, or the positions lead nowhere."""

Rebalance = Callable[[Consumer, list[TopicPartition]], None]


class Reader:
    """One peer's way in.

    Args:
        settings: where Kafka is and how patient the group is.
        group: the task's consumer group.
        member: who we are in it: the slot's holder.
        links: the ingress links with their facts.
        elect: ``elect(link, uuid) -> leader``: the vote on a link's sentinels.
        batch_rows: what a message of unknown size counts for.
        recover: of an output that keeps positions itself: where partitions stand there, given what Kafka has just said of
            them. Asked whenever partitions come, and by :meth:`recover`.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        member: str,
        links: Mapping[str, tuple[Link, LinkFacts]],
        elect: Callable[[str, str], str],
        batch_rows: int,
        recover: Callable[[Mapping[Partition, Position | None]], Mapping[Partition, Recovered]] | None = None,
    ) -> None:
        self._links = {link.topic: (link, facts) for link, facts in links.values()}
        self._elect = elect
        self._batch_rows = batch_rows
        self._recover = recover
        self._held: dict[Partition, HeldPartition] = {}
        self._buffer: deque[Chunk] = deque()
        self._rows = 0
        self._first_row_at: float | None = None
        self._paused = False
        self._closing = False
        self._incarnation = 0
        self._outside_since: float | None = None
        self._transaction_timeout = settings.peer.transaction_timeout
        ways = [link for link, _ in links.values()]
        self._copartitioned = requires_copartitioning(ways)
        self._consumer = Consumer(
            {
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "queued.max.messages.kbytes": 32_768,
                "fetch.queue.backoff.ms": 20,  # where that is full; the client would rest for a second, and we run dry
                **settings.kafka.client(),
                **as_member(settings, group, member, ways),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            },
            logger=CLIENT_LOG,
        )
        everything = [Partition(link.topic, n) for link, facts in links.values() for n in range(facts.partitions)]
        self._begin_audit = partial(AssignmentAudit, settings, group, everything)
        self._audit: AssignmentAudit | None = None
        came, went = self._answer(self._assigned), self._answer(self._revoked)
        self._consumer.subscribe(list(self._links), on_assign=came, on_revoke=went, on_lost=went)

    # --- reading -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> None:
        """Serve the group and read ahead, for at most ``timeout`` seconds; returns early when something came.

        Raises:
            ReaderLost: the consumer cannot go on.
        """
        self._take_due()
        self._throttle()
        self._look_for_the_unheld()
        message = self._consumer.poll(timeout)
        if message is None:
            self._look_for_the_group()
            return
        self._take([message])
        if not self._full:
            self._take(self._consumer.consume(_AT_ONCE, timeout=0))

    def ready(self, size: int, patience: float) -> bool:
        """Whether a batch should be cut: enough rows, or rows that have waited ``patience`` seconds, or only news of ends."""
        if self._rows >= size:
            return True
        if self._first_row_at is not None:
            return time.monotonic() - self._first_row_at >= patience
        return bool(self._buffer) or any(self._to_commit(held) for held in self._held.values())

    def cut(self, size: int) -> Batch:
        """Take about ``size`` rows from the buffer, sentinels sorted out.

        Raises whatever the vote raises; then nothing is lost, since :meth:`rewind` reads it again.
        """
        batch = Batch()
        rows = 0
        while self._buffer and rows < size:
            chunk = self._buffer.popleft()
            if len(chunk.messages) > size - rows:
                chunk, rest = split(chunk, size - rows)
                self._buffer.appendleft(rest)
            rows += chunk.rows
            self._sift(chunk, batch)
        self._rows -= rows
        self._first_row_at = time.monotonic() if self._rows > 0 else None
        for partition, held in self._held.items():
            uuid = held.view.take_displaced()
            if uuid is not None:
                batch.displaced[partition] = uuid
            if partition in batch.rows or uuid is not None or self._to_commit(held):
                counts = held.committed.counts if held.committed else Position(0).counts
                position = Position(held.view.position, counts, held.view.drained)
                if held.behind and held.committed and position == held.committed._replace(drained=None):
                    position = held.committed  # or what is outbox could not be told from what was said
                batch.positions[partition] = position
                batch.incarnations[partition] = held.incarnation
                batch.started[partition] = held.committed.offset if held.committed else None
                batch.outbox += held.outbox
        return batch

    def holds(self, batch: Batch) -> bool:
        """Whether every partition of the batch is still ours, under the same assignment, in a group that still knows us."""
        return self.member and all(
            partition in self._held and self._held[partition].incarnation == incarnation
            for partition, incarnation in batch.incarnations.items()
        )

    def committed(self, positions: Mapping[Partition, Position]) -> None:
        """The transaction with these positions is committed."""
        for partition, position in positions.items():
            if partition in self._held:
                held = self._held[partition]
                held.committed, held.behind, held.outbox = position, False, []

    def recover(self) -> None:
        """Learn anew what is committed, where the output keeps positions itself, then :meth:`rewind`.

        Raises:
            ReaderLost: the broker did not answer; whatever the output raises.
        """
        if self._recover is not None and self._held:
            for partition, held in self._asked([TopicPartition(p.topic, p.number) for p in self._held]).items():
                self._held[partition].committed, self._held[partition].behind, self._held[partition].outbox = held
        self.rewind()

    def rewind(self) -> None:
        """Forget everything since the last commit and read it again."""
        self._clear_buffer()
        for partition, held in self._held.items():
            held.view = self._fresh_view(partition, held)
            held.later.clear()
            if held.past_end:
                held.past_end = False
                self._consumer.resume([TopicPartition(partition.topic, partition.number)])
            try:
                self._consumer.seek(TopicPartition(partition.topic, partition.number, held.view.position))
            except KafkaException as error:
                raise ReaderLost(str(error)) from error

    # --- what is known of the ends -------------------------------------------------------------------------------

    @property
    def member(self) -> bool:
        """Whether the group knows us: not before it has answered for the first time, nor after it gave us up."""
        return bool(self._consumer.memberid())

    @property
    def held(self) -> dict[Partition, Position | None]:
        """The partitions that this reader holds, with what was last committed there."""
        return {partition: held.committed for partition, held in self._held.items()}

    @property
    def idle(self) -> bool:
        """Whether nothing is buffered and nothing waits to be committed."""
        return not self._buffer and not any(held.later or self._to_commit(held) for held in self._held.values())

    def all_committed(self) -> dict[Partition, Position | None]:
        """What the group has committed for every partition of every ingress link; asks the broker.

        Raises:
            ReaderLost: it did not answer.
        """
        wanted = [
            TopicPartition(topic, number)
            for topic, (_, facts) in self._links.items()
            for number in range(facts.partitions)
        ]
        return dict(committed(self._consumer, wanted, self._transaction_timeout))

    def group_metadata(self) -> Any:
        """Who we are in the group, right now; what a transaction is fenced with.

        Raises:
            ReaderLost: we are in no group, so that nothing would fence us.
        """
        metadata = self._consumer.consumer_group_metadata()
        if not self.member:  # asked last: the other way round it could be lost between the two
            raise ReaderLost("not a member of the group")
        return metadata

    def close(self) -> None:
        """Leave the group at once, and give the client back."""
        self._closing = True
        self._held.clear()
        self._buffer.clear()  # the client keeps its callbacks, and they us
        leave(self._consumer)

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        return self._rows >= 2 * self._batch_rows

    def _look_for_the_group(self) -> None:
        """Whoever waits for partitions must at least be known to the group."""
        if self._held or self.member:
            self._outside_since = None
        elif self._outside_since is None:
            self._outside_since = time.monotonic()
        elif time.monotonic() - self._outside_since > JOIN:
            raise NotLetIn(f"the group has not let the consumer in for {JOIN:.0f} s")

    def _look_for_the_unheld(self) -> None:
        """Partitions that nobody was given are given to somebody when we come anew."""
        missing = self._audit and self._audit.missing()
        if missing:
            raise ReaderLost(f"nobody holds {', '.join(f'{p.topic}[{p.number}]' for p in sorted(missing))}")

    def _throttle(self) -> None:
        """Hold the broker back while enough is buffered; the group is still served by every poll."""
        if self._full != self._paused:
            partitions = [TopicPartition(p.topic, p.number) for p, held in self._held.items() if not held.past_end]
            if self._full:
                self._consumer.pause(partitions)
            else:
                self._consumer.resume(partitions)
            self._paused = self._full

    def _take(self, messages: list[Message]) -> None:
        """Put messages into the buffer, in chunks."""
        start = 0
        while start < len(messages):
            first = messages[start]
            topic, number = first.topic(), first.partition()
            end = start + 1
            if first.error() is not None:
                self._note(first)
            else:
                # One chunk reaches as far as nothing but records of the same partition comes.
                while end < len(messages):
                    message = messages[end]
                    if message.partition() != number or message.topic() != topic or message.error() is not None:
                        break
                    end += 1
                self._take_records(Partition(topic, number), messages[start:end])
            start = end

    def _note(self, message: Message) -> None:
        """What is no record: the end of a partition, or an error."""
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            partition = Partition(message.topic(), message.partition())
            held = self._held.get(partition)
            if held is not None and not held.past_end:
                self._keep(held, Chunk(partition, end=message.offset()))
            return
        if error.fatal() or error.code() in _LOST:
            raise ReaderLost(f"{error.name()}: {error.str()}")
        log.warning("kafka_error", error=f"{error.name()}: {error.str()}")

    def _take_records(self, partition: Partition, messages: list[Message]) -> None:
        held = self._held.get(partition)
        if held is None or held.past_end:
            return
        link, _ = self._links[partition.topic]
        if link.has_sentinels:
            chunks = [self._chunk_of(partition, message) for message in messages]
        else:
            end = held.view.end
            if end is not None and messages[-1].offset() >= end:
                messages = messages[: bisect_left(messages, end, key=_offset)]
                held.past_end = True
                self._consumer.pause([TopicPartition(partition.topic, partition.number)])
            chunks = [Chunk(partition, messages, len(messages))] if messages else []
            if held.past_end:
                chunks.append(Chunk(partition, end=end))
        for chunk in chunks:
            self._keep(held, chunk)

    def _keep(self, held: HeldPartition, chunk: Chunk) -> None:
        """Put a chunk where it belongs: into the buffer, or behind what is not due yet."""
        if held.later or chunk.due > time.time():
            held.later.append(chunk)
        else:
            self._buffer_chunk(chunk)

    def _buffer_chunk(self, chunk: Chunk) -> None:
        self._buffer.append(chunk)
        self._rows += chunk.rows
        if chunk.rows and self._first_row_at is None:
            self._first_row_at = time.monotonic()

    def _take_due(self) -> None:
        """Put what has become due into the buffer."""
        now = time.time()
        for held in self._held.values():
            while held.later and held.later[0].due <= now:
                self._buffer_chunk(held.later.popleft())

    def _chunk_of(self, partition: Partition, message: Message) -> Chunk:
        """A message of a link with sentinels; its headers say what it is."""
        headers = dict(message.headers() or ())
        uuid = headers.get(SENTINEL_HEADER)
        if uuid is not None:
            return Chunk(partition, sentinel=(message.offset(), uuid.decode()))
        rows = headers.get(ROWS_HEADER)
        due = float(headers.get(DUE_HEADER, 0))
        return Chunk(partition, [message], int(rows) if rows is not None else self._batch_rows, due=due)

    def _sift(self, chunk: Chunk, batch: Batch) -> None:
        """Give a chunk to its partition's view and, if it holds records, to the batch."""
        partition = chunk.partition
        link, _ = self._links[partition.topic]
        view = self._held[partition].view
        if chunk.end is not None:
            view.end_of_partition(chunk.end)
        elif chunk.sentinel is not None:
            offset, uuid = chunk.sentinel
            view.sentinel(offset, uuid, self._elect(link.name, uuid))
        elif view.record(chunk.messages[-1].offset()):
            batch.messages.setdefault(link.name, []).extend(chunk.messages)
            batch.rows[partition] = batch.rows.get(partition, 0) + chunk.rows

    def _to_commit(self, held: HeldPartition) -> bool:
        """Whether Kafka's position is to be brought up, or the partition was found drained and that is not committed yet."""
        drained = held.view.drained
        return held.behind or (drained is not None and (held.committed is None or held.committed.drained != drained))

    def _fresh_view(self, partition: Partition, held: HeldPartition) -> PartitionView:
        _, facts = self._links[partition.topic]
        position = held.committed.offset if held.committed else held.started
        if facts.end is None:
            return PartitionView(position)
        return PartitionView(position, facts.end[partition.number] if partition.number < facts.partitions else position)

    def _clear_buffer(self) -> None:
        self._buffer.clear()
        self._rows = 0
        self._first_row_at = None

    def _asked(self, wanted: list[TopicPartition]) -> dict[Partition, tuple[Position | None, bool, list[Outgoing]]]:
        """What is committed of each partition, whether Kafka's own position is another one, and what is outbox there.

        Kafka is asked first: once it has answered, whoever held a partition before can move it only in the output, and
        will be found to have done so by the compare-and-set of our next batch.
        """
        told = dict(committed(self._consumer, wanted, self._transaction_timeout)) if wanted else {}
        kept = self._recover(told) if self._recover is not None and told else {}
        return {
            partition: (kept[partition].position, kept[partition].position != position, kept[partition].outbox)
            if partition in kept
            else (position, False, [])
            for partition, position in told.items()
        }

    def _answer(self, rebalance: Rebalance) -> Rebalance:
        """What the client calls when partitions come or go. A closing consumer does what is needed without us.

        No error of the client's may get out of it: the client hands it on as something that is no exception, which nothing
        catches (confluent-kafka 2.16 on Python 3.11).
        """

        def called(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                if not self._closing:
                    rebalance(consumer, partitions)
            except KafkaException as error:
                raise ReaderLost(str(error)) from error

        return called

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._outside_since = None
        self._audit = self._audit or self._begin_audit()
        starts: list[TopicPartition] = []
        for partition, (position, behind, outbox) in self._asked(partitions).items():
            _, facts = self._links[partition.topic]
            self._incarnation += 1
            held = HeldPartition(
                view=PartitionView(0),
                committed=position,
                incarnation=self._incarnation,
                # A partition that was added to a user's topic since: all of it, or nothing if the input is bounded.
                started=facts.start[partition.number] if facts.start and partition.number < facts.partitions else 0,
                behind=behind,
                outbox=outbox,
            )
            held.view = self._fresh_view(partition, held)
            self._held[partition] = held
            starts.append(TopicPartition(partition.topic, partition.number, held.view.position))
        (consumer.assign if self._copartitioned else consumer.incremental_assign)(starts)
        # What was held already stays as it is, and so must the new ones be. Said either way: the client remembers that a
        # partition was suspended when it went, and would never give anything of it when it comes back.
        if self._paused:
            consumer.pause(starts)
        else:
            consumer.resume(starts)
        log.debug("partitions_assigned", partitions=[f"{p.topic}[{p.partition}]@{p.offset}" for p in starts])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {Partition(item.topic, item.partition) for item in partitions}
        for partition in gone:
            self._held.pop(partition, None)
        self._buffer = deque(chunk for chunk in self._buffer if chunk.partition not in gone)
        self._rows = sum(chunk.rows for chunk in self._buffer)
        if not self._rows:
            self._first_row_at = None
        if not consumer.assignment():
            return
        if self._copartitioned:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)
        log.debug("partitions_revoked", partitions=[f"{p.topic}[{p.number}]" for p in gone])


def _offset(message: Message) -> int:
    offset: int = message.offset()
    return offset
