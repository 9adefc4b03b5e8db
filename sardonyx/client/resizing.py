"""A running job gets queues with another number of partitions: they are read to their end first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from sardonyx.client.change import LOOK_EVERY, not_now
from sardonyx.core.changing_at import settled
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.resizing import UNREAD, awake, queues, stand_still
from sardonyx.job.load import LoadedJob
from sardonyx.job.validate import validate

if TYPE_CHECKING:
    from sardonyx.client.change import Making
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.core.spec import JobSpec

log = structlog.get_logger()

_LET_GO = 30.0
"""Seconds for which a command that gives up waits until it can let the inputs go: peers may still be at their batches."""


def change_partitions(handle: JobHandle, making: Making, loaded: LoadedJob) -> int:
    """What :meth:`sardonyx.client.job_handle.JobHandle.change` does for another number of partitions: two changes, one after the
    other. If the second one cannot be made, the inputs of the job are read again, and it goes on as it was.

    Args:
        handle: of the job.
        making: of its changes.
        loaded: the new version.

    Raises:
        SardonyxError: ``SX-JOB-CHANGE-NOW``: the job is suspended, or a task is complete; what else a change raises.
        Interrupted: ``SX-JOB-CHANGE-UNREAD``, ``SX-JOB-CHANGE-PENDING``: not within the timeout.
    """
    known = making.known
    if known.suspended:
        raise not_now(handle.id, "it is suspended, so nothing reads its queues", "resume it, and try again")
    rests, revision = stand_still(known.spec, loaded.spec.partitions), known.revision
    try:
        making.make(rests, [], loaded)
        return _second(handle, making, rests, loaded)
    except BaseException as error:  # also if a user interrupts the command: nothing else would let the inputs go
        over = isinstance(error, SardonyxError) and not isinstance(error, Interrupted)
        _let_go(handle.id, making, loaded, None if over else revision)
        raise


def with_partitions(spec: JobSpec, partitions: int) -> LoadedJob:
    """The version of a job that runs which differs only in the number of its partitions.

    Raises:
        JobInvalid: there is none: ``SX-JOB-PARTITIONS``, or a task has a greater ``min_peers``.
    """
    found = replace(settled(awake(spec)), partitions=partitions)
    validate(found, import_functions=False)
    return LoadedJob(found, None, Path.cwd())


def _second(handle: JobHandle, making: Making, rests: JobSpec, loaded: LoadedJob) -> int:
    links = [link.name for link in queues(graph_of(making.known.spec, "", ""))]
    while True:
        making.await_read(handle, links, rests)
        try:
            return making.make(loaded.spec, [], loaded)
        except SardonyxError as error:
            if error.code != UNREAD or making.over:
                raise
        time.sleep(LOOK_EVERY)


def _let_go(job: str, making: Making, loaded: LoadedJob, revision: int | None) -> None:
    """Ask that the inputs are read again, unless the job has another version by now. It may be getting one that is given up then.
    Says so if that cannot be asked for.

    ``revision``: that of the job when the first change was asked for, if that may still be on its way; None: it is not.
    """
    deadline = time.monotonic() + _LET_GO
    cause = "a batch that began before takes long"
    try:
        while time.monotonic() < deadline:
            making.look()
            known = making.present
            if known is None or known.ended:
                return
            # Another user may have changed something else of it meanwhile; who wants another number takes over.
            if known.spec.next_partitions == loaded.spec.partitions and known.next_spec is None:
                making.ask(awake(known.spec), [], loaded)
                return
            stands = [spec.next_partitions for spec in (known.spec, known.next_spec) if spec is not None]
            if loaded.spec.partitions not in stands and known.revision != revision:
                return
            time.sleep(LOOK_EVERY)
    except SardonyxError as error:
        cause = str(error)
    fix = f"`sardonyx job explain {job}` says whether they stand still; then change the job to what it was"
    log.error("inputs_may_stand_still", job=job, cause=cause, fix=fix)  # commands show no warnings


__all__ = ["change_partitions", "with_partitions"]
