"""Keeps Kafka from forgetting the positions of tasks that have had no peers for long, as those of a suspended job.

Kafka keeps the positions of a consumer group without members for ``offsets.retention.minutes``, seven days by default. It counts
from the moment at which the last member left, so committing the same positions again does not help (KIP-211). A member that joins
and leaves does: from then on Kafka counts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, TopicPartition

from queues.admin_client import NEVER, admin_client, errors_of_groups
from queues.client import CLIENT_LOG, client_config
from queues.membership import group_strategy
from sardonyx.core.graph import Graph, Stage
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

RENEW_EVERY = 3600.0
"""Seconds for which a group is left without members. Kafka must keep positions for longer than that and a few minutes."""
_PATIENCE = 30.0
"""Seconds at most until a member is let in."""
_AT_A_TIME = 8


class Renewals:
    """Renews the groups of jobs that have not ended and have had no members for :data:`RENEW_EVERY`.

    It remembers only since when it has seen a group empty, so the next leader may do it a little later, and two leaders may do it
    at once. It commits nothing. A peer that joins at the same time waits for one round of the group more.

    Args:
        settings: connection to Kafka.
        every: seconds for which a group is left without members.
        clock: seconds that never go back.
    """

    def __init__(
        self, settings: Settings, every: float = RENEW_EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._every = every
        self._clock = clock
        self._empty_since: dict[str, float] = {}
        """By group. One that has members, or does not exist, is not in it."""

    def look(self, graph: Graph, job: str) -> list[str]:
        """Renew the groups of a job that are due. What cannot be done now is tried in the next round.

        Returns:
            The names of the tasks whose groups were renewed.
        """
        stages = {stage.group(self._settings.deployment, job): stage for stage in graph.stages}
        if not stages:
            return []
        admin = admin_client(self._settings)
        asked = admin.describe_consumer_groups(list(stages), request_timeout=NEVER)
        errors = errors_of_groups(self._settings, admin, asked)
        now, due = self._clock(), []
        for group, future in asked.items():
            if errors[group] is not None or future.result().state is not ConsumerGroupState.EMPTY:
                self._empty_since.pop(group, None)
            elif now - self._empty_since.setdefault(group, now) >= self._every:
                due.append(group)
        if not due:
            return []
        with ThreadPoolExecutor(min(len(due), _AT_A_TIME), thread_name_prefix="renewal") as pool:
            joined = list(pool.map(lambda group: self._renew(group, stages[group]), due))
        renewed = [group for group, done in zip(due, joined, strict=True) if done]
        for group in renewed:
            self._empty_since[group] = self._clock()
        if renewed:
            log.info("positions_renewed", job=job, tasks=[stages[group].name for group in renewed])
        return [stages[group].name for group in renewed]

    def _renew(self, group: str, stage: Stage) -> bool:
        """Join a group and leave it. Whether Kafka let us in."""
        joined: list[TopicPartition] | None = None

        def assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            nonlocal joined
            joined = partitions

        consumer = Consumer(
            {
                **client_config(self._settings),
                "group.id": group,
                # A peer that joins meanwhile is refused if the members have no strategy in common.
                "partition.assignment.strategy": group_strategy(stage.ingress),
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "queued.min.messages": 1,
                "fetch.message.max.bytes": 1 << 16,
            },
            logger=CLIENT_LOG,
        )
        try:
            consumer.subscribe([link.topic for link in stage.ingress], on_assign=assigned)
            deadline = self._clock() + _PATIENCE
            while joined is None and self._clock() < deadline:
                message = consumer.poll(0.1)
                error = message and message.error()
                if error and error.code() == KafkaError._FATAL:
                    break
        finally:
            consumer.close()
        return joined is not None


__all__ = ["RENEW_EVERY", "Renewals"]
