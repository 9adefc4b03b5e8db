"""What clients of Kafka begin with, and how what becomes of their transactions is counted. No broker is needed."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from queues.client import client_config
from queues.guarded_producer import ProducerEvents
from queues.queue_metrics import TAKEOVER_SECONDS, TRANSACTION_SECONDS
from queues.transaction import TransactionalWriter, _counted
from queues.transaction_errors import (
    ProducerLost,
    RecordsRefused,
    Refusal,
    RefusedTogether,
    RightMissing,
    TransactionAborted,
)
from sardonyx.runtime.metrics import REGISTRY
from sardonyx.runtime.settings import load_settings
from sardonyx.runtime.this_process import THIS


def test_brokers_are_told_whose_client_it_is() -> None:
    """Unless the settings name it. The client takes it."""
    config = client_config(load_settings(deployment="prod", **{"kafka.bootstrap.servers": "k:1"}))
    assert config["client.id"] == THIS.client_id("prod")
    AdminClient(config)
    assert client_config(load_settings(**{"kafka.client.id": "mine"}))["client.id"] == "mine"


def values(name: str) -> dict[str, float]:
    """By the value of its only label."""
    return {"".join(each.labels.values()): each.value for each in REGISTRY.snapshot().series(f"sardonyx_{name}")}


def grown(name: str, before: dict[str, float]) -> dict[str, float]:
    return {
        label: value - before.get(label, 0) for label, value in values(name).items() if value != before.get(label, 0)
    }


TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ProducerLost("fenced"), "lost", None),
        (RightMissing(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)), "aborted", "denied"),
        (TransactionAborted(KafkaError(KafkaError.REBALANCE_IN_PROGRESS)), "aborted", "group"),
        (TransactionAborted(KafkaError(KafkaError._TIMED_OUT)), "aborted", "timeout"),
        (TransactionAborted(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "aborted", "denied"),
        (TransactionAborted(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)), "aborted", "other"),
        (RefusedTogether(TOO_LARGE), "aborted", "records"),
        (RecordsRefused([Refusal.of(TOO_LARGE, "t", None, b"")]), "aborted", "records"),
    ],
)
def test_a_transaction_that_fails_is_counted_by_what_became_of_it(
    error: Exception, outcome: str, reason: str | None
) -> None:
    """And by why nothing was written, if that is so. The error goes on."""
    before, reasons = values("transactions_total"), values("transaction_aborts_total")
    with pytest.raises(type(error)), _counted():
        raise error
    assert grown("transactions_total", before) == {outcome: 1}
    assert grown("transaction_aborts_total", reasons) == ({} if reason is None else {reason: 1})


def test_a_transaction_that_is_committed_is_measured() -> None:
    """One that stops because its task was taken away is neither."""
    before, measured = values("transactions_total"), measurements()
    with _counted():
        pass
    with pytest.raises(KeyboardInterrupt), _counted():
        raise KeyboardInterrupt
    assert grown("transactions_total", before) == {"committed": 1}
    assert measurements() == measured + 1


def measurements() -> int:
    return sum(each.count for each in TRANSACTION_SECONDS.taken().series)


def test_a_slot_that_is_taken_over_is_measured() -> None:
    """Until Kafka lets the writer in; one that it does not let in is not measured."""
    before = sum(each.count for each in TAKEOVER_SECONDS.taken().series)
    writer, calls = object.__new__(TransactionalWriter), Mock()
    writer._producer = calls
    writer.open()
    calls.call.side_effect = ProducerLost("fenced")
    with pytest.raises(ProducerLost):
        writer.open()
    assert sum(each.count for each in TAKEOVER_SECONDS.taken().series) - before == 1


def test_broken_connections_are_counted() -> None:
    """Other errors that belong to no call are not."""
    events, before = ProducerEvents(), values("kafka_connection_errors_total")
    for code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._FATAL):
        events.failed(KafkaError(code))
    assert grown("kafka_connection_errors_total", before) == {"": 2}
