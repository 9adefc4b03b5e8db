"""A running job is stopped, and another one goes on from where it ended: the coordinator carries out both."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sardonyx.client.change import LOOK_EVERY, Making, rival
from sardonyx.client.ids import asker, job_gone, new_id
from sardonyx.client.job_diff import compare
from sardonyx.client.resizing import with_partitions
from sardonyx.client.stopping import Stop, check_stop
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure, Interrupted, JobFailed, SardonyxError
from sardonyx.core.events import JobRestarted

if TYPE_CHECKING:
    from coordinator.core.state import Job as KnownJob
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.job import builder
    from sardonyx.job.load import LoadedJob

FIRST_RULES = 4
"""The first rules by which a job can be restarted."""


def restart(
    client: Client,
    handle: JobHandle,
    job: builder.Job | LoadedJob | str | os.PathLike[str] | None,
    partitions: int | None,
    timeout: float | None,
) -> JobHandle:
    """What :meth:`sardonyx.client.job_handle.JobHandle.restart` does."""
    from sardonyx.client.job_handle import JobHandle as Handle

    making = Making(client, handle.id, timeout)
    loaded = _version(client, making.known, job, partitions)
    require_restartable(making, loaded, client.settings.deployment)
    if loaded.code is not None and loaded.spec.code is not None:
        client.put_code(node_paths.code(loaded.spec.code), loaded.code)
    into, revision = new_id(loaded.spec.name), making.known.revision
    client.zk.request(JobRestarted(job=handle.id, into=into, spec=loaded.spec, revision=revision, by=asker()))
    await_next(handle, making, into)
    return Handle(client, into, loaded.spec)


def require_restartable(making: Making, loaded: LoadedJob, deployment: str) -> None:
    """Find out before a job is stopped whether another one can go on from it.

    Args:
        making: of the job.
        loaded: what is to go on.
        deployment: the one that runs it.

    Raises:
        SardonyxError: ``SX-JOB-BOUNDED``, ``SX-JOB-RESTART-RULES``, ``SX-JOB-RESUME``; ``SX-JOB-CHANGE-RIVAL``: it is being
            changed.
    """
    job, known, rules = making.job, making.known, making.rules
    check_stop(job, known.spec, deployment, how=Stop(discard_state=True), rules=lambda: rules)
    if rules < FIRST_RULES:
        raise SardonyxError(
            "SX-JOB-RESTART-RULES",
            f"job {job} cannot be restarted yet",
            cause=f"the deployment is decided by rules {rules}, since a coordinator of the release before stands for election, "
            f"or did so a moment ago; a restart needs rules {FIRST_RULES}",
            fix="upgrade all coordinators, and try again; `sardonyx upgrade --check` shows who runs which release",
            where={"job": job},
        )
    if known.next_spec is not None:
        raise rival(job)
    found = compare(job, known.spec, known, None, loaded, making.jobs)
    refused = next((each.failure for each in found.refusals if each.way == "resume"), None)
    if refused is not None:
        raise SardonyxError.from_failure(refused)


def await_next(handle: JobHandle, making: Making, into: str) -> None:
    """Wait until the job runs that goes on.

    Args:
        handle: of the job that is stopped.
        making: of the same.
        into: the id of the one that goes on.
    """
    taken_in = False
    while True:
        taken_in |= any(isinstance(event, JobRestarted) and event.into == into for event in making.look())
        known, then = making.present, making.jobs.get(into)
        if then is not None and then.status != "planning":
            if then.error is not None:
                raise JobFailed.from_failure(_with_way_back(then.error, handle.id, into, known))
            return
        if then is None and taken_in and (known is None or known.into != into):
            raise _not_restarted(handle, known)
        if making.over:
            raise _pending(handle.id, into, _what_it_waits_for(known, taken_in=taken_in))
        time.sleep(LOOK_EVERY)


def _version(
    client: Client,
    known: KnownJob,
    job: builder.Job | LoadedJob | str | os.PathLike[str] | None,
    partitions: int | None,
) -> LoadedJob:
    """What is to go on: another version, or the same; with another number of partitions, if one is given."""
    if job is None:
        return with_partitions(known.spec, known.spec.partitions if partitions is None else partitions)
    loaded = client.loaded(job)
    return loaded if partitions is None else loaded._replace(spec=with_partitions(loaded.spec, partitions).spec)


def _with_way_back(error: Failure, job: str, into: str, known: KnownJob | None) -> Failure:
    """The error of the job that was to go on; if it has not begun to read, another one may."""
    if known is None or known.resumed_by == into:
        return error
    fix = f"{error.fix}; then `sardonyx job submit SPEC --resume {job}`: job {job} is stopped, and keeps what it has"
    return replace(error, fix=fix.removeprefix("; "))


def _not_restarted(handle: JobHandle, known: KnownJob | None) -> SardonyxError:
    """The job was changed before the request came, or has ended otherwise. Raises how it has failed, or was killed."""
    if known is None:
        return job_gone(handle.id)
    if not known.ended:
        return rival(handle.id)
    handle.await_completion()
    from sardonyx.client.shares import job_ended

    return job_ended(handle.id, known.status)


def _what_it_waits_for(known: KnownJob | None, *, taken_in: bool) -> str:
    if not taken_in:
        return "no coordinator has processed it"
    if known is not None and not known.ended:
        return "what its inputs have read still goes through its tasks"
    return "its topics are being deleted, and those of the next one made"


def _pending(job: str, into: str, cause: str) -> Interrupted:
    return Interrupted(
        "SX-JOB-RESTART-PENDING",
        f"the restart of job {job} was requested, and job {into} does not run yet",
        cause=cause,
        fix=f"wait: it goes on by itself. `sardonyx job explain {job}` says what it waits for; `sardonyx job show {into}` shows "
        "the next one as soon as there is one",
        where={"job": job, "into": into},
    )


__all__ = ["await_next", "require_restartable", "restart"]
