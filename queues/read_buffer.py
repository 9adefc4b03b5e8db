"""The buffer of chunks that a reader has read ahead, and how messages become chunks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from queues.batch import Chunk, split
from queues.batch_growth import MOST_BYTES, PER_RECORD
from queues.block import TARGET_BYTES
from queues.messages import (
    BARRIER_HEADER,
    CHAIN_HEADER,
    CLOCK_HEADER,
    DUE_HEADER,
    FRONT_HEADER,
    HOPS_HEADER,
    ROWS_HEADER,
    SENTINEL_HEADER,
    STOP_HEADER,
)
from sardonyx.core.positions import Partition

if TYPE_CHECKING:
    from confluent_kafka import Message


class ReadBuffer:
    """Chunks in the order in which they were read. Not thread-safe."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self.rows = 0
        """Rows in all chunks."""
        self.size = 0
        """Bytes of all chunks."""
        self.mixed = False
        """Whether the last batch left something here that has come over more or fewer feedback links."""
        self.is_patient = True
        """Whether what is of a superstep of which markers are still to come is left where it is."""
        self._early: Counter[Partition] = Counter()
        self._last: Counter[Partition] = Counter()
        """How many chunks are of a superstep of which markers are still to come, and how many bring the last one."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._count(chunk, 1)

    def _count(self, chunk: Chunk, by: int) -> None:
        self.rows += by * chunk.rows
        self.size += by * chunk.size
        if chunk.is_early:
            self._early[chunk.partition] += by
        if chunk.is_last:
            self._last[chunk.partition] += by

    @property
    def is_whole(self) -> bool:
        """Whether all that shards sent to one of them in a superstep is here: it waits for nothing else."""
        return self._last.total() > 0

    def due(self, size: int) -> tuple[int, bool]:
        """How many rows a batch of ``size`` rows would find, and whether it would find anything. What is of a superstep of which
        markers are still to come is left where it is.
        """
        early = self._waiting(size)
        if not early:
            return self.rows, bool(self._chunks)
        found = [chunk.rows for chunk in self._chunks if chunk.partition not in early]
        return sum(found), bool(found)

    def _waiting(self, size: int) -> set[Partition]:
        """The partitions that hold nothing but what is too early; none if it is so much that it must go into the state."""
        if self.rows >= size or not self.is_patient:
            return set()
        return {partition for partition, count in self._early.items() if count and not self._last[partition]}

    @property
    def numbers(self) -> set[int]:
        """The partition numbers of its chunks."""
        return {chunk.partition.number for chunk in self._chunks}

    def take(self, size: int, number: int | None = None, most: int | None = None) -> list[Chunk]:
        """Remove chunks of about ``size`` rows from the front.

        Args:
            size: rows from which on nothing waits for more.
            number: only chunks of partitions with this number.
            most: rows to take at most; None: ``size``.

        All rows have come over equally many feedback links. What has come over more or less waits, with all that comes after it
        in its partition. So does what is of a superstep of which markers are still to come.
        """
        if number is not None:
            return self._take_of(size, number, most)
        taken: list[Chunk] = []
        waiting: list[Chunk] = []
        held_up = self._waiting(size)
        most = size if most is None else most
        rows, hops = 0, None
        self.mixed = False
        while self._chunks and rows < most:
            chunk = self._chunks.popleft()
            if chunk.partition in held_up:
                waiting.append(chunk)
                continue
            if chunk.messages:
                hops = chunk.hops if hops is None else hops
                if chunk.hops != hops:
                    self.mixed = True
                    held_up.add(chunk.partition)
                    waiting.append(chunk)
                    continue
            if len(chunk.messages) > most - rows:
                chunk, rest = split(chunk, most - rows)
                self._chunks.appendleft(rest)
            rows += chunk.rows
            taken.append(chunk)
            self._count(chunk, -1)
            if chunk.is_last:
                held_up.add(chunk.partition)
        self._chunks.extendleft(reversed(waiting))
        return taken

    def _take_of(self, size: int, number: int, most: int | None) -> list[Chunk]:
        others = deque(chunk for chunk in self._chunks if chunk.partition.number != number)
        self._chunks = deque(chunk for chunk in self._chunks if chunk.partition.number == number)
        taken = self.take(size, most=most)
        self._chunks += others
        return taken

    def holds(self, partition: Partition) -> bool:
        return any(chunk.partition == partition for chunk in self._chunks)

    def drop(self, gone: Collection[Partition]) -> None:
        """Remove the chunks of partitions that now belong to another reader."""
        chunks = [chunk for chunk in self._chunks if chunk.partition not in gone]
        mixed = self.mixed
        self.clear()
        for chunk in chunks:
            self.add(chunk)
        self.mixed = mixed

    def clear(self) -> None:
        self._chunks.clear()
        self._early.clear()
        self._last.clear()
        self.rows = self.size = 0
        self.mixed = False


def runs(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages by partition, in order: each run holds records of one partition only, or one message that is not a record."""
    start = 0
    while start < len(messages):
        first = messages[start]
        topic, number = first.topic(), first.partition()
        end = start + 1
        if first.error() is None:
            while end < len(messages):
                message = messages[end]
                if message.partition() != number or message.topic() != topic or message.error() is not None:
                    break
                end += 1
        yield messages[start:end]
        start = end


def chunk_of(partition: Partition, message: Message, unknown: int, *, splits: bool = False) -> Chunk:
    """Make a chunk of one message of a link with sentinels. The headers say what the message is.

    Args:
        partition: the partition that the message came from.
        message: the Kafka message.
        unknown: the number of rows to assume if the headers do not give it.
        splits: the link carries splits: how much one holds is not known before it is read.
    """
    headers = dict(message.headers() or ())
    uuid = headers.get(SENTINEL_HEADER)
    if uuid is not None:
        return Chunk(partition, sentinel=(message.offset(), uuid.decode()), stopped=STOP_HEADER in headers)
    clock = headers.get(CLOCK_HEADER)
    if clock is not None:
        return Chunk(partition, stated=(message.offset(), int(clock)), front=headers.get(FRONT_HEADER))
    rows = headers.get(ROWS_HEADER)
    due = float(headers.get(DUE_HEADER, 0))
    barrier = headers.get(BARRIER_HEADER)
    return Chunk(
        partition,
        [message],
        int(rows) if rows is not None else unknown,
        MOST_BYTES if splits else _size_unpacked(message),
        due=due,
        chain=headers.get(CHAIN_HEADER),
        hops=int(headers.get(HOPS_HEADER, 0)),
        barrier=int(barrier) if barrier is not None else None,
    )


def size_of(messages: list[Message]) -> int:
    """Bytes that records take in memory."""
    keys = 0 if messages[0].key() is None else sum(len(message.key() or b"") for message in messages)
    return keys + sum(map(len, messages)) + PER_RECORD * len(messages)


def _size_unpacked(message: Message) -> int:
    """Bytes that the rows of a block take, which says only how many it takes itself. Most shrink to more than a tenth."""
    return max(len(message), min(10 * len(message), TARGET_BYTES))
