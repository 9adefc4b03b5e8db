"""Which partition of a user's topic a record goes to. The broker is one that librdkafka brings along; no service is needed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pytest

from queues.messages import Records
from queues.record_columns import Pair, RecordColumns
from tests.services.mock_broker import PARTITIONS, mock_broker, written

Form = Callable[[list[Pair]], RecordColumns | list[Pair]]

JAVA = {  # what Kafka's own tests of its Java client say of murmur2
    b"21": -973_932_308,
    b"foobar": -790_332_482,
    b"a-little-bit-long-string": -985_981_536,
    b"a-little-bit-longer-string": -1_486_304_829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58_897_971,
    b"abc": 479_470_107,
    b"": 275_646_681,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with mock_broker() as address:
        yield address


@pytest.fixture(params=[list, RecordColumns.of], ids=["one by one", "in columns"])
def form(request: pytest.FixtureRequest) -> Form:
    """How the records come to the writer."""
    return request.param


def places(broker: str, topic: str, partitioner: str | None, form: Form) -> dict[bytes | None, set[int]]:
    """The partitions to which each key goes."""
    topic = f"{topic}-{form.__name__}"
    records: list[Pair] = [(key, b"v") for key in (*JAVA, None)] * 20
    found: dict[bytes | None, set[int]] = {}
    for message in written(broker, topic, [Records(topic, form(records))], partitioner):
        found.setdefault(message.key(), set()).add(message.partition())
    return found


def test_equal_keys_meet_where_crc32_says(broker, form):
    """An empty key is a key like any other. Records without one go wherever there is room."""
    found = places(broker, "by-crc32", None, form)
    assert len(found.pop(None)) > 1
    assert found == {key: {zlib.crc32(key) % PARTITIONS} for key in JAVA}


def test_equal_keys_meet_where_java_producers_put_them(broker, form):
    """With murmur2, the empty one too."""
    found = places(broker, "by-murmur2", "murmur2", form)
    assert len(found.pop(None)) > 1
    assert found == {key: {(number & 0x7FFF_FFFF) % PARTITIONS} for key, number in JAVA.items()}
