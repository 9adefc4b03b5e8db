"""Follow a topic's first partition: all that is committed, in order, and then what is added."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from queues.client import BEGINNING, CLIENT_LOG, RECONNECT_MS, onlooker_config
from queues.confirmed_end import confirmed_end
from queues.denied import refuse_denied
from queues.lost import ReaderLost
from sardonyx.runtime.settings import Settings

_AT_ONCE = 10_000


class Listed(NamedTuple):
    """One message."""

    offset: int
    since: float
    """When it was written, in seconds since 1970."""
    value: bytes


class Tail:
    """A consumer outside of all groups. Not thread-safe.

    Args:
        settings: connection to Kafka.
        topic: the topic.
        start: the first offset to read; None: from the first record that is left.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """

    def __init__(self, settings: Settings, topic: str, start: int | None) -> None:
        self._settings = settings
        self._end = confirmed_end(settings, topic)
        self._reached = 0
        self._consumer = Consumer(
            {
                "reconnect.backoff.max.ms": RECONNECT_MS,
                **onlooker_config(settings),
            },
            logger=CLIENT_LOG,
        )
        self._consumer.assign([TopicPartition(topic, 0, BEGINNING if start is None else start)])

    @property
    def caught_up(self) -> bool:
        """Whether all is read that was written before this began, including the transactions that were open then."""
        return self._reached >= self._end

    def read(self) -> list[Listed]:
        """Return what has come since the last call. Does not wait.

        Raises:
            ReaderLost: the consumer cannot continue.
            SetupError: ``SX-KAFKA-DENIED``.
        """
        found = []
        try:
            messages = self._consumer.consume(_AT_ONCE, timeout=0)
        except KafkaException as error:
            raise ReaderLost(str(error)) from error
        for message in messages:
            refuse_denied(self._settings, message)
            problem = message.error()
            if problem is None:
                self._reached = message.offset() + 1
                found.append(Listed(message.offset(), message.timestamp()[1] / 1000, message.value()))
            elif problem.code() == KafkaError._PARTITION_EOF:
                self._reached = max(self._reached, message.offset())
            elif problem.fatal():
                raise ReaderLost(f"{problem.name()}: {problem.str()}")
        return found

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()
