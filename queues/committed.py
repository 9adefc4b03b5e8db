"""What a task's group has committed, as its broker tells it."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from queues.positions import Partition, Position

_BROKER_CALL = 10.0
"""Seconds that the broker has to tell committed positions."""

_ASK_AGAIN = 0.1
_ELSEWHERE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""What a broker says while another one, or itself in a moment, takes the group over. It is asked again."""

_UNDECIDED = (
    "longer than a transaction may stand open: another peer of the task holds its group up, or the broker has lost the end "
    "of a transaction, as those of Kafka 4.3.0 to 4.4.0 do when they start again (docs/guarantees.md)"
)


class ReaderLost(Exception):
    """The consumer is of no more use; a new one takes over from the committed positions."""


class NotLetIn(ReaderLost):
    """The group has not answered the consumer that would join: another one may have more luck, as often as it takes."""


def committed(
    consumer: Consumer, wanted: list[TopicPartition], transaction_timeout: float
) -> list[tuple[Partition, Position | None]]:
    """The positions of ``wanted`` in the consumer's group; None where there is none yet.

    Args:
        consumer: of that group.
        wanted: partitions.
        transaction_timeout: seconds that a transaction may stand open.

    Raises:
        ReaderLost: the broker did not tell.
    """
    deadline = time.monotonic() + _BROKER_CALL
    while True:
        try:
            # Positions in a dead peer's open transaction are only told once that has timed out.
            answer = consumer.committed(wanted, timeout=_BROKER_CALL + transaction_timeout)
            break
        except KafkaException as error:
            code = error.args[0].code()
            if code not in _ELSEWHERE or time.monotonic() > deadline:
                # Nothing may be done about it here: whoever decides for the broker loses records, or doubles them.
                undecided = f" for {_UNDECIDED}" if code == KafkaError._TIMED_OUT else ""
                raise ReaderLost(f"the broker did not tell the committed positions{undecided}: {error}") from error
            time.sleep(_ASK_AGAIN)
    found: list[tuple[Partition, Position | None]] = []
    for item in answer:
        if item.error is not None:
            raise ReaderLost(f"the broker did not tell the committed positions: {item.error}")
        position = None if item.offset == OFFSET_INVALID else Position.read(item.offset, item.metadata)
        found.append((Partition(item.topic, item.partition), position))
    return found
