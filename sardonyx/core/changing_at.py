"""A change of a running job that takes effect at a time: rows before it go the old way, rows from it on the new one. Pure.

Three versions of the job follow each other, and each is an ordinary change:

1. In the first one, the tasks of the old version and of the new one stand side by side (:func:`side_by_side`). The edges from
   tasks that stay into new ones have a bound, and so have those into tasks that go. So each row goes one way, by its own time and
   by nothing else.
2. When the clock has passed the time, no row that comes is older, late ones apart. No row goes the old way any more, and late
   rows go the new one (:func:`closed`). What went the old way is read to its end.
3. The old tasks go (:func:`complete`).

This holds only if no task has worked a row of that time or later before the first of them takes over. So the coordinator asks
what the inputs have read, once no peer can commit by the old version any more (:func:`passed`).

A task that reads a topic in place leaves out the rows of other times as it reads them, for there is no queue of ours. Its bound
stays when the change is complete: a late row would otherwise be worked by it although the old task has worked it, or by none.
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import Failure
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Stage, graph_of, order_of
from sardonyx.core.positions import Partition, Position, clock_of
from sardonyx.core.row_times import row_times, time_over
from sardonyx.core.spec import JobSpec, Route, TaskSpec
from sardonyx.core.spec_fields import JOB_FIELDS, job_changes, kind_of_field, task_changes
from sardonyx.core.text import listed, plural, time_text
from sardonyx.core.timing import Bounds

Edge = tuple[str, str]


class Pending(NamedTuple):
    """A change at a time that a job waits for."""

    at: int
    """Microseconds since 1970, or a number of rows."""
    ordinal: bool
    closed: bool
    """No row goes the old way any more."""
    new: list[str]
    """The tasks that get only rows from then on, over an edge of their own."""
    old: list[str]
    """Those that get only rows before it."""

    @property
    def time(self) -> str:
        """The time, for people."""
        return at_text(self.at, ordinal=self.ordinal)


def at_text(at: int, *, ordinal: bool) -> str:
    """A time of a clock, for people."""
    return f"row {at:,}" if ordinal else time_text(at)


def bounds_text(bounds: Bounds) -> str:
    """Which rows go over an edge, in words."""
    if bounds.before is None:
        return f"from {at_text(bounds.since or 0, ordinal=bounds.time.ordinal)} on"
    return "none" if bounds.over else f"before {at_text(bounds.before, ordinal=bounds.time.ordinal)}"


def pending(spec: JobSpec) -> Pending | None:
    """The change at a time that is not complete; None: there is none."""
    found = {name: route.bounds for name, route in spec.routes.items() if route.bounds is not None}
    open_ = {name: each for name, each in found.items() if each.before is not None or not each.over}
    if not open_:
        return None
    one = next(iter(open_.values()))
    at = one.since if one.before is None else one.before
    return Pending(
        at or 0,
        one.time.ordinal,
        any(each.over for each in open_.values()),
        sorted({name.partition(".")[2] for name, each in found.items() if each.since is not None}),
        sorted({name.partition(".")[2] for name, each in found.items() if each.before is not None}),
    )


def going(spec: JobSpec) -> list[str]:
    """The tasks that go when the change at a time is complete."""
    stay = _tasks_and_edges(one_side(spec, _edges(spec, "before")))[0]
    return [task.name for task in spec.catalog if task.name not in stay]


def settled(spec: JobSpec) -> JobSpec:
    """A job without the bounds that stay when a change at a time is complete; as it is if one is not complete."""
    return _unbound(spec) if pending(spec) is None else spec


def _unbound(spec: JobSpec) -> JobSpec:
    routes = {name: replace(route, bounds=None) for name, route in spec.routes.items()}
    return replace(spec, routes={name: route for name, route in routes.items() if route != Route()})


def follows(old: JobSpec, new: JobSpec) -> bool:
    """Whether a version may follow one in which a change at a time is not complete: one of its two, or both side by side."""
    now = pending(new)
    if now is not None and now.at != (pending(old) or now).at:
        return False
    return _tasks_and_edges(new) in [
        _tasks_and_edges(old),
        *(_tasks_and_edges(one_side(old, gone)) for gone in (_edges(old, "since"), _edges(old, "before"))),
    ]


def leads_to(known: JobSpec, new: JobSpec) -> bool:
    """Whether a change at a time that is not complete makes a job this one."""
    found = replace(
        _unbound(known), catalog=known.catalog[: len(new.catalog)], workflow=known.workflow[: len(new.workflow)]
    )
    old = _edges(known, "before")
    gone = {f"{source}.{target}" for source, target in known.workflow if (source, target) not in new.workflow}
    routes = {name: route for name, route in found.routes.items() if name not in gone}
    return replace(found, routes=routes) == new and _tasks_and_edges(one_side(known, old)) == _tasks_and_edges(new)


def one_side(spec: JobSpec, gone: Collection[Edge]) -> JobSpec:
    """A job without some edges, and without the tasks that are there only for them."""
    edges = [edge for edge in spec.workflow if edge not in gone]
    names = {task.name for task in spec.catalog}
    inputs = {task.name for task in spec.catalog if task.type == "input"}
    left: set[str] = set()
    while left != names:
        left = names
        fed, feeds = {target for _, target in edges}, {source for source, _ in edges}
        names = {name for name in left if (name in feeds if name in inputs else name in fed)}
        edges = [edge for edge in edges if {*edge} <= names]
    return replace(spec, catalog=[task for task in spec.catalog if task.name in names], workflow=edges)


def _tasks_and_edges(spec: JobSpec) -> tuple[set[str], set[Edge]]:
    return {task.name for task in spec.catalog}, {(source, target) for source, target in spec.workflow}


def _edges(spec: JobSpec, side: str) -> set[Edge]:
    """The edges that have a bound on one side."""
    return {
        (source, target)
        for source, target in spec.workflow
        if getattr(spec.route(source, target).bounds, side, None) is not None
    }


# --- The three versions -----------------------------------------------------------------------------------------------


def side_by_side(old: JobSpec, new: JobSpec, at: int) -> JobSpec:
    """The first version: all tasks of both, and bounds where their ways part. ``problems_at`` has found nothing."""
    both = _both(old, new)
    order = order_of(both)
    times = row_times(both, order)
    routes = dict(both.routes)
    for source, target, side in parting(old, new):
        time = time_over(both, times, source, target)
        if time is not None:
            bounds = Bounds(time=time, since=at) if side == "since" else Bounds(time=time, before=at)
            routes[f"{source}.{target}"] = replace(both.route(source, target), bounds=bounds)
    return replace(both, routes=routes)


def closed(known: JobSpec, new: JobSpec) -> JobSpec:
    """The second version: nothing goes the old way, and all that is not taken by a topic's readers goes the new one.

    Args:
        known: the first one.
        new: the job as it is to be.
    """
    both = complete(known, new)
    names = {task.name for task in new.catalog}
    routes = dict(both.routes)
    for source, target in known.workflow:
        name, route = f"{source}.{target}", known.route(source, target)
        if (source, target) not in new.workflow and route != Route():
            bounds = route.bounds and replace(route.bounds, over=True)
            routes[name] = replace(route, bounds=bounds)
    return replace(
        both,
        catalog=[*both.catalog, *(task for task in known.catalog if task.name not in names)],
        workflow=[*both.workflow, *(edge for edge in known.workflow if edge not in new.workflow)],
        routes=routes,
    )


def complete(known: JobSpec, new: JobSpec) -> JobSpec:
    """The third version: the new one. Readers of topics in place go on to leave out what is older."""
    in_place = graph_of(known, "", "").bound
    routes = dict(new.routes)
    for source, target in new.workflow:
        bounds = known.routes.get(f"{source}.{target}", Route()).bounds
        if bounds is not None and source in in_place and new.task(source).type == "input":
            routes[f"{source}.{target}"] = replace(new.route(source, target), bounds=replace(bounds, over=True))
    return replace(new, routes=routes)


def _both(old: JobSpec, new: JobSpec) -> JobSpec:
    """The new version, with the tasks and edges that only the old one has."""
    names = {task.name for task in new.catalog}
    gone = [edge for edge in old.workflow if edge not in new.workflow]
    routes = {f"{source}.{target}": old.route(source, target) for source, target in gone}
    return replace(
        new,
        catalog=[*new.catalog, *(task for task in old.catalog if task.name not in names)],
        workflow=[*new.workflow, *gone],
        routes={**new.routes, **{name: route for name, route in routes.items() if route != Route()}},
    )


def parting(old: JobSpec, new: JobSpec) -> Iterator[tuple[str, str, str]]:
    """The edges where the ways of the two versions part, and which bound each has: those that only one of them has, from a task
    that both have, or from an input. What comes after a task that only one of them has is made of its rows alone.
    """
    stay = {task.name for task in old.catalog} & {task.name for task in new.catalog}
    for one, other, side in ((new, old, "since"), (old, new, "before")):
        inputs = {task.name for task in one.catalog if task.type == "input"}
        for source, target in one.workflow:
            if (source, target) not in other.workflow and source in stay | inputs:
                yield source, target, side


# --- What stands in the way -------------------------------------------------------------------------------------------


def problems_at(old: JobSpec, new: JobSpec, same: Collection[str]) -> Iterator[str]:
    """What of a change cannot be made at a time. Nothing: all that differs are tasks and edges that come and go, over edges whose
    rows have times.

    Args:
        old: the job as it runs.
        new: the job as it is to be. The change can be made at once.
        same: the stages of the old one whose functions are the same in the code of both.
    """
    edges = list(parting(old, new))
    others = list(_other_differences(old, new, same))
    yield from others
    if not edges:
        if not others:
            yield "no task or edge comes or goes by it"
        return
    both = _both(old, new)
    try:
        times = row_times(both, order_of(both))
    except graphlib.CycleError:
        yield "the tasks of both versions side by side would be in a circle"
        return
    tasks = {task.name: task for task in both.catalog}
    in_place = graph_of(both, "", "").bound
    looping = {target for _, target in both.feedback}
    for source, target, side in edges:
        edge = f"{source}.{target}"
        before = _upstream(both, source)
        if looping & before:
            yield f"the rows of {edge} come out of a loop, where the clock stands still"
        elif time_over(both, times, source, target) is None:
            yield f"the rows of {edge} have no time, or not all in one column"
        elif (early := tasks[source].window) is not None and early.by_time and early.emit != "final":
            yield f"task {source} gives results of windows before they close, whose times are still to come"
        elif source in in_place and tasks[source].type == "input":
            yield from _of_topic(tasks[source], edge, side)
        for name in sorted(before):
            if tasks[name].type == "input" and tasks[name].connector != "kafka":
                yield f"input {name} is read in pieces, so it has no clock before its end"


def _of_topic(task: TaskSpec, edge: str, side: str) -> Iterator[str]:
    """Of a topic that both versions of a task read in place, each by itself."""
    kind = None if task.time is None else task.time.kind
    if kind == "wall" or (kind == "ordinal" and side == "since"):
        why = "each task that reads the topic gives its rows times of its own"
        yield f"the rows of {edge} have no time that all readers agree on: {why}"


def _other_differences(old: JobSpec, new: JobSpec, same: Collection[str]) -> Iterator[str]:
    for field, _, _ in job_changes(old, new):
        if JOB_FIELDS[field] != "doc":
            yield f"{field} of the job differs: a change of its own can make it"
    before = {task.name: task for task in old.catalog}
    for task in new.catalog:
        for field, _, _ in task_changes(before[task.name], task) if task.name in before else ():
            if field != "doc":
                own = "" if kind_of_field(field, task) == "function" else ": a change of its own can make it"
                yield f"{field} of task {task.name} differs{own}"
    for source, target in old.workflow:
        if (source, target) in new.workflow and old.route(source, target) != new.route(source, target):
            yield f"the condition of {source}.{target} differs: a change of its own can make it"
    others = [stage.name for stage in graph_of(old, "", "").stages if stage.name not in same]
    if others:
        yield f"the code of {listed(others)} differs, or it cannot be seen that it does not"


def _upstream(spec: JobSpec, name: str) -> set[str]:
    """A task, and all that lie before it."""
    found, look = {name}, [name]
    while look:
        here = look.pop()
        for source, target in spec.edges:
            if target == here and source not in found:
                found.add(source)
                look.append(source)
    return found


# --- What was read before ---------------------------------------------------------------------------------------------


def begins_at(old: JobSpec, new: JobSpec) -> Pending | None:
    """The change at a time that begins with a new version of a job; None: none does."""
    found = pending(new)
    return found if found is not None and pending(old) is None else None


def readers(before: Graph, spec: JobSpec) -> list[Stage]:
    """The stages, as they were, that read the topics from which rows come to the edges with bounds."""
    names: set[str] = set()
    for source, target in spec.workflow:
        if spec.route(source, target).bounds is not None:
            names |= _upstream(spec, source)
    return [
        stage for stage in before.stages if any(link.kind == "input" and link.source in names for link in stage.ingress)
    ]


def passed(
    job: str,
    found: Pending,
    stages: Collection[Stage],
    held: Mapping[str, Mapping[Partition, Position | None]],
    facts: Mapping[str, LinkFacts],
) -> Failure | None:
    """The error if a row of the time of a change, or a later one, was read before the change; None: there is none. A job that
    goes on from another one holds what that had read.

    Args:
        job: its id.
        found: the change.
        stages: those that read the topics (:func:`readers`).
        held: their positions.
        facts: of the job's links.
    """
    seen = [
        (*_seen(facts[link.name], partition, position), partition, stage.name)
        for stage in stages
        for link in stage.ingress
        if link.kind == "input"
        for partition, position in held.get(stage.name, {}).items()
        if partition.topic == link.topic
    ]
    greatest = max(seen, default=None)
    if greatest is None or greatest[0] < found.at:
        return None
    time, left_out, partition, task = greatest
    stands = at_text(time, ordinal=found.ordinal)
    cause = f"task {task} has read a row of {stands} from {partition.topic}[{partition.number}], by the version before"
    if left_out:
        cause = f"the job goes on from a checkpoint, and task {task} leaves out rows up to {stands}, which that holds"
    return Failure(
        "SX-JOB-CHANGE-PASSED",
        f"job {job} was not changed at {found.time}: rows up to {stands} are read already",
        cause=cause,
        fix=f"choose a time after {stands}, and late enough that the job has not come there when the change is made",
        where={"job": job, "task": task},
    )


def _seen(facts: LinkFacts, partition: Partition, position: Position | None) -> tuple[int, bool]:
    """Up to which time rows of a partition were read, and whether it is a checkpoint that says so."""
    seen = clock_of(facts, partition.number, position).seen
    left_out = NEVER if facts.since is None else facts.since - 1
    return max(seen, left_out), left_out > seen


def step_text(old: JobSpec, new: JobSpec) -> str:
    """What a revision does for a change at a time; empty: nothing."""
    was, now = pending(old), pending(new)
    if now is not None and was is None:
        return f"it begins a change at {now.time}: {_ways_text(now)}"
    if now is not None and was is not None and now.closed and not was.closed:
        return f"the clock has passed {now.time}: no row goes the old way any more"
    if was is not None and now is None:
        made = _tasks_and_edges(one_side(old, _edges(old, "before"))) == _tasks_and_edges(new)
        return f"the change at {was.time} is {'complete' if made else 'given up'}"
    return ""


def _ways_text(found: Pending) -> str:
    ways = ((found.old, "before it"), (found.new, "from it on"))
    return ", ".join(
        f"{listed(names)} {plural(len(names), 'gets', 'get')} the rows {which}" for names, which in ways if names
    )


def waits_text(found: Pending) -> str:
    """What a job waits for, in words."""
    if found.closed:
        return f"its change at {found.time} is nearly complete: what went the old way is read to its end"
    return f"it is being changed at {found.time}: {_ways_text(found)}; that is complete when its clock has passed it"


__all__ = [
    "Pending",
    "at_text",
    "begins_at",
    "bounds_text",
    "closed",
    "complete",
    "follows",
    "going",
    "leads_to",
    "one_side",
    "parting",
    "passed",
    "pending",
    "problems_at",
    "readers",
    "settled",
    "side_by_side",
    "step_text",
    "waits_text",
]
