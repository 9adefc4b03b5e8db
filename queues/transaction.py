"""Read-process-write in one Kafka transaction: results and positions become visible together, or not at all.

Every error is one of three kinds (:func:`queues.transaction_errors.classify`): repeat the call, abort and read again, or throw
the producer away and learn from the broker what was committed. An uncertain outcome is always the last kind. librdkafka speaks
the first version of the transaction protocol, in which a late commit of one transaction can land in the next one of the same
producer epoch (found by Kyle Kingsbury, Jepsen on Bufstream 0.1.0, 2024). So a producer is never used again after one.

Neither is it used again after a transaction that it aborts. If a connection breaks while a record is on its way, the record may
stand in Kafka, and librdkafka keeps it to send it again. When the transaction is aborted, librdkafka forgets the record and
gives its sequence number to the next one. The broker takes that one for the same record, answers that it has it, and the next
transaction commits without it (seen with librdkafka 2.16; see docs/design/faults.md). A new producer has a new epoch, in which
sequence numbers start again.

Kafka refuses a whole request of many records for one of them, and may not say for which. The batch is then written again with
each record in a request of its own, so that what is called refused is nothing but what Kafka never takes
(:class:`queues.transaction_errors.RecordsRefused`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pyarrow.compute as pc
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from queues import bulk_producer
from queues.client import RECONNECT_MS, client_config
from queues.denied import LOGIN, denied, is_denial, login_denied
from queues.guarded_producer import CALL, GuardedProducer
from queues.messages import Outgoing, Records
from queues.queue_metrics import ABORTS, TAKEOVER_SECONDS, TRANSACTION_SECONDS, TRANSACTIONS
from queues.record_columns import RecordColumns
from queues.transaction_errors import (
    ProducerLost,
    RecordsRefused,
    Refusal,
    RefusedTogether,
    RightMissing,
    TransactionAborted,
    abort_reason,
    exception_for,
)
from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_ASK_AGAIN = 0.1
"""Seconds after which we ask again whether the predecessor's transaction has ended: mostly it takes some hundredths."""


def _untimed(_step: str) -> AbstractContextManager[None]:
    return nullcontext()


_AT_ONCE = 10_000
"""Records that go to the client in one call. Meanwhile it learns nothing new of their topic."""

_PARTITIONERS = {"crc32": "consistent_random", "murmur2": "murmur2_random"}
"""librdkafka's names. Both leave records without a key to chance."""


@contextmanager
def _counted() -> Iterator[None]:
    """Count what becomes of the transaction within the block, and measure it."""
    began = time.perf_counter()
    try:
        yield
    except (ProducerLost, TransactionAborted, RecordsRefused) as error:
        reason = abort_reason(error)
        TRANSACTIONS.add(outcome="aborted" if reason else "lost")
        if reason:
            ABORTS.add(reason=reason)
        raise
    TRANSACTIONS.add(outcome="committed")
    TRANSACTION_SECONDS.observe(time.perf_counter() - began)


class TransactionalWriter:
    """The producer of one slot of a task. Close it, whatever becomes of it.

    Args:
        settings: where Kafka is, and how long a transaction may stay open.
            A transaction that a lost writer left open ends when the next writer opens under its id, or after that time.
        transactional_id: that of the slot. Opening fences the former writer of that id, and ends what it left open.
        partitioner: what chooses the partition of a user's record by its key: ``murmur2`` as Java's clients, else ``crc32``.
    """

    def __init__(self, settings: Settings, transactional_id: str, partitioner: str | None = None) -> None:
        self._settings = settings
        self._id = transactional_id
        self._timeout = settings.peer.transaction_timeout
        self._config: dict[str, Any] = {
            # Full requests go at once, and the commit waits for nothing: a long linger only spares half-full ones.
            "linger.ms": 100,
            # The broker asks for patience while it still writes the last transaction's markers; that is over in
            # milliseconds, and the client's own 100 ms would be most of a small batch's time.
            "retry.backoff.ms": 10,
            "reconnect.backoff.max.ms": RECONNECT_MS,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": "lz4",
            **client_config(settings),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(self._timeout * 1000),
            "delivery.timeout.ms": int(self._timeout * 1000),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
        }
        if partitioner is not None:
            self._config["partitioner"] = _PARTITIONERS[partitioner]
        by_crc32 = self._config.get("partitioner", _PARTITIONERS["crc32"]) == _PARTITIONERS["crc32"]
        self._empty = 0 if by_crc32 else -1
        """The partition of records with an empty key, for which librdkafka's CRC-32 would go by chance; the sum itself is 0."""
        self._topics: set[str] = set()
        """Those of the open transaction's messages."""
        self._too_large: list[Refusal] = []
        """The open transaction's messages that the client itself does not take."""
        self._alone = False
        """Whether each record goes in a request of its own, because several were refused together. It stays so if Kafka takes
        each of them: then only their requests are larger than the topic's ``max.message.bytes``."""
        self._reports = False
        """Whether it hears of each record what became of it, because a transaction has failed without that."""
        self._unreported = False
        """Whether the open transaction has records of which it does not hear."""
        self._producer = self._client()

    def _client(self) -> GuardedProducer:
        return GuardedProducer(self._config | ({"batch.num.messages": 1} if self._alone else {}), self._timeout)

    def open(self) -> None:
        """Take the slot over. Must come before the positions are read, or the predecessor could still move them.

        The broker ends what the predecessor left open, and refuses until that is done. Within one call librdkafka asks again
        only after half a second, but with each call at once.

        Raises:
            SetupError: ``SX-KAFKA-DENIED``.
            ProducerLost: the broker does not let the writer in.
        """
        began = time.perf_counter()
        try:
            self._producer.call("init_transactions", _ASK_AGAIN)
        except RightMissing as error:
            raise self._denied(error.error) from error
        TAKEOVER_SECONDS.observe(time.perf_counter() - began)

    def close(self) -> None:
        """Give the client back. An open transaction is left to the slot's next holder."""
        self._producer.close()

    def write(
        self,
        messages: Iterable[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Any],
        clock: Callable[[str], AbstractContextManager[None]] = _untimed,
    ) -> None:
        """One transaction: all messages, and the positions that they were made from. Steps 5 to 7 of :mod:`peer.task_loop`.

        Args:
            messages: in the order in which the topic shall hold them.
            positions: at least one; without positions nothing fences a peer that has lost its place in the group.
            group_metadata: called at the moment of sending, because it goes stale with every rebalance.
            clock: measures the steps ``write`` and ``commit``.

        Raises:
            TransactionAborted: nothing was written. The writer can be used at once.
            RecordsRefused: the same, and it would be so again with these records.
            ProducerLost: the outcome is unknown, or the producer is fenced. Make a new one, and read the committed positions.
            SetupError: ``SX-KAFKA-DENIED``; nothing was written.
        """
        if not positions:
            raise InternalError("SX-TRANSACTION-EMPTY", "A transaction without positions has no fence.")
        events = self._producer.events
        try:
            with _counted():
                self._write(messages, positions, group_metadata, clock)
        except (ProducerLost, TransactionAborted) as error:
            # That a record was refused stands in its delivery report. The next call only says that the transaction has failed.
            refusal = next(iter(events.refusals), None)
            reason = error.error if isinstance(error, RightMissing) else refusal and refusal.error
            if reason is None or not is_denial(reason):
                raise
            raise self._denied(reason, refusal.topic if refusal else " or ".join(sorted(self._topics))) from error

    def _write(
        self,
        messages: Iterable[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Any],
        clock: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        failure = self._attempt(messages, positions, group_metadata, clock)
        if failure is None:
            self._reports = False
            return
        try:
            self._abort()
            refused = self._refused(failure)
            self._renew()
            if refused is not None:
                raise refused from failure
            raise failure
        finally:
            del failure  # it refers to this frame

    def _refused(self, failure: BaseException) -> TransactionAborted | RecordsRefused | None:
        """Why the broker refused a message of a transaction that is aborted; None: it was aborted for another reason."""
        refusals = self._producer.events.refusals
        if not isinstance(failure, TransactionAborted) or failure.passing:
            return None
        if not refusals:
            self._reports = self._unreported
            return RefusedTogether(failure.error) if self._reports else None
        first = refusals[0]
        if not first.of_one_record:
            return TransactionAborted(first.error, first.topic)
        found = [refusal for refusal in refusals if refusal.of_one_record]
        self._alone = len(found) > 1 and not self._alone
        return RefusedTogether(first.error, first.topic) if self._alone else RecordsRefused(found)

    def _attempt(
        self,
        messages: Iterable[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Any],
        clock: Callable[[str], AbstractContextManager[None]],
    ) -> BaseException | None:
        """One transaction, up to its commit. Returns why it is to be aborted.

        It returns it instead of aborting in the handler: a call into the client that fails while an exception is handled would
        keep that exception for good, see :mod:`queues.guarded_producer`.

        Raises:
            ProducerLost: there is nothing to abort with.
        """
        self._producer.events.refusals.clear()
        self._topics.clear()
        self._too_large = []
        self._unreported = False
        self._producer.call("begin_transaction")
        try:
            with clock("write"):  # 5
                whole = all(map(self._produce, messages))
                if self._too_large:
                    raise RecordsRefused(self._too_large)
                failpoint("written")
                offsets = [
                    TopicPartition(partition.topic, partition.number, position.offset, metadata=position.metadata())
                    for partition, position in positions.items()
                ]
                self._producer.send_positions(offsets, group_metadata())  # 6
            failpoint("positions")
            if not whole:
                raise ProducerLost("the client took no more records, and did not say why")
            log.debug("commit_requested")  # before this line nothing of the batch can be visible, after it, it may be
            with clock("commit"):
                self._producer.call("commit_transaction", CALL)  # 7
        except ProducerLost:
            raise
        except BaseException as error:  # noqa: BLE001 (it is raised again, by the caller)
            return error
        return None

    def _produce(self, message: Outgoing | Records) -> bool:
        """Hand a message, or many, to the client. False: the transaction has failed, and its next call tells why."""
        self._topics.add(message.topic)
        if isinstance(message, Outgoing):
            topic, value, partition, key, headers = message
            return self._hand_over(topic, value, key, partition, headers)
        # librdkafka's call for many takes no headers.
        columns = message.records if self._producer.takes_columns and message.headers is None else None
        if isinstance(columns, RecordColumns) and not (self._reports or self._alone):
            return self._produce_columns(message.topic, columns)
        produce, topic, headers = self._producer.client.produce, message.topic, message.headers
        try:
            for key, value in message.records:
                partition = self._empty if key == b"" else -1
                try:
                    produce(topic, value, key, partition, headers=headers)
                except (BufferError, KafkaException):  # which of the two it is, is seen again and dealt with there
                    if not self._hand_over(topic, value, key, partition, headers):
                        return False
        finally:
            del produce  # it refers to the client, see `queues.guarded_producer`
        return True

    def _produce_columns(self, topic: str, records: RecordColumns) -> bool:
        """The same, for records in columns. Those that the client does not take at once are handed to it again, one by one: it
        then says why, or takes them later.
        """
        self._unreported = True
        for keys, values in records.pieces(_AT_ONCE):
            if keys is not None and self._empty >= 0 and pc.any(pc.equal(pc.binary_length(keys), 0)).as_py():
                left: Iterable[int] = range(len(values))  # some name their partition
            else:
                left = np.flatnonzero(bulk_producer.produce(self._producer.client, topic, keys, values)).tolist()
            for index in left:
                key = None if keys is None else keys[index].as_py()
                if not self._hand_over(topic, values[index].as_py(), key, self._empty if key == b"" else -1):
                    return False
        return True

    def _hand_over(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> bool:
        while True:
            try:
                self._producer.client.produce(topic, value, key, partition, headers=headers)
                return True
            except BufferError:  # the queue is full: let some go out
                self._producer.client.poll(0.1)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError._STATE:
                    return False
                if code == KafkaError.MSG_SIZE_TOO_LARGE:  # there may be more of them, which are heard of together
                    limit = int(self._config.get("message.max.bytes", 1_000_000))
                    self._too_large.append(Refusal.of(error.args[0], topic, key, value, limit))
                    return True
                raise exception_for(error.args[0]) from error

    def _denied(self, reason: KafkaError, topic: str = "") -> SetupError:
        """The error ``SX-KAFKA-DENIED`` for what this writer may not do."""
        if reason.code() in LOGIN:
            return login_denied(self._settings, str(reason))
        if reason.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            group = ".".join(self._id.split("/")[:3])  # see `sardonyx.core.graph.Stage`
            return denied(self._settings, "Read", f"group {group}", reason)
        if reason.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return denied(self._settings, "Write", f"topic {topic}", reason)
        return denied(self._settings, "Write", f"transactional id {self._id}", reason)

    def _abort(self) -> None:
        """End the open transaction, which fails if the slot has another holder by now. Flush first what was sent, because an
        abort that overtakes it would be fatal (confluentinc/librdkafka issue 4849).

        Raises:
            ProducerLost: it cannot be aborted.
        """
        try:
            self._producer.client.flush(CALL)
        except Exception as error:  # noqa: BLE001 (of a client that is fenced meanwhile, also a SystemError)
            raise ProducerLost(str(error)) from error.with_traceback(None)  # see `queues.guarded_producer`
        try:
            self._producer.call("abort_transaction", CALL)
        except TransactionAborted as error:
            raise ProducerLost(str(error)) from error

    def _renew(self) -> None:
        """Go on with a new producer."""
        self._producer.close()
        self._producer = self._client()
        self.open()
