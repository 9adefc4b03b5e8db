"""What Kafka holds of a job: topics, positions, and where topics begin and end. Read-only; for the restore of a backup."""

from __future__ import annotations

import time

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import admin, topic_log
from queues.admin_client import admin_client, failed
from sardonyx.core.graph import Graph
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings

Positions = dict[str, dict[Partition, Position | None]]


def topics_of(settings: Settings, graph: Graph) -> dict[str, int]:
    """How many partitions each topic of a job has; only topics that exist. Raises ``SX-KAFKA-UNREACHABLE``."""
    known = admin.topics(settings)
    return {link.topic: len(known[link.topic]) for link in graph.links if link.topic in known}


def positions_of(settings: Settings, graph: Graph, job: str) -> Positions:
    """By task, what its group has committed. It waits until open transactions end.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    return admin.held_positions(settings, graph.stages, job)


def bounds_of(settings: Settings, topics: dict[str, int]) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """The first offset of each partition, and the one after its last record, also of open transactions.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    places = [TopicPartition(topic, number) for topic, partitions in topics.items() for number in range(partitions)]
    if not places:
        return {}, {}
    began = time.monotonic()
    first, last = OffsetSpec.earliest(), OffsetSpec.latest()
    uncommitted = IsolationLevel.READ_UNCOMMITTED
    try:
        client = admin_client(settings)
        return (
            topic_log.offsets_of(client, settings, places, first, uncommitted),
            topic_log.offsets_of(client, settings, places, last, uncommitted),
        )
    except KafkaException as error:
        raise failed(
            settings, began, "tell where topics begin and end", error.args[0], ("Describe", topic_log.named(places))
        ) from error


def names(settings: Settings) -> list[str]:
    """The names of all topics and consumer groups. Raises ``SX-KAFKA-UNREACHABLE``."""
    return sorted({*admin.topics(settings), *admin.groups(settings)})


def letters_end(settings: Settings, topic: str, start: int) -> int:
    """The offset after the last committed dead letter of a topic; ``start`` if there is none from there on.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    end = start
    for message in topic_log.read_messages(settings, topic, start, topic_log.ends(settings, topic)[0]):
        end = message.offset() + 1
    return end
