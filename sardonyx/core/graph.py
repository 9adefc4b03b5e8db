"""What follows from a job's spec alone: which tasks run, over which links, in which order. Pure.

A link is an edge of the graph with a Kafka topic on it. A Kafka topic at the end of a job is already a queue. Sardonyx
therefore binds it in place as the link (:mod:`sardonyx.core.in_place`), and the task that names it does not run unless it has
work to do. Every task that runs (a :class:`Stage`) reads from links only. An input task whose connector is not
Kafka reads a link of its own, which holds the list of its splits.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.in_place import bound_in_place
from sardonyx.core.kept_by_spec import kept_by_spec
from sardonyx.core.reach import Reach
from sardonyx.core.row_times import row_times, time_of, time_over
from sardonyx.core.spec import (
    CycleSpec,
    JobSpec,
    Route,
    TaskSpec,
    database_of,
    is_custom,
    late_policy,
    stateful,
    whole_of,
)
from sardonyx.core.timing import RowTime, TimeSpec, WindowSpec, combines, valid_length
from sardonyx.core.window_inputs import gives_same_bounds, timing_calendars

LinkKind = Literal["internal", "splits", "parts", "dead", "state", "input", "output"]
"""internal: Arrow blocks between two tasks. splits: what an input task has still to read. parts: the files that an output
task has written, in the order of their commits. dead: the records that a task could not work on; kept beyond the job's end.
state: the log of a task's keyed state, a partition for each partition number of what it reads; kept until the job is purged.
input, output: a topic that belongs to the user."""


MARKER = "marker"
"""The ``end`` of an input that ends at the marker which another job writes with ``end_marker``."""


class Link(msgspec.Struct, frozen=True):
    """One queue of a job."""

    name: str
    """``from.to``; ``task.splits``, ``task.parts``, ``task.dead`` and ``task.state`` for the links of a task's own."""
    topic: str
    kind: LinkKind
    source: str
    """The task that writes it (of fused tasks the first, by whose name they run); for an input the bound input task."""
    target: str
    """The task that reads it; for an output the bound output task."""
    options: dict[str, Any] = {}
    """The connector's options, on a user's topic."""
    route: Route = Route()
    """What of its source's results goes over it."""
    group_by: list[str] | str | None = None
    """Internal: by what the task that reads it groups its rows; equal keys are in one partition."""
    time: TimeSpec | None = None
    """Input: where the times of its rows come from. The stage that reads it may be another task than the input that says so."""
    window: WindowSpec | None = None
    """Internal, into a window: the task that writes prepares the rows for it. No ``group_by``: there is one key."""
    combined: bool = False
    """Internal, into a window: the task that writes combines the rows of each key."""
    same_bounds: bool = False
    """Internal, into a window: its rows are results of windows with the same bounds."""
    keyed: bool = False
    """Internal, into a task that keeps a state for each key, a graph, or rounds. No ``group_by``: there is one key."""
    row_time: RowTime | None = None
    """Internal, into a task with state: where the time of a row stands; None if none is needed and the rows have none."""
    feedback: bool = False
    """Internal: it leads back to the beginning of a loop, or from shard to shard of a graph.
    The task that reads it proves that nothing comes any more; the one that
    writes it does not seal it."""
    max_backlog: int | None = None
    """Internal: how many of its rows may be unread before its writer pauses; 0: any number, as in a loop. None: the cluster's
    default."""
    of_calendar: bool = False
    """Input, and splits: windows of a calendar behind it go by the times of its rows, and so cannot hold all times."""
    rests: bool = False
    """Input, and splits: nothing is read of it until the queues of the job have another number of partitions."""

    @property
    def owned(self) -> bool:
        """Whether the job makes this topic. It is removed with the job; by the purge: ``state``, and a ``dead`` with rows."""
        return self.kind in ("internal", "splits", "parts", "dead", "state")

    @property
    def by_key(self) -> bool:
        """Whether rows with equal keys are in one partition."""
        return bool(self.group_by) or self.window is not None or self.keyed

    @property
    def ends_at_marker(self) -> bool:
        """Whether this is a user's topic that the job reads up to an end marker in each partition."""
        return self.kind == "input" and self.options.get("end") == MARKER

    @property
    def says_its_batch(self) -> bool:
        """Whether this is a user's topic whose records say which batch wrote them."""
        return self.kind == "output" and bool(self.options.get("lineage"))

    @property
    def has_sentinels(self) -> bool:
        """Whether sentinels mark the end of this link (end positions mark the end of a bound input)."""
        return self.kind in ("internal", "splits")


class Stage(msgspec.Struct, frozen=True):
    """A task that virtual peers run, with the tasks that are fused to its end."""

    task: TaskSpec
    ingress: list[Link]
    """Links that it reads; feedback links come last."""
    egress: list[Link]
    """Links that it writes: its results go there, its dead letters, and the log of its state. An output stage's results go to its
    connector; if that keeps a ``parts`` link, it is here."""
    fused: list[TaskSpec] = []
    """Tasks behind ``task`` that run in its micro-batches, in their order."""

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def between_shards(self) -> Link | None:
        """The link over which the shards of its graph send messages to each other; None: it has no such graph."""
        return next((link for link in self.ingress if link.source == self.name), None) if self.task.graph else None

    @property
    def positioned(self) -> list[Link]:
        """The links on which its group commits positions: what it reads, and the listing of its files."""
        return [*self.ingress, *(link for link in self.egress if link.kind == "parts")]

    @property
    def counted(self) -> list[Link]:
        """The internal links that it writes, for which its positions count rows one by one."""
        return [link for link in self.egress if link.kind == "internal"]

    @property
    def in_place(self) -> list[Link]:
        """The users' topics that it writes in the place of outputs, which do not run."""
        return [link for link in self.egress if link.kind == "output" and link.target != self.last.name]

    @property
    def takes_failed(self) -> bool:
        """Whether it has a failed edge: a link that takes failed records."""
        return any(link.route.of == "failed" for link in self.egress)

    @property
    def isolates(self) -> bool:
        """Whether it finds each bad record by itself. Otherwise the first one ends the job, or the task begins again."""
        return self.task.on_error.leaves_out or self.takes_failed

    @property
    def last(self) -> TaskSpec:
        """The task whose results leave the stage."""
        return self.fused[-1] if self.fused else self.task

    @property
    def functions(self) -> list[TaskSpec]:
        """Those of its tasks that have a function, in their order."""
        return [task for task in (self.task, *self.fused) if task.fn is not None]

    @property
    def goes_on_at_rest(self) -> bool:
        """Whether its clock goes on with the machine's when all that it reads is idle."""
        times = [link.time for link in self.ingress]
        return all(time is not None and time.at_rest == "wall" and time.idle is not None for time in times)

    def group(self, deployment: str, job: str) -> str:
        """The consumer group that all peers of this task share."""
        return f"{deployment}.{job}.{self.task.name}"

    def transactional_id(self, deployment: str, job: str, slot: int) -> str:
        """The same for every peer, so that the next holder of the slot fences the last one."""
        return f"{deployment}/{job}/{self.task.name}/{slot}"

    def sealing_id(self, deployment: str, job: str) -> str:
        """The transactional id under which a seal with end markers is written, whichever peer seals."""
        return f"{deployment}/{job}/{self.task.name}/seal"

    @property
    def marks(self) -> bool:
        """Whether its seal writes end markers into a user's topic."""
        return any(link.options.get("end_marker") for link in self.egress)

    @property
    def partitioner(self) -> str | None:
        """What chooses the partition of records of users' topics by their key: one client writes them all."""
        return next(
            (str(link.options["key_partitioner"]) for link in self.egress if "key_partitioner" in link.options), None
        )

    def member(self, slot: int) -> str:
        """The name of the slot's holder in the group, the same for every peer, in characters that Kafka allows there."""
        return f"slot-{slot}"


class Cycle(msgspec.Struct, frozen=True):
    """A loop of stages: each of them is reached from each other one, over feedback links."""

    name: str
    stages: list[str]
    """In topological order, without the feedback links."""
    max_hops: int | None = None
    """How often a row, and what is made of it, may go over a feedback link; None: any number of times."""


class Graph(msgspec.Struct, frozen=True):
    """A job's links and stages. ``stages`` and ``order`` are in topological order; ties keep the catalog's order."""

    order: list[str]
    stages: list[Stage]
    bound: dict[str, list[str]]
    """Tasks that no peer runs by themselves (their topic is a link in place, or they are fused) -> the stages whose state they
    mirror. Such a task is done when all of these stages are done."""
    bounded: bool
    """Whether the job's own inputs say where it ends. One that waits for end markers may run as long as any that never ends."""
    timed: bool = False
    """Whether the job has clocks: an input has times, or a task has state."""
    lineage: bool = False
    """Whether its tasks state how far the partitions of its sources have passed them."""
    checkpoint_every: int | None = None
    """How far its checkpoints are apart, in microseconds; None: it has none."""
    cycles: list[Cycle] = []
    """Its loops. They have no stage in common. A graph whose vertices are divided among partitions is one of a single stage."""

    def cycle_of(self, stage: str) -> Cycle | None:
        """The loop that a stage is in; None: it is in none."""
        return next((cycle for cycle in self.cycles if stage in cycle.stages), None)

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
    """Task names in topological order; ties keep the catalog's order. Raises ``graphlib.CycleError``."""
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


@kept_by_spec
def graph_of(spec: JobSpec, deployment: str, job: str) -> Graph:
    """Turn a valid spec into stages and links.

    :mod:`sardonyx.core.in_place` says which topics are bound in place.

    A task with ``fuse`` is a part of the stage before it. If one of the two is bound in place, there is no queue of ours between
    them anyway.

    Feedback edges are internal links as well. They do not count for the order.
    """
    return _Layout(spec, deployment, job).graph()


class _Layout:
    """Builds the graph of a spec."""

    def __init__(self, spec: JobSpec, deployment: str, job: str) -> None:
        self._spec = spec
        self._prefix = f"{deployment}.{job}"
        self._order = order_of(spec)
        self._tasks = {task.name: task for task in spec.catalog}
        self._ins: dict[str, list[str]] = {name: [] for name in self._order}
        self._outs: dict[str, list[str]] = {name: [] for name in self._order}
        for source, target in spec.workflow:
            self._ins[target].append(source)
            self._outs[source].append(target)
        self._back_from: dict[str, list[str]] = {name: [] for name in self._order}
        self._back_to: dict[str, list[str]] = {name: [] for name in self._order}
        for source, target in spec.feedback:
            self._back_from[target].append(source)
            self._back_to[source].append(target)
        self._loops = {cycle.name: self._inside(cycle) for cycle in spec.cycles}
        self._reach = Reach(self._tasks, spec.edges) if spec.cycles else None
        self._durable = [task.name for task in spec.catalog if task.graph is not None and task.graph.durable]
        """Tasks whose shards send messages to each other."""
        self._bound_in, self._bound_out = bound_in_place(spec, self._ins, self._outs)
        self._times = row_times(spec, self._order) if any(map(stateful, spec.catalog)) else {}
        self._every = valid_length(spec.checkpoint_every) or None
        self._rests = spec.next_partitions is not None
        self._calendars = timing_calendars(self._tasks, self._ins, self._times)
        self._first: dict[str, str] = {}
        """Fused tasks -> the first of those that they are fused with."""
        for name in self._order:
            if self._tasks[name].fuse and self._ins[name] and not self._back_from[name]:
                before = self._ins[name][0]
                if name not in self._bound_out and before not in self._bound_in:
                    self._first[name] = self._first.get(before, before)

    def graph(self) -> Graph:
        elsewhere = self._bound_in | self._bound_out | set(self._first)
        stages = [self._stage(name) for name in self._order if name not in elsewhere]
        return Graph(
            order=self._order,
            stages=stages,
            bound={name: self._beside(name) for name in self._order if name in elsewhere},
            timed=any(task.time is not None or stateful(task) for task in self._spec.catalog),
            lineage=self._spec.lineage,
            checkpoint_every=self._every,
            cycles=[
                *(self._cycle(cycle, stages) for cycle in self._spec.cycles),
                *(Cycle(name, [name]) for name in self._durable),
            ],
            bounded=all(is_bounded(task) for task in self._spec.catalog if task.type == "input"),
        )

    def _inside(self, cycle: CycleSpec) -> set[str]:
        """The tasks of a loop: those on a way from the target of a feedback edge to the source of one."""
        after, before = {target for _, target in cycle.back}, {source for source, _ in cycle.back}
        for name in self._order:
            if after.intersection(self._ins[name]):
                after.add(name)
        for name in reversed(self._order):
            if before.intersection(self._outs[name]):
                before.add(name)
        return after & before

    def _cycle(self, cycle: CycleSpec, stages: list[Stage]) -> Cycle:
        runs = {self._runs(name) for name in self._loops[cycle.name]}
        return Cycle(cycle.name, [stage.name for stage in stages if stage.name in runs], cycle.max_hops)

    def _stage(self, name: str) -> Stage:
        fused = [self._tasks[other] for other in self._order if self._first.get(other) == name]
        last = fused[-1] if fused else self._tasks[name]
        return Stage(self._tasks[name], self._ingress(name), self._egress(name, last), fused)

    def _beside(self, name: str) -> list[str]:
        """The stages that a task mirrors if it does not run as a stage of its own."""
        if name in self._bound_in:
            return self._outs[name]
        return [self._runs(name)] if name in self._first else [self._runs(source) for source in self._ins[name]]

    def _runs(self, name: str) -> str:
        """The stage that runs a task."""
        return self._first.get(name, name)

    def _ingress(self, name: str) -> list[Link]:
        task = self._tasks[name]
        if task.type != "input":
            back = [self._between(source, name, feedback=True) for source in self._back_from[name]]
            return [*(self._between(source, name) for source in self._ins[name]), *back, *self._to_itself(name)]
        if task.connector == "kafka":  # it has a function: it reads the user's topic itself
            return [
                Link(
                    f"{name}.topic",
                    str(task.options["topic"]),
                    "input",
                    name,
                    name,
                    task.options,
                    time=task.time,
                    of_calendar=name in self._calendars,
                    rests=self._rests,
                )
            ]
        return [replace(self._own(name, "splits"), of_calendar=name in self._calendars, rests=self._rests)]

    def _egress(self, name: str, last: TaskSpec) -> list[Link]:
        own = [*self._to_itself(name), *(self._own(name, what) for what in _kept_beside(self._tasks[name]))]
        if last.type != "output":
            back = [self._between(last.name, target, feedback=True) for target in self._back_to[last.name]]
            return [*(self._between(last.name, target) for target in self._outs[last.name]), *back, *own]
        if last.connector == "files" or is_custom(last.connector):
            return [self._own(name, "parts"), *own]
        if last.connector == "kafka":
            topic = str(last.options["topic"])
            return [Link(f"{last.name}.topic", topic, "output", name, last.name, last.options), *own]
        return own

    def _to_itself(self, name: str) -> list[Link]:
        """The link over which the shards of a graph send messages to each other, if they do."""
        return [self._between(name, name, feedback=True)] if name in self._durable else []

    def _own(self, task: str, what: LinkKind) -> Link:
        return Link(f"{task}.{what}", f"{self._prefix}.{task}.{what}", what, task, task)

    def _between(self, source: str, target: str, *, feedback: bool = False) -> Link:
        name = f"{source}.{target}"
        route = self._spec.route(source, target)
        if source in self._bound_in:
            task = self._tasks[source]
            time = _within(task.time, route)
            topic = str(task.options["topic"])
            calendar = source in self._calendars
            return Link(
                name, topic, "input", source, target, task.options, time=time, of_calendar=calendar, rests=self._rests
            )
        if target in self._bound_out:
            options = self._tasks[target].options
            return Link(name, str(options["topic"]), "output", self._runs(source), target, options, route)
        reader = self._tasks[target]
        return Link(
            name,
            f"{self._prefix}.{name}",
            "internal",
            self._runs(source),
            target,
            route=route,
            group_by=_key_over(reader, source),
            window=reader.window,
            combined=reader.window is not None and combines(reader.window, self._every),
            same_bounds=gives_same_bounds(self._tasks[source], route, reader.window),
            keyed=reader.keyed is not None or whole_of(reader) is not None,
            row_time=self._time(reader, source),
            feedback=feedback,
            max_backlog=0 if feedback or self._comes_back(source, target) else self._spec.bound(name),
        )

    def _comes_back(self, source: str, target: str) -> bool:
        return self._reach is not None and self._reach.reaches(target, source)

    def _time(self, reader: TaskSpec, source: str) -> RowTime | None:
        """Where the rows of one link have their times, if the task that reads it has state that goes by times. None in a loop
        does.
        """
        whole = reader.iterate is not None or (reader.graph is not None and reader.graph.window is None)
        if whole or any(reader.name in names for names in self._loops.values()):
            return None
        if reader.graph is not None or (reader.relation is not None and reader.relation.two_sided):
            return time_over(self._spec, self._times, source, reader.name)
        return time_of(reader, self._times[reader.name]) if stateful(reader) else None


def _within(time: TimeSpec | None, route: Route) -> TimeSpec | None:
    """The times of a topic that a task reads in place, which leaves out the rows that do not go over its edge."""
    bounds = route.bounds
    if time is None or bounds is None:
        return time
    if bounds.before is None:
        return replace(time, since=max(time.since or NEVER, NEVER if bounds.since is None else bounds.since))
    return replace(time, until=NEVER if bounds.over else min(END if time.until is None else time.until, bounds.before))


def _key_over(reader: TaskSpec, source: str) -> list[str] | str | None:
    """The columns of the key in the rows of one link."""
    relation, graph = reader.relation, reader.graph
    if graph is not None and graph.durable:
        return None if source == reader.name else [graph.source if source == graph.edges else graph.id]
    if relation is not None and relation.right == source and relation.right_on is not None:
        return relation.right_on
    return reader.group_by


def _kept_beside(task: TaskSpec) -> Iterator[LinkKind]:
    """What a task writes besides its results, each into a link of its own."""
    if task.on_error.then == "dead_letter" or late_policy(task) == "dead_letter":
        yield "dead"
    if stateful(task) and database_of(task) is None:
        yield "state"


def is_endless(link: Link) -> bool:
    """Whether this is a user's topic that the job reads without an end that is known beforehand."""
    return link.kind == "input" and link.options.get("end") in (None, MARKER)


def is_bounded(task: TaskSpec) -> bool:
    """Whether it is known beforehand where an input ends: a Kafka topic only with an ``end``, every other connector always."""
    return task.connector != "kafka" or task.options.get("end") not in (None, MARKER)


def has_end(task: TaskSpec) -> bool:
    """Whether an input ends at all."""
    return task.connector != "kafka" or task.options.get("end") is not None
