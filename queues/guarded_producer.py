"""librdkafka's transactional producer, with guards against calls that never return and clients that are never given back.

The faults that this works around, all still there in librdkafka 2.16:

- Sending positions may never return (confluentinc/librdkafka issues 5456 and 5511). It happens when the connection to the
  group's coordinator breaks at that moment, or when that broker is missing from the cluster's metadata, as it is just after a
  restart. Then the client waits whatever the timeout, mostly even after the broker is back. So the call runs on a thread of its
  own, and :meth:`GuardedProducer.send_positions` gives it up. The producer is left to itself: its successor fences it.
- Destroying a client may take as long as a broker is away. So :meth:`GuardedProducer.close` does it on a thread of its own.
- A client is given back only when nothing refers to it. An exception keeps the frames that it came through, and so their local
  variables: no function that may raise keeps the client in one.
- A call of the client that fails while Python handles another exception keeps that exception for good, with all batches in its
  frames. The client raises a ``KafkaError``, which has room for the exception before it but never gives it back (confluent-kafka
  2.16 on Python 3.11). So no ``except`` block may make such a call: each notes what is to be done, and ends first. What a
  callback raises, or the client itself in place of one when it is fenced, is kept in the same way: it must lose its traceback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from queues import bulk_producer
from queues.client import CLIENT_LOG, RECONNECT_MS, Message
from queues.queue_metrics import CONNECTIONS
from queues.transaction_errors import ProducerLost, Refusal, TransactionAborted, Verdict, classify, exception_for
from sardonyx.runtime.background import BackgroundThread

log = structlog.get_logger()

CALL = 5.0
"""Seconds that one call into librdkafka may take before it is repeated; the repeated call resumes where the first was."""

_OVERDUE = 1 / 3
"""Sending positions counts as hung after :data:`CALL` plus this fraction of the transaction timeout."""

_OVERDUE_BROKEN = 2 * RECONNECT_MS / 1000
"""Seconds until it counts as hung after a connection has broken: it has been made anew by then, or the broker is away."""

_LOOK = 0.1
"""Seconds between two looks at whether a connection has broken, while positions are sent."""

_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD)
"""What the client says of messages of a transaction, or of a request, that has failed for another reason."""

_MOST_KEPT = 10_000
"""Refused messages of one transaction that are kept."""

_BROKEN = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""What it says of connections."""


class ProducerEvents:
    """What the client tells beside its calls. Apart from its owner: the client refers to this, and would otherwise refer to
    its owner, which refers to it, and would never be given back.
    """

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        """Messages of the open transaction that were refused, at most :data:`_MOST_KEPT`."""
        self.broken: float | None = None
        """When a connection last broke, or could not be made, since positions were last sent."""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Keep what the broker says of a message that it refuses. Messages that were thrown away for another reason do not count.

        A broker may refuse all messages of a request because of one of them, and does not say which.
        """
        if error is None or error.code() in _THROWN_AWAY or len(self.refusals) == _MOST_KEPT:
            return
        self.refusals.append(Refusal.of(error, message.topic(), message.key(), message.value()))

    def failed(self, error: KafkaError) -> None:
        """An error that belongs to no call: mostly one of a connection."""
        if error.code() in _BROKEN:
            self.broken = time.monotonic()
            CONNECTIONS.add()


class GuardedProducer:
    """A producer whose calls are repeated until they are answered, and given up when they hang.

    Args:
        config: of librdkafka.
        timeout: seconds that a transaction may stay open.
    """

    def __init__(self, config: Mapping[str, Any], timeout: float) -> None:
        self.events = ProducerEvents()
        self._timeout = timeout
        callbacks = {"on_delivery": self.events.delivered, "error_cb": self.events.failed}
        self._client: Producer | None = Producer({**config, **callbacks}, logger=CLIENT_LOG)
        self.takes_columns = bulk_producer.is_known(self._client)
        """Whether :func:`queues.bulk_producer.produce` can be used with the client."""

    @property
    def client(self) -> Producer:
        """The client itself, for calls that do not block. Keep it in no variable of a function that may raise.

        Raises:
            ProducerLost: it is closed.
        """
        if self._client is None:
            raise ProducerLost("the producer is closed")
        return self._client

    def call(self, name: str, *arguments: object) -> None:
        """Call a method of the client, and repeat it while Kafka asks for that; librdkafka resumes the same call.

        Raises:
            TransactionAborted, ProducerLost, OutputError: see :func:`queues.transaction_errors.exception_for`.
        """
        self._repeat(methodcaller(name, *arguments))

    def send_positions(self, positions: list[TopicPartition], metadata: object) -> None:
        """Send the positions to the open transaction. This is the call that may hang.

        Raises:
            ProducerLost: it hangs, and other errors as :meth:`call`.
        """
        send = partial(_send_positions, positions, metadata, CALL + self._timeout * _OVERDUE, self.events)
        try:
            self._repeat(send)
            return
        except TransactionAborted as error:
            if error.error.code() != KafkaError._STATE:
                raise
        # The transaction failed while this call was under way, which does not say why. A call in a failed transaction does.
        self._repeat(send)

    def close(self) -> None:
        """Give the client back, with its threads and connections, on a thread of its own."""
        holder = [self._client]
        self._client = None
        background = BackgroundThread("producer-ends")
        background.submit(partial(_end, holder))
        background.close()

    def _repeat(self, call: Callable[[Producer], object]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                call(self.client)
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if classify(reason) is Verdict.RETRY and time.monotonic() < deadline:
                    log.debug("kafka_call_retried", error=str(reason))
                    continue
                raise exception_for(reason) from error.with_traceback(None)


def _end(holder: list[Producer | None]) -> None:
    """Throw away what a client still has to send, hear of it, and give the client back.

    The Python client keeps the callback, and a few bytes, for each message of which it has not told what became of it, also after
    it is given back. librdkafka logs an error about the transaction whose messages are thrown away; that is expected.
    """
    try:
        if holder[0] is not None:
            holder[0].purge()  # does not wait; with `blocking` it may, depending on the client's version
            holder[0].flush(CALL)
    except (KafkaException, SystemError) as error:
        error.with_traceback(None)  # a client that is fenced, or whose messages were refused, says so once more
    holder.clear()


def _send_positions(
    positions: list[TopicPartition], metadata: object, patience: float, events: ProducerEvents, client: Producer
) -> None:
    """On a thread of its own, while this one looks at the clock and at what the client tells of connections."""
    background = BackgroundThread("positions")
    sent = background.submit(partial(client.send_offsets_to_transaction, positions, metadata, CALL))
    background.close()
    began = time.monotonic()
    try:
        while not _answered(sent):
            client.poll(0)  # it tells of connections
            now = time.monotonic()
            if events.broken is not None and now - max(began, events.broken) > _OVERDUE_BROKEN:
                raise ProducerLost("the client does not come back from sending positions since a connection has broken")
            if now - began > patience:
                raise ProducerLost("the client does not come back from sending positions")
        events.broken = None
    finally:
        del client  # see the module's docstring


def _answered(sent: Future[None]) -> bool:
    """Whether a call came back within a moment; raises what it raised."""
    try:
        sent.result(_LOOK)
    except TimeoutError:
        return False
    return True
