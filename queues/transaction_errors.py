"""The errors of a transactional producer, each of one of three kinds (:func:`classify`)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from queues.denied import is_denial
from queues.messages import digest_of
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten

_IN_GROUP = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)
_TIMEOUTS = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)
_PASSING = (*_IN_GROUP, *_TIMEOUTS)


class Verdict(enum.Enum):
    """What an error of the transactional producer asks for."""

    RETRY = "repeat the same call"
    ABORT = "abort, go back to the committed positions, read again"
    REBUILD = "new producer; only the broker knows what was committed"


_OF_ONE_RECORD = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
"""Why a broker, or the client itself, never takes a record, whatever is sent with it."""


_LEAVE_OUT = 'on_error="skip" or "dead_letter" of the output leaves such records out.'


class Refusal(NamedTuple):
    """A message that was not taken."""

    error: KafkaError
    topic: str
    size: int
    keyed: bool
    record: str
    """Its key and value as a text, shortened."""
    digest: bytes
    """Of key and value: see :func:`queues.messages.digest_of`."""
    limit: int | None = None
    """If the client itself refused it: the most bytes that it takes."""

    @classmethod
    def of(
        cls, error: KafkaError, topic: str, key: bytes | None, value: bytes | None, limit: int | None = None
    ) -> Refusal:
        """What is kept of a message, which may be large."""
        shown = "no key" if key is None else f"key {shorten(repr(key[:80]))}"
        text = f"{shown}, value {shorten(repr(value and value[:200]), 200)}"
        size = len(key or b"") + len(value or b"")
        return cls(error, topic, size, key is not None, text, digest_of(key, value), limit)

    @property
    def of_one_record(self) -> bool:
        """Whether the reason lies in a record, and not in the topic or the client."""
        return self.error.code() in _OF_ONE_RECORD

    def explained(self) -> OutputError:
        """The error that says why the record was not taken."""
        where = {"topic": self.topic}
        if self.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            most = "It is larger than the topic's max.message.bytes." if self.limit is None else ""
            most = most or f"A message holds at most {self.limit:,} bytes."
            return OutputError(
                "SX-RECORD-TOO-LARGE",
                f"Kafka refused a record for topic {self.topic} as too large.",
                cause=f"{most} It takes {self.size:,} bytes: {self.record}",
                fix="Make the function give smaller records, or raise message.max.bytes on the broker, the topic's "
                f'max.message.bytes and `"message.max.bytes"` under [kafka] in the settings. {_LEAVE_OUT}',
                where=where,
            )
        why = "Kafka does not say why." if self.keyed else "Probably a compacted topic, which takes none without a key."
        change = (
            "Change the records in the task before, or the settings of the topic."
            if self.keyed
            else "Let the output name a column as key=..., with a value in each row, or set cleanup.policy=delete for the topic."
        )
        return OutputError(
            "SX-KAFKA-REJECTED",
            f"Kafka does not take a record for topic {self.topic}: {self.error.str()}",
            cause=f"{self.record}. {why}",
            fix=f"{change} {_LEAVE_OUT}",
            where=where,
        )


class TransactionAborted(Exception):
    """The batch left no trace; its records are still to be read. ``error`` is Kafka's reason, ``topic`` the one it is about."""

    def __init__(self, error: KafkaError, topic: str = "") -> None:
        super().__init__(f"topic {topic}: " * bool(topic) + f"{error.name()}: {error.str()}")
        self.error = error

    @property
    def passing(self) -> bool:
        """Whether it is enough to try again: the group has moved on, or a broker was away."""
        return self.error.code() in _PASSING


class RefusedTogether(TransactionAborted):
    """Records were refused together, one of which may be the reason. With the next attempt the writer learns which: it hears of
    each what became of it, or sends each by itself.
    """

    @property
    def passing(self) -> bool:
        return True


class RecordsRefused(OutputError):
    """Kafka never takes these records; nothing was written. As an error it is about the first of them.

    Args:
        refusals: one for each such record, at least one.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first = refusals[0].explained()
        super().__init__(first.code, first.message, cause=first.cause, fix=first.fix, where=first.where)
        self.refusals = refusals


class ProducerLost(Exception):
    """The producer is of no more use: it is fenced, or the outcome of its last transaction is unknown."""


class RightMissing(ProducerLost):
    """The broker does not let this client do it. ``error`` is Kafka's reason."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error


def abort_reason(error: ProducerLost | TransactionAborted | RecordsRefused) -> str:
    """Why nothing was written by a transaction, in a word for metrics; empty if something may have been."""
    if isinstance(error, (RecordsRefused, RefusedTogether)):
        return "records"
    if isinstance(error, RightMissing):
        return "denied"
    if isinstance(error, ProducerLost):
        return ""
    if is_denial(error.error):
        return "denied"
    code = error.error.code()
    return "group" if code in _IN_GROUP else "timeout" if code in _TIMEOUTS else "other"


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
