"""Measure how far readers lag on their links. The cost and the time are bounded, however many rows are unread.

For an internal link, counts give the exact lag. It is the rows that the writer has committed as written to the link, minus the
rows that the reader has committed as read from it: see :mod:`sardonyx.core.link_counts`.
For every other link, this module reads the first few unread messages of each partition and estimates the lag.
These messages also show how long the first unread record has waited.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from queues import admin, topic_log
from queues.backlog import NO_BACKLOG, Backlog, PartitionScan, estimate_backlog, unscanned
from queues.client import CLIENT_LOG, onlooker_config
from queues.messages import CLOCK_HEADER, DUE_HEADER, SENTINEL_HEADER, is_marker, rows_counted
from sardonyx.core import link_counts
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import Route
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_LOOK = 5.0
"""Longest time in seconds to scan the first messages of a task's links. Messages that arrive later stay unknown."""
_MOST = 1_000
"""Largest number of messages to scan in a partition whose messages must be counted."""
_BYTES = 1 << 20
"""Largest number of bytes to scan in a partition."""
_FETCH = 1 << 18
"""Largest number of bytes per fetch from a partition."""
_AT_A_TIME = 8
"""Number of tasks handled concurrently."""

Positions = Mapping[Partition, Position | None]


class FrontScan:
    """Scans the first messages after a reader's position in one partition, until it knows enough.

    Args:
        link: the link that the partition belongs to.
        range_: the unread range, before the first message was scanned.
        most: largest number of messages to scan.
    """

    def __init__(self, link: Link, range_: PartitionScan, most: int) -> None:
        self.found = range_
        self._link = link
        self._most = most
        self._messages = 0
        self._bytes = 0

    def feed(self, message: Message) -> bool:
        """Process the next message, or the end-of-partition event. Return whether the scan knows enough."""
        self.found = _further(self._link, self.found, message)
        if message.error() is None:
            self._messages += 1
            self._bytes += len(message)
            if self._messages >= self._most and self.found.since is not None:
                return True
        return self._bytes >= _BYTES or not self.found.left


def lag(
    settings: Settings, graph: Graph, job: str, facts: Mapping[str, LinkFacts], complete: Mapping[str, Counts]
) -> dict[str, Backlog]:
    """Return the backlog of each link that a task reads, by the link's name.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        job: id of the job, whose links must exist.
        facts: the facts of the links, by link name.
        complete: the counts of the complete tasks. A complete task has read everything.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    partitions = admin.topics(settings)
    readers = [stage for stage in graph.stages if stage.name not in complete]
    found = {link.name: NO_BACKLOG for stage in graph.stages if stage.name in complete for link in stage.ingress}

    def asked(stage: Stage, links: Sequence[Link]) -> Positions:
        return admin.positions(
            settings, stage.group(settings.deployment, job), _places(links, partitions), stable=False
        )

    def positions(stage: Stage) -> Positions:
        return asked(stage, stage.ingress)

    def committed(stage: Stage) -> Positions:
        return asked(stage, stage.positioned)

    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="lag") as pool:
        held = dict(zip([stage.name for stage in readers], pool.map(positions, readers), strict=True))
        # Ask writers after readers, so that the writer's count includes every row that the reader has read.
        writers = [graph.stage(name) for name in sorted(_writers(readers))]
        wrote = {s.name: p for s, p in zip(writers, pool.map(committed, writers), strict=True)}
        written = {
            link.name: _written(graph.stage(link.source), link, wrote[link.source], facts, complete)
            for stage in readers
            for link in stage.ingress
            if link.kind == "internal"
        }
        ends = topic_log.stable_ends(settings, _places([link for s in readers for link in s.ingress], partitions))

        def told(stage: Stage) -> dict[str, Backlog]:
            return _told(settings, stage, facts, held[stage.name], ends, written)

        for each in pool.map(told, readers):
            found |= each
    return found


class PartitionBacklog(NamedTuple):
    """The unread part of one partition of a link."""

    link: str
    place: Partition
    committed: int | None
    """The next offset to read, as the reader has committed it; None: nothing yet."""
    end: int
    """The offset after the last record that is to be read, of those that could be read by now."""
    backlog: Backlog


def by_partition(settings: Settings, stage: Stage, job: str, facts: Mapping[str, LinkFacts]) -> list[PartitionBacklog]:
    """Return the backlog of each partition that a task reads, in their order.

    Rows of an internal link are estimated where there are many: the exact counts are of the whole link.

    Args:
        settings: connection to Kafka.
        stage: the task, which is not complete.
        job: id of the job, whose links must exist.
        facts: the facts of the links, by link name.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    places = _places(stage.ingress, admin.topics(settings))
    held = admin.positions(settings, stage.group(settings.deployment, job), places, stable=False)
    ends = topic_log.stable_ends(settings, places)
    of = {link.topic: link for link in stage.ingress}
    unread = {
        place: unscanned(place.number, facts[of[place.topic].name], held[place], ends[place]) for place in sorted(held)
    }
    now = time.time()
    seen = _look(settings, {place: FrontScan(of[place.topic], range_, _MOST) for place, range_ in unread.items()})
    return [
        PartitionBacklog(
            of[place.topic].name,
            place,
            None if (position := held[place]) is None else position.offset,
            range_.end,
            estimate_backlog([seen[place]], now, blocks=of[place.topic].kind == "internal"),
        )
        for place, range_ in unread.items()
    ]


def _told(
    settings: Settings,
    stage: Stage,
    facts: Mapping[str, LinkFacts],
    held: Positions,
    ends: Mapping[Partition, int],
    written: Mapping[str, int | None],
) -> dict[str, Backlog]:
    """Return the backlog of each link that one task reads."""
    fronts: dict[Partition, FrontScan] = {}
    counts: dict[str, int | None] = {}
    for link in stage.ingress:
        counted = counts[link.name] = _by_counts(link, held, written.get(link.name))
        for partition in [] if counted == 0 else [each for each in held if each.topic == link.topic]:
            before_it = unscanned(partition.number, facts[link.name], held[partition], ends[partition])
            fronts[partition] = FrontScan(link, before_it, _MOST if counted is None else 1)
    now = time.time()  # messages that arrive or become due during the scan do not count as waiting
    seen = _look(settings, fronts)

    def of(link: Link) -> Backlog:
        if not any(partition.topic == link.topic for partition in held):  # the topic was deleted
            return Backlog()
        its = [each for partition, each in seen.items() if partition.topic == link.topic]
        return estimate_backlog(its, now, blocks=link.kind == "internal", counted=counts[link.name])

    return {link.name: of(link) for link in stage.ingress}


def _written(
    writer: Stage, link: Link, held: Positions, facts: Mapping[str, LinkFacts], complete: Mapping[str, Counts]
) -> int | None:
    """Return the rows that a task has written to an internal link. None: it is not known."""
    if writer.name not in complete or link_counts.all_committed(writer, facts, held):
        return link_counts.written(writer, link.name, held, facts)
    # The brokers have dropped its positions, long after its end. What it had written went to each of its first links.
    whole = link.route == Route() and not facts[link.name].revision
    return complete[writer.name].rows_out if whole else None


def _by_counts(link: Link, held: Positions, written: int | None) -> int | None:
    """Return the exact number of unread rows of a link. None: the counts do not give it."""
    if written is None:
        return None
    ahead = written - link_counts.read(link, held)
    return ahead if ahead >= 0 else None  # below 0: the broker does not show the writer's last commit yet


def _look(settings: Settings, scans: Mapping[Partition, FrontScan]) -> dict[Partition, PartitionScan]:
    """Read the first messages after each position, up to each scan's limit or the time limit. Return the findings."""
    going = {partition: scan for partition, scan in scans.items() if scan.found.left}
    if going:
        _scan(settings, going)
    return {partition: scan.found for partition, scan in scans.items()}


def _scan(settings: Settings, going: dict[Partition, FrontScan]) -> None:
    """Feed messages to the scans until each of them knows enough, or the time limit is over."""
    deadline = time.monotonic() + _LOOK
    consumer = Consumer(
        {
            **onlooker_config(settings),
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": _FETCH,
            "queued.min.messages": 1,  # the client reads ahead only what we ask for
            "fetch.queue.backoff.ms": 10,  # without it the client pauses for a second between fetches
        },
        logger=CLIENT_LOG,
    )
    try:
        consumer.assign([TopicPartition(p.topic, p.number, scan.found.start) for p, scan in going.items()])
        while going and time.monotonic() < deadline:
            first = consumer.poll(0.2)
            for message in [] if first is None else [first, *consumer.consume(_MOST, timeout=0)]:
                partition = Partition(message.topic(), message.partition())
                if partition in going and going[partition].feed(message):
                    del going[partition]
                    consumer.pause([TopicPartition(partition.topic, partition.number)])
    finally:
        consumer.close()


def _further(link: Link, seen: PartitionScan, message: Message) -> PartitionScan:
    """Return the scan's state after one more message, or after the end-of-partition event."""
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            return seen._replace(reached=seen.end)
        log.debug("kafka_error", error=f"{error.name()}: {error.str()}")
        return seen
    if message.offset() >= seen.end:
        return seen._replace(reached=seen.end)
    headers = dict(message.headers() or ()) if link.has_sentinels else {}
    reached = message.offset() + 1
    if SENTINEL_HEADER in headers or CLOCK_HEADER in headers or (link.kind == "input" and is_marker(message)):
        return seen._replace(reached=reached)
    records = rows_counted(headers) if link.kind == "internal" else 1
    since = seen.since if seen.records else _since(message, headers)
    return seen._replace(reached=reached, records=seen.records + records, since=since)


def _since(message: Message, headers: Mapping[str, bytes]) -> float | None:
    """Return the time (Unix seconds) since when readers could read a message. A split waits only once it is due."""
    _, milliseconds = message.timestamp()
    return None if milliseconds < 0 else max(milliseconds / 1000, float(headers.get(DUE_HEADER, 0)))


def _writers(readers: Sequence[Stage]) -> set[str]:
    return {link.source for stage in readers for link in stage.ingress if link.kind == "internal"}


def _places(wanted: Sequence[Link], partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    topics = dict.fromkeys(link.topic for link in wanted)
    return [TopicPartition(topic, number) for topic in topics for number in partitions.get(topic, ())]
