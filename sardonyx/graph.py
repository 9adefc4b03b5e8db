"""What follows from a job's spec alone: which tasks run, over which links, in which order. Pure.

A link is an edge of the graph with a Kafka topic on it. A Kafka topic at the end of a job is already a queue: it is bound
in place as the link, and the task that names it runs nowhere, unless there is something for it to do: see
:func:`graph_of`. Every task that does
run (a :class:`Stage`) has links as its only way in; an input task whose medium is not Kafka reads a link of its own, on
which the list of its splits stands.
"""

from __future__ import annotations

import graphlib
from typing import Any, Literal

import msgspec

from sardonyx.media import is_own
from sardonyx.spec import JobSpec, OnError, Route, TaskSpec

LinkKind = Literal["internal", "splits", "parts", "dead", "input", "output"]
"""internal: Arrow blocks between two tasks. splits: what an input task has still to read. parts: the files that an output
task has written, in the order of their commits. dead: the records that a task could not work on; kept beyond the job's end.
input, output: a topic that belongs to the user."""


class Link(msgspec.Struct, frozen=True):
    """One queue of a job."""

    name: str
    """``from.to``; ``task.splits``, ``task.parts`` and ``task.dead`` for the links of a task's own."""
    topic: str
    kind: LinkKind
    source: str
    """The task that writes it; for an input the bound input task."""
    target: str
    """The task that reads it; for an output the bound output task."""
    options: dict[str, Any] = {}
    """The medium's options, on a user's topic."""
    route: Route = Route()
    """What of its source's results goes over it."""
    group_by: list[str] | str | None = None
    """Internal: by what the task that reads it groups its rows; equal keys are in one partition."""

    @property
    def owned(self) -> bool:
        """Whether the job makes this topic, and it goes with the job (a ``dead`` one that is not empty: when it is purged)."""
        return self.kind in ("internal", "splits", "parts", "dead")

    @property
    def has_sentinels(self) -> bool:
        """Whether the end of this link is told by sentinels (a bound input's is told by its end positions)."""
        return self.kind in ("internal", "splits")


class Stage(msgspec.Struct, frozen=True):
    """A task that virtual peers run."""

    task: TaskSpec
    ingress: list[Link]
    egress: list[Link]
    """Links that its results go to. An output stage's go to its medium; if that keeps a ``parts`` link, it is here."""

    @property
    def name(self) -> str:
        return self.task.name

    def group(self, deployment: str, job: str) -> str:
        """The consumer group as which all peers of this task read."""
        return f"{deployment}.{job}.{self.task.name}"

    def transactional_id(self, deployment: str, job: str, slot: int) -> str:
        """Stable over peers, so that the next holder of the slot fences the last one."""
        return f"{deployment}/{job}/{self.task.name}/{slot}"


class Graph(msgspec.Struct, frozen=True):
    """A job's links and stages. ``stages`` and ``order`` are in topological order, ties in the catalog's order."""

    order: list[str]
    stages: list[Stage]
    bound: dict[str, list[str]]
    """Tasks that run nowhere (their topic is a link in place) -> the stages they mirror: all done, they are done."""
    bounded: bool
    """Whether the job ends by itself."""

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    @property
    def links(self) -> list[Link]:
        """Every link once, in the order of the stages."""
        found: dict[str, Link] = {}
        for stage in self.stages:
            for link in (*stage.ingress, *stage.egress):
                found.setdefault(link.name, link)
        return list(found.values())


def order_of(spec: JobSpec) -> list[str]:
    """Task names in topological order, ties in the catalog's order. Raises ``graphlib.CycleError``."""
    position = {task.name: index for index, task in enumerate(spec.catalog)}
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter({task.name: () for task in spec.catalog})
    for source, target in spec.workflow:
        sorter.add(target, source)
    sorter.prepare()
    order: list[str] = []
    ready = sorted(sorter.get_ready(), key=position.__getitem__)
    while ready:
        name = ready.pop(0)
        order.append(name)
        sorter.done(name)
        ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
    return order


def graph_of(spec: JobSpec, deployment: str, job: str) -> Graph:
    """Lay a valid spec out as stages and links.

    A Kafka input without a function is bound in place, unless its rows must be looked at before they are dealt out: a task
    behind it groups them, an edge out of it has a condition, or the input itself has ``on_error`` or a lifecycle. A Kafka
    output without a function is bound in place, unless it groups or has a lifecycle; and right behind a bound input it
    runs itself and copies, since somebody has to. Conditions into an output do not matter to it: who writes evaluates them.
    """
    order = order_of(spec)
    tasks = {task.name: task for task in spec.catalog}
    ins: dict[str, list[str]] = {name: [] for name in order}
    outs: dict[str, list[str]] = {name: [] for name in order}
    for source, target in spec.workflow:
        ins[target].append(source)
        outs[source].append(target)

    bound_in, bound_out = _bound(spec, ins, outs)

    def own(task: str, what: LinkKind) -> Link:
        return Link(f"{task}.{what}", f"{deployment}.{job}.{task}.{what}", what, task, task)

    def between(source: str, target: str) -> Link:
        name = f"{source}.{target}"
        route = spec.route(source, target)
        if source in bound_in:
            options = tasks[source].options
            return Link(name, str(options["topic"]), "input", source, target, options)
        if target in bound_out:
            options = tasks[target].options
            return Link(name, str(options["topic"]), "output", source, target, options, route)
        group_by = tasks[target].group_by
        return Link(name, f"{deployment}.{job}.{name}", "internal", source, target, route=route, group_by=group_by)

    def ingress(name: str) -> list[Link]:
        task = tasks[name]
        if task.type != "input":
            return [between(source, name) for source in ins[name]]
        if task.medium == "kafka":  # with a function of its own: reads the user's topic itself
            return [Link(f"{name}.topic", str(task.options["topic"]), "input", name, name, task.options)]
        return [own(name, "splits")]

    def egress(name: str) -> list[Link]:
        task = tasks[name]
        dead = [own(name, "dead")] if task.on_error.then == "dead_letter" else []
        if task.type != "output":
            return [between(name, target) for target in outs[name]] + dead
        if task.medium == "files" or is_own(task.medium):
            return [own(name, "parts"), *dead]
        if task.medium == "kafka":
            return [Link(f"{name}.topic", str(task.options["topic"]), "output", name, name, task.options), *dead]
        return dead

    stages = [Stage(tasks[name], ingress(name), egress(name)) for name in order if name not in bound_in | bound_out]
    return Graph(
        order=order,
        stages=stages,
        bound={n: outs[n] if n in bound_in else ins[n] for n in order if n in bound_in | bound_out},
        bounded=all(is_bounded(task) for task in spec.catalog if task.type == "input"),
    )


def _bound(spec: JobSpec, ins: dict[str, list[str]], outs: dict[str, list[str]]) -> tuple[set[str], set[str]]:
    """The inputs and the outputs that are bound in place; see :func:`graph_of`."""
    tasks = {task.name: task for task in spec.catalog}

    def stands_still(task: TaskSpec) -> bool:
        return task.medium == "kafka" and task.fn is None and task.lifecycle is None

    def looked_at(task: TaskSpec) -> bool:
        readers = outs[task.name]
        routed = any(spec.route(task.name, reader) != Route() for reader in readers)
        return routed or task.on_error != OnError() or any(tasks[reader].group_by for reader in readers)

    inputs = {n for n, t in tasks.items() if t.type == "input" and stands_still(t) and not looked_at(t)}
    outputs = {
        n
        for n, t in tasks.items()
        if t.type == "output" and stands_still(t) and not t.group_by and not inputs.intersection(ins[n])
    }
    return inputs, outputs


def is_bounded(task: TaskSpec) -> bool:
    """Whether an input ends by itself: a Kafka topic only with an ``end``, every other medium always."""
    return task.medium != "kafka" or task.options.get("end") is not None
