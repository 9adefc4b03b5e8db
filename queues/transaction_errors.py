"""The errors of a transactional producer, each of one of three kinds (:func:`classify`)."""

from __future__ import annotations

import enum

from confluent_kafka import KafkaError

from queues.denied import is_denial
from sardonyx.core.errors import OutputError

_PASSING = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
)


class Verdict(enum.Enum):
    """What an error of the transactional producer asks for."""

    RETRY = "repeat the same call"
    ABORT = "abort, go back to the committed positions, read again"
    REBUILD = "new producer; only the broker knows what was committed"


class TransactionAborted(Exception):
    """The batch left no trace; its records are still to be read. ``error`` is Kafka's reason."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error

    @property
    def passing(self) -> bool:
        """Whether it is enough to try again: the group has moved on, or a broker was away."""
        return self.error.code() in _PASSING


class ProducerLost(Exception):
    """The producer is of no more use: it is fenced, or the outcome of its last transaction is unknown."""


class RightMissing(ProducerLost):
    """The broker does not let this client do it. ``error`` is Kafka's reason."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error


def classify(error: KafkaError) -> Verdict:
    """The order matters, and the default is the safe one: librdkafka asks to test for abort, then retriable, else fatal."""
    if error.fatal():
        return Verdict.REBUILD
    if error.txn_requires_abort():
        return Verdict.ABORT
    if error.retriable():
        return Verdict.RETRY
    return Verdict.REBUILD


def exception_for(reason: KafkaError) -> Exception:
    """The exception that tells the task loop what an error asks for; one that should have been retried is a lost producer."""
    if is_denial(reason):
        return RightMissing(reason)
    if classify(reason) is Verdict.ABORT:
        return abortable(reason)
    return ProducerLost(f"{reason.name()}: {reason.str()}")


def abortable(reason: KafkaError) -> Exception:
    """The exception for a transaction that failed for this reason, and leaves nothing."""
    if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:  # so says the broker, and not of which record
        return OutputError(
            "SX-RECORD-TOO-LARGE",
            "Kafka refused a record as too large.",
            cause="It is larger than the topic's max.message.bytes.",
            fix="Make the function give smaller records, or raise max.message.bytes of the topic.",
        )
    return TransactionAborted(reason)
