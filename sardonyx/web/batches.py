"""The last batches of each task and of each job, as peers tell about them: also those of a peer that has died since."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
from msgspec import Meta

from sardonyx.core.errors import SetupError
from sardonyx.core.telemetry import BatchTold

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings

KEPT = 200
"""Batches of a task that are kept."""
TASKS = 1_000
"""Tasks of which some are kept: those that told something last."""
STREAM = 5_000
"""Batches of a job that are kept for its task stream."""
JOBS = 10
"""Jobs of which so many are kept: those that told something last. A batch takes some 800 bytes: 40 MB at most."""
WORKED = 12.0
"""Seconds over which we count how many peers a task fills."""
AGAIN = 5.0
"""Seconds until we look for the topic again."""


class BatchesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many batches."""

    limit: Annotated[int, Meta(description="How many at most.", ge=1, le=KEPT)] = 20


class BatchesPage(msgspec.Struct, frozen=True):
    """The last batches of a task, the newest first."""

    items: list[BatchTold]
    problem: str = ""
    """Why there may be more; empty if there is no reason."""


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which batches of a job."""

    after: Annotated[int, Meta(description="Only those that were told later: `last` of the answer before.", ge=0)] = 0
    limit: Annotated[int, Meta(description="How many at most: the latest.", ge=1, le=STREAM)] = STREAM


class BatchStream(msgspec.Struct, frozen=True, kw_only=True):
    """The last batches of all tasks of a job, in the order in which peers told of them."""

    items: list[BatchTold]
    last: int
    """The number of the last one: what comes later is asked for with ``after``."""
    at: float
    """The time of the server, seconds since 1970."""
    problem: str = ""
    """Why there may be more; empty if there is no reason."""


class Batches(Protocol):
    """What knows the last batches."""

    def of(self, job: str, task: str, most: int) -> BatchesPage: ...

    def stream(self, job: str, after: int, most: int) -> BatchStream: ...

    def worked(self, job: str) -> Mapping[str, float] | None:
        """By task, how many peers the work on its last batches fills; None: peers do not tell."""
        ...

    def close(self) -> None: ...


class NoBatches:
    """None are known."""

    def __init__(self, why: str) -> None:
        self._why = why

    def of(self, job: str, task: str, most: int) -> BatchesPage:  # noqa: ARG002
        return BatchesPage([], self._why)

    def stream(self, job: str, after: int, most: int) -> BatchStream:  # noqa: ARG002
        return BatchStream(items=[], last=0, at=time.time(), problem=self._why)

    def worked(self, job: str) -> Mapping[str, float] | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        """Nothing is open."""


class KeptBatches:
    """Keeps the last batches of each task, and of each job. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], deque[BatchTold]] = OrderedDict()
        self._streams: OrderedDict[str, deque[tuple[int, BatchTold]]] = OrderedDict()
        self._count = 0

    def take(self, told: Iterable[BatchTold]) -> None:
        with self._lock:
            for batch in told:
                key = batch.job, batch.task
                self._kept.setdefault(key, deque(maxlen=KEPT)).append(batch)
                self._kept.move_to_end(key)
                self._count += 1
                self._streams.setdefault(batch.job, deque(maxlen=STREAM)).append((self._count, batch))
                self._streams.move_to_end(batch.job)
            while len(self._kept) > TASKS:
                self._kept.popitem(last=False)
            while len(self._streams) > JOBS:
                self._streams.popitem(last=False)

    def last(self, job: str, task: str, most: int) -> list[BatchTold]:
        """The last batches of a task, the newest first."""
        with self._lock:
            known = self._kept.get((job, task), ())
            return list(reversed(known))[:most]

    def after(self, job: str, number: int, most: int) -> tuple[list[BatchTold], int]:
        """The last batches of a job of which peers told after the one of this number, in order, and the number of the last one.
        A number that there was not yet is one of a process before this one: then all are given.
        """
        with self._lock:
            found: list[BatchTold] = []
            for each, batch in reversed(self._streams.get(job, ())):
                if len(found) == most or (each <= number <= self._count):
                    break
                found.append(batch)
            return found[::-1], self._count

    def worked(self, job: str, now: float) -> dict[str, float]:
        """By task of a job, how many peers the work on its batches has filled in the last seconds before a moment. Tasks of which
        no batch has ended since are left out.
        """
        found: dict[str, float] = {}
        with self._lock:
            for (each, task), batches in self._kept.items():
                late = [batch for batch in batches if now - WORKED < batch.at <= now + WORKED] if each == job else []
                if late:
                    spans = ((batch.at, sum(batch.seconds.values()) - batch.seconds.get("wait", 0.0)) for batch in late)
                    found[task] = sum(min(took, WORKED - max(now - at, 0.0)) for at, took in spans) / WORKED
        return found


class LiveBatches:
    """Follows the telemetry topic from the first time that a user looks.

    Args:
        settings: of the deployment.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept = KeptBatches()
        self._problem = "they are being read"
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def of(self, job: str, task: str, most: int) -> BatchesPage:
        self._begin()
        return BatchesPage(self._kept.last(job, task, most), self._problem)

    def stream(self, job: str, after: int, most: int) -> BatchStream:
        self._begin()
        items, last = self._kept.after(job, after, most)
        return BatchStream(items=items, last=last, at=time.time(), problem=self._problem)

    def worked(self, job: str) -> Mapping[str, float] | None:
        self._begin()
        return None if self._problem else self._kept.worked(job, time.time())

    def close(self) -> None:
        """Stop following."""
        self._closed.set()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, daemon=True, name="web telemetry")
                self._thread.start()

    def _follow(self) -> None:
        from queues.telemetry import TelemetryReader

        while not self._closed.is_set():
            try:
                reader = TelemetryReader(self._settings)
            except SetupError as error:
                self._problem = f"{error.opening}: {error.fix}"
                self._closed.wait(AGAIN)
                continue
            try:
                while not self._closed.is_set():
                    self._kept.take(reader.read(0.5))
                    self._problem = ""
            except SetupError as error:
                self._problem = f"{error.opening}: {error.fix}"
                self._closed.wait(AGAIN)
            finally:
                reader.close()
