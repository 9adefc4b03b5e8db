"""Look at the rows of a link around the position of its reader. The cost and the time are bounded, and nothing is committed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import admin, topic_log
from queues.admin_client import admin_client, failed
from queues.client import CLIENT_LOG, Message, onlooker_config
from queues.shown_rows import Row, row_count, rows
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, LinkKind
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings

LOOK = 5.0
"""Longest time in seconds to read."""
BYTES = 4 << 20
"""Bytes to read of one partition at most, before its reader's position and after it."""

_FIRST = 4
"""How many offsets before the position are looked at first; then four times as many, since markers take offsets too. As many
messages of the largest size are fewer than ``BYTES``."""
_AT_ONCE = 1_000

Begin = Literal["position", "end"]
"""Around what: the position of the reader, or the end of the link."""


@dataclass
class Around:
    """What stands around one place of a partition."""

    first: int
    """The oldest offset that is left."""
    end: int
    """The offset after the newest one that is committed."""
    position: int | None = None
    """The next offset that the reader reads; None: there is none, or it has committed nothing yet."""
    at: int = 0
    """The place."""
    before: list[Row] = field(default_factory=list)
    after: list[Row] = field(default_factory=list)
    cut: bool = False
    """There may be more rows: the limits of time or bytes were reached before there were enough."""


def around(
    settings: Settings,
    link: Link,
    facts: LinkFacts,
    numbers: Sequence[int],
    most: int,
    *,
    group: str | None,
    begin: Begin = "position",
) -> dict[int, Around]:
    """Read up to ``most`` rows of each partition: those right before a place, and those right after it.

    Half of them come from before it, and more if there are fewer after it; and the other way round.

    Args:
        settings: connection to Kafka.
        link: the link.
        facts: its facts.
        numbers: its partitions to look at.
        most: rows of a partition at most.
        group: the consumer group of the task that reads it; None: no task reads it.
        begin: the place.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``, ``SX-BLOCK-FORMAT``.
    """
    places = [Partition(link.topic, number) for number in numbers]
    positions: Mapping[Partition, Position | None] = {}
    if group is not None:
        positions = admin.positions(settings, group, [TopicPartition(*place) for place in places], stable=False)
    found = _bounds(settings, places)
    for place, each in found.items():
        position = positions.get(place)
        each.position = None if position is None else position.offset
        begun = facts.start[place.number] if facts.start is not None and place.number < len(facts.start) else each.first
        wanted = begun if each.position is None else each.position
        each.at = each.end if group is None or begin == "end" else min(max(wanted, each.first), each.end)
    look = LimitedReader(settings)
    try:
        ahead = look.read({place: (each.at, each.end) for place, each in found.items()}, row_count, most)
        for place, (messages, whole) in ahead.items():
            found[place].after = [row for message in messages for row in rows(link.kind, message)][:most]
            found[place].cut = not whole and len(found[place].after) < most
        _backwards(look, link.kind, found, most)
    except KafkaException as error:
        raise failed(settings, look.began, "read a link", error.args[0], ("Read", topic_log.named(places))) from error
    finally:
        look.close()
    for each in found.values():
        kept = max(most // 2, most - len(each.after))
        each.before = each.before[-kept:] if kept else []
        each.after = each.after[: most - len(each.before)]
    return {place.number: each for place, each in found.items()}


def _bounds(settings: Settings, places: Sequence[Partition]) -> dict[Partition, Around]:
    """Where each partition begins and ends."""
    asked = [TopicPartition(*place) for place in places]
    began = time.monotonic()
    try:
        first, end = (
            topic_log.offsets_of(admin_client(settings), settings, asked, spec, IsolationLevel.READ_COMMITTED)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
    except KafkaException as error:
        needs = ("Describe", topic_log.named(places))
        raise failed(settings, began, "tell where topics begin and end", error.args[0], needs) from error
    return {place: Around(first[place], end[place]) for place in places}


def _backwards(look: LimitedReader, kind: LinkKind, found: dict[Partition, Around], most: int) -> None:
    """Find the rows before each place: looks back further and further until there are enough."""
    reached = {part: each.at for part, each in found.items()}
    # A message of an internal link may hold thousands of rows.
    span = max(_FIRST, most) if kind != "internal" else _FIRST
    while True:
        wanted = {
            part: (max(each.first, reached[part] - span), reached[part])
            for part, each in found.items()
            if reached[part] > each.first and len(each.before) < most and not each.cut
        }
        if not wanted:
            return
        for part, (messages, whole) in look.read(wanted, lambda _: 0, math.inf).items():
            each = found[part]
            each.cut = each.cut or not whole
            if whole:  # otherwise what is missing stands between these rows and the place
                each.before = [*(row for message in messages for row in rows(kind, message)), *each.before][-most:]
            reached[part] = wanted[part][0]
        span *= 4


class LimitedReader:
    """A consumer outside of all groups, with a time limit over all that it reads.

    Args:
        settings: connection to Kafka.
        seconds: the limit.
    """

    def __init__(self, settings: Settings, seconds: float = LOOK) -> None:
        self.began = time.monotonic()
        self._until = self.began + seconds
        self._consumer = Consumer(
            {
                **onlooker_config(settings),
                "fetch.wait.max.ms": 100,
                "queued.min.messages": 1,  # the client reads ahead only what we ask for
                "fetch.queue.backoff.ms": 10,
            },
            logger=CLIENT_LOG,
        )

    @property
    def over(self) -> bool:
        """Whether the time is."""
        return time.monotonic() >= self._until

    def read(
        self, spans: Mapping[Partition, tuple[int, int]], count: Callable[[Message], int], most: float
    ) -> dict[Partition, tuple[list[Message], bool]]:
        """Read [start, stop) of each partition, and stop early after ``most`` rows.

        Returns:
            The messages, and whether that is all that was wanted.

        Raises:
            KafkaException: a partition cannot be read.
        """
        found: dict[Partition, list[Message]] = {part: [] for part in spans}
        counts, sizes = dict.fromkeys(spans, 0), dict.fromkeys(spans, 0)
        going = {part for part, (start, stop) in spans.items() if start < stop}
        whole = set(spans) - going
        wanted = [TopicPartition(part.topic, part.number, spans[part][0]) for part in going]
        self._consumer.assign(wanted)
        self._consumer.resume(wanted)  # the client keeps them paused from the last time

        def done(part: Partition, *, all_read: bool) -> None:
            going.discard(part)
            self._consumer.pause([TopicPartition(*part)])
            if all_read:
                whole.add(part)

        while going and not self.over:
            first = self._consumer.poll(0.2)
            for message in [] if first is None else [first, *self._consumer.consume(_AT_ONCE, timeout=0)]:
                part = Partition(message.topic(), message.partition())
                if part not in going:
                    continue
                error, stop = message.error(), spans[part][1]
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        done(part, all_read=True)
                    elif not error.retriable():
                        raise KafkaException(error)
                    continue
                if message.offset() >= stop:
                    done(part, all_read=True)
                    continue
                found[part].append(message)
                counts[part] += count(message)
                sizes[part] += len(message)
                if message.offset() == stop - 1 or counts[part] >= most:
                    done(part, all_read=True)
                elif sizes[part] >= BYTES:
                    done(part, all_read=False)
        return {part: (messages, part in whole) for part, messages in found.items()}

    def close(self) -> None:
        self._consumer.close()
