"""In what two versions of a job differ, and how each difference can be carried out. Pure.

A task is known by its name, and a link by the two tasks that it connects. So nothing is guessed: a task under another name is
another task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sardonyx.core.changing import Obstacle, not_given_up
from sardonyx.core.changing_at import bounds_text, leads_to, pending, problems_at, settled, waits_text
from sardonyx.core.conditions import condition_text, functions_in
from sardonyx.core.diff_reach import OtherInputs, other_inputs
from sardonyx.core.diff_ways import IN_PLACE, WAYS, Way, Ways
from sardonyx.core.errors import Failure
from sardonyx.core.graph import Link, graph_of, order_of
from sardonyx.core.predecessors import Predecessor, ResumeProblem, running, topics_read
from sardonyx.core.resizing import awake, resized
from sardonyx.core.spec import JobSpec, Route, TaskSpec, decode_spec, encode_spec, references_of, stateful
from sardonyx.core.spec_fields import JOB_FIELDS, DifferenceKind, job_changes, kind_of_field, same, task_changes
from sardonyx.core.text import listed, plural

_STANDS_STILL = "its inputs stand still until its queues are read to their end"

Status = Literal["kept", "changed", "added", "removed"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which a job, a task or a link differs."""

    kind: DifferenceKind
    field: str = ""
    """The field as users write it, such as ``on_error.retries``; empty for what was added or removed."""
    before: Any = None
    after: Any = None
    ways: list[Way] = []
    """All ways in which it can be carried out, in the order of :data:`WAYS`."""
    note: str = ""
    """What else a user should know of it, in words."""


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A task in two versions of a job."""

    name: str
    status: Status
    differences: list[Difference] = []


class LinkDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A link in two versions of a job. An edge between tasks that run fused has no queue, and counts as well."""

    name: str
    """``from.to``; ``task.dead`` and the like for those of a task's own."""
    status: Status
    before: str | None = None
    """The kind of link as in :data:`sardonyx.core.graph.LinkKind`, or ``fused``; None: there was none."""
    after: str | None = None
    differences: list[Difference] = []


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why the differences cannot be carried out in one of the ways."""

    way: Way
    failure: Failure
    """The error that a user would get."""
    task: str = ""
    """The task that it is about; empty: the whole job."""
    link: str = ""
    """The link whose difference it is about; empty: none, so that no difference can be carried out in this way."""


class JobDiff(msgspec.Struct, frozen=True, kw_only=True):
    """In what two versions of a job differ."""

    before: str
    """The job that it is: its id, or the name in its spec."""
    after: str
    """The name in the new spec."""
    equal: bool
    ways: list[Way]
    """The ways in which all differences can be carried out at once."""
    in_place: bool
    """Whether all differences can be carried out in the running job."""
    running: bool
    """Whether the old job has not ended, or is taken for running since nothing is known of it."""
    bounded: bool
    """Whether the old job ends by itself, so that it cannot be stopped."""
    job: list[Difference]
    """The differences of the job as a whole."""
    tasks: list[TaskDiff]
    """Every task of either version: those of the new one in topological order, then those that are removed."""
    links: list[LinkDiff]
    """Every link of either version: those of the new one in the order of its tasks, then those that are removed."""
    begins_empty: list[str]
    """Tasks of both versions whose state the new job begins without if it resumes the old one; none if it cannot."""
    refusals: list[Refusal]
    """Why some ways cannot be taken. Of each way the first one is what its command would say."""
    drop: list[str] = []
    """The tasks and queues whose unread rows go if the running job is changed: ``--drop`` names them."""
    at_a_time: bool = False
    """Whether the running job can be changed so that rows before a time go the old way, and others the new one, as far as the
    specs tell.
    """
    other_inputs: list[OtherInputs] = []
    """The tasks of both versions to which rows of other inputs come, also over paths on which nothing else differs."""
    waits: str = ""
    """If it is being changed at a time, what that waits for, in words."""
    waits_until: str = ""
    """That time, if this is the version that it leads to."""
    installed: dict[str, list[str]] = {}
    """The packages that do not travel with the job, since they are installed where peers run, and the tasks with functions or
    classes of theirs. What differs in them is not known. None if the job has ended, or its modules are not known.
    """

    @property
    def differences(self) -> list[Difference]:
        """All differences: of the job, of its tasks, of its links."""
        parts: list[TaskDiff | LinkDiff] = [*self.tasks, *self.links]
        return [*self.job, *(each for part in parts for each in part.differences)]


class CodeChange(NamedTuple):
    """In what the modules that travel with two versions of a job differ."""

    own: frozenset[str]
    """Top-level names of the modules and packages of either version."""
    modules: frozenset[str]
    """The modules that were changed, added or removed, such as ``job`` and ``package.module``."""
    same: frozenset[str] = frozenset()
    """The functions and classes in changed modules whose own text is the same, as ``module:name``. What they use may differ."""


def job_diff(
    old: JobSpec,
    new: JobSpec,
    before: Predecessor | None = None,
    *,
    job: str = "",
    code: CodeChange | None = None,
) -> JobDiff:
    """Compare two versions of a job.

    Args:
        old: the job that runs, or has run. Both specs must have a graph: unique names, no cycle.
        new: the job that is to take its place.
        before: what is known of the old job; None: nothing, and it is taken for running. Of a job that has not ended, it is
            assumed that it ends as its user wants, and has read something of each topic.
        job: the id of the old job, for the texts; its name by default.
        code: in what the modules of the two jobs differ; None: only the hashes in the specs are known.
    """
    before = before or running(old)
    found = _Comparison(awake(settled(_plain(old))), _plain(new), before, job or old.name, code).result()
    return found if code is None or before.ended else replace(found, installed=_installed(new, code.own))


def _installed(spec: JobSpec, own: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in order_of(spec):
        packages = {each.partition(":")[0].partition(".")[0] for each in references_of(spec.task(name))}
        for package in sorted(packages.difference(own, {"sardonyx"})):
            found.setdefault(package, []).append(name)
    return found


def _plain(spec: JobSpec) -> JobSpec:
    """The spec as it comes out of ZooKeeper, with lists for tuples and the like."""
    return decode_spec(encode_spec(spec))


class _Face(NamedTuple):
    """What of a link can differ between two versions of a job."""

    kind: str
    topic: str | None
    """Its topic, if that is the user's."""
    route: Route
    key: tuple[object, bool]

    def shown(self) -> dict[str, str | None]:
        """As the value of a difference."""
        return {"kind": self.kind, "topic": self.topic, "of": self.route.of, "where": _where(self.route)}

    def shown_key(self) -> object:
        """By what its rows are grouped, as the value of a difference: no columns if all rows have one key."""
        group_by, by_key = self.key
        return group_by or ([] if by_key else None)


class _Comparison:
    """Compares two versions of a job."""

    def __init__(self, old: JobSpec, new: JobSpec, before: Predecessor, job: str, code: CodeChange | None) -> None:
        self._old, self._new, self._job = old, new, job
        self._pending = pending(old)
        self._code = code if old.code != new.code else CodeChange(frozenset(), frozenset())
        self._ways = Ways(old, new, before, job)
        self._reads = [link for link in graph_of(new, "", "").links if link.kind == "input"]
        self._was_read = topics_read(graph_of(old, "", ""))

    def result(self) -> JobDiff:
        job, tasks, links = list(self._job_level()), list(self._tasks()), list(self._links())
        parts: list[TaskDiff | LinkDiff] = [*tasks, *links]
        found = [*job, *(each for part in parts for each in part.differences)]
        ways: list[Way] = [way for way in WAYS if all(way in each.ways for each in found)]
        had_state = {task.name for task in self._old.catalog if stateful(task)}
        return JobDiff(
            before=self._job,
            after=self._new.name,
            equal=not found,
            ways=[way for way in ways if not self._refused(way)],
            in_place=self._ways.running and all(IN_PLACE.intersection(each.ways) for each in found),
            running=self._ways.running,
            bounded=self._ways.bounded,
            job=job,
            tasks=tasks,
            links=links,
            begins_empty=[
                task.name
                for task in self._new.catalog
                if stateful(task) and task.name in had_state and not self._ways.problems and not self._ways.keeps_states
            ],
            refusals=[
                *(self._refusal(problem) for problem in self._ways.problems),
                *(self._obstacle(obstacle) for obstacle in self._ways.obstacles),
            ],
            drop=not_given_up(self._old, self._new, ())[0] if self._ways.running else [],
            at_a_time="change" in ways and not self._refused("change") and self._at_a_time(),
            other_inputs=other_inputs(self._old, self._new),
            waits="" if self._pending is None else waits_text(self._pending),
            waits_until=self._waits_until(),
        )

    # What differs

    def _waits_until(self) -> str:
        if self._pending is None or not leads_to(self._old, self._new):
            return ""
        return str(self._pending.at) if self._pending.ordinal else self._pending.time

    def _at_a_time(self) -> bool:
        if self._pending is not None:
            return leads_to(self._old, self._new)
        stages = [stage.name for stage in graph_of(self._old, "", "").stages]
        return next(problems_at(self._old, self._new, stages), None) is None

    def _job_level(self) -> Iterator[Difference]:
        for field, old, new in job_changes(self._old, self._new):
            changes = self._ways.can_change(field=field)
            note = _STANDS_STILL if field == "partitions" and changes and resized(self._old, self._new) else ""
            yield self._difference(JOB_FIELDS[field], field, old, new, changes=changes, note=note)
        if self._code is None or self._code.modules:
            yield self._difference("function", "code", self._old.code, self._new.code, note=self._of_modules())

    def _tasks(self) -> Iterator[TaskDiff]:
        before = {task.name: task for task in self._old.catalog}
        after = {task.name: task for task in self._new.catalog}
        gone = [before[name] for name in order_of(self._old) if name not in after]
        for name in order_of(self._new):
            if name not in before:
                note = self._of_new(after[name], gone)
                yield self._whole(TaskDiff(name=name, status="added"), None, after[name], note)
            else:
                found = [*self._task(before[name], after[name])]
                yield TaskDiff(name=name, status="changed" if found else "kept", differences=found)
        for task in gone:
            yield self._whole(TaskDiff(name=task.name, status="removed"), task, None, _of_removed(task))

    def _whole(self, task: TaskDiff, old: TaskSpec | None, new: TaskSpec | None, note: str) -> TaskDiff:
        kind: DifferenceKind = "removed" if new is None else "added"
        moves, changes = self._ways.moved_by_task("", old, new), self._ways.can_change(task=task.name)
        values = msgspec.to_builtins(old), msgspec.to_builtins(new)
        found = self._difference(kind, "", *values, note=note, moves=moves, changes=changes)
        return replace(task, differences=[found])

    def _task(self, old: TaskSpec, new: TaskSpec) -> Iterator[Difference]:
        for field, before, after in task_changes(old, new):
            moves = self._ways.moved_by_task(field, old, new)
            changes = self._ways.can_change(task=new.name, field=field)
            found = self._difference(kind_of_field(field, new), field, before, after, moves=moves, changes=changes)
            yield replace(found, note=self._note(field, old, new, found))
        yield from self._code_of(references_of(new))

    def _links(self) -> Iterator[LinkDiff]:
        before, after = _faces(self._old), _faces(self._new)
        for name in [*after, *(name for name in before if name not in after)]:
            old, new = before.get(name), after.get(name)
            found = [*self._link(name, old, new)]
            status: Status = "added" if old is None else "removed" if new is None else "changed" if found else "kept"
            kinds = [None if face is None else face.kind for face in (old, new)]
            yield LinkDiff(name=name, status=status, before=kinds[0], after=kinds[1], differences=found)

    def _link(self, name: str, old: _Face | None, new: _Face | None) -> Iterator[Difference]:
        moves = self._ways.moved_by_link(name)
        whole = old is None or new is None or old.kind != new.kind
        changes = self._ways.can_change_link(name, whole=whole)
        at = [None if face is None else face.shown() for face in (old, new)]
        if old is None or new is None:
            note = "" if new is None or moves else self._of_new_link(name)
            kind: DifferenceKind = "added" if old is None else "removed"
            yield self._difference(kind, "", *at, note=note, moves=moves, changes=changes)
            return
        if old.kind != new.kind:
            yield self._difference("link", "kind", *at, moves=moves, changes=changes)
        elif old.topic != new.topic:
            kind = "output" if new.kind == "output" else "input"
            yield self._difference(kind, "topic", old.topic, new.topic, moves=moves, changes=changes)
        if old.route.of != new.route.of:
            yield self._difference("route", "of", old.route.of, new.route.of, moves=moves, changes=changes)
        if not same("where", *map(msgspec.to_builtins, (old.route.where, new.route.where))):
            yield self._difference("route", "where", *map(_where, (old.route, new.route)), moves=moves, changes=changes)
        times = [None if face.route.bounds is None else bounds_text(face.route.bounds) for face in (old, new)]
        if times[0] != times[1]:
            yield self._difference("route", "rows", *times, moves=moves, changes=changes)
        if old.kind == new.kind and old.key != new.key:
            shown = old.shown_key(), new.shown_key()
            yield self._difference("key", "group_by", *shown, moves=moves, changes=changes)
        yield from self._code_of([] if new.route.where is None else [name for name, _ in functions_in(new.route.where)])

    def _code_of(self, references: Iterable[str]) -> Iterator[Difference]:
        """Whether what is named by ``module:name`` may differ since the job's own modules do."""
        code = self._code
        own = [name for name in references if code is None or name.partition(".")[0].partition(":")[0] in code.own]
        if own and (code is None or code.modules):
            note = self._of_modules(own)
            yield self._difference("function", "code", self._old.code, self._new.code, note=note)

    def _of_modules(self, own: Collection[str] = ()) -> str:
        """What is known of the modules that differ. ``own``: what a task names in the job's own modules; empty: the whole job."""
        if self._code is None:
            return f"the job's own modules differ{', if it is in one of them' if own else ''}"
        changed = self._code.modules
        named = [name for name in own if name.partition(":")[0] in changed]
        untouched = bool(named) and self._code.same.issuperset(named)
        mine = sorted(changed if untouched or not named else {name.partition(":")[0] for name in named})
        text = f"{plural(len(mine), 'module', 'modules')} {listed(mine)} {plural(len(mine), 'differs', 'differ')}"
        if own and not named:
            return f"{text}, if it is used there"
        return f"{text}, but not the text of {listed(_names(named))}" if untouched else text

    # What else a user should know

    def _of_new(self, task: TaskSpec, gone: Iterable[TaskSpec]) -> str:
        """Of a task that was added."""
        twin = next((other.name for other in gone if replace(other, name=task.name) == task), "")
        notes = [f"like {twin}, which is removed"] if twin else []
        if task.type == "input":
            notes.append(self._where_read(task) if task.connector == "kafka" else "it reads all that it finds")
        elif twin:
            notes.append("a task is known by its name, so this is another task")
        elif stateful(task):
            notes.append("its state begins empty")
        return "; ".join(notes)

    def _of_new_link(self, name: str) -> str:
        """Of a link that was added: a task that did not read the topic before has no position there."""
        for link in self._reads:
            task = self._new.task(link.source)
            known = any(task.name == each.name for each in self._old.catalog)
            if link.name == name and known and not self._reads_on(link) and not self._ways.problems:
                return f"{link.target} begins there at start={task.options.get('start')!r}"
        return ""

    def _note(self, field: str, old: TaskSpec, new: TaskSpec, found: Difference) -> str:
        """Of a field that differs."""
        resumed = "resume" in found.ways
        if field == "options.start" and resumed and old.connector == new.connector == "kafka":
            return self._where_read(new)
        if found.kind == "state" and resumed and stateful(new) and not self._ways.keeps_states:
            return "its state begins empty"
        places = ("connector", "options.topic", "options.path", "options.url", "options.table")
        if found.kind == "output" and field in places:
            return "what it has written stays where it is"
        return ""

    def _where_read(self, task: TaskSpec) -> str:
        """From where the topic of a Kafka input is read. The positions are the tasks' after it if it has no work of its own."""
        start = f"start={task.options.get('start')!r}"
        links = [link for link in self._reads if link.source == task.name]
        on = [link.target for link in links if self._reads_on(link)]
        begin = [link.target for link in links if not self._reads_on(link)]
        if not on or self._ways.problems:
            return f"it begins at its {start}"
        if not begin:
            return "with `--resume` it is read on from where the old job ended, whatever `start=` says"
        read, begins = plural(len(on), "reads", "read"), plural(len(begin), "begins", "begin")
        return (
            f"with `--resume` {listed(on)} {read} on from where the old job ended; {listed(begin)} {begins} at {start}"
        )

    def _reads_on(self, link: Link) -> bool:
        """Whether the old job has positions for an input link of the new one."""
        return link.topic in self._was_read.get(link.target, ())

    # How it can be carried out

    def _difference(
        self,
        kind: DifferenceKind,
        field: str,
        before: Any,
        after: Any,
        *,
        note: str = "",
        moves: bool = False,
        changes: bool = True,
    ) -> Difference:
        ways = self._ways.of(kind, field, after, moves=moves, changes=changes)
        return Difference(kind=kind, field=field, before=before, after=after, ways=ways, note=note)

    def _refused(self, way: Way) -> bool:
        """Whether a way cannot be taken for a reason that may not be about what differs."""
        return bool(self._ways.problems if way == "resume" else way == "change" and self._ways.obstacles)

    def _obstacle(self, found: Obstacle) -> Refusal:
        failure = Failure(
            "SX-JOB-CHANGE",
            f"job {self._job} cannot be changed like that: {found.text}",
            cause="its queues, positions or states would no longer fit, or be found",
            fix="leave this as it is; or carry it out in another way",
            where={"job": self._job},
        )
        return Refusal(way="change", failure=failure, task=found.task, link=found.link)

    def _refusal(self, problem: ResumeProblem) -> Refusal:
        link = self._ways.link_of(problem)
        return Refusal(way="resume", failure=problem.failure(self._job), task=problem.task, link=link)


def _names(references: Iterable[str]) -> list[str]:
    return [name.partition(":")[2] for name in references]


def _faces(spec: JobSpec) -> dict[str, _Face]:
    """Every link by its name, and the edges between fused tasks."""
    found = {link.name: _face(spec, link) for link in graph_of(spec, "", "").links}
    for source, target in spec.workflow:
        found.setdefault(f"{source}.{target}", _Face("fused", None, spec.route(source, target), (None, False)))
    return found


def _face(spec: JobSpec, link: Link) -> _Face:
    route = spec.routes.get(link.name, Route())
    return _Face(link.kind, None if link.owned else link.topic, route, (link.group_by, link.by_key))


def _where(route: Route) -> str | None:
    return condition_text(route.where) or None


def _of_removed(task: TaskSpec) -> str:
    return "what it has written stays" if task.type == "output" else ""


__all__ = [
    "CodeChange",
    "Difference",
    "JobDiff",
    "LinkDiff",
    "Refusal",
    "TaskDiff",
    "job_diff",
]
