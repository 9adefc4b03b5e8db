"""Removes what purged jobs have left on Kafka: consumer groups, and dead letters, which last as long as their job is
known.

It looks only for jobs that the log records as purged, by their ids. So it cannot mistake a user's topic for one of
theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from sardonyx.core.spec import LETTERS_FORMAT, JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.retrying_worker import RetryingWorker

log = structlog.get_logger()


def readers_of_letters(specs: Mapping[str, JobSpec]) -> dict[str, str]:
    """The jobs whose dead letters these jobs read, each with one job that reads them (``sardonyx dlq redo`` made it).

    Args:
        specs: of jobs that have not ended, by id.
    """
    return {
        topic[1]: job  # <deployment>.<job>.<task>.dead
        for job, spec in specs.items()
        for task in spec.catalog
        if task.options.get("format") == LETTERS_FORMAT and len(topic := str(task.options.get("topic")).split(".")) == 4
    }


class TopicCollector:
    """Removes what purged jobs have left on Kafka, in a thread of its own. Retries until it succeeds.

    Args:
        forget: removes what jobs of these ids have left. May be called again with the same result; raises on failure.
        runtime: time and threads.
        pause: seconds between two attempts while Kafka is unreachable.
    """

    def __init__(self, forget: Callable[[Collection[str]], None], runtime: Runtime = REAL, pause: float = 30.0) -> None:
        self._forget = forget
        self._worker = RetryingWorker("topic-gc", first_pause=pause, longest_pause=pause, runtime=runtime)
        self._lock = runtime.condition()
        self._wanted: tuple[str, ...] = ()
        """Jobs that are not cleaned up yet; an attempt takes all of them."""

    def collect(self, purged: Collection[str]) -> None:
        """Begin to remove what these jobs have left. Does not wait."""
        if purged:
            with self._lock:
                self._wanted = _each_once(self._wanted, purged)
            self._worker.submit(None, self._attempt)

    def close(self) -> None:
        """Begin nothing more; the next leader repeats the removal."""
        self._worker.close()

    def _attempt(self, _attempt: int) -> bool:
        with self._lock:
            jobs, self._wanted = self._wanted, ()
        try:
            if jobs:  # otherwise the previous attempt handled them
                self._forget(jobs)
        except Exception as error:  # noqa: BLE001 - Kafka is unreachable: retry for as long as it takes
            log.warning("topics_not_removed", count=len(jobs), error=str(error))
            with self._lock:
                self._wanted = _each_once(jobs, self._wanted)
            return False
        return True


def _each_once(first: Collection[str], then: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *then)))
