"""Trims the links of running jobs now and then, in a thread of its own. Nothing waits for it, and it changes no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.retrying_worker import RetryingWorker

log = structlog.get_logger()

_SOON = 5.0
"""Seconds at most until a new leader's first round. Otherwise leaders that change often would never trim."""


class LinkTrimmer:
    """Has the links of all running jobs trimmed, job by job, every so many seconds.

    Two coordinators may trim at the same time, and a deposed one may go on for a while: what every reader has committed as read
    is safe to delete, at any time and any number of times.

    Args:
        trim: deletes what the readers of a job's links have committed as read; returns from how many partitions. May be repeated.
        every: seconds between two rounds.
        lends: whether the log of a job's state must stay, since another job begins with what it held. Asked from another thread.
        runtime: time and threads.
    """

    def __init__(
        self,
        trim: Callable[[str, JobSpec, Callable[[], bool]], int],
        every: float,
        lends: Callable[[str], bool],
        runtime: Runtime = REAL,
    ) -> None:
        self._trim = trim
        self._every = every
        self._lends = lends
        self._runtime = runtime
        self._worker = RetryingWorker("trim", runtime=runtime)
        self._lock = runtime.condition()
        self._under_way: set[str] = set()
        self.due = runtime.now() + min(every, _SOON)
        """When the next round begins, on the runtime's clock."""

    def trim(self, running: Mapping[str, JobSpec]) -> None:
        """Begin a round over these jobs if one is due. Does not wait. A job that is still being trimmed is left out."""
        if self._runtime.now() < self.due:
            return
        self.due = self._runtime.now() + self._every
        for job, spec in running.items():
            with self._lock:
                if job in self._under_way:
                    continue
                self._under_way.add(job)
            self._worker.submit(job, partial(self._attempt, job, spec))

    def close(self) -> None:
        """Begin nothing more; the next leader goes on."""
        self._worker.close()

    def _attempt(self, job: str, spec: JobSpec, _attempt: int) -> bool:
        try:
            trimmed = self._trim(job, spec, partial(self._lends, job))
            if trimmed:
                log.debug("links_trimmed", job=job, partitions=trimmed)
        except Exception as error:  # noqa: BLE001 - Kafka is unreachable, or the job has just ended: the next round tries again
            log.warning("links_not_trimmed", job=job, error=str(error))
        finally:
            with self._lock:
                self._under_way.discard(job)
        return True
