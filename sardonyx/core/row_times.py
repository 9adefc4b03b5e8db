"""Where the time of a row stands, at each place of a job's graph. Pure.

A column of the inputs holds it, and functions keep that column. The results of a window by time have a time of their own in the
column ``window_time``, which is right before its end. So a second window puts the results for 12:00 to 12:05 into its own window
that ends at 12:05. Flink's tables have the same column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from sardonyx.core.joining import JOIN_TIME
from sardonyx.core.spec import JobSpec, TaskSpec, late_policy, whole_of
from sardonyx.core.timing import RowTime


class Untimed(NamedTuple):
    """Why rows have no time."""

    task: str
    why: Literal["input", "window", "failed", "latest", "graph", "iterate"]
    """The input has no ``time``; the window is not by time; they are the failed records of a task; they are the latest rows,
    given at the end of the input; or the results of a graph or of rounds."""


Times = frozenset[RowTime | Untimed]


def row_times(spec: JobSpec, order: Iterable[str]) -> dict[str, Times]:
    """By task, the times of the rows that it reads (of an input: of those that it gives). Several if tasks before it differ.

    Args:
        spec: a job whose workflow names only tasks of its catalog.
        order: the names of its tasks in topological order.
    """
    tasks = {task.name: task for task in spec.catalog}
    reads: dict[str, Times] = {}
    for name in order:
        found: set[RowTime | Untimed] = set()
        for source, target in spec.workflow:
            if target == name:
                found |= _over(spec, tasks[source], reads, name)
        reads[name] = frozenset(found) if tasks[name].type != "input" else frozenset({_of_input(tasks[name])})
    return reads


def time_of(task: TaskSpec, times: Times) -> RowTime | None:
    """By which column a task with state tells the time of the rows that its task reads; None if they have no time,
    or several.
    """
    known = sorted((each for each in times if isinstance(each, RowTime)), key=lambda each: each.column)
    says = task.window or task.keyed or task.relation
    named = None if says is None else says.time
    if named is not None:
        ordinal = any(each.ordinal for each in known)
        return next((each for each in known if each.column == named), RowTime(column=named, ordinal=ordinal))
    return known[0] if len(known) == len(times) == 1 else None


def time_over(spec: JobSpec, reads: Mapping[str, Times], source: str, target: str) -> RowTime | None:
    """Where the rows that go over one link have their time; None if they have none, or in several columns."""
    found = [*_over(spec, spec.task(source), reads, target)]
    return found[0] if len(found) == 1 and isinstance(found[0], RowTime) else None


def _of_input(task: TaskSpec) -> RowTime | Untimed:
    time = task.time
    if time is None:
        return Untimed(task.name, "input")
    return RowTime(column=time.column, unit=time.unit, ordinal=time.kind == "ordinal")


def _over(spec: JobSpec, source: TaskSpec, by_task: Mapping[str, Times], target: str) -> Times:
    """The times of the rows that go over one link, given those that each task reads."""
    reads = by_task[source.name]
    of = spec.route(source.name, target).of
    if of == "failed":
        return frozenset({Untimed(source.name, "failed")})
    if whole_of(source) is not None:
        versions = source.graph is not None and source.graph.window is not None
        why: Literal["graph", "iterate"] = "iterate" if source.graph is None else "graph"
        return frozenset({_of_results(reads) if versions else Untimed(source.name, why)})
    if late_policy(source) is None or of == "late":
        return reads
    if source.window is None:
        return _of_relation(spec, source, by_task)
    if not source.window.by_time:
        return frozenset({Untimed(source.name, "window")})
    return frozenset({_of_results(reads)})


def _of_results(reads: Times) -> RowTime:
    """The time of what windows give."""
    return RowTime(column="window_time", ordinal=any(isinstance(each, RowTime) and each.ordinal for each in reads))


def _of_relation(spec: JobSpec, task: TaskSpec, by_task: Mapping[str, Times]) -> Times:
    """The times of the results of a join, a lookup, of distinct or latest rows."""
    relation, reads = task.relation, by_task[task.name]
    assert relation is not None  # noqa: S101 (for the type checker: the caller asks)
    if relation.kind == "join":
        ordinal = any(isinstance(each, RowTime) and each.ordinal for each in reads)
        return frozenset({RowTime(column=JOIN_TIME, ordinal=ordinal)})
    if relation.kind == "lookup" and (relation.left, task.name) in spec.workflow:
        return _over(spec, spec.task(str(relation.left)), by_task, task.name)
    if relation.kind == "latest" and relation.emit == "final":
        return frozenset({Untimed(task.name, "latest")})
    return reads


__all__ = ["Times", "Untimed", "row_times", "time_of", "time_over"]
