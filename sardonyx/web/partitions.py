"""What is unread in each partition that a task reads. The pages ask Kafka when a user looks, once for all who look at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from sardonyx.client.lags import PartitionLag
from sardonyx.core.spec import JobSpec
from sardonyx.web.turns import Turns


class PartitionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions that a task reads, by link."""

    items: list[PartitionLag]
    at: float
    """When Kafka was asked, seconds since 1970."""
    problem: str = ""
    """Why nothing is known; empty if there is no reason."""


class Partitions(Protocol):
    """What knows partitions."""

    def of(self, job: str, spec: JobSpec, task: str) -> PartitionsPage: ...


class NoPartitions:
    """None are known."""

    def __init__(self, why: str) -> None:
        self._why = why

    def of(self, job: str, spec: JobSpec, task: str) -> PartitionsPage:  # noqa: ARG002
        return PartitionsPage(items=[], at=time.time(), problem=self._why)


class LivePartitions:
    """Asks Kafka about one task at a time. Threads may share it.

    Args:
        ask: asks about a task of a job.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self, ask: Callable[[str, JobSpec, str], list[PartitionLag]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._turns = Turns("partitions", 1, now)

    def of(self, job: str, spec: JobSpec, task: str) -> PartitionsPage:
        """The partitions of a task. Raises what Kafka and ZooKeeper say, and ``SX-WEB-BUSY``."""
        return self._turns.shared((job, task), lambda: PartitionsPage(at=time.time(), items=self._ask(job, spec, task)))
