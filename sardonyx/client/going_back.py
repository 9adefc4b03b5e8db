"""Going back to a checkpoint: what that means, said beforehand, and the rollback of a running job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sardonyx.client.checkpoints import moment, times_of
from sardonyx.client.ids import asker, job_gone, new_id
from sardonyx.client.links import links_of
from sardonyx.client.views import laid_out
from sardonyx.core.errors import Interrupted, SardonyxError, SetupError
from sardonyx.core.events import ENDED, JobRolledBack, LinkFacts
from sardonyx.core.going_back import begins_of, forgotten, last_at, points_of
from sardonyx.core.graph import Graph
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position, next_offsets, of_inputs
from sardonyx.core.resuming_at import no_point
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint

if TYPE_CHECKING:
    from coordinator.core.state import Job as KnownJob
    from sardonyx.client.change import Making
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle

_LATEST = 2**63 - 1


class GoingBack(msgspec.Struct, frozen=True, kw_only=True):
    """What it means to go back to a checkpoint of a job."""

    job: str
    at: datetime
    """The time of the checkpoint."""
    reads_again: dict[str, int]
    """By topic, about how many records are read again that the job had read. Those before the checkpoint are left out."""
    publishes_again: list[str]
    """The outputs that are given results again which the job had given for rows of this time or later."""


def going_back(client: Client, handle: JobHandle, at: datetime | str | None = None) -> GoingBack:
    """What :meth:`sardonyx.client.job_handle.JobHandle.going_back` does."""
    spec = handle.spec()
    graph = laid_out(spec, client.settings.deployment, handle.id)
    wanted = _LATEST if at is None else moment(at)
    note = handle.sought()
    if note is not None and note.status in ENDED:
        handle.await_resumable()
        known = of_log(client, handle.id)
    else:
        known = of_running(client, handle.id, graph)
    point = last_at(known.points, wanted)
    if point is None:
        raise SardonyxError.from_failure(no_point(known.points, wanted).failure(handle.id))
    begins = begins_of(point, graph, known.facts)
    return GoingBack(
        job=handle.id,
        at=times_of([point.at])[0],
        reads_again=_again(begins, _reached(client, begins, known.reached)),
        publishes_again=outputs_of(spec),
    )


def rollback(client: Client, handle: JobHandle, to: datetime | str | None, timeout: float | None) -> JobHandle:
    """What :meth:`sardonyx.client.job_handle.JobHandle.rollback` does."""
    from sardonyx.client.change import Making
    from sardonyx.client.job_handle import JobHandle as Handle

    handle.sought()
    making = Making(client, handle.id, timeout)
    known = making.present
    if known is not None and (known.ended or known.stopping):
        raise _not_rolled_back(handle.id, known)
    back = going_back(client, handle, to)
    into = new_id(handle.spec().name)
    client.zk.request(JobRolledBack(job=handle.id, into=into, to=moment(back.at), by=asker()))
    _await_next(client, making, into)
    found = Handle(client, into)
    found.await_admitted()
    return found


def _await_next(client: Client, making: Making, into: str) -> None:
    """Wait until the job is there that goes on. The request changes nothing if the job has ended meanwhile, or was stopped."""
    from sardonyx.client.change import LOOK_EVERY

    job, taken_in = making.job, False
    while True:
        taken_in |= any(isinstance(event, JobRolledBack) and event.into == into for event in making.look())
        known = making.present
        if into in making.jobs:
            return
        if taken_in and (known is None or known.into != into):
            raise _not_rolled_back(job, known)
        if making.over:
            cause = "the coordinator ends the job first, and deletes its topics"
            if not taken_in:
                cause = "no coordinator has processed it" if client.led() else "no coordinator leads this deployment"
            raise Interrupted(
                "SX-JOB-ROLLBACK-PENDING",
                f"The rollback of job {job} was requested, and job {into} has not begun yet.",
                cause=cause,
                fix=f"wait: it goes on by itself, when a coordinator leads. `sardonyx job explain {job}` says what it waits for; "
                f"`sardonyx job show {into}` shows the next one as soon as there is one",
                where={"job": job, "into": into},
            )
        time.sleep(LOOK_EVERY)


def _not_rolled_back(job: str, known: KnownJob | None) -> SardonyxError:
    """Why a job cannot be rolled back, or why a request for it has changed nothing."""
    from sardonyx.client.change import not_now

    if known is None:
        return job_gone(job)
    way = f"submit it again: `sardonyx job submit SPEC --resume {job}@TIME` begins at a checkpoint of it, and "
    way += f"`sardonyx job checkpoints {job}` lists these"
    if known.into:
        way = f"wait for job {known.into}, which goes on from there, and roll that one back if need be"
    if known.ended:
        return SardonyxError(
            "SX-JOB-ENDED",
            f"job {job} is {known.status}, so it cannot be rolled back",
            cause="a rollback ends a job that runs, and has another one go on",
            fix=way,
            where={"job": job},
        )
    if known.stopping:
        return not_now(job, "a user has stopped it", way if known.into else f"`sardonyx job await {job}`; then {way}")
    return not_now(job, "it does not run yet, or keeps no checkpoints any more")


class Known(NamedTuple):
    """What is known of a job."""

    points: Sequence[CheckpointPoint] = ()
    """Its checkpoints."""
    facts: Mapping[str, LinkFacts] = {}
    """The facts of its links; none: it has read nothing."""
    reached: Mapping[str, Mapping[str, Sequence[int]]] = {}
    """By task and topic, how far it has read."""
    held: Mapping[str, Mapping[Partition, Position | None]] | None = None
    """What its tasks have committed; None: it has ended."""
    topics: Mapping[str, str] = {}
    """The ids of the users' topics that it has read, where they are known."""


def of_log(client: Client, job: str) -> Known:
    from coordinator.history import reader

    known = reader.present(client.zk).jobs.get(job)
    if known is None:
        raise job_gone(job)
    reached = {name: task.positions for name, task in known.tasks.items()}
    return Known(known.checkpoints, known.facts or {}, reached, topics=known.topics)


def of_running(client: Client, job: str, graph: Graph) -> Known:
    links = links_of(client.zk, job)
    if links is None:
        return Known()
    facts = links.links
    client.settings.require("kafka")
    from queues import admin

    held = admin.held_positions(client.settings, graph.stages, job)
    reached = {stage.name: next_offsets(stage, facts, of_inputs(stage, held[stage.name])) for stage in graph.stages}
    # Kafka may have forgotten the positions: the coordinator's log has the last checkpoints, too.
    return Known(points_of(graph, held) or of_log(client, job).points, facts, reached, held, links.topics)


def refuse_forgotten(client: Client, handle: JobHandle, note: JobNote | None) -> None:
    """Check that the positions of a suspended job are known, if it has checkpoints in the log. A client that does not reach Kafka
    lets it pass: the tasks check it, too, but when others may have written already.

    Raises:
        SardonyxError: ``SX-JOB-POSITIONS-LOST``.
    """
    if note is None or not note.suspended or not note.checkpoints:
        return
    graph = laid_out(handle.spec(), client.settings.deployment, handle.id)
    try:
        client.settings.require("kafka")
        from queues import admin

        held = admin.held_positions(client.settings, graph.stages, handle.id, stable=False)
    except SetupError:
        return
    if forgotten(graph, held):
        raise positions_lost(handle.id, times_of(note.checkpoints))


def positions_lost(job: str, times: Sequence[datetime]) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-POSITIONS-LOST",
        f"job {job} cannot go on where it was: the brokers have forgotten how far its tasks had read",
        cause="no peer and no coordinator ran for longer than the brokers keep positions (offsets.retention.minutes)",
        fix=f"`sardonyx job rollback {job}` goes back to its last checkpoint, at {times[-1]:%Y-%m-%dT%H:%M:%SZ}, with the state "
        "that it had then; first it says what is published again",
        where={"job": job},
    )


def _reached(
    client: Client,
    begins: Mapping[str, Mapping[str, Sequence[int]]],
    reached: Mapping[str, Mapping[str, Sequence[int]]],
) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """How far tasks had read. What Kafka has forgotten lies before the checkpoint; then it is at most to where the topic ends."""
    lost = {
        topic: len(row)
        for task, topics in begins.items()
        for topic, row in topics.items()
        if any(end < begin for begin, end in zip_longest(row, reached.get(task, {}).get(topic, ()), fillvalue=0))
    }
    if not lost:
        return reached
    client.settings.require("kafka")
    from queues.topic_log import stable_end

    ends = {
        topic: [stable_end(client.settings, Partition(topic, number)) for number in range(count)]
        for topic, count in lost.items()
    }
    return {
        task: {**reached.get(task, {}), **{t: ends[t] for t in topics if t in ends}} for task, topics in begins.items()
    }


def _again(
    begins: Mapping[str, Mapping[str, Sequence[int]]], reached: Mapping[str, Mapping[str, Sequence[int]]]
) -> dict[str, int]:
    found: dict[str, int] = {}
    for task, topics in begins.items():
        for topic, begin in topics.items():
            end = reached.get(task, {}).get(topic, begin)
            records = sum(max(0, last - first) for first, last in zip(begin, end, strict=False))
            found[topic] = max(found.get(topic, 0), records)
    return found


def outputs_of(spec: JobSpec) -> list[str]:
    tasks = [task for task in spec.catalog if task.type == "output" and task.connector not in ("blackhole", "console")]
    return [
        f"{task.name} ({task.connector} {task.options.get('topic') or task.options.get('path') or ''})".replace(
            " )", ")"
        )
        for task in tasks
    ]


__all__ = ["GoingBack", "going_back", "rollback"]
