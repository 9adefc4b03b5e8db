"""The errors of a transactional producer, each of one of three kinds (:func:`classify`)."""

from __future__ import annotations

import enum
from typing import NamedTuple

from confluent_kafka import KafkaError

from queues.client import Message
from queues.denied import is_denial
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten

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


class Refusal(NamedTuple):
    """A message that the broker did not take."""

    error: KafkaError
    topic: str
    size: int
    keyed: bool
    record: str
    """Its key and value as a text, shortened."""

    @classmethod
    def of(cls, error: KafkaError, message: Message) -> Refusal:
        """What is kept of a message, which may be large."""
        key, value = message.key(), message.value()
        size = len(key or b"") + len(value or b"")
        shown = "no key" if key is None else f"key {shorten(repr(key[:80]))}"
        return cls(
            error, message.topic(), size, key is not None, f"{shown}, value {shorten(repr(value and value[:200]), 200)}"
        )

    @property
    def likeliness(self) -> int:
        """Of several messages that were refused together, the reason is likely the one for which this is greatest."""
        return self.size if self.error.code() == KafkaError.MSG_SIZE_TOO_LARGE else not self.keyed


class TransactionAborted(Exception):
    """The batch left no trace; its records are still to be read. ``error`` is Kafka's reason, ``topic`` the one it is about."""

    def __init__(self, error: KafkaError, topic: str = "") -> None:
        super().__init__(f"topic {topic}: " * bool(topic) + f"{error.name()}: {error.str()}")
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
        return TransactionAborted(reason)
    return ProducerLost(f"{reason.name()}: {reason.str()}")


def exception_of(refusal: Refusal) -> Exception:
    """The exception for a transaction that left nothing, because the broker refused a message of it."""
    if refusal.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return OutputError(
            "SX-RECORD-TOO-LARGE",
            f"Kafka refused a record for topic {refusal.topic} as too large.",
            cause=f"It is larger than the topic's max.message.bytes. It takes {refusal.size:,} bytes: {refusal.record}",
            fix="Make the function give smaller records, or raise max.message.bytes of the topic.",
            where={"topic": refusal.topic},
        )
    if refusal.error.code() == KafkaError.INVALID_RECORD:
        return OutputError(
            "SX-KAFKA-REJECTED",
            f"Kafka does not take a record for topic {refusal.topic}: {refusal.error.str()}",
            cause=f"{refusal.record}. "
            + (
                "Kafka does not say why."
                if refusal.keyed
                else "Probably a compacted topic, which takes none without a key."
            ),
            fix="Change the records in the task before, or the settings of the topic; nothing of the batch was written."
            if refusal.keyed
            else "Let the output name a column as key=..., with a value in each row; or set cleanup.policy=delete for the topic.",
            where={"topic": refusal.topic},
        )
    return TransactionAborted(refusal.error, refusal.topic)
