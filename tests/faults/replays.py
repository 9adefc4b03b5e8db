"""Replays of jobs that are rolled back again and again while processes die: of ranges that the seed chooses, of jobs that run and
of those that have ended.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import JobFailed, SardonyxError
from tests.faults.cluster import Cluster, now
from tests.faults.rolled import START, WINDOW, Result, Row, Window, at_of, results_of, second_of, window_of, windows_of
from tests.waiting import until

T = TypeVar("T")
LONG = 600
"""Seconds that a replay may take, with all that dies meanwhile."""


class Span(NamedTuple):
    """What is replayed."""

    since: int
    """Seconds from the start to the beginning of the range."""
    until: int
    with_state: bool

    def __str__(self) -> str:
        return f"{self.since} s to {self.until} s {'with' if self.with_state else 'without'} state"


class Begun(NamedTuple):
    """A replay."""

    handle: JobHandle
    topic: str
    """Where its results go."""
    span: Span
    at: float
    """When it began."""

    def __str__(self) -> str:
        return f"replay {self.handle.id} of {self.span}"


class Replays:
    """Those of one run.

    Args:
        cluster: that the jobs run on.
        rng: chooses jobs and ranges.
        rows: all that were given so far.
    """

    def __init__(self, cluster: Cluster, rng: random.Random, rows: Sequence[Row]) -> None:
        self._cluster, self._rng, self._rows = cluster, rng, rows
        self._jobs: list[tuple[JobHandle, datetime]] = []
        self._number = 0
        self.done: Counter[str] = Counter()
        self.took: list[float] = []
        self.windows = 0

    def goes_on(self, handle: JobHandle, since: datetime) -> None:
        """Another job goes on, from a checkpoint of the one before."""
        self._jobs.append((handle, since))

    def begin(self) -> Begun | None:
        """Begin a replay; None: no job has checkpoints that are far enough apart."""
        with_state = self._rng.random() < 0.5
        jobs = list(self._jobs)
        self._rng.shuffle(jobs)
        for handle, since in jobs:
            span = self._span(handle, second_of(since), with_state)
            if span is not None:
                return self._begun(handle, span)
        return None

    def _span(self, handle: JobHandle, since: int, with_state: bool) -> Span | None:
        """A range that the clocks of the job have passed. It begins where a window does, or with state at a checkpoint."""
        times = [second_of(time) for time in _asked(lambda: handle.checkpoints().times, "the checkpoints")]
        last = max(times, default=since)
        bounds = range(math.ceil(since / WINDOW) * WINDOW, last + 1, WINDOW)
        if not with_state:
            if len(bounds) < 2:
                return None
            first, second = self._rng.sample(bounds, 2)
            return Span(min(first, second), max(first, second), with_state=False)
        begins = [time for time in times if time < max(bounds, default=0)]
        if not begins:
            return None
        begin = self._rng.choice(begins)
        return Span(begin, self._rng.choice([bound for bound in bounds if bound > begin]), with_state=True)

    def _begun(self, handle: JobHandle, span: Span) -> Begun:
        first, last = (START + timedelta(seconds=each) for each in (span.since, span.until))

        def begun() -> tuple[JobHandle, str]:
            self._number += 1
            word = f"r{self._number}"  # results of an attempt whose end was not told stay apart
            return handle.replay(first, last, with_state=span.with_state, outputs=word), f"sums.{word}"

        began = now()
        again, topic = _asked(begun, "a replay to begin")
        found = Begun(again, topic, span, began)
        sys.stderr.write(f"{found}, rows of {handle.id}\n")
        return found

    def wrong(self, begun: Begun) -> list[str]:
        """Wait for a replay; gives what is wrong with its results."""
        try:
            status = begun.handle.await_completion(LONG).status
        except SardonyxError as error:
            return [f"{begun}: {error}"]
        if status != "completed":
            return [f"{begun} is {status}"]
        self.took.append(now() - begun.at)
        self.done["with state" if begun.span.with_state else "without state"] += 1
        found = results_of(self._cluster.settings, begun.topic)
        self.windows += len(found)
        return [f"{begun}: {problem}" for problem in judged(begun.span, list(self._rows), found)]


def judged(span: Span, rows: Sequence[Row], results: Sequence[Result]) -> list[str]:
    """What is wrong with the results of a replay. Each window of the range must come once, and count exactly the rows of the
    range; with state, also those before it in windows that were open then. A user must be new once; with state, never.
    """
    before = [row for row in rows if second_of(at_of(row)) < span.since]
    mine = [row for row in rows if span.since <= second_of(at_of(row)) < span.until]
    if span.with_state:
        mine += [row for row in before if window_of(row).begin + WINDOW > span.since]
    wanted = Counter(dict.fromkeys(windows_of(mine).items(), 1))
    given = Counter((result.window, result.hits) for result in results)
    found = [f"lacks {_shown(lost)}" for lost in (wanted - given,) if lost]
    found += [f"has too many of {_shown(more)}" for more in (given - wanted,) if more]
    new: Counter[int] = Counter()
    for result in results:
        if not span.with_state or result.window.begin >= span.since:  # the job itself has worked rows of the others
            new[result.window.user] += result.new
    once = 0 if span.with_state else 1
    users = sorted({row["user"] for row in (before if span.with_state else mine)})
    return found + [f"user {user} was new {new[user]} times in place of {once}" for user in users if new[user] != once]


def _shown(results: Counter[tuple[Window, int]]) -> str:
    return ", ".join(f"{tuple(window)} with {hits} rows" for window, hits in list(results)[:5])


def _asked(ask: Callable[[], T], what: str) -> T:
    """The answer to a client once there is one: a leader may be missing, and positions go on."""
    found: list[T] = []
    errors: list[SardonyxError] = []

    def asked() -> bool:
        try:
            found.append(ask())
        except JobFailed:
            raise
        except SardonyxError as error:
            errors.append(error)
        return bool(found)

    try:
        until(asked, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}: {errors[-1:]}") from error
    return found[0]


__all__ = ["Replays", "Span", "judged"]
