"""How far readers are behind on their links, asked of Kafka: at little cost however much is unread, and within bounds of time.

Rows on an internal link that takes all results of a task are told exactly by counts: what its writer has committed as written,
less what its reader has committed as read from there. All else is told by a short look at what stands first in each
partition, which also tells how long that has waited.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from queues import admin
from queues.backlog import NO_BACKLOG, Backlog, PartitionScan, estimate_backlog, unscanned
from queues.client import CLIENT_LOG
from queues.messages import DUE_HEADER, ROWS_HEADER, SENTINEL_HEADER
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position, total
from sardonyx.core.spec import Route
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_LOOK = 5.0
"""Seconds that looking at what stands first on a task's links may take; what has not come by then is not known."""
_MOST = 1_000
"""Messages looked at in a partition at most, where they are to be counted."""
_BYTES = 1 << 20
"""The same in bytes."""
_FETCH = 1 << 18
"""Bytes asked of a partition at a time."""
_AT_A_TIME = 8
"""Tasks asked about at once."""

Positions = Mapping[Partition, Position | None]


class FrontScan:
    """A look at what is first in one partition after a reader's position, message by message until enough is known.

    Args:
        link: that the partition belongs to.
        range_: what is unread, nothing of it looked at yet.
        most: messages to look at.
    """

    def __init__(self, link: Link, range_: PartitionScan, most: int) -> None:
        self.found = range_
        self._link = link
        self._most = most
        self._messages = 0
        self._bytes = 0

    def feed(self, message: Message) -> bool:
        """Take one more message into account, or the news that none follows. Returns whether enough is known."""
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
    """What is unread on each link that a task reads, by the link's name.

    Args:
        settings: where Kafka is.
        graph: the job's.
        job: its id; its links must stand.
        facts: of the links, by name.
        complete: the counts of tasks that are complete: they have read everything.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    partitions = admin.topics(settings)
    readers = [stage for stage in graph.stages if stage.name not in complete]
    found = {link.name: NO_BACKLOG for stage in graph.stages if stage.name in complete for link in stage.ingress}

    def positions(stage: Stage) -> Positions:
        places = _places(stage.ingress, partitions)
        return admin.positions(settings, stage.group(settings.deployment, job), places, stable=False)

    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="lag") as pool:
        held = dict(zip([stage.name for stage in readers], pool.map(positions, readers), strict=True))
        # Writers after readers: what is read has then been counted as written.
        writers = [graph.stage(name) for name in sorted(_writers(readers) - complete.keys())]
        counts = {s.name: total(p.values()) for s, p in zip(writers, pool.map(positions, writers), strict=True)}
        ends = admin.stable_ends(settings, _places([link for s in readers for link in s.ingress], partitions))

        def told(stage: Stage) -> dict[str, Backlog]:
            return _told(settings, stage, facts, held[stage.name], ends, {**counts, **complete})

        for each in pool.map(told, readers):
            found |= each
    return found


def _told(
    settings: Settings,
    stage: Stage,
    facts: Mapping[str, LinkFacts],
    held: Positions,
    ends: Mapping[Partition, int],
    written: Mapping[str, Counts],
) -> dict[str, Backlog]:
    """What is unread in front of one task."""
    fronts: dict[Partition, FrontScan] = {}
    bounds: dict[str, tuple[int | None, int | None]] = {}
    for link in stage.ingress:
        bounds[link.name] = _by_counts(link, held, written)
        counted, _ = bounds[link.name]
        for partition in [] if counted == 0 else [each for each in held if each.topic == link.topic]:
            before_it = unscanned(partition.number, facts[link.name], held[partition], ends[partition])
            fronts[partition] = FrontScan(link, before_it, _MOST if counted is None else 1)
    now = time.time()  # what comes, or is due, while we look does not wait yet
    seen = _look(settings, fronts)

    def of(link: Link) -> Backlog:
        if not any(partition.topic == link.topic for partition in held):  # somebody has removed the topic
            return Backlog()
        counted, most = bounds[link.name]
        its = [each for partition, each in seen.items() if partition.topic == link.topic]
        return estimate_backlog(its, now, blocks=link.kind == "internal", counted=counted, most=most)

    return {link.name: of(link) for link in stage.ingress}


def _by_counts(link: Link, held: Positions, written: Mapping[str, Counts]) -> tuple[int | None, int | None]:
    """How many rows of a link are unread, and how many at most, as far as its writer's and reader's counts tell.

    A reader's counts stand with the partitions they were read from, so they tell its links apart.
    """
    if link.kind != "internal" or link.route.of == "failed":  # nobody counts failed rows by where they went
        return None, None
    read = total(position for partition, position in held.items() if partition.topic == link.topic)
    ahead = written[link.source].rows_out - read.rows_in
    if (
        ahead < 0
    ):  # the writer's last commit is not told yet; or its group stood idle for a week, and the broker forgot it
        return None, None
    return (ahead, ahead) if link.route == Route() else (None, ahead)


def _look(settings: Settings, scans: Mapping[Partition, FrontScan]) -> dict[Partition, PartitionScan]:
    """Read the first messages after each position, up to as many as are wanted, as far as they come in time."""
    going = {partition: scan for partition, scan in scans.items() if scan.found.left}
    if going:
        _scan(settings, going)
    return {partition: scan.found for partition, scan in scans.items()}


def _scan(settings: Settings, going: dict[Partition, FrontScan]) -> None:
    """Feed the scans until each knows enough, or the time is over."""
    deadline = time.monotonic() + _LOOK
    consumer = Consumer(
        {
            **settings.kafka.client(),
            "group.id": f"{settings.deployment}.nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # what was at the position may be deleted by now
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": _FETCH,
            "queued.min.messages": 1,  # nothing is read ahead but what is asked for,
            "fetch.queue.backoff.ms": 10,  # and that at once: the client would rest for a second in between
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
    """What is known of a partition after one more message, or after the news that none follows."""
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
    if SENTINEL_HEADER in headers:
        return seen._replace(reached=reached)
    records = int(headers.get(ROWS_HEADER, 1)) if link.kind == "internal" else 1
    since = seen.since if seen.records else _since(message, headers)
    return seen._replace(reached=reached, records=seen.records + records, since=since)


def _since(message: Message, headers: Mapping[str, bytes]) -> float | None:
    """Since when a message could be read; a split that is not due yet does not wait."""
    _, milliseconds = message.timestamp()
    return None if milliseconds < 0 else max(milliseconds / 1000, float(headers.get(DUE_HEADER, 0)))


def _writers(readers: Sequence[Stage]) -> set[str]:
    return {link.source for stage in readers for link in stage.ingress if link.kind == "internal"}


def _places(wanted: Sequence[Link], partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    topics = dict.fromkeys(link.topic for link in wanted)
    return [TopicPartition(topic, number) for topic in topics for number in partitions.get(topic, ())]
