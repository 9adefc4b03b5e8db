"""Topics in memory, and a reader of them: links of a job that runs in the process of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from queues.batch import Chunk, StartingPoint
from queues.messages import Logged, Outgoing, Records
from queues.reading import Reading
from sardonyx.core.clocks import SourceClock
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.clock import Runtime


class SetTime(Runtime):
    """A machine's clock that goes on only when a test says so.

    Args:
        wall: seconds since 1970 at the start.
    """

    def __init__(self, wall: float) -> None:
        self._wall = wall
        self._passed = 0.0

    def now(self) -> float:
        return self._passed

    def wall(self) -> float:
        return self._wall + self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += seconds


class Stored(NamedTuple):
    """A message on a topic, which answers as a message of Kafka's client does."""

    place: Partition
    at: int
    stored_key: bytes | None
    stored_value: bytes | None
    stored_headers: list[tuple[str, bytes]] | None = None
    written: int = 0

    def __len__(self) -> int:
        return len(self.stored_value or b"")

    def __bool__(self) -> bool:
        return True

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.stored_key

    def value(self) -> bytes | None:
        return self.stored_value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.stored_headers

    def timestamp(self) -> tuple[int, int]:
        """Its kind (1: when it was made), and milliseconds since 1970."""
        return 1, self.written

    def error(self) -> None:
        return None


class Topics:
    """All topics of one run.

    Args:
        runtime: tells when a message was written.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._logs: dict[Partition, list[Stored]] = {}

    def append(
        self,
        place: Partition,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Write one message."""
        log = self._logs.setdefault(place, [])
        log.append(Stored(place, len(log), key, value, headers, round(self._runtime.wall() * 1000)))

    def write(self, message: Outgoing | Records) -> None:
        """Write what a transaction holds. What has no partition goes to the first: one who reads a user's topic sees no other."""
        if isinstance(message, Records):
            for key, value in message.records:
                self.append(Partition(message.topic, 0), value, key, message.headers)
        else:
            place = Partition(message.topic, max(message.partition, 0))
            self.append(place, message.value, message.key, message.headers)

    def end(self, place: Partition) -> int:
        """The offset after the last message."""
        return len(self._logs.get(place, ()))

    def places(self) -> list[Partition]:
        """The partitions that hold anything."""
        return sorted(self._logs)

    def all_of(self, topic: str) -> list[Stored]:
        """All messages of a topic, by partition."""
        return [message for place in sorted(self._logs) if place.topic == topic for message in self._logs[place]]

    def read(self, place: Partition, start: int = 0) -> list[Stored]:
        """The messages from an offset on."""
        return self._logs.get(place, [])[start:]


class StateLog:
    """The log of a task's state, as :class:`queues.state_topics.StateTopic` gives it."""

    def __init__(self, topics: Topics, link: Link) -> None:
        self._topics = topics
        self._topic = link.topic

    def end(self, partition: int) -> int:
        return self._topics.end(Partition(self._topic, partition))

    def end_beyond(self, partition: int, end: int) -> int:
        return max(end, self.end(partition))

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:
        for message in self._topics.read(Partition(self._topic, partition), start):
            if message.at < end:
                yield Logged(message.at, message.stored_headers or (), message.stored_value or b"")


class MemoryReader(Reading):
    """Reads the ingress links of a task. It holds all their partitions.

    Args:
        topics: what it reads.
        committed: the positions of the task.
        links: the ingress links with their facts.
        elect: the vote on a link's sentinels.
        batch_rows: number of rows to assume for a message of unknown size.
        timed: the job has clocks, or keeps its lineage.
        lineage: it keeps its lineage.
        most_rows: rows that a batch has at most where much is unread.
        runtime: time.
    """

    def __init__(
        self,
        topics: Topics,
        committed: Mapping[Partition, Position],
        links: Mapping[str, tuple[Link, LinkFacts]],
        elect: Callable[[str, str], str],
        batch_rows: int,
        *,
        timed: bool,
        lineage: bool = False,
        most_rows: int = 0,
        runtime: Runtime,
    ) -> None:
        super().__init__(links, elect, batch_rows, timed=timed, lineage=lineage, most_rows=most_rows, runtime=runtime)
        self._topics = topics
        self._next = {place: self._begin(place, StartingPoint(committed.get(place))) for place in self.everything}

    def poll(self, timeout: float = 0) -> None:  # noqa: ARG002 (a reader of Kafka waits)
        """Take everything that was written since."""
        self._take_due()
        for place, held in self._held.items():
            messages: list[Any] = self._topics.read(place, self._next[place])
            if messages:
                self._next[place] = messages[-1].at + 1
                self._take_records(place, messages)
            if not held.at_end and not held.past_end:
                held.at_end = True
                self._keep(held, Chunk(place, end=self._next[place]))

    def reach(self, topic: str, time: int, delay: int) -> None:
        """Move the clocks of a topic's partitions as rows would that bring it to this time."""
        for place, held in self._held.items():
            if place.topic == topic:
                clock = held.clock.after(time + delay, delay)
                held.clock = SourceClock(clock.seen, clock.value)
