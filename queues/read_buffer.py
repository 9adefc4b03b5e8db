"""The buffer of chunks that a reader has read ahead, and how messages become chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from queues.batch import Chunk, split
from queues.messages import (
    CHAIN_HEADER,
    CLOCK_HEADER,
    DUE_HEADER,
    FRONT_HEADER,
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

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.rows += chunk.rows

    @property
    def numbers(self) -> set[int]:
        """The partition numbers of its chunks."""
        return {chunk.partition.number for chunk in self._chunks}

    def take(self, size: int, number: int | None = None) -> list[Chunk]:
        """Remove chunks of about ``size`` rows from the front. ``number``: only those of partitions with this number."""
        if number is not None:
            return self._take_of(size, number)
        taken: list[Chunk] = []
        rows = 0
        while self._chunks and rows < size:
            chunk = self._chunks.popleft()
            if len(chunk.messages) > size - rows:
                chunk, rest = split(chunk, size - rows)
                self._chunks.appendleft(rest)
            rows += chunk.rows
            taken.append(chunk)
        self.rows -= rows
        return taken

    def _take_of(self, size: int, number: int) -> list[Chunk]:
        others = deque(chunk for chunk in self._chunks if chunk.partition.number != number)
        self._chunks = deque(chunk for chunk in self._chunks if chunk.partition.number == number)
        taken = self.take(size)
        self._chunks += others
        return taken

    def holds(self, partition: Partition) -> bool:
        return any(chunk.partition == partition for chunk in self._chunks)

    def drop(self, gone: Collection[Partition]) -> None:
        """Remove the chunks of partitions that now belong to another reader."""
        self._chunks = deque(chunk for chunk in self._chunks if chunk.partition not in gone)
        self.rows = sum(chunk.rows for chunk in self._chunks)

    def clear(self) -> None:
        self._chunks.clear()
        self.rows = 0


def runs(messages: list[Message]) -> Iterator[list[Message]]:
    """Messages by partition, in order: each run holds records of one partition only, or one message that is no record."""
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


def chunk_of(partition: Partition, message: Message, unknown: int) -> Chunk:
    """Make a chunk of one message of a link with sentinels. The headers say what the message is.

    Args:
        partition: the partition that the message came from.
        message: the Kafka message.
        unknown: the number of rows to assume if the headers do not give it.
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
    return Chunk(
        partition, [message], int(rows) if rows is not None else unknown, due=due, chain=headers.get(CHAIN_HEADER)
    )
