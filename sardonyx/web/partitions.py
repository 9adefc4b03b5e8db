"""What is unread in each partition that a task reads. Kafka is asked when someone looks, once for all who look at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from sardonyx.client.views import PartitionLag
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec

PERIOD = 2.0
"""Seconds for which an answer is given again."""
SHARE = 4
"""Kafka is asked for at most one part of so many of the time."""
PATIENCE = 20.0
"""Seconds that one may wait for others."""
KEPT = 50
"""Answers that are kept."""


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
        self._now = now
        self._turn = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, PartitionsPage]] = {}
        """Answers, and until when each is given."""

    def of(self, job: str, spec: JobSpec, task: str) -> PartitionsPage:
        """The partitions of a task. Raises what Kafka and ZooKeeper say, and ``SX-WEB-BUSY``."""
        if not self._turn.acquire(timeout=PATIENCE):
            raise SardonyxError(
                "SX-WEB-BUSY",
                "too many look at partitions at this moment",
                cause=f"Kafka was asked for others for {PATIENCE:.0f} s",
                fix="try again",
            )
        try:
            began = self._now()
            known = self._known.get((job, task))
            if known is not None and began < known[0]:
                return known[1]
            page = PartitionsPage(at=time.time(), items=self._ask(job, spec, task))
            ended = self._now()
            self._known = {key: kept for key, kept in self._known.items() if kept[0] > ended}
            while len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[job, task] = ended + max(PERIOD, (SHARE - 1) * (ended - began)), page
            return page
        finally:
            self._turn.release()
