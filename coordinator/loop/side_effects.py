"""What is done about decisions outside ZooKeeper: the topics of a job are made and removed, aside from the loop.

Nothing here is fenced, so everything is safe to do twice, and by two coordinators at a time. What a job needs is done in
the order in which it was decided; jobs do not wait for each other. What is not finished when a leadership ends is taken
up by the next one (``coordinator.core.decide.unfinished``).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import structlog

from sardonyx.core.errors import Failure, SardonyxError, SetupError, failure_of
from sardonyx.core.events import (
    AnyEvent,
    CreateLinks,
    DeleteLinks,
    LastCommits,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    encode_event,
)
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.transactions import ENTRY_LIMIT

THREADS = 4
"""Jobs whose topics are worked on at a time."""
ATTEMPTS = 5
"""Times that making links is tried when it breaks in a way that is not an answer, before the job fails."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a failed attempt is repeated; doubled each time."""

LinksEffect = CreateLinks | DeleteLinks
log = structlog.get_logger()


class OuterEffects(Protocol):
    """Makes and removes a job's links, and fences its slots. All may be called again with the same result, at any time, from
    any thread.
    """

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        """The facts of each link.

        A ``SardonyxError`` is an answer and fails the job; anything else, and a ``SetupError`` (Kafka is away), is tried
        again a few times.
        """

    def delete_links(self, job: str, spec: JobSpec) -> LastCommits:
        """What the job's groups had committed last. Whatever it raises, it is tried again."""

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        """End what is open under a slot's transactional id. Whatever it raises, it is not tried again."""

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        """Take a slot's holder out of the task's group. Whatever it raises, it is not tried again."""

    def forget(self, jobs: Collection[str]) -> None:
        """Remove what forgotten jobs have left. Whatever it raises, it is tried again."""


class OuterWorker:
    """Runs links effects in threads of its own, and hands each result over as an event.

    Args:
        outer: how it is done.
        done: takes the event; called from any of the threads.
        late: hears of jobs whose links were still being made when this was closed; called from any of the threads.
        clockwork: time and threads.
    """

    def __init__(
        self,
        outer: OuterEffects,
        done: Callable[[AnyEvent], None],
        late: Callable[[str, JobSpec], None] = lambda _job, _spec: None,
        runtime: Runtime = REAL,
    ) -> None:
        self._outer = outer
        self._done = done
        self._late = late
        self._jobs: dict[str, deque[tuple[int, LinksEffect, JobSpec]]] = {}
        self._due: list[tuple[float, int, str, int]] = []
        """When a job's first effect is to be run, as a heap: time, tie-breaker, job, attempt."""
        self._ticket = itertools.count()
        self._runtime = runtime
        self.begun: set[str] = set()
        """Jobs whose links this one has begun to make and not to remove."""
        self._changed = runtime.condition()
        self._closed = False
        for number in range(THREADS):
            runtime.spawn(f"links-{number}", self._work)

    def submit(self, n: int, effect: LinksEffect, spec: JobSpec) -> None:
        """Have an effect of event ``n`` run, after those of the same job."""
        with self._changed:
            waiting = self._jobs.setdefault(effect.job, deque())
            waiting.append((n, effect, spec))
            if len(waiting) == 1:
                self._schedule(effect.job, 0.0, 1)

    def close(self) -> None:
        """Begin nothing more. What runs is left to end by itself; its result is for the next leader to find out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _schedule(self, job: str, pause: float, attempt: int) -> None:
        heapq.heappush(self._due, (self._runtime.now() + pause, next(self._ticket), job, attempt))
        self._changed.notify()

    def _next(self) -> tuple[str, int] | None:
        with self._changed:
            while not self._closed:
                pause = self._due[0][0] - self._runtime.now() if self._due else None
                if pause is not None and pause <= 0:
                    _, _, job, attempt = heapq.heappop(self._due)
                    return job, attempt
                self._changed.wait(pause)
            return None

    def _work(self) -> None:
        while (found := self._next()) is not None:
            job, attempt = found
            n, effect, spec = self._jobs[job][0]
            (self.begun.add if isinstance(effect, CreateLinks) else self.begun.discard)(job)
            failpoint("before-outer")
            event = self._run(n, effect, spec, attempt)
            failpoint("after-outer")
            with self._changed:
                if self._closed:
                    break
                if event is None:
                    self._schedule(job, min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE), attempt + 1)
                    continue
                waiting = self._jobs[job]
                waiting.popleft()
                if waiting:
                    self._schedule(job, 0.0, 1)
                else:
                    del self._jobs[job]
            self._done(event)
        if found is not None and isinstance(effect, CreateLinks):
            self._late(job, spec)

    def _run(self, n: int, effect: LinksEffect, spec: JobSpec, attempt: int) -> AnyEvent | None:
        """The event that the effect ends as; None if it is to be tried again."""
        job = effect.job
        try:
            if isinstance(effect, DeleteLinks):
                return _with_positions(job, self._outer.delete_links(job, spec))
            return _fitting(LinksCreated(job=job, links=self._outer.create_links(job, spec)))
        except Exception as error:  # whatever it was, the job must hear of it or it is tried again
            answered = isinstance(error, SardonyxError) and not isinstance(error, SetupError)
            final = answered or attempt >= ATTEMPTS
            if isinstance(effect, CreateLinks) and final:
                return LinksFailed(job=job, error=failure_of(error, where={"job": job}))
            log.warning(
                "links could not be removed" if isinstance(effect, DeleteLinks) else "links could not be made",
                n=n,
                job=job,
                attempt=attempt,
                reason=str(error),
                exc_info=not isinstance(error, SardonyxError),
            )
            return None


def _with_positions(job: str, last: LastCommits) -> LinksDeleted:
    """The event; without the positions if an entry of the log cannot hold them, since the topics are gone already."""
    event = LinksDeleted(job=job, counts=last.counts, positions=last.positions)
    size = len(encode_event(event))
    if size <= ENTRY_LIMIT:
        return event
    log.warning("positions_not_kept", job=job, size=size, limit=ENTRY_LIMIT, positions=last.positions)
    return LinksDeleted(job=job, counts=last.counts)


def _fitting(event: LinksCreated) -> AnyEvent:
    """The event, or the job's failure if there is more to say of its links than the log takes."""
    size = len(encode_event(event))
    if size <= ENTRY_LIMIT:
        return event
    partitions = sum(facts.partitions for facts in event.links.values())
    error = Failure(
        "SX-JOB-TOO-MANY-PARTITIONS",
        f"the job's {len(event.links)} links have {partitions:,} partitions, more than one job can keep track of",
        cause=f"what every reader must know of them takes {size:,} bytes; {ENTRY_LIMIT:,} is the most",
        fix="split the job, or read topics with fewer partitions",
        where={"job": event.job},
    )
    return LinksFailed(job=event.job, error=error)
