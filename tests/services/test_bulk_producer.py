"""Records that go to Kafka from columns. The broker is one that librdkafka brings along; no service is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from queues import bulk_producer
from queues.client import Message
from queues.messages import Records
from queues.record_columns import Pair, RecordColumns
from queues.transaction_errors import RecordsRefused
from tests.services.mock_broker import mock_broker, written

PAIRS: list[Pair] = [
    (key, value) for key in (None, b"", b"k", b"\xff\0") for value in (None, b"", b"v", b"\0\xff", bytes(3_000))
]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with mock_broker() as address:
        yield address


def pairs_of(messages: Sequence[Message]) -> list[Pair]:
    return [(message.key(), message.value()) for message in messages]


def columns(pairs: Sequence[Pair], *, keyed: bool, wide: bool, pieces: int) -> RecordColumns:
    """Records in columns of these types, which are cut out of longer ones, in so many pieces."""
    kind = pa.large_binary() if wide else pa.binary()

    def column(found: Sequence[bytes | None]) -> pa.ChunkedArray:
        whole = pa.array([b"not this", None, *found, b"nor that"], kind)[2:-1]
        step = -(-len(found) // pieces)
        return pa.chunked_array([whole[start : start + step] for start in range(0, len(found), step)], kind)

    keys, values = zip(*pairs, strict=True)
    return RecordColumns(column(values), column(keys) if keyed else None)


def test_the_client_that_we_ship_with_takes_columns(broker: str) -> None:
    """If a release of confluent-kafka changes what stands in its objects, this says so; records then go one by one. So they do
    if the user's ``client.id`` is so long that librdkafka cuts the name of the client short.
    """
    assert bulk_producer.is_known(Producer({"bootstrap.servers": broker, "client.id": "a name of ours"}))
    assert not bulk_producer.is_known(Producer({"bootstrap.servers": broker, "client.id": "a name of ours" * 10}))


def test_what_is_no_producer_takes_none(broker: str) -> None:
    for other in (None, SimpleNamespace(), object(), Consumer({"bootstrap.servers": broker, "group.id": "g"})):
        assert not bulk_producer.is_known(other)


@pytest.mark.parametrize("wide", [False, True], ids=["binary", "large"])
@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "with keys"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_columns_are_written_as_records_are_one_by_one(broker: str, wide: bool, keyed: bool, pieces: int) -> None:
    """Keys, values and partitions: no key is not an empty key, no value is not an empty one; equal keys keep their order."""
    topic = f"columns-{wide}-{keyed}-{pieces}"
    given = [(key if keyed else None, value) for key, value in PAIRS]
    found = written(broker, topic, [Records(topic, columns(given, keyed=keyed, wide=wide, pieces=pieces))])
    single = written(broker, f"{topic}-single", [Records(f"{topic}-single", given)])
    assert Counter(pairs_of(found)) == Counter(given)
    places = [{m.key(): m.partition() for m in each if m.key() is not None} for each in (found, single)]
    assert places[0] == places[1]
    for key in places[0]:
        assert [value for k, value in pairs_of(found) if k == key] == [value for k, value in given if k == key]


def test_all_records_are_written_also_if_the_client_must_send_some_first(broker: str) -> None:
    """Its queue holds fewer messages than the transaction. Those that it refuses at first go in the same order."""
    given: list[Pair] = [(b"k", b"%d" % number) for number in range(25_000)]
    options = {"queue.buffering.max.messages": 1_000}
    found = written(broker, "full", [Records("full", RecordColumns.of(given))], **options)
    assert pairs_of(found) == given


def test_records_that_the_client_never_takes_are_refused_by_name(broker: str) -> None:
    given: list[Pair] = [(None, b"small"), (b"k", bytes(1_200_000)), (None, bytes(1_100_000)), (b"", None)]
    with pytest.raises(RecordsRefused) as refused:
        written(broker, "large", [Records("large", RecordColumns.of(given))])
    assert [refusal.size for refusal in refused.value.refusals] == [1_200_001, 1_100_000]
