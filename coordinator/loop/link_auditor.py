"""Audits the links of jobs that never end, one after the other, in a thread of its own.

A reader finds a message that is missing when it comes to a later one of the same writer. That the last ones are missing it finds
at the end of the link, which these jobs do not have. So the leader compares what was written with what was read, and with what
stands there unread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from coordinator.core.state import State
from sardonyx.core.errors import InputError, failure_of
from sardonyx.core.events import LinkFacts, LinkLost
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.retrying_worker import RetryingWorker

log = structlog.get_logger()

_RESTS = 19
"""After an audit the auditor rests so many times as long as it took: so it works for a twentieth of the time at most."""
_FIRST_RULES = 4
"""The first rules by which coordinators know the event of an audit."""

Audit = Callable[[str, JobSpec, Mapping[str, LinkFacts], str], InputError | None]
"""``audit(job, spec, facts, link)``: what is wrong with a link; None: nothing, or Kafka does not tell now."""


class _Turn(NamedTuple):
    job: str
    link: str
    spec: JobSpec
    facts: Mapping[str, LinkFacts]
    revision: int


class LinkAuditor:
    """Audits a link every so many seconds, each in its turn. Nothing waits for it.

    Args:
        audit: called in another thread. What it raises is logged, and then it is the next link's turn.
        found: called with what is lost, from that thread. The event says of which revision of its job that is true.
        every: seconds between two audits, at least; 0: there are none.
        runtime: time and threads.
    """

    def __init__(self, audit: Audit, found: Callable[[LinkLost], None], every: float, runtime: Runtime = REAL) -> None:
        self._audit = audit
        self._found = found
        self._every = every
        self._runtime = runtime
        self._worker = RetryingWorker("audit", runtime=runtime)
        self._last = "", ""
        self._at_work = False
        self._rests_until = runtime.now() + every

    @property
    def due(self) -> float:
        """When the next audit begins, on the runtime's clock."""
        return self._rests_until if self._every and not self._at_work else math.inf

    def look(self, state: State) -> None:
        """Begin to audit the next link, if that is due. Does not wait."""
        if self._runtime.now() < self.due:
            return
        self._rests_until = self._runtime.now() + self._every
        turns = sorted(_turns(state), key=lambda turn: (turn.job, turn.link))
        turn = next((turn for turn in turns if (turn.job, turn.link) > self._last), next(iter(turns), None))
        if turn is not None:
            self._last = turn.job, turn.link
            self._at_work = True
            self._worker.submit("audit", partial(self._attempt, turn))

    def close(self) -> None:
        """Begin nothing more; the next leader goes on."""
        self._worker.close()

    def _attempt(self, turn: _Turn, _attempt: int) -> bool:
        began = self._runtime.now()
        try:
            self._look_at(turn)
        except Exception as error:  # noqa: BLE001 - Kafka is unreachable, or the job has just ended: its turn comes again
            log.warning("link_not_audited", job=turn.job, link=turn.link, error=str(error))
        finally:
            took = self._runtime.now() - began
            self._rests_until = self._runtime.now() + max(self._every, _RESTS * took)
            self._at_work = False
        return True

    def _look_at(self, turn: _Turn) -> None:
        """No job fails in doubt: what an audit finds, another one must find, too."""
        audit = partial(self._audit, turn.job, turn.spec, turn.facts, turn.link)
        error = None if audit() is None else audit()
        if error is None:
            log.debug("link_audited", job=turn.job, link=turn.link)
            return
        log.error("link_lost", job=turn.job, link=turn.link, code=error.code, error=error.message)
        where = {"job": turn.job}
        self._found(
            LinkLost(job=turn.job, link=turn.link, revision=turn.revision, error=failure_of(error, where=where))
        )


def _turns(state: State) -> Iterator[_Turn]:
    """The links between tasks of all jobs that run without end, and are not being changed. None as long as a
    coordinator of the release before may take over.
    """
    if state.rules < _FIRST_RULES:
        return
    for name, plan in state.plans.items():
        job = state.jobs[name]
        changes = job.next_spec is not None or job.gone_spec is not None
        if job.status == "running" and job.facts and not (plan.bounded or job.suspended or changes):
            for link in plan.graph.links:
                if link.kind == "internal":
                    yield _Turn(name, link.name, job.spec, dict(job.facts), job.revision)


__all__ = ["LinkAuditor"]
