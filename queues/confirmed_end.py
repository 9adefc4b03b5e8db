"""The end of a topic, from the broker that leads it for sure.

A broker that stood still while another one took its place answers, for a moment after it wakes up, as if it still led: seen with
Kafka 4.2.1 for 0.1 s, and for every request that had waited for it. What was committed meanwhile it does not have. So an end that
a broker tells may be an old one. A reader that must miss nothing asks here.

Here a record is written first, in a transaction that is then aborted. No leader acknowledges a record that its replicas do not
fetch from it, so the record's offset is not an old one. Readers of committed records never see it.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message

from queues import topic_log
from queues.admin_client import CALL, admin_client
from queues.client import BEGINNING, client_config
from queues.connectivity import kafka_unreachable
from queues.denied import denied, is_denial
from queues.guarded_producer import GuardedProducer
from queues.transaction_errors import ProducerLost, RightMissing, TransactionAborted
from sardonyx.core.errors import OutputError
from sardonyx.runtime.settings import Settings

_LOOK = 1.0
"""Seconds between two looks at the clock, while the record is on its way."""


def confirmed_end(settings: Settings, topic: str) -> int:
    """An offset in a topic's first partition: what was written before the call stands before it, open transactions included.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``: no broker has taken the record in time; ``SX-KAFKA-DENIED``.
    """
    if not _is_replicated(settings, topic):
        return topic_log.ends(settings, topic)[1]
    began = time.monotonic()
    cause = "no attempt"
    while time.monotonic() < began + CALL:
        offset, cause = _write_and_abort(settings, topic, began + CALL)
        if offset is not None:
            return offset
        time.sleep(0.1)
    raise kafka_unreachable(settings, began, f"no broker has taken a record for topic {topic}: {cause}")


def read_all(settings: Settings, topic: str) -> list[bytes]:
    """Return every committed message that a topic's first partition still holds, in order.

    It misses none that was committed before the call, also after a transaction that hangs: it waits until that is decided.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, reading did not reach the end in time.
    """
    # Up to an end after open transactions: a read_committed consumer's own end stops at the first of them.
    messages = topic_log.read_messages(settings, topic, BEGINNING, confirmed_end(settings, topic))
    return [message.value() for message in messages]


def _is_replicated(settings: Settings, topic: str) -> bool:
    """Whether a broker can take the place of the topic's leader."""
    began = time.monotonic()
    try:
        known = admin_client(settings).list_topics(timeout=CALL).topics
    except KafkaException as error:
        raise kafka_unreachable(settings, began, str(error)) from error
    return topic in known and len(known[topic].partitions[0].replicas) > 1


def _write_and_abort(settings: Settings, topic: str, deadline: float) -> tuple[int | None, str]:
    """Returns the record's offset, once the broker has acknowledged it; or None, and what went wrong."""
    heard: list[int | KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        heard.append(message.offset() if error is None else error)

    timeout = settings.peer.transaction_timeout
    # One id for each topic: who comes after a client that died ends the transaction that it left open.
    own_id = f"{settings.deployment}/ends/{topic}"
    config = {
        **client_config(settings),
        "transactional.id": own_id,
        "transaction.timeout.ms": int(timeout * 1000),
        "delivery.timeout.ms": int(timeout * 1000),
        "retry.backoff.ms": 10,
        "enable.idempotence": True,
    }
    producer = GuardedProducer(config, timeout)
    cause = ""
    try:
        producer.call("init_transactions", CALL)
        producer.call("begin_transaction")
        producer.client.produce(topic, None, partition=0, on_delivery=delivered)
        while not heard and time.monotonic() < deadline:
            producer.client.flush(_LOOK)
        producer.call("abort_transaction", CALL)
    except RightMissing as error:
        heard.append(error.error)
    except (ProducerLost, TransactionAborted, OutputError, KafkaException, SystemError) as error:
        cause = str(error)  # a SystemError comes from a client that was fenced, see `queues.guarded_producer`
    finally:
        producer.close()
    found = heard[0] if heard else None
    if isinstance(found, KafkaError) and is_denial(found):
        of_id = found.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        raise denied(settings, "Write", f"transactional id {own_id}" if of_id else f"topic {topic}", found)
    return (found, cause) if isinstance(found, int) else (None, str(found or cause or "no answer"))


__all__ = ["confirmed_end", "read_all"]
