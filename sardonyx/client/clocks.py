"""How far each task of a job has come in event time, and what holds its clock back. Asked from the consumer groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sardonyx.client.views import laid_out, task_notes
from sardonyx.core import node_paths
from sardonyx.core.changing_at import Pending, at_text, going
from sardonyx.core.clocks import END, NEVER, SourceClock, task_clock
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED, LinkFacts
from sardonyx.core.graph import Graph, Stage, graph_of, is_endless
from sardonyx.core.notes import JobNote, LinksNote
from sardonyx.core.positions import Partition, Position, clock_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import counted
from sardonyx.core.units import duration

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession

_SKEW = 1.0
"""Seconds by which the clocks of two machines may differ: a clock that is further ahead of now is so by its rows."""
_AT_A_TIME = 8
"""Number of tasks that are asked about concurrently."""

Positions = Mapping[Partition, Position | None]
Clocks = Mapping[Partition, SourceClock]


class TaskClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of one task: no row that it still reads is older, late ones apart."""

    task: str
    clock: int | None
    """Microseconds since 1970 (UTC), or a number of rows for an ordinal; None: nothing is known yet, or it is ``ended``."""
    ended: bool = False
    """Everything was read: all windows are closed."""
    held_by: list[str] = []
    """The partitions whose clocks are the least, such as ``hits[3]``; inner ones by the name of their link."""
    why: str = ""
    """Why these are not further."""
    idle: list[str] = []
    """Partitions that had no row for so long that they do not count."""
    waiting: int | None = None
    """Of a lookup: how many rows have been read, and wait until the clock of its table has passed them. None: not known."""
    waits_for: str = ""
    """Of a lookup: the task with its table."""


class JobClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of a job is the least of its tasks' clocks. It never falls; docs/time.md names the two exceptions. A partition
    whose peer is lost holds it, if it was not idle before. A record that a queue between two tasks has lost fails the job.
    """

    job: str
    clock: int | None
    ended: bool
    behind_seconds: float | None
    """How far the clock is behind this machine's; None if it is not known, or not a time."""
    tasks: list[TaskClock]
    ordinal: bool = False
    """Whether the clocks count rows, and are no times."""


def job_clock(zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None) -> JobClock:
    """The clocks of a job.

    Raises:
        SardonyxError: ``SX-CLOCK-NONE``: the job has none. ``SX-CLOCK-GONE``: its links do not exist yet, or no more.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    if not graph.timed:
        raise SardonyxError(
            "SX-CLOCK-NONE",
            f"job {job} has no clock",
            cause="no input of it has times, and no task has windows or keyed state",
            fix='give the inputs `time="column"`; docs/time.md says how',
        )
    data = zk.read(node_paths.job_links(job))
    if note is None or note.status in ENDED or data is None:
        raise SardonyxError(
            "SX-CLOCK-GONE",
            f"the clocks of job {job} cannot be asked for",
            cause=f"it is {note.status if note is not None else 'not taken in yet'}: its links do not exist",
            fix="ask while the job runs; `sardonyx job show` says what became of it",
        )
    settings.require("kafka")
    from queues.admin import topics
    from queues.group_clocks import committed_by

    facts = msgspec.json.decode(data, type=LinksNote).links
    notes = task_notes(zk.read_many, graph, job)
    complete = {name for name, each in notes.items() if each.counts is not None}
    going = [stage for stage in graph.stages if stage.name not in complete]
    there = topics(settings)
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="clocks") as pool:
        held = pool.map(lambda stage: committed_by(settings, stage, job, sizes_of(stage, facts, there)), going)
        known = dict(zip([stage.name for stage in going], held, strict=True))
    return clocks_of(job, graph, known, None if counts_rows(spec) else time.time(), facts)


def sizes_of(stage: Stage, facts: Mapping[str, LinkFacts], there: Mapping[str, Sized]) -> dict[str, int]:
    """By topic that a task reads, how many of its partitions count for its clock: also those that users have added, if the topic
    is read without an end. Pure.

    Args:
        stage: the task.
        facts: of the job's links.
        there: by topic, its partitions as they are now.
    """
    return {
        link.topic: max(facts[link.name].partitions, len(there.get(link.topic, ())) if is_endless(link) else 0)
        for link in stage.ingress
    }


def counts_rows(spec: JobSpec) -> bool:
    """Whether the clocks of a job are numbers of rows, and no times. Pure."""
    return any(task.time is not None and task.time.kind == "ordinal" for task in spec.catalog)


def seconds_behind(found: JobClock, now: float) -> dict[str, float]:
    """By task, how far its clock is behind the time of day. Those that have ended, or have no clock, are left out. Pure.

    Args:
        found: the clocks of a job; they are times.
        now: seconds since 1970.
    """
    return {task.task: round(now - task.clock / 1e6, 3) for task in found.tasks if task.clock is not None}


def clocks_of(
    job: str,
    graph: Graph,
    known: Mapping[str, Positions],
    now: float | None,
    facts: Mapping[str, LinkFacts] = MappingProxyType({}),
) -> JobClock:
    """Put the clocks of a job together. Pure.

    Args:
        job: its id.
        graph: of the job.
        known: by task, what its group has committed for all that it reads. Tasks that are missing are complete.
        now: seconds since 1970; None: the job's clock counts rows.
        facts: of the links: partitions of which nothing is committed may begin with a clock.
    """
    clocks = {stage.name: _clocks(stage, known[stage.name], facts) for stage in graph.stages if stage.name in known}
    heard = _heard(graph, clocks)
    tasks = [_task_clock(stage, known.get(stage.name), clocks, heard.get(stage.name)) for stage in graph.stages]
    ended = all(task.ended for task in tasks)
    values = [task.clock for task in tasks if not task.ended]
    least = None if ended or None in values else min(value for value in values if value is not None)
    behind = None if least is None or now is None else round(now - least / 1e6, 3)
    ordinal = any(link.time is not None and link.time.kind == "ordinal" for link in graph.links)
    return JobClock(job=job, clock=least, ended=ended, behind_seconds=behind, tasks=tasks, ordinal=ordinal)


def against_now(found: JobClock) -> str | None:
    """How the clock of a job stands to this machine's, such as "behind now 3 s"; None if that is not known. Pure."""
    if found.behind_seconds is None:
        return None
    if found.behind_seconds < -_SKEW:
        return f"ahead of now {duration(-found.behind_seconds)}"
    return f"behind now {duration(max(found.behind_seconds, 0.0))}"


def what_holds(found: JobClock) -> str | None:
    """What holds the clock of a job, in a sentence, and whether it is ahead of now; None if it has ended. Pure."""
    holds = _what_holds(found)
    if holds is None or found.behind_seconds is None or found.behind_seconds >= -_SKEW:
        return holds
    return f"{holds}; it is {against_now(found)}, so rows of now come late: one that it has passed had a time of the future"


def _what_holds(found: JobClock) -> str | None:
    going = [task for task in found.tasks if not task.ended]
    if not going:
        return None
    slowest = min(going, key=lambda task: NEVER if task.clock is None else task.clock)  # of equal ones the first
    if not slowest.held_by:
        return f"its clock is that of task {slowest.task}: {slowest.why}"
    many = len(slowest.held_by) - 1
    others = f" and {many} more" if many else ""
    return f"its clock is held by {slowest.held_by[0]}{others}, which task {slowest.task} reads: {slowest.why}"


def waiting_rows(found: JobClock) -> list[str]:
    """The lookups in which rows wait, each in a sentence. Pure."""
    rule = "a row waits until the clock of the table has passed its time"
    return [
        f"{counted(task.waiting, 'row')} {'waits' if task.waiting == 1 else 'wait'} in {task.task} for {task.waits_for}: {rule}"
        for task in found.tasks
        if task.waiting
    ]


class Lack(NamedTuple):
    """A task whose clock is not far enough for a change at a time to be complete."""

    task: TaskClock
    due: int
    """Where it must come."""

    def text(self, waits: Pending) -> str:
        """What the change waits for."""
        due = at_text(self.due, ordinal=waits.ordinal)
        clock = (
            "has not begun"
            if self.task.clock is None
            else f"stands at {at_text(self.task.clock, ordinal=waits.ordinal)}"
        )
        held = f"{self.task.held_by[0]} holds it: " if self.task.held_by else ""
        return (
            f"it waits until the clock of task {self.task.task} has passed {due}; it {clock}, and {held}{self.task.why}"
        )


def lacking(spec: JobSpec, waits: Pending, clocks: JobClock) -> Lack | None:
    """The first task whose clock is not far enough for a change at a time to be complete; None: there is none. Pure.

    Args:
        spec: the job, with the tasks of both versions.
        waits: the change.
        clocks: of the job.
    """
    wanted = _wanted(spec, waits)
    for task in clocks.tasks:
        due = wanted.get(task.task)
        if due is not None and not task.ended and (task.clock is None or task.clock < due):
            return Lack(task, due)
    return None


def _wanted(spec: JobSpec, waits: Pending) -> dict[str, int]:
    """Return by task the time that its clock must reach before the change is complete."""
    from sardonyx.state.last_results import due

    graph = graph_of(spec, "", "")
    found = due(graph, going(spec), waits.at)
    for source, target in spec.workflow:
        if spec.route(source, target).bounds is not None:
            found = dict.fromkeys((source, target), waits.at) | found
    return found


class _Heard(NamedTuple):
    """What the readers of a task's links know of its clock."""

    clock: int
    """What it has stated, as far as one of them has committed it. It never falls."""
    reader: str
    """The task that has committed it."""


def _heard(graph: Graph, clocks: Mapping[str, Clocks]) -> dict[str, _Heard]:
    """Return what the readers know of the clock of each task that others read, by task."""
    found: dict[str, _Heard] = {}
    for stage in graph.stages:
        for link in stage.ingress:
            if link.kind == "internal":
                own = (clock.value for p, clock in clocks.get(stage.name, {}).items() if p.topic == link.topic)
                known = _Heard(max((value for value in own if value != END), default=NEVER), stage.name)
                found[link.source] = max(found.get(link.source, known), known)
    return found


def _task_clock(
    stage: Stage, positions: Positions | None, by_task: Mapping[str, Clocks], heard: _Heard | None
) -> TaskClock:
    if positions is None:
        return TaskClock(task=stage.name, clock=None, ended=True)
    waiting, waits_for = _waiting(stage, positions)
    names = {link.topic: link.name if link.kind == "internal" else link.topic for link in stage.ingress}
    clocks = by_task[stage.name]
    idle = [f"{names[p.topic]}[{p.number}]" for p, clock in clocks.items() if clock.idle]
    going = [clock for clock in clocks.values() if clock.value != END]
    if clocks and not going:
        return TaskClock(task=stage.name, clock=None, ended=True, idle=idle, waiting=waiting, waits_for=waits_for)
    least = task_clock(going)
    if heard is None:  # no task says where it was before a partition became idle, or ceased to be
        clock = max((clock.value for clock in going), default=NEVER) if least is None else least
    else:
        clock = max(min((clock.value for clock in going), default=NEVER), heard.clock)
    held_by = [] if least is None else [p for p, each in clocks.items() if each.value == least and not each.idle]
    if least is None:
        goes_on, holds = "it goes on with the machine's clock", 'the clock holds (`at_rest="wall"` lets it go on)'
        why = f"all its partitions are idle, so {goes_on if stage.goes_on_at_rest else holds}"
    elif heard is not None and clock < least:
        held_by, why = [], f"{heard.reader} has not read what it has stated since"
    elif clock > least > NEVER and any(link.time is not None and link.time.idle is not None for link in stage.ingress):
        why = "it is behind the clock, which does not fall when an idle partition has rows again"
    else:
        why = _why(stage, held_by[0], positions[held_by[0]], least)
    slowest = [f"{names[p.topic]}[{p.number}]" for p in held_by]
    return TaskClock(
        task=stage.name,
        clock=_shown(clock),
        held_by=slowest,
        why=why,
        idle=idle,
        waiting=waiting,
        waits_for=waits_for,
    )


def _waiting(stage: Stage, positions: Positions) -> tuple[int | None, str]:
    """How many rows wait in a lookup, as its positions say, and the task with the table that they wait for."""
    relation = stage.task.relation
    if relation is None or relation.kind != "lookup":
        return None, ""
    known = [position.waits for position in positions.values() if position is not None and position.waits is not None]
    return (sum(known) if known else None), relation.right or ""


def _clocks(stage: Stage, positions: Positions, facts: Mapping[str, LinkFacts]) -> Clocks:
    begins = {link.topic: facts[link.name] for link in stage.ingress if link.name in facts}
    return {
        p: _clock(begins.get(p.topic), p.number, position)
        for p, position in sorted(positions.items(), key=itemgetter(0))
    }


def _clock(facts: LinkFacts | None, number: int, position: Position | None) -> SourceClock:
    if facts is not None:
        return clock_of(facts, number, position)
    return SourceClock() if position is None else position.clock


def _why(stage: Stage, partition: Partition, position: Position | None, least: int) -> str:
    link = next(link for link in stage.ingress if link.topic == partition.topic)
    if link.kind == "splits":
        return "its splits are read side by side, so it has no clock before all are read"
    if link.kind == "internal":
        return f"{link.source} has stated no more" if least != NEVER else f"{link.source} has not stated a clock yet"
    if position is None:
        return "nothing of it was read yet"
    if link.time is None:
        return "its input has no `time=`, so it has no clock before its end"
    if least == NEVER:
        return "no row of it had a time yet"
    return "no later row of it was read"


def _shown(clock: int) -> int | None:
    return None if clock in (NEVER, END) else clock
