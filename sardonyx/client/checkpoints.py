"""The checkpoints of a job: of which times its tasks keep their state. Read from the positions of its tasks while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from sardonyx.client.links import links_stand
from sardonyx.client.views import laid_out
from sardonyx.core.checkpoints import Checkpoints, complete
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED
from sardonyx.core.graph import Stage
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, stateful
from sardonyx.core.text import listed, time_text
from sardonyx.core.units import ago

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings

_NAMED = 5
"""Times that an error names."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TaskCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that one task has."""

    task: str
    times: list[datetime]
    """The times of which all its partitions have the state, ascending."""


class JobCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that a job has."""

    every: str | None
    """How far they are apart; None: the job keeps none."""
    times: list[datetime]
    """The times of which all its tasks with state have it, ascending: the complete ones."""
    tasks: list[TaskCheckpoints]
    """While the job runs."""


def job_checkpoints(settings: Settings, job: str, spec: JobSpec, note: JobNote | None) -> JobCheckpoints:
    """Ask for the checkpoints of a job; of one that has ended, those that it had kept.

    Args:
        settings: of the deployment.
        job: the job's id.
        spec: the job as data.
        note: its status.

    Raises:
        SardonyxError: ``SX-STATE-GONE``: the job does not run.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    if note is not None and note.status in ENDED and note.links == "gone" and spec.checkpoint_every:
        return JobCheckpoints(every=spec.checkpoint_every, times=times_of(note.checkpoints), tasks=[])
    if note is None or not links_stand(note):
        raise SardonyxError(
            "SX-STATE-GONE",
            f"the checkpoints of job {job} cannot be read",
            cause="it is not taken in yet"
            if note is None
            else f"it is {note.status}"
            + (", and its topics are being deleted" if note.status in ENDED and note.links != "gone" else ""),
            fix="read them while the job runs, or when its topics are deleted, if it has `checkpoint_every`",
        )
    graph = laid_out(spec, settings.deployment, job)
    every = graph.checkpoint_every
    if every is None:
        return JobCheckpoints(every=None, times=[], tasks=[])
    settings.require("kafka")
    from queues import admin

    stages = [stage for stage in graph.stages if stateful(stage.task)]
    held = admin.held_positions(settings, stages, job)
    shards = {stage.name: shards_in(stage, held[stage.name]) for stage in stages}
    return JobCheckpoints(
        every=spec.checkpoint_every,
        # What Kafka has forgotten, the coordinator's log still has.
        times=times_of(complete([each for own in shards.values() for each in own], every) or note.checkpoints),
        tasks=[TaskCheckpoints(task=name, times=times_of(complete(own, every))) for name, own in shards.items()],
    )


def shards_in(stage: Stage, positions: Mapping[Partition, Position | None]) -> list[Checkpoints]:
    """What each shard of a task knows of its checkpoints."""
    first = stage.ingress[0].topic
    own = [position for place, position in sorted(positions.items(), key=lambda each: each[0]) if place.topic == first]
    return [Checkpoints() if each is None or each.checkpoints is None else each.checkpoints for each in own]


def refuse_unknown(stage: Stage, positions: Mapping[Partition, Position | None], time: int, every: int) -> None:
    """Check that all shards of a task have a checkpoint at a time.

    Raises:
        SardonyxError: ``SX-CHECKPOINT-UNKNOWN``.
    """
    shards = shards_in(stage, positions)
    if every and time % every == 0 and shards and all(shard.at(time) is not None for shard in shards):
        return
    known = times_of(complete(shards, every))[-_NAMED:] if every else []
    last = (
        f"the last ones are {listed([f'{each:%Y-%m-%dT%H:%M:%SZ}' for each in known])}" if known else "it has none yet"
    )
    raise SardonyxError(
        "SX-CHECKPOINT-UNKNOWN",
        f"task {stage.name} has no checkpoint at {time_text(time)}",
        cause=last if every else "the job keeps none",
        fix="`sardonyx job checkpoints` lists them" if every else "submit the job with `checkpoint_every=`",
    )


def moment(at: datetime | str) -> int:
    """A time as people give it, such as "2026-11-26T10:00:00Z" or "10 min ago", in microseconds since 1970. Without a zone it is
    UTC.

    Raises:
        SardonyxError: ``SX-USAGE``.
    """
    past = ago(at) if isinstance(at, str) else None
    try:
        if past is not None:
            at = datetime.now(UTC) - timedelta(seconds=past)
        found = datetime.fromisoformat(at) if isinstance(at, str) else at
    except (ValueError, OverflowError) as error:
        raise SardonyxError(
            "SX-USAGE",
            f"{at!r} is not a time",
            cause=str(error),
            fix='write for example 2026-11-26T10:00:00Z, or "10 min ago"',
        ) from error
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(microseconds=1)


def times_of(found: Sequence[int]) -> list[datetime]:
    """Convert times in microseconds. Times that ``datetime`` cannot represent are left out."""
    return [each for each in map(_datetime, found) if each is not None]


def _datetime(time: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return None


__all__ = ["JobCheckpoints", "TaskCheckpoints", "job_checkpoints", "moment", "refuse_unknown", "shards_in", "times_of"]
