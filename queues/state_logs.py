"""Read and shorten the state logs of a task: one partition of its state topic for each partition number that it reads."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues.admin import offsets_of
from queues.admin_client import CALL, admin_client
from queues.client import CLIENT_LOG
from queues.connectivity import kafka_unreachable
from queues.messages import Logged
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

_AT_ONCE = 1_000


class StateLogs:
    """The topic of one task's state.

    Args:
        settings: connection to Kafka.
        link: of kind ``state``.
    """

    def __init__(self, settings: Settings, link: Link) -> None:
        self._settings = settings
        self._topic = link.topic

    def end(self, partition: int) -> int:
        """The offset after the last record of a partition, open transactions included.

        Ask for it after the position: the markers of a transaction may come later than the position that it commits, and a reader
        that stops before them would miss what is committed.

        Raises:
            SetupError: ``SX-KAFKA-UNREACHABLE``.
        """
        began = time.monotonic()
        place = TopicPartition(self._topic, partition)
        try:
            found = offsets_of(
                admin_client(self._settings),
                self._settings,
                [place],
                OffsetSpec.latest(),
                IsolationLevel.READ_UNCOMMITTED,
            )
        except KafkaException as error:
            raise kafka_unreachable(self._settings, began, str(error)) from error
        return found[Partition(self._topic, partition)]

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:
        """Yield the committed messages of a partition in [start, end). It waits for open transactions.

        Raises:
            SetupError: ``SX-KAFKA-UNREACHABLE``: nothing came for longer than a transaction may stay open.
        """
        if start >= end:
            return
        consumer = Consumer(
            {
                **self._settings.kafka.client(),
                "group.id": f"{self._settings.deployment}.nobody",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # what is older than the state needs may be deleted
            },
            logger=CLIENT_LOG,
        )
        patience = CALL + self._settings.peer.transaction_timeout
        reached, began = start, time.monotonic()
        last = began
        try:
            consumer.assign([TopicPartition(self._topic, partition, start)])
            while reached < end:
                for message in consumer.consume(_AT_ONCE, timeout=0.5):
                    error = message.error()
                    if error is None:
                        reached, last = message.offset() + 1, time.monotonic()
                        if reached <= end:
                            yield Logged(message.offset(), message.headers() or (), message.value())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        reached = message.offset()
                if time.monotonic() - last > patience:
                    raise kafka_unreachable(
                        self._settings, began, f"topic {self._topic}[{partition}] stopped at offset {reached} of {end}"
                    )
        except KafkaException as error:
            raise kafka_unreachable(self._settings, began, str(error)) from error
        finally:
            consumer.close()
