"""Which jobs Kafka is asked about for the pages, and when: often about one whose page is open, and now and then about every
running job while the page of the deployment is. Pure: times are arguments, in seconds of a clock that only goes forwards.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping

from sardonyx.web.sight import Samples

LOOKED_AT = 15.0
"""Seconds for which Kafka is asked about a job after its page, or that of the deployment, was asked for last."""
ASK_EVERY = 2.0
"""Seconds between two questions to Kafka about a job whose page is open, at least."""
GLANCE_EVERY = 5.0
"""The same for a job whose page is not open."""
SHARE = 4
"""Kafka is asked for at most one part of so many of the time about one job, and about all those whose pages are not open."""


class Watched:
    """A job about which Kafka is asked."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.samples = Samples()
        self.until = -math.inf
        """Until when its page counts as open."""
        self.glanced_until = -math.inf
        """Until when that of the deployment counts as open."""
        self.asked = -math.inf
        """When Kafka was asked about it last."""
        self.took = 0.0
        """How many seconds the answer took."""

    def is_open(self, now: float) -> bool:
        return self.until >= now

    def period(self, now: float) -> float:
        """Seconds between two questions, from when one is asked until the next one is."""
        return max(ASK_EVERY if self.is_open(now) else GLANCE_EVERY, SHARE * self.took)


class Watching:
    """The jobs about which Kafka is asked. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._rest = -math.inf
        """Until when no job is asked about whose page is not open."""

    def __bool__(self) -> bool:
        return bool(self._watched)

    def look(self, job: str, now: float) -> Watched:
        """The page of this job is shown."""
        with self._lock:
            watched = self._watched.setdefault(job, Watched(job))
            watched.until = now + LOOKED_AT
            return watched

    def glance(self, jobs: Iterable[str], now: float) -> Mapping[str, Watched]:
        """The page of the deployment is shown, in which these jobs run."""
        with self._lock:
            found = {job: self._watched.setdefault(job, Watched(job)) for job in jobs}
            for watched in found.values():
                watched.glanced_until = now + LOOKED_AT
            return found

    def period(self, job: str, now: float) -> float | None:
        """Seconds between two questions about a job; None: it is not watched."""
        watched = self._watched.get(job)
        return None if watched is None else watched.period(now)

    def due(self, now: float) -> Watched | None:
        """The job that is to be asked about now, if any; one whose page is open comes first. Jobs not looked at are forgotten."""
        with self._lock:
            for job in [job for job, each in self._watched.items() if max(each.until, each.glanced_until) < now]:
                del self._watched[job]
            due = [
                each
                for each in self._watched.values()
                if each.asked + each.period(now) <= now and (each.is_open(now) or self._rest <= now)
            ]
            return min(due, key=lambda each: (not each.is_open(now), each.asked), default=None)

    def told(self, watched: Watched, began: float, now: float) -> None:
        """Kafka was asked about a job at ``began``, and has told by now, or has not."""
        with self._lock:
            watched.asked, watched.took = began, now - began
            if not watched.is_open(now):
                self._rest = began + SHARE * watched.took
