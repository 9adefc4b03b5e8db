"""How a job runs, as it follows from its spec alone: operators, the exchanges between them, and groups. Pure.

An operator is what runs in one process, an exchange says by what rule rows find a partition of the next operator, and a group is
what rows connect. The parts are modelled on GeaFlow's ``PipelineGraph``, of vertices and edges, and ``ExecutionGraph``, of groups
of vertices. A group there is deployed as a whole, and its rows are pipelined. Here every exchange between two operators is a
durable queue, so the tasks of a group can be worked in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from sardonyx.core.conditions import condition_text
from sardonyx.core.graph import Graph, Link, Stage, graph_of, has_end
from sardonyx.core.reach import Reach
from sardonyx.core.spec import JobSpec, TaskSpec, references_of, store_of, whole_of
from sardonyx.core.stores import store_text

OperatorKind = Literal["source", "one-input", "two-input", "iterator", "sink"]
"""``source``: reads the job's input, and works on its rows if it has functions. ``one-input``: reads one stream of rows, or
several as if they were one. ``two-input``: a join or a lookup, whose two streams play different parts. ``iterator``:
reads its inputs to their ends, and then goes over them again and again. ``sink``: writes the job's output."""
ExchangeKind = Literal["any", "key", "one", "splits", "shards", "topic", "forward"]
"""``any``: a row goes to any partition. ``key``: rows with equal keys go to one partition. ``one``: all rows go to one partition.
``splits``: the list of what an input reads. ``shards``: what the partitions of a graph's task send to each other. ``topic``: a
topic of the user. ``forward``: rows stay in their micro-batch."""
Ending = Literal["ends", "marker", "never"]
"""``ends``: by itself. ``marker``: at the end markers of its topics. ``never``: when it is stopped."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One task; of fused tasks one together."""

    name: str
    kind: OperatorKind
    tasks: list[str]
    """In the order in which a row goes through them: the task itself, and those that are fused to it."""
    runs: bool = True
    """Whether peers run it. If not, its topic is read or written in place by the operators beside it."""
    functions: list[str] = []
    """What it names by ``module:function``."""
    store: str | None = None
    """Where its state is kept; None: it has none."""
    least_peers: int = 0
    """How many peers it begins with."""
    most_peers: int | None = None
    """How many peers it can use, at most: the user's topic that it reads may have fewer partitions. None: as many as that topic
    has, which the plan does not know."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How rows come from one operator to another one."""

    name: str
    source: str
    target: str
    kind: ExchangeKind
    by: list[str] = []
    """The key: columns, or one ``module:function``."""
    partitions: int | None = None
    """The partitions of its queue. None: it has no queue, or the topic is the user's."""
    combined: bool = False
    """Whether rows of a key are combined before they are written."""
    feedback: bool = False
    """Whether it leads back to the beginning of a loop."""
    of: Literal["results", "failed", "late"] = "results"
    where: str | None = None
    """The condition under which a row goes over it."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Operators that rows connect. Rows go through a group batch by batch; no row goes from one group to another."""

    operators: list[str]
    """In topological order."""
    depth: int
    """The greatest number of exchanges that a row can go over from a source to a sink, if it never comes back."""


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """Operators of a loop, each of which comes after each other one."""

    name: str
    operators: list[str]
    """In topological order, without the feedback."""
    max_hops: int | None = None
    """How often a row, and what is made of it, may come back; None: any number of times."""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a job runs."""

    job: str
    ending: Ending
    least_peers: int
    """So many peers get it to its end, working on its tasks in turn."""
    operators: list[Operator]
    """In topological order."""
    exchanges: list[Exchange]
    """In the order of the operators that write them."""
    groups: list[Group]
    cycles: list[Loop] = []


def plan_of(spec: JobSpec) -> JobPlan:
    """The plan of a valid job.

    Args:
        spec: one that :func:`sardonyx.job.validate.validate` finds nothing wrong with.
    """
    graph = graph_of(spec, "default", spec.name)
    operators = [_operator(spec, graph, name) for name in graph.order if not _is_fused(graph, name)]
    exchanges = list(_exchanges(spec, graph))
    return JobPlan(
        job=spec.name,
        ending=ending_of(spec, graph),
        least_peers=_least_peers(operators, graph),
        operators=operators,
        exchanges=exchanges,
        groups=list(_groups(operators, exchanges)),
        cycles=[Loop(name=each.name, operators=each.stages, max_hops=each.max_hops) for each in graph.cycles],
    )


def ending_of(spec: JobSpec, graph: Graph) -> Ending:
    """How a job comes to its end."""
    if graph.bounded:
        return "ends"
    return "marker" if all(has_end(task) for task in spec.catalog if task.type == "input") else "never"


def _least_peers(operators: list[Operator], graph: Graph) -> int:
    """One, unless tasks ask for more: in a bounded job without a loop the greediest of them; else all tasks begin together."""
    least = [operator.least_peers for operator in operators if operator.runs]
    return max(least) if (graph.bounded and not graph.cycles) or max(least) == 1 else sum(least)


def _is_fused(graph: Graph, name: str) -> bool:
    return any(task.name == name for stage in graph.stages for task in stage.fused)


def _operator(spec: JobSpec, graph: Graph, name: str) -> Operator:
    stage = next((stage for stage in graph.stages if stage.name == name), None)
    if stage is None:
        task = spec.task(name)
        return Operator(name=name, kind=_kind([task]), tasks=[name], runs=False)
    tasks = [stage.task, *stage.fused]
    most = _most_peers(spec, stage)
    least = stage.task.min_peers if most is None else min(stage.task.min_peers, most)
    store = store_of(stage.task)
    return Operator(
        name=name,
        kind=_kind(tasks),
        tasks=[task.name for task in tasks],
        functions=list(dict.fromkeys(found for task in tasks for found in references_of(task))),
        store=None if store is None else store_text(store),
        least_peers=max(1, least),
        most_peers=most,
    )


def _kind(tasks: list[TaskSpec]) -> OperatorKind:
    first, last = tasks[0], tasks[-1]
    if first.type == "input":
        return "source"
    if last.type == "output":
        return "sink"
    if whole_of(first) is not None:
        return "iterator"
    return "two-input" if first.relation is not None and first.relation.two_sided else "one-input"


def _most_peers(spec: JobSpec, stage: Stage) -> int | None:
    """As the coordinator limits it when it knows how many partitions the user's topics have."""
    if stage.task.consumption == "sequential":
        return 1
    if any(link.kind == "input" for link in stage.ingress):
        return stage.task.max_peers
    return spec.partitions if stage.task.max_peers is None else min(spec.partitions, stage.task.max_peers)


def _exchanges(spec: JobSpec, graph: Graph) -> Iterator[Exchange]:
    """Of each task the list of its splits, if it reads one, then the edges out of it, and what its shards send to each other."""
    links = {link.name: link for link in graph.links}
    for task in graph.order:
        if f"{task}.splits" in links:
            yield Exchange(name=f"{task}.splits", source=task, target=task, kind="splits", partitions=spec.partitions)
        for target in graph.order:
            if (task, target) in spec.edges:
                yield _exchange(spec, task, target, links.get(f"{task}.{target}"))
        if f"{task}.{task}" in links:
            shards = Exchange(name=f"{task}.{task}", source=task, target=task, kind="shards", feedback=True)
            yield replace(shards, partitions=spec.partitions)


def _exchange(spec: JobSpec, source: str, target: str, link: Link | None) -> Exchange:
    """``link``: the queue of the edge; None: the two tasks run fused."""
    route = spec.route(source, target)
    where = condition_text(route.where) or None
    found = Exchange(name=f"{source}.{target}", source=source, target=target, kind="forward", of=route.of, where=where)
    if link is None:
        return found
    if link.kind != "internal":
        return replace(found, kind="topic")
    by = [link.group_by] if isinstance(link.group_by, str) else list(link.group_by or ())
    kind: ExchangeKind = "any" if not link.by_key else "key" if by else "one"
    return replace(found, kind=kind, by=by, partitions=spec.partitions, combined=link.combined, feedback=link.feedback)


def _groups(operators: list[Operator], exchanges: list[Exchange]) -> Iterator[Group]:
    """What exchanges connect, the one with the first operator first."""
    runs_in = {task: operator.name for operator in operators for task in operator.tasks}
    edges = {(runs_in[each.source], runs_in[each.target]) for each in exchanges if not each.feedback}
    reach = Reach((operator.name for operator in operators), (edge for edge in sorted(edges) if edge[0] != edge[1]))
    left = [operator.name for operator in operators]
    while left:
        group, grown = {left[0]}, True
        while grown:
            near = {other for name in group for other in (*reach.before(name), *reach.after(name))}
            grown = not near <= group
            group |= near
        yield Group(operators=[name for name in left if name in group], depth=_depth(group, edges, left))
        left = [name for name in left if name not in group]


def _depth(group: set[str], edges: set[tuple[str, str]], order: list[str]) -> int:
    """The length of the longest way through a group. Its operators come in topological order."""
    longest = dict.fromkeys(group, 0)
    for name in order:
        for source, target in edges:
            if source == name != target and source in group:
                longest[target] = max(longest[target], longest[source] + 1)
    return max(longest.values())


__all__ = ["Ending", "Exchange", "Group", "JobPlan", "Loop", "Operator", "ending_of", "plan_of"]
