"""Rows of a range of time, worked once more by a job of its own: what that means, said beforehand, and doing it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sardonyx.client.checkpoints import moment, times_of
from sardonyx.client.going_back import Known, of_log, of_running, outputs_of
from sardonyx.client.ids import asker, new_id
from sardonyx.client.views import laid_out
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED, JobSubmitted
from sardonyx.core.going_back import begins_at, last_at, points_of
from sardonyx.core.graph import Graph
from sardonyx.core.replaying import SAME, Offsets, aligned, check, check_worked, offsets_read, partial, replay_spec
from sardonyx.core.resuming_at import no_point, of_replay
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.text import time_text
from sardonyx.core.timing import WindowSpec, length
from sardonyx.core.topics_anew import fewer_partitions, other_topics, recreated

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle

_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What it means to work rows of a job once more."""

    job: str
    since: datetime
    """The first time of the rows that are worked."""
    until: datetime
    """Rows of this time or later are not."""
    with_state: bool
    """Whether the tasks begin with their states of ``since``; else they begin with none."""
    outputs: str
    """``same``: those of the job. Else the word that is added to their names."""
    reads: dict[str, int]
    """By topic, about how many records are read. Those of other times are left out."""
    publishes: list[str]
    """The outputs that results are given to."""
    partial: list[str]
    """The tasks whose results may depend on rows that are not of these times."""
    resumes: str = ""
    """The job from which this one went on: what that one had read before is not worked."""
    deleted: dict[str, int] = {}
    """By topic, about how many records that might be of these times its retention has deleted."""


def replaying(
    client: Client,
    handle: JobHandle,
    since: datetime | str,
    until: datetime | str,
    *,
    with_state: bool,
    outputs: str,
    kept: bool,
) -> Replay:
    """What :meth:`sardonyx.client.job_handle.JobHandle.replaying` does."""
    return _planned(client, handle, since, until, with_state, outputs, kept)[0]


def replay(
    client: Client,
    handle: JobHandle,
    since: datetime | str,
    until: datetime | str,
    *,
    with_state: bool,
    outputs: str,
    kept: bool,
) -> JobHandle:
    """What :meth:`sardonyx.client.job_handle.JobHandle.replay` does."""
    from sardonyx.client.job_handle import JobHandle as Handle

    _, spec, point = _planned(client, handle, since, until, with_state, outputs, kept)
    if spec.code is not None:  # written again, so that it is not removed before the new job names it
        path = node_paths.code(spec.code)
        code = client.zk.read(path)
        if code is not None:
            client.put_code(path, code)
    resumes = "" if point is None else handle.id
    client.zk.request(JobSubmitted(job=spec.name, spec=spec, resumes=resumes, replays=point, by=asker()))
    found = Handle(client, spec.name, spec)
    if with_state:
        found.await_admitted()
    return found


def _planned(
    client: Client,
    handle: JobHandle,
    since: datetime | str,
    until: datetime | str,
    with_state: bool,
    outputs: str,
    kept: bool,
) -> tuple[Replay, JobSpec, CheckpointPoint | None]:
    """What a replay means, the job that does it, and with the states of which checkpoint it begins."""
    spec, first, end = handle.spec(), moment(since), moment(until)
    _refuse_word(outputs)
    check(handle.id, spec, first, end, outputs)
    for task in spec.catalog:
        if task.window is not None:
            _refuse_cut(handle.id, task, task.window, end if with_state else first, end)
    graph = laid_out(spec, client.settings.deployment, handle.id)
    client.settings.require("kafka")
    note = handle.sought()
    known = _known(client, handle, graph, ended=note is not None and note.status in ENDED)
    check_worked(handle.id, spec, known.facts, first, end)
    point = None
    if with_state:
        points = known.points if known.held is None else points_of(graph, known.held, every_time=True)
        point = replace(_point_at(handle.id, points, first), offsets={})  # what is read stands in the spec
    index = known.points if known.held is None else [begins_at(graph, known.held, first)]
    wanted = offsets_read(graph, known.facts, known.reached, index, first)
    reads, records, deleted = _left(client, spec, wanted, first, known.topics)
    if deleted and (with_state or not kept):
        raise _gone(handle.id, deleted, first)
    name = new_id(f"{spec.name[:40]}-replay")
    again = replay_spec(spec, name, first, end, reads, outputs)
    return (
        Replay(
            job=handle.id,
            since=times_of([first])[0],
            until=times_of([end])[0],
            with_state=with_state,
            outputs=outputs,
            reads=records,
            publishes=outputs_of(again),
            partial=partial(spec, with_state=with_state),
            resumes="" if note is None else note.resumes,
            deleted=deleted,
        ),
        again,
        point,
    )


def _refuse_word(outputs: str) -> None:
    if not _WORD.fullmatch(outputs):
        raise SardonyxError(
            "SX-USAGE",
            f"{outputs!r} cannot be added to the names of outputs",
            cause="it has at most 40 letters, digits, - and _",
            fix="write `same`, or a word such as `again`",
        )


def _known(client: Client, handle: JobHandle, graph: Graph, *, ended: bool) -> Known:
    """What is known of the job, once it can be resumed if it has ended."""
    if ended:
        handle.await_resumable()
    known = of_log(client, handle.id) if ended else of_running(client, handle.id, graph)
    if not known.facts:
        raise SardonyxError(
            "SX-JOB-REPLAY",
            f"job {handle.id} cannot be replayed: it has read nothing",
            cause="its topics were not made" if ended else "its topics are being made",
            fix="submit the job" if ended else "try again when it runs",
            where={"job": handle.id},
        )
    return known


def _left(
    client: Client, spec: JobSpec, wanted: Mapping[str, Offsets], since: int, ids: Mapping[str, str]
) -> tuple[dict[str, Offsets], dict[str, int], dict[str, int]]:
    """What topics still hold of what is to be read: by task; by topic, about how many records; and how many are deleted."""
    reads: dict[str, Offsets] = {}
    records: dict[str, int] = {}
    deleted: dict[str, int] = {}
    for task in spec.catalog:
        if task.name not in wanted:
            continue
        topic, asked = str(task.options["topic"]), wanted[task.name]
        found = _as_kept(client, task, asked, since, ids)
        lost = sum(max(0, low - start) for low, start in zip(found.low, asked.start, strict=False))
        if lost:
            deleted[topic] = max(lost, deleted.get(topic, 0))
        reads[task.name] = found.offsets
        records[topic] = max(records.get(topic, 0), found.offsets.records)
    return reads, records, deleted


class _Kept(msgspec.Struct, frozen=True):
    """What is to be read of a topic as it is now."""

    offsets: Offsets
    low: list[int]
    """The first record that is left in each partition."""


def _as_kept(client: Client, task: TaskSpec, wanted: Offsets, since: int, ids: Mapping[str, str]) -> _Kept:
    """What a topic still holds of what is to be read; by Kafka's own index of times, if these are the times of the rows.

    ``ids``: of the topics that the job has read, where they are known.
    """
    from queues import admin
    from queues.topic_ids import topic_ids

    topic = str(task.options["topic"])
    time = task.time
    looked = None
    if time is not None and time.kind == "kafka":
        looked = (_EPOCH + timedelta(microseconds=since)).isoformat()
    low, stamped = admin.first_offsets(client.settings, topic, looked)
    fix, where = "Submit the job with the `start=` and `end=` that you want.", {"topic": topic}
    if topic in ids and other_topics({topic: ids[topic]}, topic_ids(client.settings, [topic])):
        raise recreated(topic, "the job", fix, where)
    if len(low) < len(wanted.end):
        raise fewer_partitions(topic, len(low), "the job", len(wanted.end), fix, where)
    more = len(low) - len(wanted.end)
    end = [max(last, first) for last, first in zip([*wanted.end, *[0] * more], low, strict=True)]
    start = [
        min(max(first, least, stamp), last)
        for first, least, stamp, last in zip([*wanted.start, *[0] * more], low, stamped, end, strict=True)
    ]
    return _Kept(Offsets(start, end), low)


def _point_at(job: str, points: Sequence[CheckpointPoint], since: int) -> CheckpointPoint:
    """The checkpoint at the beginning of the range."""
    point = last_at(points, since)
    if point is None:
        problem = no_point(points, since)
        fix = (
            problem.fix
            if points
            else "replay it without `--with-state`; jobs with `checkpoint_every=` have checkpoints"
        )
        raise SardonyxError.from_failure(of_replay(problem, fix).failure(job))
    if point.at != since:
        raise SardonyxError(
            "SX-CHECKPOINT-UNKNOWN",
            f"job {job} has no checkpoint at {time_text(since)}",
            cause=f"the last one before is of {time_text(point.at)}",
            fix="take that as `--from`; `sardonyx job checkpoints` lists all",
            where={"job": job},
        )
    return point


def _refuse_cut(job: str, task: TaskSpec, window: WindowSpec, since: int, until: int) -> None:
    """Check that no window has rows of the range and others, if the range can be chosen so.

    Raises:
        SardonyxError: ``SX-REPLAY-RANGE``.
    """
    if not aligned(window):
        return
    first, last = _begin(window, since), _begin(window, until)
    if (first, last) == (since, until):
        return
    cut, time = ("beginning", since) if first != since else ("end", until)
    begin = first if first != since else last
    raise SardonyxError(
        "SX-REPLAY-RANGE",
        f"the {cut} of the range, {time_text(time)}, cuts windows of task {task.name}",
        cause=f"one begins at {time_text(begin)}, and its result would count a part of its rows",
        fix=f"give a `--{'from' if cut == 'beginning' else 'to'}` at which windows begin, such as {time_text(begin)}",
        where={"job": job, "task": task.name},
    )


def _begin(window: WindowSpec, time: int) -> int:
    """Where the window begins that holds a time."""
    if window.kind == "calendar":
        from sardonyx.state.calendars import Calendar

        return Calendar(str(window.unit), window.zone).start(time)
    return time - time % length(window.size)


def _gone(job: str, deleted: dict[str, int], since: int) -> SardonyxError:
    some = ", ".join(f"{count:,} of {topic}" for topic, count in deleted.items())
    return SardonyxError(
        "SX-REPLAY-GONE",
        f"records that job {job} has read are deleted, and some may be of {time_text(since)} or later",
        cause=f"these records, of which nothing shows that they are of earlier times: {some}",
        fix="give a later `--from`; or take what is left of that time with `--kept`",
        where={"job": job},
    )


__all__ = ["SAME", "Replay", "replay", "replaying"]
