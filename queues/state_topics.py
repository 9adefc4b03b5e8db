"""The topics of state logs: read from an offset to the end, asked for their ends, and trimmed.

What stands in them: :mod:`sardonyx.state`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import topic_log
from queues.admin_client import admin_client, failed
from queues.messages import Logged
from queues.trim import delete_before
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings


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
        raise failed(settings, began, f"tell where topic {partition.topic} ends", error.args[0]) from error


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

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:
        """See :func:`read_state`."""
        return read_state(self._settings, Partition(self._topic, partition), start, end)


__all__ = ["StateTopic", "delete_before", "end_offset", "read_state"]
