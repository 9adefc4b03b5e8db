"""Until when tasks that get only rows before a time still give results of them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from sardonyx.core.graph import Graph, Stage
from sardonyx.core.joining import RelationSpec
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.joins import bounds
from sardonyx.state.kinds import windows_of


class LastResults(NamedTuple):
    """Of a task that gets only rows before a time."""

    clock: int
    """When its clock has come here, it has given all its results, late ones apart."""
    after: int
    """Its results are all older than this."""


def last_results(stage: Stage, at: int) -> LastResults:
    """When a task has given all its results.

    Args:
        stage: the task, which gets rows that are older than ``at``.
        at: a time in microseconds, or a number of rows.
    """
    task = stage.task
    window = task.window or (None if task.graph is None else task.graph.window)
    if window is not None and window.by_time:
        end = max(at, _last_end(window, at))
        return LastResults(end + length(window.grace), end)
    if task.relation is not None and task.relation.kind == "join":
        clock = at + _kept(task.relation)
        return LastResults(clock, clock)
    return LastResults(at, at)


def _last_end(window: WindowSpec, at: int) -> int:
    """The end of the last window that can hold a row before a time."""
    if window.kind == "session":
        return at - 1 + length(window.gap)
    kind = windows_of(window)
    return int(kind.ends(kind.last(kind.slices(np.array([at - 1], np.int64))))[0])


def _kept(join: RelationSpec) -> int:
    """How long a join keeps a row, at most."""
    return max(0, *(abs(reach) for reach in bounds(join))) + length(join.grace)


def due(graph: Graph, going: Collection[str], at: int) -> dict[str, int]:
    """By task, the clock at which it has given all results of rows before a time.

    Args:
        graph: of the job.
        going: the tasks that get only such rows. Those that stay are not asked for.
        at: the time.
    """
    after: dict[str, int] = {}
    found: dict[str, int] = {}
    for stage in graph.stages:
        if stage.name in going:
            begin = max([at, *(after[link.source] for link in stage.ingress if link.source in after)])
            found[stage.name], after[stage.name] = last_results(stage, begin)
    return found


__all__ = ["LastResults", "due", "last_results"]
