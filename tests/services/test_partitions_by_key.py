"""Which partition of a user's topic a record goes to. The broker is one that librdkafka brings along; no service is needed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from queues.messages import Records
from queues.record_columns import Pair, RecordColumns
from queues.transaction import TransactionalWriter
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings

JAVA = {  # what Kafka's own tests of its Java client say of murmur2
    b"21": -973_932_308,
    b"foobar": -790_332_482,
    b"a-little-bit-long-string": -985_981_536,
    b"a-little-bit-longer-string": -1_486_304_829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58_897_971,
    b"abc": 479_470_107,
    b"": 275_646_681,
}
PARTITIONS = 4
"""Of each topic of the broker."""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A broker that librdkafka brings along for tests, as long as its client lives."""
    client = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    found = client.list_topics("in", timeout=10)  # which creates the topic
    yield ",".join(f"{each.host}:{each.port}" for each in found.brokers.values())
    client.flush()


@pytest.fixture(params=[list, RecordColumns.of], ids=["one by one", "in columns"])
def form(request: pytest.FixtureRequest) -> Callable[[list[Pair]], RecordColumns | list[Pair]]:
    """How the records come to the writer."""
    return request.param


def written(
    broker: str, topic: str, partitioner: str | None, form: Callable[[list[Pair]], RecordColumns | list[Pair]]
) -> dict[bytes, set[int]]:
    """The partitions to which each key goes."""
    topic = f"{topic}-{form.__name__}"
    settings = Settings(kafka={"bootstrap_servers": broker, "sticky.partitioning.linger.ms": 0})
    writer = TransactionalWriter(settings, f"test/{topic}", partitioner)
    reader = Consumer({"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"})
    records = [(key, b"v") for key in (*JAVA, None)] * 20
    try:
        writer.open()
        writer.write([Records(topic, form(records))], {Partition("in", 0): Position(1)}, reader.consumer_group_metadata)
        found: dict[bytes, set[int]] = {}
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        for _ in records:
            message = reader.poll(10)
            assert message is not None
            assert message.error() is None
            found.setdefault(message.key(), set()).add(message.partition())
        return found
    finally:
        writer.close()
        reader.close()


def test_equal_keys_meet_where_crc32_says(broker, form):
    """An empty key is a key like any other. Records without one go wherever there is room."""
    found = written(broker, "by-crc32", None, form)
    assert len(found.pop(None)) > 1
    assert found == {key: {zlib.crc32(key) % PARTITIONS} for key in JAVA}


def test_equal_keys_meet_where_java_producers_put_them(broker, form):
    """With murmur2, the empty one too."""
    found = written(broker, "by-murmur2", "murmur2", form)
    assert len(found.pop(None)) > 1
    assert found == {key: {(number & 0x7FFF_FFFF) % PARTITIONS} for key, number in JAVA.items()}
