"""Which tasks of a running job are late, and what each lacks: why a job is slow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.client.lags import LinkLag
from sardonyx.client.verdict import LATE, facts_of, verdict
from sardonyx.client.views import TaskView
from sardonyx.core.text import plural

if TYPE_CHECKING:
    from sardonyx.client.job_handle import JobHandle

APART = 2.0
"""Seconds between two looks, from which follows whether a task catches up."""


def late_tasks(handle: JobHandle, limits: Mapping[str, int]) -> list[str]:
    """Say of each late task how late it is, whether it catches up, and what it lacks. Takes two seconds if there is one.

    Args:
        handle: of a running job.
        limits: the most peers that each task can take.

    Raises:
        SardonyxError: as :meth:`~sardonyx.client.job_handle.JobHandle.lag`.
    """
    first, began = handle.lag(holds=False), time.monotonic()
    if not any(map(_is_late, first)):
        return []
    time.sleep(APART)
    second = handle.lag(holds=False)
    return in_words(first, second, time.monotonic() - began, handle.status(live=False).tasks, limits)


def in_words(
    first: Sequence[LinkLag],
    second: Sequence[LinkLag],
    seconds: float,
    tasks: Sequence[TaskView],
    limits: Mapping[str, int],
) -> list[str]:
    """The same from two looks, so many ``seconds`` apart. The task that is latest comes first. Pure."""
    known = [{lag.link: lag.records for lag in look} for look in (first, second)]

    def growth(link: str) -> float | None:
        then, now = (look.get(link) for look in known)
        return None if then is None or now is None else (now - then) / seconds

    found = []
    for task in tasks:
        read = [lag for lag in second if lag.reader == task.name]
        late = [lag for lag in read if _is_late(lag)]
        if not late or not task.peers:  # the log says why a task has no peer
            continue
        worst = max(late, key=lambda lag: lag.seconds or 0.0)
        limit = limits.get(task.name)
        facts = facts_of(task, read, growth, limit)
        words = f"task {task.name} is late with {worst.link}: {verdict(facts).text}"
        if facts.growth:
            words += f" ({facts.growth:+,.0f} unread rows a second)"
        if limit is not None and task.peers < limit and (facts.growth is None or facts.growth >= 0):
            words += f"; it has {task.peers} of the {limit} {plural(limit, 'peer', 'peers')} that it can take"
        found.append((worst.seconds or 0.0, words))
    return [words for _, words in sorted(found, reverse=True)]


def _is_late(lag: LinkLag) -> bool:
    # A split waits since the job began, however fast the input is read: its age says nothing.
    return lag.unit == "records" and bool(lag.records) and (lag.seconds or 0.0) >= LATE
