"""How far each source partition of a job is through all its tasks. Asked from the consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from sardonyx.client.views import laid_out, task_notes
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED, LinkFacts
from sardonyx.core.fronts import Sources
from sardonyx.core.graph import Graph
from sardonyx.core.notes import JobNote, LinksNote, TaskNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look, source_progress
from sardonyx.core.spec import JobSpec
from sardonyx.core.trace import State, trace
from sardonyx.state.release import holds_rows

if TYPE_CHECKING:
    from sardonyx.client.dead_letters import DeadLetters
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession

Held = Mapping[str, Mapping[Partition, Position | None]]


class PartitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one source partition is."""

    source: str
    """The topic; of an input that is read in splits, the link with their list."""
    partition: int
    unit: Literal["records", "splits"]
    """What its offsets count."""
    read: int | None
    """Up to this offset the job has read it; None: nothing yet."""
    everywhere: int | None
    """All below this offset has been through all tasks: it is in results, or was dropped, or is a dead letter. None: it is not
    known."""
    pending: int | None
    """How many offsets lie between the two."""
    held_by: list[str] = []
    """The tasks that the first pending row waits for; if ``everywhere`` is not known, those that make it so."""
    why: str = ""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the source partitions of a job are. It is never further than is true, also while peers die and others go on."""

    job: str
    lineage: bool
    """Whether the job was submitted with ``lineage=True``. If not, ``everywhere`` is known only while nothing is under way."""
    sources: list[PartitionProgress]


class TaskOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """One task on the way of a record."""

    task: str
    state: State
    """``unread``: it reads the source, and has not come so far. ``waiting``: the record, or what was made of it, is before the
    task. ``held``: it may be in an open window, or wait for other rows. ``through``: the task has worked it, or it ended before.
    ``unknown``: the job keeps no lineage."""
    why: str = ""
    until: int | None = None
    """If ``held``: the clock by which it is out at the latest, as :attr:`sardonyx.client.clocks.TaskClock.clock`. None: no clock
    lets it out, but the end of the input, or rows that fill its window."""


class DeadOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter that a record has become."""

    task: str
    number: int
    """Of the letter, as ``sardonyx dlq show`` takes it."""
    code: str
    error: str


class RecordTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record is on its way through a job."""

    job: str
    lineage: bool
    source: str
    partition: int
    offset: int
    ordinal: bool = False
    """Whether the job's clocks count rows, and are no times."""
    tasks: list[TaskOnWay]
    """Those that rows of its source come to, in their order."""
    letters: list[DeadOnWay] = []
    """Of tasks that read the source itself."""


def job_progress(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> JobProgress:
    """How far a job that runs is.

    Raises:
        SardonyxError: ``SX-PROGRESS-GONE``: its links do not exist yet, or no more.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    return progress_of(job, *_asked(zk, settings, job, spec, note))


def record_trace(
    zk: ZooKeeperSession,
    settings: Settings,
    job: str,
    spec: JobSpec,
    note: JobNote | None,
    record: tuple[str, int, int],
) -> RecordTrace:
    """Where a record is, without its dead letters.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status.
        record: the source, the partition, the offset.

    Raises:
        SardonyxError: ``SX-PROGRESS-GONE``; ``SX-TRACE-SOURCE``: the job has no such source; ``SX-TRACE-RECORD``: it has no such
            record.
        SetupError: as of :func:`job_progress`.
    """
    graph, look = _asked(zk, settings, job, spec, note)

    def end(place: Partition) -> int:
        from queues.topic_log import stable_end

        return stable_end(settings, place)

    return trace_of(job, graph, look, record, end)


def trace_of(
    job: str, graph: Graph, look: Look, record: tuple[str, int, int], end: Callable[[Partition], int]
) -> RecordTrace:
    """Put the way of a record together.

    Args:
        job: the job's id.
        graph: of the job.
        look: what is known of its tasks.
        record: the source, the partition, the offset.
        end: tells up to which offset a partition of a source has records. It is not called if a task has read the record.

    Raises:
        SardonyxError: ``SX-TRACE-SOURCE``, ``SX-TRACE-RECORD``.
    """
    sources, (source, partition, offset) = Sources(graph), record
    shown = _shown(graph)
    number = next((number for number, topic in enumerate(sources.names) if source in (topic, shown[topic])), None)
    if number is None:
        raise SardonyxError(
            "SX-TRACE-SOURCE",
            f"job {job} does not read {source!r}",
            cause=f"its sources are {', '.join(shown[topic] for topic in sources.names)}",
            fix="name one of them, with partition and offset: TOPIC[3]@4711",
        )
    _check_record(sources, look, number, shown[sources.names[number]], partition, offset, end)
    found = trace(graph, sources, look, (number, partition, offset), holding=_holding(graph), stated=graph.lineage)
    return RecordTrace(
        job=job,
        lineage=graph.lineage,
        source=shown[sources.names[number]],
        partition=partition,
        offset=offset,
        ordinal=any(link.time is not None and link.time.kind == "ordinal" for link in graph.links),
        tasks=[TaskOnWay(task=each.task, state=each.state, why=each.why, until=each.until) for each in found],
    )


def _check_record(
    sources: Sources, look: Look, number: int, shown: str, partition: int, offset: int, end: Callable[[Partition], int]
) -> None:
    """Of what does not exist, nothing could be said that is true."""
    place = Partition(sources.names[number], partition)
    known = [held for reader in sources.readers[number] for held in look.first[reader] if held.topic == place.topic]
    if place not in known:
        partitions = 1 + max((each.number for each in known), default=-1)
        raise SardonyxError(
            "SX-TRACE-RECORD",
            f"{shown} has no partition {partition}",
            cause=f"it has {partitions}; they are counted from 0",
            fix="name one of these partitions" if partitions else "see that the topic exists",
        )
    positions = [look.first[reader].get(place) for reader in sources.readers[number]]
    read = max((position.offset for position in positions if position is not None), default=0)
    if offset < read:
        return
    ends = max(end(place), read)  # a broker that has just lost its leadership may tell an older end
    if offset >= ends:
        raise SardonyxError(
            "SX-TRACE-RECORD",
            f"{shown}[{partition}] has no record at offset {offset:,} yet",
            cause=f"its records end before offset {ends:,}",
            fix="name an earlier offset, or ask again when the record is written and its transaction committed",
        )


def with_letters(found: RecordTrace, graph: Graph, letters: Callable[[], DeadLetters]) -> RecordTrace:
    """The same with the dead letters that the record has become in a task that reads the source itself.

    A letter of a later task names the message of a link, which is made of many records.

    Args:
        found: where the record is.
        graph: of the job.
        letters: gives those of the deployment; not called if no such task keeps any.
    """
    keeping = [
        stage.name
        for stage in graph.stages
        if any(link.topic == found.source for link in stage.ingress)
        and any(link.kind == "dead" for link in stage.egress)
    ]
    dead = []
    for task in keeping:
        for stored in letters().each(found.job, task):
            origin = stored.letter.origin
            if (origin.topic, origin.partition, origin.offset) == (found.source, found.partition, found.offset):
                failure = stored.letter.failure
                dead.append(DeadOnWay(task=task, number=stored.offset, code=failure.code, error=failure.message))
    return msgspec.structs.replace(found, letters=dead)


def _asked(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> tuple[Graph, Look]:
    """Ask the groups of a job's tasks, twice."""
    graph = laid_out(spec, settings.deployment, job)
    data = zk.read(node_paths.job_links(job))
    if note is None or note.status in ENDED or note.links != "made" or data is None:
        raise SardonyxError(
            "SX-PROGRESS-GONE",
            f"the progress of job {job} cannot be asked for",
            cause=f"it is {note.status if note is not None else 'not taken in yet'}: its links do not exist",
            fix="ask while the job runs; `sardonyx job show` says what became of it",
        )
    settings.require("kafka")
    from queues import admin

    facts = msgspec.json.decode(data, type=LinksNote).links
    # Before the groups are asked: what a task has read and written that was complete then is all that it ever did.
    notes = task_notes(zk.read_many, graph, job)
    first = admin.held_positions(settings, graph.stages, job, stable=False)
    again = admin.held_positions(settings, graph.stages, job, stable=False)
    return graph, look_of(graph, facts, first, again, notes)


def look_of(
    graph: Graph, facts: Mapping[str, LinkFacts], first: Held, again: Held, notes: Mapping[str, TaskNote]
) -> Look:
    """What is known of a job's tasks. Pure.

    Args:
        graph: of the job.
        facts: of its links, by name.
        first: by task, what its group has committed.
        again: the same, asked when all of ``first`` was there.
        notes: of the tasks, from before ``first``.
    """
    ended = {name for name, each in notes.items() if each.counts is not None}
    known = {name: _with_kept(held, notes.get(name)) if name in ended else held for name, held in first.items()}
    return Look(known, again, ended, _starts(graph, facts))


def progress_of(job: str, graph: Graph, look: Look) -> JobProgress:
    """Put the progress of a job together. Pure."""
    sources, shown = Sources(graph), _shown(graph)
    found = source_progress(graph, sources, look, holding=_holding(graph), stated=graph.lineage)
    return JobProgress(
        job=job,
        lineage=graph.lineage,
        sources=[
            PartitionProgress(
                source=shown[each.source],
                partition=each.partition,
                unit="records" if shown[each.source] == each.source else "splits",
                read=each.read,
                everywhere=each.everywhere,
                pending=each.pending,
                held_by=list(each.held_by),
                why=each.why,
            )
            for each in found
        ],
    )


def _holding(graph: Graph) -> set[str]:
    return {stage.name for stage in graph.stages if holds_rows(stage.task)}


def _shown(graph: Graph) -> dict[str, str]:
    """By topic of a source, what people call it: the topic, or the link with the list of splits."""
    links = [link for stage in graph.stages for link in stage.ingress if link.kind != "internal"]
    return {link.topic: link.name if link.kind == "splits" else link.topic for link in links}


def _starts(graph: Graph, facts: Mapping[str, LinkFacts]) -> dict[str, list[int]]:
    """By topic, where the job began to read each partition; of inputs that read one topic the least."""
    found: dict[str, list[int]] = {}
    for stage in graph.stages:
        for link in stage.ingress:
            if link.kind != "internal":
                own = [start or 0 for start in facts[link.name].start or [0] * facts[link.name].partitions]
                found[link.topic] = [min(pair) for pair in zip(found.get(link.topic, own), own, strict=False)]
    return found


def _with_kept(held: Mapping[Partition, Position | None], note: TaskNote | None) -> dict[Partition, Position | None]:
    """The positions of a task that is complete: the brokers forget them one day, and its note keeps the offsets."""
    kept = {} if note is None else note.positions
    found = dict(held)
    for topic, offsets in kept.items():
        for number, offset in enumerate(offsets):
            if found.get(Partition(topic, number)) is None:
                found[Partition(topic, number)] = Position(offset)
    return found


__all__ = [
    "DeadOnWay",
    "JobProgress",
    "PartitionProgress",
    "RecordTrace",
    "TaskOnWay",
    "job_progress",
    "look_of",
    "progress_of",
    "record_trace",
    "trace_of",
    "with_letters",
]
