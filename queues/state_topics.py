"""The topics of state logs: read from an offset to the end, asked for their ends, and trimmed.

What stands in them: :mod:`sardonyx.state`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import topic_log
from queues.admin_client import admin_client, failed
from queues.messages import Logged
from queues.trim import delete_before
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_REPLACED = 10.0
"""Seconds within which a broker that was replaced as leader hears of it, once it runs again."""


def end_offset(settings: Settings, partition: Partition) -> int:
    """The offset after the last record of a partition: its high watermark, open transactions included.

    A restore asks for it after the position of the shard. That a position is committed does not say that the end of its
    transaction stands in all other partitions yet. The last stable offset may lie before it, or before the open transaction of
    a peer that has lost the partition.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    began = time.monotonic()
    place = TopicPartition(*partition)
    try:
        return topic_log.offsets_of(
            admin_client(settings), settings, [place], OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED
        )[partition]
    except KafkaException as error:
        raise failed(
            settings,
            began,
            f"tell where topic {partition.topic} ends",
            error.args[0],
            ("Describe", f"topic {partition.topic}"),
        ) from error


def end_beyond(settings: Settings, partition: Partition, end: int) -> int:
    """The end of a partition that should go on after ``end``: waits for that, and otherwise returns ``end`` again.

    A broker that stood still while another one took its place answers, for a moment after it wakes up, as if it still led. What
    was committed meanwhile it does not have. Seen with Kafka 4.2.1: for 0.1 s, and each request that had waited for it.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    log.info("state_log_ends_early", topic=partition.topic, partition=partition.number, end=end)
    deadline = time.monotonic() + _REPLACED
    while (found := end_offset(settings, partition)) <= end:
        if time.monotonic() > deadline:
            return end
        time.sleep(0.2)
    return found


def read_state(settings: Settings, partition: Partition, start: int, end: int) -> Iterator[Logged]:
    """Yield the committed messages of a partition in [start, end), in order. It waits for open transactions.

    If records after ``start`` were deleted, it begins with the first one that is left. The numbers of the commits tell.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, nothing came for longer than a transaction may be open.
    """
    for message in topic_log.read_messages(settings, partition.topic, start, end, partition.number):
        yield Logged(message.offset(), message.headers() or (), message.value() or b"")


class StateTopic:
    """The state topic of one task.

    Args:
        settings: connection to Kafka.
        link: of kind ``state``.
    """

    def __init__(self, settings: Settings, link: Link) -> None:
        self._settings = settings
        self._topic = link.topic

    def end(self, partition: int) -> int:
        """See :func:`end_offset`."""
        return end_offset(self._settings, Partition(self._topic, partition))

    def end_beyond(self, partition: int, end: int) -> int:
        """See :func:`end_beyond`."""
        return end_beyond(self._settings, Partition(self._topic, partition), end)

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:
        """See :func:`read_state`."""
        return read_state(self._settings, Partition(self._topic, partition), start, end)


__all__ = ["StateTopic", "delete_before", "end_beyond", "end_offset", "read_state"]
