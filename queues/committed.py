"""The positions that a task's group has committed, as the broker reports them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from queues.batch import Recovered, StartingPoint
from queues.denied import is_denial
from queues.lost import ReaderLost
from sardonyx.core.positions import Partition, Position

Recover = Callable[[Mapping[Partition, Position | None]], Mapping[Partition, Recovered]]

_PATIENCE = 10.0
"""Seconds that the broker has to report committed positions, and that finding a group's coordinator may take."""

LOOK = 10.0
"""Seconds for which the number of partitions of a user's topic counts: users may add some, and then rows come from there, too."""

_LISTEN = 3.0
"""Seconds after which we listen to what the client says beside its answer."""

_WAITS = (KafkaError._TIMED_OUT, KafkaError._WAIT_COORD)
"""Errors that say: the answer takes longer."""

_ASK_AGAIN = 0.1
ELSEWHERE = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Names of the errors that a broker gives while it, or another broker, takes the group over. We ask again after them."""

_UNDECIDED = (
    "longer than a transaction may stand open: another peer of the task holds its group up, or the broker has lost the end "
    "of a transaction, as those of Kafka 4.3.0 to 4.4.0 do when they start again (docs/guarantees.md)"
)


def committed(
    consumer: Consumer, wanted: list[TopicPartition], transaction_timeout: float
) -> list[tuple[Partition, Position | None]]:
    """The positions that the consumer's group has committed for ``wanted``; None for a partition that has none yet.

    Args:
        consumer: a consumer of that group.
        wanted: the partitions.
        transaction_timeout: seconds that a transaction may stay open.

    Raises:
        ReaderLost: the broker did not report the positions.
    """
    # The broker reports positions in a dead peer's open transaction only after that transaction has timed out.
    found = ask(consumer, wanted, _PATIENCE + transaction_timeout, _PATIENCE)
    if isinstance(found, KafkaError):
        # We must not decide in the broker's place: that would lose or duplicate records.
        undecided = f" for {_UNDECIDED}" if found.code() == KafkaError._TIMED_OUT else ""
        raise ReaderLost(f"the broker did not tell the committed positions{undecided}: {found}")
    return found


def starting_points(
    consumer: Consumer, wanted: list[TopicPartition], transaction_timeout: float, recover: Recover | None
) -> dict[Partition, StartingPoint]:
    """Where reading of each partition begins.

    We ask Kafka first. After its answer, a former holder of a partition can move the position only in an output that
    keeps
    positions. The compare-and-set of our next batch then detects the move.

    Args:
        consumer: a consumer of the group.
        wanted: the partitions.
        transaction_timeout: seconds that a transaction may stay open.
        recover: for an output that keeps positions itself: returns its positions, given those that Kafka reported.

    Raises:
        ReaderLost: the broker did not report the positions. Errors of ``recover`` pass through.
    """
    told = dict(committed(consumer, wanted, transaction_timeout)) if wanted else {}
    kept = recover(told) if recover is not None and told else {}
    starts = {partition: StartingPoint(position) for partition, position in told.items()}
    for partition in kept.keys() & told.keys():
        position, outbox = kept[partition]
        starts[partition] = StartingPoint(position, position != told[partition], outbox)
    return starts


def partitions_of(consumer: Consumer, topic: str, timeout: float) -> int:
    """How many partitions a topic has now.

    Raises:
        ReaderLost: the broker did not tell.
    """
    try:
        about = consumer.list_topics(topic, timeout=timeout).topics[topic]
    except KafkaException as error:
        raise ReaderLost(str(error)) from error
    if about.error is not None or not about.partitions:
        raise ReaderLost(f"the broker does not tell the partitions of topic {topic}: {about.error}")
    return len(about.partitions)


def ask(
    consumer: Consumer,
    wanted: list[TopicPartition],
    timeout: float,
    patience: float,
    heard: Callable[[], KafkaError | None] | None = None,
) -> list[tuple[Partition, Position | None]] | KafkaError:
    """The positions that the consumer's group has committed, or the error that prevented an answer.

    Args:
        consumer: a consumer of that group.
        wanted: the partitions.
        timeout: seconds that the answer may take.
        patience: seconds for which we ask again while brokers hand the group over.
        heard: returns what else the client has to say. A client that may not see the group goes on looking for its coordinator,
            and says that only there.
    """
    began = time.monotonic()
    deadline = began + patience
    while True:
        error: KafkaError | None
        try:
            answer = consumer.committed(wanted, timeout=timeout if heard is None else min(timeout, _LISTEN))
            error = next((item.error for item in answer if item.error is not None), None)
        except KafkaException as raised:
            answer, error = [], raised.args[0]
        if error is None:
            return [(Partition(item.topic, item.partition), _position(item)) for item in answer]
        said = None if heard is None else heard()
        if is_denial(said):
            return said
        if heard is not None and error.code() in _WAITS and time.monotonic() < began + timeout:
            continue
        if error.name() not in ELSEWHERE or time.monotonic() > deadline:
            return error
        time.sleep(_ASK_AGAIN)


def _position(item: TopicPartition) -> Position | None:
    return None if item.offset == OFFSET_INVALID else Position.read(item.offset, item.metadata)
