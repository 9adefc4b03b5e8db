"""Structural rules of a job's graph as predicates. Pure.

The client reports every breach with a fix (:mod:`sardonyx.job.validate`); the coordinator refuses a job that breaks one
(:mod:`coordinator.core.admission`), because a request may come from any client. Both ask here, so that they cannot disagree.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sardonyx.core.graph import order_of
from sardonyx.core.reach import Reach
from sardonyx.core.spec import JobSpec, TaskSpec


class UnknownTask(NamedTuple):
    """A name in the workflow that no task has."""

    name: str
    other: str
    """The task at the other end of the edge."""
    side: Literal["before", "after"]
    """Where the unknown one would come, seen from the other."""


def repeated_names(spec: JobSpec) -> dict[str, int]:
    """Names that several tasks have, with how many."""
    return {name: count for name, count in Counter(task.name for task in spec.catalog).items() if count > 1}


def repeated_edges(spec: JobSpec) -> dict[tuple[str, str], int]:
    """Edges that the workflow has several times, with how often."""
    return {edge: count for edge, count in Counter(spec.workflow).items() if count > 1}


def unknown_tasks(spec: JobSpec) -> Iterator[UnknownTask]:
    """The ends of edges that name no task of the catalog."""
    known = {task.name for task in spec.catalog}
    for source, target in spec.workflow:
        if source not in known:
            yield UnknownTask(source, target, "before")
        if target not in known:
            yield UnknownTask(target, source, "after")


def cycle_in(spec: JobSpec) -> list[str]:
    """The tasks of a cycle in order, the first one again at the end; empty if there is none. Ignores unknown tasks.

    It keeps no tables, so the coordinator may ask it about a request of any size. Which cycle it names must stay the same,
    because a replay of the log must give the same error. :func:`shortest_cycle` names the one that is easiest to see.
    """
    unique: dict[str, TaskSpec] = {}
    for task in spec.catalog:  # in its order, which decides where the cycle begins
        unique.setdefault(task.name, task)
    edges = [edge for edge in spec.workflow if unique.keys() >= set(edge)]
    try:
        order_of(JobSpec(name=spec.name, workflow=edges, catalog=list(unique.values())))
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def reach_of(spec: JobSpec) -> Reach[str]:
    """Which tasks reach which others, for any graph of tasks. Ignores edges that name an unknown task."""
    names = {task.name for task in spec.catalog}
    links = [edge for edge in spec.workflow if names.issuperset(edge)]
    return Reach((task.name for task in spec.catalog), links)


def shortest_cycle(spec: JobSpec) -> list[str]:
    """A shortest cycle of tasks, as :func:`cycle_in` gives one; empty if there is none."""
    return reach_of(spec).cycle() if cycle_in(spec) else []


def reached(spec: JobSpec) -> set[str]:
    """Tasks that an edge leads to: every task but inputs should be one."""
    return {target for _, target in spec.workflow}


def left(spec: JobSpec) -> set[str]:
    """Tasks that an edge leads out of: every task but outputs should be one."""
    return {source for source, _ in spec.workflow}


MOST_PRIORITY = 1000
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1000.0


def share_problems(
    priority: int = 0, weight: float = 1.0, percentage: float | None = None, max_peers: int | None = None
) -> Iterator[str]:
    """What is wrong with what a job asks of the cluster, a sentence each."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        yield f"priority cannot be {priority}: it lies between {-MOST_PRIORITY} and {MOST_PRIORITY}"
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        yield f"weight cannot be {weight}: it lies between {LEAST_WEIGHT} and {MOST_WEIGHT}"
    if percentage is not None and not 0 < percentage <= 100:
        yield f"percentage cannot be {percentage}: it is more than 0 and at most 100"
    if max_peers is not None and max_peers < 1:
        yield f"max_peers cannot be {max_peers}: a job needs at least one peer"
