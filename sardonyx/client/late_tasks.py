"""Which tasks of a running job are late, and what each lacks: why a job is slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.client.batch_times import OfTask
from sardonyx.client.lags import LinkLag
from sardonyx.client.verdict import LATE, cap_of, facts_of, verdict
from sardonyx.client.views import TaskView
from sardonyx.core.text import plural

if TYPE_CHECKING:
    from sardonyx.client.job_handle import JobHandle

APART = 2.0
"""Seconds between two looks, from which follows whether a task catches up."""


def late_tasks(
    handle: JobHandle, limits: Mapping[str, int], held: Callable[[Sequence[LinkLag]], Collection[str]]
) -> list[OfTask]:
    """Say of each late task how late it is, whether it catches up, and what it lacks. Takes two seconds if there is one.
    A task that a full queue holds is not late by itself: it is left out.

    Args:
        handle: of a running job.
        limits: the most peers that each task can take.
        held: the tasks that full queues hold, from what is unread on the links.

    Raises:
        SardonyxError: as :meth:`~sardonyx.client.job_handle.JobHandle.lag`.
    """
    first, began = handle.lag(holds=False), time.monotonic()
    if not any(map(_is_late, first)):
        return []
    time.sleep(APART)
    second = handle.lag(holds=False)
    seconds = time.monotonic() - began
    paused = {*held(first), *held(second)}
    tasks = [task for task in handle.status(live=False).tasks if task.name not in paused]
    spec = handle.spec()
    return in_words(
        first, second, seconds, tasks, limits, {name: cap_of(spec.task(name), most) for name, most in limits.items()}
    )


def in_words(
    first: Sequence[LinkLag],
    second: Sequence[LinkLag],
    seconds: float,
    tasks: Sequence[TaskView],
    limits: Mapping[str, int],
    caps: Mapping[str, str] = {},
) -> list[OfTask]:
    """Describe late tasks as :func:`late_tasks` does, from two looks ``seconds`` apart. The latest task comes first. Pure."""
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
        facts = facts_of(task, read, growth, limit, cap=caps.get(task.name, ""))
        words = f"task {task.name} is late with {worst.link}: {verdict(facts).text}"
        if facts.growth is not None and abs(facts.growth) > 0.5:  # as a whole number, it would be 0
            words += f" ({_trend(facts.growth)})"
        if limit is not None and task.peers < limit and (facts.growth is None or facts.growth >= 0):
            words += f"; it has {task.peers} of the {limit} {plural(limit, 'peer', 'peers')} that it can take"
        found.append((worst.seconds or 0.0, OfTask(task.name, words)))
    return [said for _, said in sorted(found, reverse=True)]


def _trend(growth: float) -> str:
    return f"the unread rows become {'more' if growth > 0 else 'fewer'} by {abs(growth):,.0f} a second"


def _is_late(lag: LinkLag) -> bool:
    # A split waits since the job began, however fast the input is read: its age says nothing.
    return lag.unit == "records" and bool(lag.records) and (lag.seconds or 0.0) >= LATE
