"""Readers outside of groups say which right they lack, and do not wait for records that never come. No broker is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import audit, confirmed_end, tail, telemetry, topic_log, topics
from queues.transaction_errors import RightMissing
from sardonyx.core.errors import SetupError
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import load_settings

SETTINGS = load_settings(deployment="prod", **{"kafka.bootstrap.servers": "k:1", "kafka.sasl.username": "ana"})
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def given(error: KafkaError | None) -> Any:
    return Mock(**{"error.return_value": error, "topic.return_value": "t", "partition.return_value": 0})


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that the broker does not let read, though it lets it see the topic."""
    made = Mock()
    made.poll.return_value = given(REFUSED)
    made.consume.return_value = [given(REFUSED)]
    made.list_topics.return_value = SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: None})})
    made.get_watermark_offsets.return_value = (0, 5)
    for module in (audit, tail, telemetry, topic_log, topics):
        monkeypatch.setattr(module, "Consumer", Mock(return_value=made))
    monkeypatch.setattr(tail, "confirmed_end", lambda *_: 5)
    return made


def told() -> list[Any]:
    reader = object.__new__(telemetry.TelemetryReader)
    reader._settings, reader._topic, reader._consumer = SETTINGS, "t", telemetry.Consumer()
    return reader.read(0)


READERS: dict[str, Callable[[], Any]] = {
    "messages of a partition": lambda: list(topic_log.read_messages(SETTINGS, "t", 0, 5)),
    "a whole topic": lambda: topics.read_committed(SETTINGS, "t"),
    "a few records": lambda: topics.peek(SETTINGS, "t", 5),
    "what is listed": lambda: tail.Tail(SETTINGS, "t", None).read(),
    "rows that are counted": lambda: audit._Scan(SETTINGS, {Partition("t", 0): 0}).up_to({Partition("t", 0): 5}),
    "telemetry": told,
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.usefixtures("consumer")
def test_a_reader_that_may_not_read_says_so_at_once(what: str) -> None:
    """Who may not do what on which topic."""
    began = time.monotonic()
    with pytest.raises(SetupError) as error:
        READERS[what]()
    assert (error.value.code, error.value.where["operation"]) == ("SX-KAFKA-DENIED", "Read")
    assert error.value.where["resource"] == "topic t"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("read", [topics.read_committed, lambda *given: topics.peek(*given, 5)])
def test_a_topic_that_is_hidden_is_not_an_empty_one(consumer: Any, read: Callable[..., Any]) -> None:
    """Kafka tells no partitions of a topic that one may not see."""
    consumer.list_topics.return_value.topics["t"] = SimpleNamespace(error=REFUSED, partitions={})
    with pytest.raises(SetupError) as error:
        read(SETTINGS, "t")
    assert (error.value.code, error.value.where["operation"]) == ("SX-KAFKA-DENIED", "Describe")


def test_a_topic_that_is_hidden_is_not_one_that_is_new() -> None:
    """No leader is found of either. A new one is waited for; of the other it is said at once that it may not be seen."""
    admin, place = Mock(), TopicPartition("t", 0)
    admin.list_offsets.return_value = {place: failed(KafkaError(KafkaError._NOENT))}
    admin.describe_topics.return_value = {"t": failed(REFUSED)}
    with pytest.raises(KafkaException) as error:
        topic_log.offsets_of(admin, SETTINGS, [place], OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    assert error.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin.list_offsets.call_count == 1


def failed(error: KafkaError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(error))
    return future


@pytest.mark.parametrize("of_the_record", [False, True])
def test_an_end_that_may_not_be_confirmed_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, of_the_record: bool
) -> None:
    """Whether the broker refuses the transaction, or the record in it."""
    producer = Mock()
    if of_the_record:
        producer.client.produce = lambda *_, on_delivery, **__: on_delivery(REFUSED, Mock())
    else:
        producer.call.side_effect = RightMissing(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    monkeypatch.setattr(confirmed_end, "GuardedProducer", Mock(return_value=producer))
    monkeypatch.setattr(confirmed_end, "_is_replicated", lambda *_: True)
    with pytest.raises(SetupError) as error:
        confirmed_end.confirmed_end(SETTINGS, "t")
    assert (error.value.code, error.value.where["operation"]) == ("SX-KAFKA-DENIED", "Write")
    assert error.value.where["resource"] == ("topic t" if of_the_record else "transactional id prod/ends/t")
    assert producer.close.called
