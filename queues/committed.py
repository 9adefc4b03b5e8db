"""What a task's group has committed, as its broker tells it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from queues.batch import Recovered, StartingPoint
from sardonyx.core.positions import Partition, Position

Recover = Callable[[Mapping[Partition, Position | None]], Mapping[Partition, Recovered]]

_PATIENCE = 10.0
"""Seconds that the broker has to tell committed positions, and a group's coordinator to be found."""

_ASK_AGAIN = 0.1
ELSEWHERE = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Names of the errors that a broker gives while another one, or itself in a moment, takes the group over. It is asked again."""

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
    """The positions of ``wanted`` in the group of a reader's consumer; None where there is none yet.

    Args:
        consumer: of that group.
        wanted: partitions.
        transaction_timeout: seconds that a transaction may stand open.

    Raises:
        ReaderLost: the broker did not tell.
    """
    # Positions in a dead peer's open transaction are only told once that has timed out.
    found = ask(consumer, wanted, _PATIENCE + transaction_timeout, _PATIENCE)
    if isinstance(found, KafkaError):
        # Nothing may be done about it here: whoever decides for the broker loses records, or doubles them.
        undecided = f" for {_UNDECIDED}" if found.code() == KafkaError._TIMED_OUT else ""
        raise ReaderLost(f"the broker did not tell the committed positions{undecided}: {found}")
    return found


def starting_points(
    consumer: Consumer, wanted: list[TopicPartition], transaction_timeout: float, recover: Recover | None
) -> dict[Partition, StartingPoint]:
    """Where reading of each partition begins.

    Kafka is asked first. Once it has answered, a former holder of a partition can move it only in the output that keeps
    positions; the compare-and-set of our next batch will find that it has.

    Args:
        consumer: of the group.
        wanted: partitions.
        transaction_timeout: seconds that a transaction may stay open.
        recover: of an output that keeps positions itself: where partitions stand there, given what Kafka has just said.

    Raises:
        ReaderLost: the broker did not tell; whatever ``recover`` raises.
    """
    told = dict(committed(consumer, wanted, transaction_timeout)) if wanted else {}
    kept = recover(told) if recover is not None and told else {}
    starts = {partition: StartingPoint(position) for partition, position in told.items()}
    for partition in kept.keys() & told.keys():
        position, outbox = kept[partition]
        starts[partition] = StartingPoint(position, position != told[partition], outbox)
    return starts


def ask(
    consumer: Consumer, wanted: list[TopicPartition], timeout: float, patience: float
) -> list[tuple[Partition, Position | None]] | KafkaError:
    """What the consumer's group has committed, or why that was not told in ``timeout`` seconds, and while nobody took the group
    over in ``patience``.
    """
    deadline = time.monotonic() + patience
    while True:
        error: KafkaError | None
        try:
            answer = consumer.committed(wanted, timeout=timeout)
            error = next((item.error for item in answer if item.error is not None), None)
        except KafkaException as raised:
            answer, error = [], raised.args[0]
        if error is None:
            return [(Partition(item.topic, item.partition), _position(item)) for item in answer]
        if error.name() not in ELSEWHERE or time.monotonic() > deadline:
            return error
        time.sleep(_ASK_AGAIN)


def _position(item: TopicPartition) -> Position | None:
    return None if item.offset == OFFSET_INVALID else Position.read(item.offset, item.metadata)
