"""A broker that librdkafka brings along for tests: for what its clients do, without a service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from queues.client import Message
from queues.messages import Records
from queues.transaction import TransactionalWriter
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings

PARTITIONS = 4
"""Of each of its topics. Each is there once somebody asks for it."""


@contextlib.contextmanager
def mock_broker() -> Iterator[str]:
    """The address of one, which lives as long as the block runs."""
    client = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    found = client.list_topics("in", timeout=10)
    yield ",".join(f"{each.host}:{each.port}" for each in found.brokers.values())
    client.flush()


def written(
    broker: str, topic: str, messages: Sequence[Records], partitioner: str | None = None, **options: object
) -> list[Message]:
    """What readers of a topic find after a transaction with these messages, by partition. ``options``: of the client."""
    settings = Settings(kafka={"bootstrap_servers": broker, "sticky.partitioning.linger.ms": 0, **options})
    writer = TransactionalWriter(settings, f"test/{topic}", partitioner)
    reader = Consumer({"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        writer.open()
        writer.write(messages, {Partition("in", 0): Position(1)}, reader.consumer_group_metadata)
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found = reader.consume(sum(len(message.records) for message in messages), 10)
    finally:
        writer.close()
        reader.close()
    assert all(message.error() is None for message in found)
    return sorted(found, key=lambda message: (message.partition(), message.offset()))
