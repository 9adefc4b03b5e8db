"""Measure what the links of a job hold: about how many bytes, and since when. The cost and the time are bounded.

Brokers know the bytes of a topic, but Kafka's client for Python cannot ask them (it lacks DescribeLogDirs). So this module
reads the first messages of each partition. They say how old the oldest record is and how large a message is; offsets say how
many there are at most. Compressed messages count with their size after decompression.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import topic_log
from queues.admin_client import admin_client
from queues.client import CLIENT_LOG, onlooker_config
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

_LOOK = 5.0
"""Longest time in seconds to read first messages. A partition whose messages arrive later stays unknown."""
_MOST = 100
"""How many messages of a partition are enough."""


class Kept(NamedTuple):
    """What a topic holds."""

    bytes: int | None = None
    """About how many, over all partitions, once; brokers keep as many copies as the topic has. None: not known."""
    seconds: float | None = None
    """How long ago its oldest record was written; 0 if it holds none, None: not known."""


def kept(settings: Settings, topics: Mapping[str, Iterable[int]]) -> dict[str, Kept]:
    """Return what topics hold, by topic.

    Args:
        settings: connection to Kafka.
        topics: the partitions of each topic. If one of them is gone, as when the job has just ended, nothing is known.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    places = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
    if not places:
        return {}
    try:
        first, end = (
            topic_log.offsets_of(admin_client(settings), settings, places, spec, IsolationLevel.READ_COMMITTED)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
    except KafkaException:
        return {topic: Kept() for topic in topics}
    holds = {partition: end[partition] - start for partition, start in first.items() if end[partition] > start}
    now = time.time()
    fronts = _fronts(settings, {partition: first[partition] for partition in holds})

    def of(topic: str) -> Kept:
        of_topic = {partition: front for partition, front in fronts.items() if partition.topic == topic}
        if not all(front.whole or front.messages for front in of_topic.values()):
            return Kept()
        size = sum(
            front.bytes if front.whole else front.bytes / front.messages * holds[p] for p, front in of_topic.items()
        )
        since = min((front.since for front in of_topic.values() if front.messages), default=now)
        return Kept(round(size), max(now - since, 0.0))

    return {topic: of(topic) for topic in topics}


@dataclass
class _Front:
    """The first messages of a partition."""

    messages: int = 0
    bytes: int = 0
    since: float = 0.0
    """When the first of them was written."""
    whole: bool = False
    """Whether these are all."""


def _fronts(settings: Settings, starts: Mapping[Partition, int]) -> dict[Partition, _Front]:
    fronts = {partition: _Front() for partition in starts}
    going = set(starts)
    if not going:
        return fronts
    consumer = Consumer(
        {
            **onlooker_config(settings),
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 1 << 16,
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 10,
        },
        logger=CLIENT_LOG,
    )
    deadline = time.monotonic() + _LOOK
    try:
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        while going and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.2):
                partition = Partition(message.topic(), message.partition())
                if partition not in going:
                    continue
                front = fronts[partition]
                if message.error() is None:
                    front.since = front.since or message.timestamp()[1] / 1000
                    front.messages += 1
                    front.bytes += len(message) + len(message.key() or b"")
                    if front.messages < _MOST:
                        continue
                front.whole = message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF
                going.discard(partition)
                consumer.pause([TopicPartition(*partition)])
    finally:
        consumer.close()
    return fronts
