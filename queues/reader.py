"""Read a task's ingress: turn messages into batches and track the position of each partition, through every rebalance.

The reader is the consumer of one peer in its task's group. It keeps messages that it has read ahead in a buffer.
What it knows of its partitions, and how it cuts batches, is in :mod:`queues.reading`. If a batch is not committed, for
whatever reason, :meth:`Reader.rewind` returns every partition to its committed position.

The reader is not thread-safe. All its code, rebalance callbacks included, runs on the thread that calls
:meth:`Reader.poll`.
"""

from __future__ import annotations

import math
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

from queues import queue_metrics
from queues.batch import Batch, Chunk, HeldPartition, StartingPoint
from queues.committed import Recover, committed, partitions_of, starting_points
from queues.denied import LOGIN, denied, is_denial, login_denied
from queues.group_watch import GroupWatch
from queues.lost import ReaderLost
from queues.membership import AssignmentAudit, leave, open_consumer, requires_copartitioning
from queues.outside import outside
from queues.quiet_times import QuietTimes
from queues.read_buffer import runs
from queues.reading import Reading
from sardonyx.core.errors import SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, is_endless
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_AT_ONCE = 10_000
"""Largest number of messages taken from the client in one call."""

_OUTSIDE = KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE
"""Errors that say: a position is outside the topic."""

_UNASKED = 1.0
"""Seconds without a poll after which it is not known whether rows wait at the broker. A loop that works polls many times in a
second; one that does not was stopped, or its machine was."""

_MEMBER_FOR = 1.0
"""Seconds for which a reader takes itself for a member of its group, if no rebalance says otherwise. No commit relies on it."""

Rebalance = Callable[[Consumer, list[TopicPartition]], None]


class Reader(Reading):
    """Reads the ingress links of a task for one peer.

    Args:
        settings: connection to Kafka and the timeouts of the group.
        group: the task's consumer group.
        member: name of this member in the group: the slot's holder.
        links: the ingress links with their facts.
        elect: ``elect(link, uuid) -> leader``: the vote on a link's sentinels.
        batch_rows: number of rows to assume for a message of unknown size.
        timed: the job has clocks, or keeps its lineage.
        lineage: it keeps its lineage.
        most_rows: rows that a batch has at most where much is unread.
        bounded: the job ends.
        recover: for an output that keeps positions itself. It takes Kafka's committed positions and returns the
            output's. The reader calls it whenever it gets partitions, and from :meth:`recover`.
        quiet_times: those that this reader shares with others of its process; None: its own.
        runtime: time.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        member: str,
        links: Mapping[str, tuple[Link, LinkFacts]],
        elect: Callable[[str, str], str],
        batch_rows: int,
        recover: Recover | None = None,
        *,
        timed: bool = False,
        lineage: bool = False,
        most_rows: int = 0,
        bounded: bool = False,
        quiet_times: QuietTimes | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        super().__init__(links, elect, batch_rows, timed=timed, lineage=lineage, most_rows=most_rows, runtime=runtime)
        self._settings = settings
        self._name = group
        self._recover = recover
        self._quiet_times = QuietTimes() if quiet_times is None else quiet_times
        self._paused = False
        self._polled_at = runtime.now()
        self._closing = False
        self._is_member = False
        self._asked_at = -math.inf
        """What the client has answered, and when; False: the reader has to ask it."""
        self._failure: Exception | None = None
        """What a rebalance callback failed with, until :meth:`poll` raises it."""
        self._transaction_timeout = settings.peer.transaction_timeout
        ways = [link for link, _ in links.values()]
        self._copartitioned = requires_copartitioning(ways)
        self._consumer = open_consumer(settings, group, member, ways, bounded=bounded)
        self._everything = [
            Partition(link.topic, number)
            for link, facts in links.values()
            for number in range(
                max(facts.partitions, self._partitions_now(link.topic) if _counts_all(link, facts, timed=timed) else 0)
            )
        ]
        self._group = GroupWatch(partial(AssignmentAudit, settings, group, self._everything))
        came, went = self._answer(self._assigned, "assigned"), self._answer(self._revoked, "revoked")
        lost = self._answer(self._revoked, "lost")
        self._consumer.subscribe(list(self._links), on_assign=came, on_revoke=went, on_lost=lost)
        queue_metrics.follow(self)

    def poll(self, timeout: float) -> None:
        """Serve the group and read ahead, for at most ``timeout`` seconds. Return early when a message arrives.

        Raises:
            ReaderLost: the consumer cannot continue.
            SetupError: ``SX-KAFKA-DENIED``: this client may not read.
            InputError: ``SX-INPUT-DELETED`` and the like: records that were to be read were deleted.
        """
        self._take_due()
        self._look_at_the_time()
        self._throttle()
        self._group.check_assignment()
        message = self._consumer.poll(timeout)
        self._check_answers()
        if message is None:
            self._group.check_membership(inside=bool(self._held) or self.member)
            return
        self._take([message])
        if not self._full:
            messages = self._consumer.consume(_AT_ONCE, timeout=0)
            self._check_answers()
            self._take(messages)

    def recover(self) -> None:
        """Ask again for the committed positions if the output keeps them itself, then :meth:`rewind`.

        Raises:
            ReaderLost: the broker did not answer. It also raises whatever the output raises.
        """
        if self._recover is not None and self._held:
            for partition, start in self._asked([TopicPartition(p.topic, p.number) for p in self._held]).items():
                self._held[partition].start = start
        self.rewind()

    def rewind(self) -> None:
        """Drop everything since the last commit, so that the reader reads it again."""
        self._buffer.clear()
        self._growth.restart()
        for partition, held in self._held.items():
            held.rewind()
            if held.past_end:
                held.past_end = False
                self._consumer.resume([TopicPartition(partition.topic, partition.number)])
            try:
                self._consumer.seek(TopicPartition(partition.topic, partition.number, held.view.position))
            except KafkaException as error:
                raise ReaderLost(str(error)) from error

    @property
    def member(self) -> bool:
        """Whether the group has this reader as a member: false before its first answer, and after it removed us.

        While it is one, the reader asks the client anew only after each rebalance, and each second: it answers on a thread of its
        own, which took a tenth of the time of a task that waits for rows.
        """
        now = self._runtime.now()
        if not self._is_member or now - self._asked_at > _MEMBER_FOR:
            self._is_member, self._asked_at = bool(self._consumer.memberid()), now
        return self._is_member

    def holds(self, batch: Batch) -> bool:
        self._is_member = False  # asked anew: what it answers is checked before a commit
        return super().holds(batch)

    @property
    def rows_ahead(self) -> int:
        return self._buffer.rows

    @property
    def is_paused(self) -> bool:
        return self._paused and not self._closing

    def check_partitions(self) -> None:
        """Check that no partition was added to a topic that is read up to its end markers.

        Raises:
            ReaderLost: one was, or the broker did not answer. A new reader reads it, too.
        """
        for link, facts in self._links.values():
            if link.ends_at_marker and not facts.stops:
                known = sum(partition.topic == link.topic for partition in self._everything)
                if self._partitions_now(link.topic) > known:
                    raise ReaderLost(
                        f"partitions were added to topic {link.topic}, which is read up to its end markers"
                    )

    def all_committed(self) -> dict[Partition, Position | None]:
        """Ask the broker what the group has committed for every partition of every ingress link.

        Raises:
            ReaderLost: the broker did not answer.
        """
        wanted = [TopicPartition(partition.topic, partition.number) for partition in self._everything]
        return dict(committed(self._consumer, wanted, self._transaction_timeout))

    def all_left(self) -> dict[Partition, Position | None]:
        """Ask the broker what the group has committed for partitions of queues that are not used any more. Their rows were read.

        Raises:
            ReaderLost: the broker did not answer.
        """
        wanted = [
            TopicPartition(link.topic, number)
            for link, facts in self._links.values()
            if link.kind == "internal"
            for number in range(facts.partitions, self._partitions_now(link.topic))
        ]
        return dict(committed(self._consumer, wanted, self._transaction_timeout)) if wanted else {}

    def committed_at(self, partition: Partition) -> Position | None:
        """Ask the broker what the group has committed for a partition, also one that the group does not read.

        Raises:
            ReaderLost: the broker did not answer.
        """
        place = TopicPartition(partition.topic, partition.number)
        return dict(committed(self._consumer, [place], self._transaction_timeout))[partition]

    def group_metadata(self) -> Any:
        """Return the present group membership, by which the broker fences a transaction.

        Raises:
            ReaderLost: the reader is not in the group, so the broker could not fence its transaction.
        """
        metadata = self._consumer.consumer_group_metadata()
        self._is_member = bool(self._consumer.memberid())  # after the call: membership could end between check and call
        if not self._is_member:
            raise ReaderLost("not a member of the group")
        return metadata

    def close(self) -> None:
        """Leave the group at once, and release the client."""
        self._closing = True
        self._held.clear()
        self._buffer.clear()  # the client keeps its callbacks alive, and these keep the reader alive
        leave(self._consumer)

    def _partitions_now(self, topic: str) -> int:
        """How many partitions a topic has by now. A job that stops has read those that were added since it was planned, too."""
        return partitions_of(self._consumer, topic, self._transaction_timeout)

    def quiet(self, limits: Mapping[str, float]) -> set[Partition]:
        self._look_at_the_time()  # the process may have been stopped within its last poll
        found = super().quiet(limits)
        for partition, held in self._held.items():
            if held.quiet_since is not None:
                self._quiet_times.keep(self._name, partition, held.standing.offset, held.quiet_since)
        return found

    def _look_at_the_time(self) -> None:
        """No partition is quiet that this reader does not ask for rows."""
        now = self._runtime.now()
        if self._paused or now - self._polled_at > _UNASKED:
            for held in self._held.values():
                if held.at_end:  # else the broker is still to say whether it has rows
                    held.disturb()
        self._polled_at = now

    def _throttle(self) -> None:
        """Pause fetching while the buffer is full. Every poll still serves the group."""
        if self._full != self._paused:
            partitions = [TopicPartition(p.topic, p.number) for p, held in self._held.items() if not held.past_end]
            if self._full:
                self._consumer.pause(partitions)
            else:
                self._consumer.resume(partitions)
            self._paused = self._full

    def _take(self, messages: list[Message]) -> None:
        """Put messages into the buffer as chunks."""
        for run in runs(messages):
            first = run[0]
            if first.error() is None:
                self._take_records(Partition(first.topic(), first.partition()), run)
            else:
                self._note(first)

    def _note(self, message: Message) -> None:
        """Handle a message that carries no record: the end of a partition, or an error."""
        error = message.error()
        partition = Partition(message.topic(), message.partition())
        held = self._held.get(partition)
        if error.code() == KafkaError._PARTITION_EOF:
            if held is not None and not held.past_end:
                held.at_end = True
                self._keep(held, Chunk(partition, end=message.offset()))
        elif error.code() in _OUTSIDE and held is not None:
            self._check_deleted(partition, held, f"{error.name()}: {error.str()}")
        elif error.fatal() or error.code() in (KafkaError._FATAL, *_OUTSIDE):  # such as: another peer holds the slot
            raise ReaderLost(f"{error.name()}: {error.str()}")
        elif is_denial(error):
            raise self._denied(message.topic(), error)
        else:
            log.warning("kafka_error", error=f"{error.name()}: {error.str()}")

    def _denied(self, topic: str | None, error: KafkaError) -> SetupError:
        """The error ``SX-KAFKA-DENIED``: the reader may not read a topic, or not be in its group."""
        if error.code() in LOGIN:
            return login_denied(self._settings, str(error))
        of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        resource = f"topic {topic or ', '.join(self._links)}" if of_topic else f"group {self._name}"
        return denied(self._settings, "Read", resource, error)

    def _check_deleted(self, partition: Partition, held: HeldPartition, said: str) -> None:
        """A position is outside its topic. Returns if nothing is left to read there: the client asks no more.

        Raises:
            InputError: ``SX-INPUT-DELETED``, ``SX-INPUT-POSITIONS-LOST``, ``SX-INPUT-RECREATED``: records were deleted before
                they were read. Another reader would not find them either.
            ReaderLost: otherwise.
        """
        position = held.view.position
        if held.view.end is not None and position >= held.view.end:
            held.at_end = True
            return
        try:
            place = TopicPartition(partition.topic, partition.number)
            first, last = self._consumer.get_watermark_offsets(place, timeout=self._transaction_timeout)
        except KafkaException as error:
            raise ReaderLost(str(error)) from error
        if first <= position <= last:
            raise ReaderLost(said)
        # What another peer has read since may be trimmed already, while the group has not told this reader that it is out.
        now = self._asked([place])[partition].position
        if now is not None and now.offset >= first and now.offset != position:
            raise ReaderLost(f"another peer has read {partition.topic}[{partition.number}] up to {now.offset}: {said}")
        link, _ = self._links[partition.topic]
        raise outside(link, partition, position, first, last)

    def _past_end(self, partition: Partition) -> None:
        self._consumer.pause([TopicPartition(partition.topic, partition.number)])

    def _asked(self, wanted: list[TopicPartition]) -> dict[Partition, StartingPoint]:
        return starting_points(self._consumer, wanted, self._transaction_timeout, self._recover)

    def _answer(self, rebalance: Rebalance, kind: str) -> Rebalance:
        """Wrap a rebalance callback, and count its calls. Nothing is done while the reader closes: the consumer needs no help.

        The callback must not raise: the client would keep the exception for good, with all that its frames hold, and pass a
        KafkaException on as an object that is not an exception (confluent-kafka 2.16 on Python 3.11). So its caller raises.
        """

        def called(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._is_member = False  # the client is to be asked
            try:
                if not self._closing:
                    queue_metrics.REBALANCES.add(kind=kind)
                    rebalance(consumer, partitions)
            except KafkaException as error:
                self._failure = ReaderLost(str(error))
            except Exception as error:  # noqa: BLE001 (see above)
                self._failure = error

        return called

    def _check_answers(self) -> None:
        """Raise what a rebalance callback failed with."""
        failure, self._failure = self._failure, None
        if failure is None:
            return
        try:
            raise failure
        finally:
            del failure  # it refers to this frame

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._group.assigned()
        starts: list[TopicPartition] = []
        for partition, start in self._asked(partitions).items():
            starts.append(TopicPartition(partition.topic, partition.number, self._begin(partition, start)))
            held = self._held.get(partition)
            if held is not None:
                held.quiet_before = self._quiet_times.since(self._name, partition, held.standing.offset)
        (consumer.assign if self._copartitioned else consumer.incremental_assign)(starts)
        # New partitions must get the same state, paused or not, as those held. Call resume too: the client remembers
        # that a partition was paused when it left, and would deliver nothing from it after its return.
        if self._paused:
            consumer.pause(starts)
        else:
            consumer.resume(starts)
            consumer.pause([place for place in starts if self._is_out(Partition(place.topic, place.partition))])
        log.debug("partitions_assigned", partitions=[f"{p.topic}[{p.partition}]@{p.offset}" for p in starts])

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {Partition(item.topic, item.partition) for item in partitions}
        for partition in gone:
            self._held.pop(partition, None)
        self._buffer.drop(gone)
        if not consumer.assignment():
            return
        if self._copartitioned:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)
        log.debug("partitions_revoked", partitions=[f"{p.topic}[{p.number}]" for p in gone])


def _counts_all(link: Link, facts: LinkFacts, *, timed: bool) -> bool:
    """Whether partitions that were added to a topic since the job was planned must be read to their end, too, or the clock of the
    task goes by theirs, too.
    """
    return facts.stops or link.ends_at_marker or (timed and is_endless(link))
