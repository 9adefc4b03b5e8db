"""The data of a reader: batches that it returns, chunks that it buffers, and its state for each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from queues.messages import Outgoing
from sardonyx.core.chains import ChainCheck
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.events import LinkFacts
from sardonyx.core.fronts import UNKNOWN, Front
from sardonyx.core.positions import Partition, Position, first_clock
from sentinel.rules import BOUND_END, WITHOUT_SENTINEL, PartitionView

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass
class Batch:
    """Messages to process together, and what to commit with their results."""

    messages: dict[str, list[Message]] = field(default_factory=dict)
    """By link name, in the order in which they were read."""
    rows: dict[Partition, int] = field(default_factory=dict)
    """Rows read, by partition. The number is an estimate if only decoding the chunk gives the exact one."""
    positions: dict[Partition, Position] = field(default_factory=dict)
    """The position after this batch, for each partition it touches. The counts are from before the batch."""
    displaced: dict[Partition, str] = field(default_factory=dict)
    """Partitions at whose end the leader's sentinel (its uuid) must be written again."""
    stopped: set[Partition] = field(default_factory=set)
    """Those of ``displaced`` whose sentinel says that the job was stopped."""
    incarnations: dict[Partition, int] = field(default_factory=dict)
    """The number of the assignment under which each partition was read."""
    started: dict[Partition, int | None] = field(default_factory=dict)
    """For each of ``positions``, the committed offset from which the batch continues; None if there was none."""
    spans: dict[str, list[tuple[Partition, int]]] = field(default_factory=dict)
    """In a job with clocks: how many of ``messages`` came from which partition, in their order."""
    clocks: dict[Partition, SourceClock] = field(default_factory=dict)
    """In a job with clocks: those of ``positions`` before this batch."""
    stated: dict[Partition, int] = field(default_factory=dict)
    """In a job with clocks: the clock that was stated last in each of ``positions``. Where a partition ends with this batch, that
    is the clock right before its end."""
    in_force: dict[str, list[int]] = field(default_factory=dict)
    """In a job with clocks, of each of ``messages`` of an internal link: the clock that was stated before it."""
    before: dict[Partition, Position | None] = field(default_factory=dict)
    """If the job keeps its lineage: the committed one of each of ``positions`` before this batch."""
    single: bool = False
    """Whether the task reads one partition in all, as far as its reader knows: users may add some to a topic."""
    hops: int = 0
    """In a loop with ``max_hops``: how many feedback links each of its rows has come over."""
    outbox: list[Outgoing] = field(default_factory=list)
    """Messages that an earlier batch still had to write: only the output's own transaction of it was committed."""

    @property
    def oldest(self) -> float | None:
        """When the oldest record was written, in seconds since 1970, by the time that it has in Kafka; None: none has any.

        Of each topic the first record counts: they come in the order in which they were written, but for those of the partitions
        beside.
        """
        times = (messages[0].timestamp()[1] for messages in self.messages.values() if messages)
        return min((milliseconds / 1000 for milliseconds in times if milliseconds > 0), default=None)


class StartingPoint(NamedTuple):
    """Where reading of a partition begins, and what is left to do there."""

    position: Position | None
    """None: nothing was ever committed."""
    behind: bool = False
    """Kafka's own position differs from this one."""
    outbox: Sequence[Outgoing] = ()


class Recovered(NamedTuple):
    """The position of a partition in an output that keeps positions itself. Reading begins there."""

    position: Position
    outbox: list[Outgoing]
    """Messages that the next commit must write, if Kafka's own position differs from this one."""


@dataclass(slots=True)
class Chunk:
    """What one partition delivered in a row: records, one sentinel, one statement of the clock, or the notice that nothing
    follows.

    Records of users' topics come in long chunks, so the cost per record is very small.
    """

    partition: Partition
    messages: list[Message] = field(default_factory=list)
    rows: int = 0
    """Rows in all messages. If there are several messages, each holds one row."""
    size: int = 0
    """Bytes that they take in memory, as far as it is known before they are decoded."""
    sentinel: tuple[int, str] | None = None
    """Its offset and uuid."""
    stopped: bool = False
    """The sentinel says that the job was stopped."""
    stated: tuple[int, int] | None = None
    """The offset of a statement, and the clock that it states."""
    front: bytes | None = None
    """Of a statement: what its header says about the sources."""
    end: int | None = None
    """The offset after everything, or an offset at or after a bound end."""
    due: float = 0.0
    """The earliest time to read the chunk, in seconds since 1970."""
    chain: bytes | None = None
    """Of a block: what its header says about its writer's chain."""
    hops: int = 0
    """Of a block in a loop with ``max_hops``: how many feedback links its rows have come over."""
    barrier: int | None = None
    """Of a block with a marker of shards that compute together: the superstep."""
    is_last: bool = False
    """It brings the last marker of a superstep."""
    is_early: bool = False
    """It is of a superstep of which markers are still to come, and nothing can be done with it before."""


@dataclass
class Markers:
    """How many markers of each superstep have come over a partition, from shards that compute together. It only says when a batch
    is worth its transaction: whether a superstep is whole is found from the markers themselves.
    """

    came: dict[int, int] = field(default_factory=dict)
    are_known: bool = False
    """All markers of a superstep were counted here, so those of the next ones will be, too."""

    def hear(self, chunk: Chunk, shards: int) -> None:
        """A block has come. Says on it whether it is the last of its superstep, or early."""
        if chunk.barrier is not None:
            count = self.came[chunk.barrier] = self.came.get(chunk.barrier, 0) + 1
            if count == shards:
                self.are_known = chunk.is_last = True
                self.came = {step: count for step, count in self.came.items() if step > chunk.barrier}
        chunk.is_early = self.are_known and not chunk.is_last


@dataclass
class HeldPartition:
    """A partition that the group has given to this reader."""

    start: StartingPoint
    incarnation: int
    first: int
    """Where reading begins if nothing was ever committed."""
    end: int | None
    """The bound end of the input, if it has one."""
    timed: bool = False
    """Whether the job has clocks, or keeps its lineage."""
    lineage: bool = False
    """Whether it keeps its lineage."""
    stops: bool = False
    """The input ends here because the job is being stopped."""
    begins: SourceClock = field(default_factory=SourceClock)
    """The clock before anything was committed: a job that goes on with the states of another one has one, and so have new
    partitions of a queue.
    """
    view: PartitionView = field(init=False)
    later: deque[Chunk] = field(default_factory=deque)
    """What is not due yet, and everything after it. Not counted, so that it keeps no other partition from being read."""
    chains: ChainCheck = field(init=False)
    """What the reader has heard of the writers' chains, committed and since."""
    past_end: bool = False
    """A record after the bound end came: the reader asks for no more."""
    at_end: bool = False
    """The broker had no further record when the reader asked last."""
    clock: SourceClock = field(init=False)
    """The committed clock, or what was stated since."""
    front: Front | None = field(init=False)
    """The same of the sources; None: the job does not keep its lineage."""
    quiet_since: float | None = field(init=False, default=None)
    """Since when nothing was at hand. None: something was, or the task has not looked since."""
    quiet_before: float | None = None
    """Since when an earlier reader had found nothing at the offset where reading begins. It counts if the broker has nothing
    there now either."""
    markers: Markers = field(init=False)
    """Of shards that compute together: those that have come since reading began here."""
    leader_stops: bool = field(init=False, default=False)
    """The elected sentinel says that the job was stopped."""

    def __post_init__(self) -> None:
        self.rewind()

    @property
    def committed(self) -> Position | None:
        return self.start.position

    @property
    def committed_clock(self) -> SourceClock:
        """The committed clock; that with which reading began, if nothing was ever committed, or the partition was not used for a
        while.
        """
        return self.committed.clock.stated(self.begins.value) if self.committed else self.begins

    def rewind(self) -> None:
        """Forget everything since the last commit."""
        position = self.committed.offset if self.committed else self.first
        end, bound = self.end, BOUND_END
        if self.committed and self.committed.drained in WITHOUT_SENTINEL:
            bound = self.committed.drained
            end = position if end is None else end  # an end marker was read, and what comes after it is not ours
        self.view = PartitionView(position, end, bound)
        self.reset_statements()
        self.chains = (
            ChainCheck(self.committed.heard, self.committed.counts.rows_in) if self.committed else ChainCheck()
        )
        self.later.clear()
        self.markers = Markers()
        self.at_end = False

    def reset_statements(self) -> None:
        """Forget what was stated since the last commit."""
        self.clock = self.committed_clock
        self.front = ((self.committed and self.committed.front) or UNKNOWN) if self.lineage else None

    @property
    def standing(self) -> Position:
        """The committed position; where reading began, if nothing was ever committed."""
        return self.committed or Position(self.view.position, clock=self.committed_clock)

    @property
    def to_commit(self) -> bool:
        """Whether Kafka's position must be brought up, or the partition was found drained and that is not committed yet."""
        drained = self.view.drained
        return (
            self.start.behind
            or (drained is not None and (self.committed is None or self.committed.drained != drained))
            or self.clock.value > (self.committed.clock.value if self.committed else NEVER)
            or (self.lineage and self.front != ((self.committed and self.committed.front) or UNKNOWN))
        )

    def quiet_for(self, now: float, *, buffered: bool) -> float:
        """For how many seconds nothing was at hand, as far as these calls and those of earlier readers have seen. The reader
        calls :meth:`disturb` when rows come, and when it has not asked for a while. Time in which it had rows that were not
        processed yet does not count.

        Args:
            now: seconds, by a clock that only goes forwards.
            buffered: something of this partition is in the reader's buffer.
        """
        if not self.at_end or self.later or buffered or self.to_commit:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = now if self.quiet_before is None else self.quiet_before
            self.quiet_before = None
        return 0.0 if self.quiet_since is None else now - self.quiet_since

    def disturb(self) -> None:
        """Rows have come, or may have: how long nothing was at hand counts anew."""
        self.quiet_since = self.quiet_before = None

    def commit_point(self) -> Position:
        """The position to commit with what was read so far; the counts are still those of the last commit."""
        drained = self.view.drained
        ended = self.timed and drained is not None and not (self.stops or self.leader_stops)
        before = self.committed or Position(0)
        position = Position(
            self.view.position,
            before.counts,
            drained,
            clock=self.clock.ended() if ended else self.clock,
            state=before.state,
            heard=self.chains.heard(),
            told=before.told,
            front=self.front,
            held=before.held,
            checkpoints=before.checkpoints,
            begins=before.begins,
            waits=before.waits,
        )
        if self.start.behind and self.committed and position == self.committed._replace(drained=None):
            return self.committed  # otherwise what is in the outbox could not be told from what was written
        return position


def assigned(
    partition: Partition,
    start: StartingPoint,
    facts: LinkFacts,
    incarnation: int,
    *,
    timed: bool,
    lineage: bool = False,
) -> HeldPartition:
    """Build the state of a newly assigned partition.

    A user may add a partition to a topic after the job was planned. The reader reads all of it, or none of it if the
    input is bounded. If the job is being stopped, the partition ends where it is committed. A partition that was committed as
    ended stays so, whatever this peer knows of the job: it may have been offered its task before the job was stopped.
    """
    planned = partition.number < facts.partitions
    first = facts.start[partition.number] if facts.start and planned else 0
    reached = start.position.offset if start.position else first
    ended = start.position is not None and start.position.drained in WITHOUT_SENTINEL
    if facts.end is not None and planned:
        end: int | None = facts.end[partition.number]
    else:
        end = reached if ended or facts.stops or facts.end is not None else None
    return HeldPartition(
        start,
        incarnation,
        first,
        end,
        timed,
        lineage,
        facts.stops and not facts.closes,
        first_clock(facts, partition.number),
    )


def split(chunk: Chunk, count: int) -> tuple[Chunk, Chunk]:
    """The first ``count`` records of a chunk that holds more, and the rest."""
    head, tail = chunk.messages[:count], chunk.messages[count:]
    size = chunk.size * count // len(chunk.messages)
    return Chunk(chunk.partition, head, count, size), Chunk(chunk.partition, tail, len(tail), chunk.size - size)
