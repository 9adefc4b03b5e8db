"""How far each source partition of a job is through all its tasks. Asked from the consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from sardonyx.client.links import facts_that_stand
from sardonyx.client.views import laid_out, task_notes
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph
from sardonyx.core.notes import JobNote, TaskNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look, source_progress
from sardonyx.core.source_fronts import Sources
from sardonyx.core.spec import JobSpec
from sardonyx.state.release import holds_rows

if TYPE_CHECKING:
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


def job_progress(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> JobProgress:
    """How far a job that runs is.

    Raises:
        SardonyxError: ``SX-PROGRESS-GONE``: its links do not exist yet, or no more.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    return progress_of(job, *asked(zk, settings, job, spec, note))


def asked(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> tuple[Graph, Look]:
    """Ask the groups of a job's tasks, twice."""
    graph = laid_out(spec, settings.deployment, job)
    if graph.cycles:
        raise SardonyxError(
            "SX-PROGRESS-LOOP",
            f"job {job} has the loop {graph.cycles[0].name!r}, so its progress is not known",
            cause="what is made of a row may go round the loop, so no position says that a row is through",
            fix=f"look at what is unread with `sardonyx link lag {job}`, or at rows by link with `sardonyx link audit {job}`",
        )
    facts = facts_that_stand(zk, job, note)
    if facts is None:
        raise SardonyxError(
            "SX-PROGRESS-GONE",
            f"the progress of job {job} cannot be asked for",
            cause=f"it is {note.status if note is not None else 'not taken in yet'}: its links do not exist",
            fix="ask while the job runs; `sardonyx job show` says what became of it",
        )
    settings.require("kafka")
    from queues import admin

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
    return Look(known, again, ended, _starts(graph, facts), facts)


def progress_of(job: str, graph: Graph, look: Look) -> JobProgress:
    """Put the progress of a job together. Pure."""
    sources, names = Sources(graph), shown(graph)
    found = source_progress(graph, sources, look, holding=holding(graph), stated=graph.lineage)
    return JobProgress(
        job=job,
        lineage=graph.lineage,
        sources=[
            PartitionProgress(
                source=names[each.source],
                partition=each.partition,
                unit="records" if names[each.source] == each.source else "splits",
                read=each.read,
                everywhere=each.everywhere,
                pending=each.pending,
                held_by=list(each.held_by),
                why=each.why,
            )
            for each in found
        ],
    )


def holding(graph: Graph) -> set[str]:
    """The tasks that may hold rows back."""
    return {stage.name for stage in graph.stages if holds_rows(stage.task)}


def shown(graph: Graph) -> dict[str, str]:
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
    """Add the offsets that the note of a complete task keeps: the brokers forget its positions after some time."""
    kept = {} if note is None else note.positions
    found = dict(held)
    for topic, offsets in kept.items():
        for number, offset in enumerate(offsets):
            if found.get(Partition(topic, number)) is None:
                found[Partition(topic, number)] = Position(offset)
    return found


__all__ = [
    "JobProgress",
    "PartitionProgress",
    "asked",
    "holding",
    "job_progress",
    "look_of",
    "progress_of",
    "shown",
]
