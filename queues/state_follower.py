"""Follows the ends of state logs: all that is committed, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from queues.client import CLIENT_LOG, RECONNECT_MS, onlooker_config
from queues.lost import ReaderLost
from queues.messages import Followed, Logged
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

_AT_ONCE = 200
"""Messages that are taken in one call."""


class StateFollower:
    """A consumer outside of all groups. Not thread-safe.

    Args:
        settings: connection to Kafka.
    """

    def __init__(self, settings: Settings) -> None:
        self._consumer = Consumer(
            {
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "queued.max.messages.kbytes": 32_768,
                "fetch.wait.max.ms": 100,
                **onlooker_config(settings),
            },
            logger=CLIENT_LOG,
        )

    def begin(self, place: Partition, offset: int) -> None:
        """Follow a partition from an offset on.

        Raises:
            ReaderLost: the client cannot continue.
        """
        _guarded(lambda: self._consumer.incremental_assign([TopicPartition(*place, offset)]))

    def end(self, place: Partition) -> None:
        """Follow a partition no more. Raises ReaderLost."""
        _guarded(lambda: self._consumer.incremental_unassign([TopicPartition(*place)]))

    def read(self, timeout: float) -> dict[Partition, Followed]:
        """What has come, by partition; waits up to so many seconds if nothing has.

        Raises:
            ReaderLost: the client cannot continue.
        """
        found: dict[Partition, Followed] = {}
        for message in _guarded(lambda: self._consumer.consume(_AT_ONCE, timeout)):
            place, problem = Partition(message.topic(), message.partition()), message.error()
            before = found.get(place, Followed([], 0))
            if problem is None:
                before.messages.append(Logged(message.offset(), message.headers() or (), message.value() or b""))
                found[place] = before._replace(reached=message.offset() + 1, at_end=False)
            elif problem.code() == KafkaError._PARTITION_EOF:
                found[place] = before._replace(reached=message.offset(), at_end=True)
            elif problem.fatal():
                raise ReaderLost(f"{problem.name()}: {problem.str()}")
            else:  # such as a topic that is deleted
                log.debug("kafka_error", topic=place.topic, error=f"{problem.name()}: {problem.str()}")
        return found

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except (KafkaException, RuntimeError) as error:
        raise ReaderLost(str(error)) from error


__all__ = ["StateFollower"]
