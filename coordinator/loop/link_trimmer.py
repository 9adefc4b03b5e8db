"""Looks now and then at what the tasks of running jobs have committed, in a thread of its own. Nothing waits for it.

Links are trimmed by it, and a checkpoint that is complete becomes an entry of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from coordinator.core.state import State
from coordinator.loop.side_effects import Needed, Trimmed
from sardonyx.core.events import Checkpointed, encode_event
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.retrying_worker import RetryingWorker
from sardonyx.zookeeper.transactions import ENTRY_LIMIT

log = structlog.get_logger()

LOG_EVERY = 600.0
"""Seconds at least between two checkpoints of a job that one leader puts into the log."""
_SOON = 5.0
"""Seconds at most until a new leader's first round. Otherwise leaders that change often would never trim."""


class _Told(NamedTuple):
    """The last checkpoint of a job that was put into the log, and when: on the runtime's clock."""

    point: CheckpointPoint
    at: float


class LinkTrimmer:
    """Has the links of all running jobs trimmed, job by job, every so many seconds, and their checkpoints logged.

    Two coordinators may trim at the same time, and a deposed one may go on for a while: what every reader has committed as read
    is safe to delete, at any time and any number of times. Of the logs of states it deletes only what the logged checkpoints do
    not need either, by a state that was the last one when it looked.

    Args:
        trim: deletes what the readers of a job's links have committed as read. May be repeated.
        every: seconds between two rounds.
        state: gives what is decided so far. Asked from another thread.
        deposed: whether the next leader may have decided something. Asked from another thread.
        done: takes an event; called from another thread.
        runtime: time and threads.
    """

    def __init__(
        self,
        trim: Callable[[str, JobSpec, Needed], Trimmed],
        every: float,
        state: Callable[[], State],
        deposed: Callable[[], bool],
        done: Callable[[Checkpointed], None],
        runtime: Runtime = REAL,
    ) -> None:
        self._trim = trim
        self._every = every
        self._state = state
        self._deposed = deposed
        self._done = done
        self._runtime = runtime
        self._worker = RetryingWorker("trim", runtime=runtime)
        self._lock = runtime.condition()
        self._under_way: set[str] = set()
        self._told: dict[str, _Told] = {}
        self.due = runtime.now() + min(every, _SOON)
        """When the next round begins, on the runtime's clock."""

    def trim(self, running: Mapping[str, JobSpec]) -> None:
        """Begin a round over these jobs if one is due. Does not wait. A job that is still being trimmed is left out."""
        if self._runtime.now() < self.due:
            return
        self.due = self._runtime.now() + self._every
        with self._lock:
            self._told = {job: told for job, told in self._told.items() if job in running}
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
            trimmed, checkpoint = self._trim(job, spec, partial(self._needed, job))
            if trimmed:
                log.debug("links_trimmed", job=job, partitions=trimmed)
            if checkpoint is not None:
                self._tell(job, spec, checkpoint)
        except Exception as error:  # noqa: BLE001 - Kafka is unreachable, or the job has just ended: the next round tries again
            log.warning("links_not_trimmed", job=job, error=str(error))
        finally:
            with self._lock:
                self._under_way.discard(job)
        return True

    def _needed(self, job: str) -> Sequence[CheckpointPoint] | None:
        """The checkpoints of which the logs of a job's states must hold all: those that are logged, and the one that is about to
        be. None: nothing may go, since another job begins with such a state, or may do so.
        """
        known = self._state().jobs.get(job)
        if known is None or known.lends:
            return None
        with self._lock:
            told = self._told.get(job)
        found = [*known.checkpoints, *([] if told is None else [told.point])]
        return None if self._deposed() else found  # the next leader had decided nothing when we looked

    def _tell(self, job: str, spec: JobSpec, point: CheckpointPoint) -> None:
        """Have a checkpoint of a job that had this spec logged, if it is later than the logged ones, and not too soon."""
        state = self._state()
        known = state.jobs.get(job)
        if known is None or state.rules < 4:
            return
        revision, logged = known.revision, known.checkpoints
        if known.spec is not spec:  # looked at last: a change sets it first
            return
        told, now = self._told.get(job), self._runtime.now()
        if (logged and logged[-1].at >= point.at) or (told is not None and now - told.at < LOG_EVERY):
            return
        event = Checkpointed(job=job, revision=revision, point=point)
        if (size := len(encode_event(event))) > ENTRY_LIMIT:
            log.warning("checkpoint_not_logged", job=job, size=size, limit=ENTRY_LIMIT, at=point.at)
            return
        with self._lock:
            self._told[job] = _Told(point, now)
        self._done(event)
