"""What a job's tasks have not read yet, how far they have read their inputs, and whether its links have lost rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queues.backlog import NO_BACKLOG, Backlog
from sardonyx.client.lags import LinkAudit, LinkLag, PartitionLag
from sardonyx.client.links import facts_of, facts_that_stand
from sardonyx.client.views import laid_out, task_notes
from sardonyx.core.back_pressure import bounds_of
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession


def link_lags(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None, *, holds: bool = True
) -> list[LinkLag]:
    """What is unread on each link that a task reads, and what its topic holds, in the order of the tasks.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status; None while no coordinator has taken it in.
        holds: whether to ask what the topics hold, too.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    facts = facts_that_stand(zk, job, note)
    known, kept = ({}, {}) if facts is None else _asked(zk, settings, graph, job, facts, holds=holds)
    bounds = bounds_of(graph.links, facts or {})
    other = NO_BACKLOG if note is not None and note.status == "completed" else Backlog()
    return [
        LinkLag(
            link=link.name,
            reader=stage.name,
            kind=link.kind,
            topic=link.topic,
            unit="splits" if link.kind == "splits" else "records",
            max_backlog=bounds.get(link.name),
            **known.get(link.name, other)._asdict(),
            **kept.get(link.topic, {}),
        )
        for stage in graph.stages
        for link in stage.ingress
    ]


def partition_lags(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None, task: str
) -> list[PartitionLag]:
    """What is unread in each partition that a task reads: nothing is known of one that is complete, or of links that are gone.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status; None while no coordinator has taken it in.
        task: the task; none that runs in the batches of the task before it has partitions.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    facts = facts_that_stand(zk, job, note)
    stage = next((stage for stage in graph.stages if task == stage.name), None)
    if facts is None or stage is None:
        return []
    state = task_notes(zk.read_many, graph, job).get(task)
    if state is None or state.counts is not None:
        return []
    settings.require("kafka")
    from queues.lag import by_partition

    kinds = {link.name: link.kind for link in stage.ingress}
    return [
        PartitionLag(
            link=each.link,
            topic=each.place.topic,
            partition=each.place.number,
            committed=each.committed,
            end=each.end,
            unit="splits" if kinds[each.link] == "splits" else "records",
            **each.backlog._asdict(),
        )
        for each in by_partition(settings, stage, job, facts)
    ]


def link_audits(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> list[LinkAudit]:
    """What was written to each link between two tasks, what was read from it, and what is missing. In the order of the tasks.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status; None while no coordinator has taken it in.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    found = {}
    facts = facts_that_stand(zk, job, note)
    if facts is not None:
        settings.require("kafka")
        from queues.audit import audit

        found = {name: asdict(tally) for name, tally in audit(settings, graph, job, facts).items()}
    return [
        LinkAudit(link=link.name, writer=link.source, reader=stage.name, **found.get(link.name, {}))
        for stage in graph.stages
        for link in stage.ingress
        if link.kind == "internal"
    ]


def input_positions(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec
) -> dict[str, dict[str, list[int]]]:
    """How far a job that runs has read its Kafka inputs: by task, by topic, the next offset in each partition.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    settings.require("kafka")
    from queues import admin

    facts = facts_of(zk, job)
    if facts is None:  # the job was deleted at this moment
        return {}
    return admin.input_positions(settings, laid_out(spec, settings.deployment, job), job, facts)


def _asked(
    zk: ZooKeeperSession,
    settings: Settings,
    graph: Graph,
    job: str,
    facts: Mapping[str, LinkFacts],
    *,
    holds: bool,
) -> tuple[dict[str, Backlog], dict[str, dict[str, Any]]]:
    """What is unread, by link; and what the topics of the job hold, by topic."""
    settings.require("kafka")
    from queues.kept import kept
    from queues.lag import lag

    notes = task_notes(zk.read_many, graph, job)
    complete = {name: note.counts for name, note in notes.items() if note.counts is not None}
    unread = lag(settings, graph, job, facts, complete)
    if not holds:
        return unread, {}
    own = {
        link.topic: range(facts[link.name].partitions) for link in graph.links if link.kind in ("internal", "splits")
    }
    held = kept(settings, own)
    return unread, {topic: {"kept_bytes": each.bytes, "kept_seconds": each.seconds} for topic, each in held.items()}
