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
from sardonyx.core.names import NAME_RULE, is_name
from sardonyx.core.reach import Reach
from sardonyx.core.spec import CycleSpec, JobSpec, TaskSpec


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
    """Edges that the job has several times, with how often."""
    return {edge: count for edge, count in Counter(spec.edges).items() if count > 1}


def unknown_tasks(spec: JobSpec) -> Iterator[UnknownTask]:
    """The ends of edges that name no task of the catalog."""
    known = {task.name for task in spec.catalog}
    for source, target in spec.edges:
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
    return {target for _, target in spec.edges}


def left(spec: JobSpec) -> set[str]:
    """Tasks that an edge leads out of: every task but outputs should be one."""
    return {source for source, _ in spec.edges}


class LoopProblem(NamedTuple):
    """What is wrong with a declared loop."""

    cycle: str
    message: str
    fix: str
    code: str = "SX-CYCLE-EDGES"
    task: str = ""


def loop_problems(spec: JobSpec) -> Iterator[LoopProblem]:
    """What is wrong with the loops of a job, by its edges alone. Its workflow must have no cycle."""
    called = Counter(cycle.name for cycle in spec.cycles)
    inside: dict[str, str] = {}
    for cycle in spec.cycles:
        if not is_name(cycle.name):
            yield LoopProblem(cycle.name, "it cannot be called so", f"a name is {NAME_RULE}", "SX-JOB-NAME")
        elif called[cycle.name] > 1:
            yield LoopProblem(cycle.name, "two loops have this name", "name each loop differently", "SX-JOB-DUPLICATE")
        if cycle.max_hops is not None and cycle.max_hops < 1:
            yield LoopProblem(cycle.name, f"max_hops cannot be {cycle.max_hops}", "give 1 or more", "SX-CYCLE-LIMIT")
        if not cycle.back:
            fix = "give it the results of a task with `feedback(...)`"
            yield LoopProblem(cycle.name, "no feedback edge closes it", fix)
        yield from _loop_edges(spec, cycle, inside)


def _loop_edges(spec: JobSpec, cycle: CycleSpec, inside: dict[str, str]) -> Iterator[LoopProblem]:
    """``inside``: task -> the loop that it is in, of the loops so far; those of this one are added."""
    known = [task.name for task in spec.catalog]
    edges, back = ([edge for edge in each if {*known}.issuperset(edge)] for each in (spec.workflow, cycle.back))
    if not back:
        return
    reach = Reach(known, [*edges, *back])
    first = back[0][1]
    names = [name for name in known if name in reach.after(first) and name in reach.before(first)]
    for source, target in back:
        if source not in reach.after(target):
            yield LoopProblem(
                cycle.name,
                f"the feedback edge from {source!r} to {target!r} closes no loop: no row of {target!r} comes to {source!r}",
                "feed back the results of a task that comes after the beginning of the loop",
                task=source,
            )
        elif target not in names:
            yield LoopProblem(
                cycle.name,
                f"rows of {first!r} do not come to {target!r}, so its feedback edges close several loops",
                "declare each of them as a loop of its own",
                task=target,
            )
    for name in names:
        other = inside.setdefault(name, cycle.name)
        if other != cycle.name:
            yield LoopProblem(
                cycle.name,
                f"task {name!r} is in the loop {other!r}, too",
                "declare them as one loop, with several feedback edges",
                "SX-CYCLE-OVERLAP",
                name,
            )
    if not any(target in names and source not in names for source, target in edges):
        yield LoopProblem(cycle.name, "nothing comes into it from outside", "name the tasks before it with after=")


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
