"""A peer daemon without transactions, to measure what they cost: ``python bench/plain_peer.py peer``, as ``sardonyx peer``.

All else is the product's own. A batch's results are sent by an idempotent producer and waited for; then its positions are
committed by the consumer that read it. Who dies between the two has its batch written twice: at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

import peer.slot_clients
from queues.client import RECONNECT_MS
from queues.guarded_producer import GuardedProducer
from queues.messages import Outgoing, Records
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from queues.transaction_errors import ProducerLost
from sardonyx.cli import main
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings


class PlainReader(Reader):
    """The consumer itself commits, instead of a producer that knows the consumer."""

    def group_metadata(self) -> Any:
        super().group_metadata()  # raises if the group does not know us
        return self._consumer


class PlainWriter(TransactionalWriter):
    """A producer with the settings of the transactional one, but for the transactions."""

    def __init__(self, settings: Settings, _transactional_id: str) -> None:
        self._timeout = settings.peer.transaction_timeout
        self._producer = GuardedProducer(
            {
                "linger.ms": 100,
                "retry.backoff.ms": 10,
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "queue.buffering.max.messages": 1_000_000,
                "compression.type": "lz4",
                **settings.kafka.client(),
                "delivery.timeout.ms": int(self._timeout * 1000),
                "enable.idempotence": True,
                "acks": "all",
                "delivery.report.only.error": True,
            },
            self._timeout,
        )

    def open(self) -> None:
        """There is no slot to be taken over."""

    def write(
        self,
        messages: Iterable[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Any],
        clock: Callable[[str], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """First all messages, then the positions."""
        with clock("write"):
            whole = all(map(self._produce, messages))
            if self._producer.client.flush(self._timeout) or not whole or self._producer.events.refusal is not None:
                raise ProducerLost(f"not everything was written: {self._producer.events.refusal}")
        offsets = [
            TopicPartition(partition.topic, partition.number, position.offset, metadata=position.metadata())
            for partition, position in positions.items()
        ]
        try:
            with clock("commit"):
                group_metadata().commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise ProducerLost(str(error)) from error


if __name__ == "__main__":
    peer.slot_clients.TransactionalWriter, peer.slot_clients.Reader = PlainWriter, PlainReader  # type: ignore[misc]
    main()
