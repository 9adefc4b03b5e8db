"""Asks a task's consumer group, beside the reader, what it has committed for partitions that other peers hold, and the broker
whether there are partitions that the reader does not know.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from queues import admin, committed
from queues.client import CLIENT_LOG, client_config
from queues.lost import ReaderLost
from sardonyx.core.graph import Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_EVERY = 0.25
"""Seconds from one question to the next. Sixteen peers that ask so often cost a task 4 % (docs/performance.md)."""

_PATIENCE = 10.0
"""Seconds that the broker has to answer."""

Answer = dict[Partition, Position | None]


def committed_by(settings: Settings, stage: Stage, job: str, partitions: Mapping[str, int]) -> Answer:
    """What a task's group has committed, for all that the task reads.

    Args:
        settings: connection to Kafka.
        stage: the task.
        job: id of its job.
        partitions: how many partitions each topic has.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    places = [TopicPartition(link.topic, number) for link in stage.ingress for number in range(partitions[link.topic])]
    return admin.positions(settings, stage.group(settings.deployment, job), places, stable=False)


class GroupClocks:
    """A client that never joins the group. It asks on a thread of its own, and waits for no open transaction: a position counts
    only once it is committed, and clocks of positions that were committed before stay true.

    Args:
        settings: connection to Kafka.
        group: the task's group.
        partitions: all that the task reads.
        growing: the topics of which it reads partitions that are added while the job runs, too.
    """

    def __init__(
        self, settings: Settings, group: str, partitions: Sequence[Partition], growing: Collection[str] = ()
    ) -> None:
        self._settings = settings
        self._group = group
        self._places = [TopicPartition(partition.topic, partition.number) for partition in partitions]
        self._thread = BackgroundThread(f"clocks-{group}")
        self._consumer: Consumer | None = None
        self._asked: Future[Answer | None] | None = None
        self._asked_at = 0.0
        self._sizes = {topic: sum(partition.topic == topic for partition in partitions) for topic in growing}
        self._looks: Future[str] | None = None
        self._looked_at = time.monotonic()

    def check_partitions(self) -> None:
        """Look now and then for partitions that were added, also to other peers. It does not wait.

        Raises:
            ReaderLost: there are some. A new reader knows them, too: their rows would be late by a clock that goes without them.
        """
        if self._looks is not None and self._looks.done():
            grown, self._looks = self._looks.result(), None
            if grown:
                raise ReaderLost(f"partitions were added to topic {grown}, whose clocks count")
        if self._sizes and self._looks is None and time.monotonic() - self._looked_at >= committed.LOOK:
            self._looked_at = time.monotonic()
            self._looks = self._thread.submit(self._look)

    def answer(self) -> Answer | None:
        """What the group had committed a moment ago, once for each answer; None: nothing new. Asks again by itself, and does not
        wait.
        """
        found: Answer | None = None
        if self._asked is not None and self._asked.done():
            found, self._asked = self._asked.result(), None
        if self._asked is None and time.monotonic() - self._asked_at >= _EVERY:
            self._asked_at = time.monotonic()
            self._asked = self._thread.submit(self._ask)
        return found

    def close(self) -> None:
        """Give the client back, without waiting."""
        self._thread.submit(self._leave)
        self._thread.close()

    def _ask(self) -> Answer | None:
        """On the thread. An answer that does not come is asked for again: until then the clock stays where it is."""
        found = committed.ask(self._client(), self._places, _PATIENCE, _PATIENCE)
        if isinstance(found, KafkaError):
            log.warning("clocks_not_answered", group=self._group, error=str(found))
            return None
        return dict(found)

    def _look(self) -> str:
        """On the thread. A topic that has more partitions than are read; empty: none has, as far as the broker tells."""
        try:
            found = (
                topic
                for topic, size in self._sizes.items()
                if committed.partitions_of(self._client(), topic, _PATIENCE) > size
            )
            return next(found, "")
        except ReaderLost as error:
            log.warning("partitions_not_told", group=self._group, error=str(error))
            return ""

    def _client(self) -> Consumer:
        if self._consumer is None:
            config = {**client_config(self._settings), "group.id": self._group, "enable.auto.commit": False}
            self._consumer = Consumer({**config, "isolation.level": "read_uncommitted"}, logger=CLIENT_LOG)
        return self._consumer

    def _leave(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
