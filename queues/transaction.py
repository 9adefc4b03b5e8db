"""Read-process-write in one Kafka transaction: results and positions become visible together, or not at all.

Every error is one of three kinds, and what to do about each is known (:func:`classify`): say it again, abort and read
again, or throw the producer away and learn from the broker what was committed. An outcome that is not certain is always
the last: librdkafka speaks the first version of the transaction protocol, in which a late commit of one transaction can
land in the next of the same producer epoch (found by Kyle Kingsbury, Jepsen on Bufstream 0.1.0, 2024), so a producer is
never used again after one.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from queues.block import record_too_large
from queues.messages import Outgoing, Records
from sardonyx.core.errors import InternalError, OutputError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

CLIENT_LOG = logging.getLogger("librdkafka")
"""Where the Kafka client's own lines go; at warning they are mostly about reconnects that it mends by itself."""

RECONNECT_MS = 1000
"""Milliseconds between attempts to reach a broker that is away, at most: with the client's own ten seconds a task would stand
still for longer than the broker took to start again."""

_CALL = 5.0
"""Seconds that one call into librdkafka may take before it is said again; the call resumes where it was."""

_ASK_AGAIN = 0.1
"""Seconds after which it is asked again whether the predecessor's transaction has ended: mostly it takes some hundredths."""

_OVERDUE = 1 / 3
"""Of a transaction's longest life: when that too has passed behind those seconds, a call is taken for one that never returns."""

_OVERDUE_BROKEN = 2 * RECONNECT_MS / 1000
"""Seconds after which it is so when a connection has broken: it has been made anew by then, or the broker is away."""

_LOOK = 0.1
"""Seconds between two looks at whether a connection has broken, while such a call is waited for."""

_PASSING = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
)


_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What the client says of messages of a transaction that has failed for another reason."""

_BROKEN = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""What it says of connections."""


class Verdict(enum.Enum):
    """What an error of the transactional producer asks for."""

    RETRY = "say the same call again"
    ABORT = "abort, go back to the committed positions, read again"
    REBUILD = "new producer; what was committed is only known from the broker"


class TransactionAborted(Exception):
    """The batch left no trace; its records are still to be read. ``error`` is Kafka's reason."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error

    @property
    def passing(self) -> bool:
        """Whether trying again is all that is needed: the group moved on, or a broker was away."""
        return self.error.code() in _PASSING


class ProducerLost(Exception):
    """The producer is of no more use: fenced, or its last transaction's end is unknown."""


def classify(error: KafkaError) -> Verdict:
    """The order matters, and the default is the safe one: librdkafka asks to test for abort, then retriable, else fatal."""
    if error.fatal():
        return Verdict.REBUILD
    if error.txn_requires_abort():
        return Verdict.ABORT
    if error.retriable():
        return Verdict.RETRY
    return Verdict.REBUILD


def _untimed(_step: str) -> AbstractContextManager[None]:
    return nullcontext()


class _Heard:
    """What the client told beside its calls. Apart from the writer: the client holds it, and holding its own holder it would
    never be given back.
    """

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        """Why the broker refused messages of the open transaction."""
        self.broken: float | None = None
        """When a connection was last told to be broken, or not to come about, since positions were last sent."""

    def delivered(self, error: KafkaError | None, _message: object) -> None:
        """The first such reason is what the transaction failed for. What is thrown away is none."""
        if self.refusal is None and error is not None and error.code() not in _THROWN_AWAY:
            self.refusal = error

    def failed(self, error: KafkaError) -> None:
        """An error that belongs to no call: mostly one of a connection."""
        if error.code() in _BROKEN:
            self.broken = time.monotonic()


class TransactionalWriter:
    """The producer of one slot of a task. To be closed, whatever has become of it.

    Args:
        settings: where Kafka is, and how long a transaction may stay open.
            What a lost writer left open is ended by the next one to open under its id, or by that time.
        transactional_id: that of the slot. Opening fences whoever wrote under it before, and ends what it left open.
    """

    def __init__(self, settings: Settings, transactional_id: str) -> None:
        self._timeout = settings.peer.transaction_timeout
        self._heard = _Heard()
        self._producer = Producer(
            {
                # Full requests go at once, and the commit waits for nothing: a long linger only spares half-full ones.
                "linger.ms": 100,
                # The broker asks for patience while it still writes the last transaction's markers; that is over in
                # milliseconds, and the client's own 100 ms would be most of a small batch's time.
                "retry.backoff.ms": 10,
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "queue.buffering.max.messages": 1_000_000,
                "compression.type": "lz4",
                **settings.kafka.client(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(self._timeout * 1000),
                "delivery.timeout.ms": int(self._timeout * 1000),
                "enable.idempotence": True,
                "delivery.report.only.error": True,
                "on_delivery": self._heard.delivered,
                "error_cb": self._heard.failed,
            },
            logger=CLIENT_LOG,
        )

    def open(self) -> None:
        """Take the slot over. Must come before the positions are read, or the predecessor could still move them.

        The broker ends what the predecessor left open, and refuses until that is done. Within one call librdkafka asks again
        only after half a second, but with each call at once.
        """
        self._call(methodcaller("init_transactions", _ASK_AGAIN))

    def close(self) -> None:
        """Give the client back, with its threads and connections: an open transaction is left to the slot's next holder.

        On a thread of its own, for it may take as long as a broker is away.
        """
        client = [self.__dict__.pop("_producer", None)]
        aside = BackgroundThread("producer-ends")
        aside.submit(client.clear)
        aside.close()

    def write(
        self,
        messages: Iterable[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Any],
        clock: Callable[[str], AbstractContextManager[None]] = _untimed,
    ) -> None:
        """One transaction: all messages, and the positions that they were made from.

        Args:
            messages: in the order in which they shall stand.
            positions: at least one; without positions nothing fences a peer that has lost its place in the group.
            group_metadata: asked at the moment of sending, since it goes stale with every rebalance.
            clock: measures the steps ``write`` and ``commit``.

        Raises:
            TransactionAborted: nothing was written.
            ProducerLost: not known, or fenced; a new writer and the committed positions tell.
            OutputError: ``SX-RECORD-TOO-LARGE``; nothing was written.
        """
        if not positions:
            raise InternalError("SX-TRANSACTION-EMPTY", "a transaction without positions has no fence")
        self._heard.refusal = None
        self._call(methodcaller("begin_transaction"))
        try:
            with clock("write"):
                whole = all(map(self._produce, messages))
                failpoint("written")
                offsets = [
                    TopicPartition(partition.topic, partition.number, position.offset, metadata=position.metadata())
                    for partition, position in positions.items()
                ]
                metadata = group_metadata()
                self._call(partial(_send, offsets, metadata, _CALL + self._timeout * _OVERDUE, self._heard))
            failpoint("positions")
            if not whole:
                raise ProducerLost("the client took no more records, and did not say why")
            log.debug("asks for the commit")  # before this line nothing of the batch can be there, behind it, it may
            with clock("commit"):
                self._call(methodcaller("commit_transaction", _CALL))
        except ProducerLost:
            raise
        except BaseException as error:
            self._abort()
            if isinstance(error, TransactionAborted) and not error.passing and self._heard.refusal is not None:
                raise self._abortable(self._heard.refusal) from error
            raise

    def _produce(self, message: Outgoing | Records) -> bool:
        """Hand a message, or many, to the client. False: the transaction has failed, and its next call tells why."""
        if isinstance(message, Outgoing):
            topic, value, partition, key, headers = message
            return self._hand_over(topic, value, key, partition, headers)
        produce, topic = self._producer.produce, message.topic
        try:
            for key, value in message.records:
                try:
                    produce(topic, value, key)
                except (BufferError, KafkaException):  # which of them is seen again, and dealt with, there
                    if not self._hand_over(topic, value, key):
                        return False
        finally:
            del produce  # see `_call`
        return True

    def _hand_over(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = -1,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> bool:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return True
            except BufferError:  # the queue is full: let some go out
                self._producer.poll(0.1)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError._STATE:
                    return False
                if code == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise _too_large(topic, value, key) from error
                raise self._verdict(error) from error

    def _call(self, call: Callable[[Producer], object]) -> None:
        """Say a call until it is answered; librdkafka resumes the same one.

        An error keeps the frames that it came through, and none of them may keep the client.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                call(self._producer)
                return
            except KafkaException as error:
                verdict = classify(error.args[0])
                if verdict is Verdict.RETRY and time.monotonic() < deadline:
                    log.debug("kafka asks to say it again", error=str(error.args[0]))
                    continue
                raise self._verdict(error) from error

    def _verdict(self, error: KafkaException) -> Exception:
        reason = error.args[0]
        if classify(reason) is Verdict.ABORT:
            return self._abortable(reason)
        return ProducerLost(f"{reason.name()}: {reason.str()}")

    def _abortable(self, reason: KafkaError) -> Exception:
        if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:  # so says the broker, and not of which record
            return OutputError(
                "SX-RECORD-TOO-LARGE",
                "Kafka refused a record as too large",
                cause="it is larger than the topic's max.message.bytes",
                fix="make the function give smaller records, or raise max.message.bytes of the topic",
            )
        return TransactionAborted(reason)

    def _abort(self) -> None:
        """End the open transaction. What was sent is flushed first, since an abort that overtakes it would be fatal."""
        self._producer.flush(_CALL)
        try:
            self._call(methodcaller("abort_transaction", _CALL))
        except TransactionAborted as error:
            raise ProducerLost(str(error)) from error


def _send(offsets: list[TopicPartition], metadata: object, patience: float, heard: _Heard, producer: Producer) -> None:
    """The positions into the transaction, from a thread of its own, since this call may never return.

    When the connection to the group's coordinator is gone at that moment, or its broker is missing from the cluster's
    metadata (as is one that has just started again), the client waits for it whatever the timeout (confluentinc/librdkafka
    issues 5456 and 5511, open in 2.16), mostly still when it is long back. Such a producer is left to itself: its successor
    fences it.
    """
    aside = BackgroundThread("positions")
    sent = aside.submit(partial(producer.send_offsets_to_transaction, offsets, metadata, _CALL))
    aside.close()
    began = time.monotonic()
    try:
        while not _answered(sent):
            producer.poll(0)  # it tells of connections
            now = time.monotonic()
            if heard.broken is not None and now - max(began, heard.broken) > _OVERDUE_BROKEN:
                raise ProducerLost("the client does not come back from sending positions since a connection has broken")
            if now - began > patience:
                raise ProducerLost("the client does not come back from sending positions")
        heard.broken = None
    finally:
        del producer  # see `_call`


def _answered(sent: Future[None]) -> bool:
    """Whether a call came back within a moment; raises what it raised."""
    try:
        sent.result(_LOOK)
    except TimeoutError:
        return False
    return True


def _too_large(topic: str, value: bytes | None, key: bytes | None) -> OutputError:
    error = record_too_large(len(value or b"") + len(key or b""), 1_000_000, value)
    error.where["topic"] = topic
    return error
