"""Whether a job may be stopped, and what is lost or kept then of what its tasks hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sardonyx.client.left_state import left_in_words
from sardonyx.client.views import ViewStatus, laid_out
from sardonyx.core.errors import JobFailed, SardonyxError
from sardonyx.core.events import ENDED
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.spec import JobSpec
from sardonyx.core.stopping import ends_here, keeping
from sardonyx.core.text import counted, listed, plural

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle

_RULES = 4
"""The first rules by which windows close when a job is stopped."""
COUNTING = 10.0
"""Seconds for which open windows and keys are counted that would be lost."""


class Stop(NamedTuple):
    """What becomes of what the tasks of a job hold when it is stopped."""

    close_windows: bool = False
    """It is treated as at the end of an input: windows close, timers fire, joins give what waits. No job goes on with it."""
    discard_state: bool = False
    """It may be lost."""


def check_stop(
    job: str,
    spec: JobSpec,
    deployment: str,
    *,
    how: Stop,
    rules: Callable[[], int],
    count: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Raise an error if a job cannot be stopped, or if it would lose what its tasks hold and no user has agreed.

    Args:
        job: its id.
        spec: as it is now.
        deployment: the one that runs it.
        how: what becomes of what its tasks hold.
        rules: asks by which rules the deployment is decided.
        count: says, by task, how much that is, or why that is not known.

    Raises:
        SardonyxError: ``SX-JOB-BOUNDED``: the job ends by itself. ``SX-JOB-STATE-LOST``: no job could go on with its states.
            ``SX-JOB-CLOSE-RULES``: a coordinator of the release before may lead, and it cannot have windows close.
    """
    if laid_out(spec, deployment, job).bounded:
        raise SardonyxError(
            "SX-JOB-BOUNDED",
            f"job {job} ends by itself, so it cannot be stopped",
            cause="all its inputs have an end, and a job that stops before it would leave rows out",
            fix=f"wait for it (`sardonyx job await {job}`), or end it at once (`sardonyx job kill {job}`)",
            where={"job": job},
        )
    if how.close_windows and (now := rules()) < _RULES:
        raise SardonyxError(
            "SX-JOB-CLOSE-RULES",
            f"the windows of job {job} cannot be closed yet",
            cause=f"the deployment is decided by rules {now}, since a coordinator of the release before stands for election, or "
            f"did so a moment ago; closing windows needs rules {_RULES}",
            fix="upgrade all coordinators, and try again; `sardonyx upgrade --check` shows who runs which release",
            where={"job": job},
        )
    tasks = keeping(spec)
    problem = None if how.discard_state or how.close_windows or not tasks else ends_here(job, spec)
    if problem is None:
        return
    known = count()
    raise SardonyxError(
        "SX-JOB-STATE-LOST",
        f"what {plural(len(tasks), 'task', 'tasks')} {in_words(tasks, known)} of job {job} {plural(len(tasks), 'holds', 'hold')} "
        "is lost if the job is stopped",
        cause=f"no job can go on from there, since {problem.problem}: {problem.cause}; lost would be {left_in_words(spec)}",
        fix=f"`sardonyx job suspend {job}` takes its peers off it, and keeps all; `sardonyx job stop {job} --close-windows` has "
        "its windows give their results before it ends; with `--discard-state` it ends without them",
        where={"job": job, "tasks": listed(tasks)},
    )


def held_by(handle: JobHandle, seconds: float = COUNTING) -> dict[str, str]:
    """Say of each task with state how many windows are open with how many rows, or how many keys are known. Of a task that cannot
    be counted, say why.

    Args:
        handle: of a running job.
        seconds: for which it counts. What it has not come to by then is left out.
    """
    until = time.monotonic() + seconds
    found = {}
    spec = handle.spec()
    for name in keeping(spec):
        keys = windows = rows = 0
        more = False
        try:
            for held in handle.held(name):
                if more := time.monotonic() >= until:
                    break
                keys, windows, rows = keys + held.keys, windows + held.windows, rows + held.rows
        except SardonyxError as error:
            why = error.cause if error.code == "SX-STATE-NONE" and error.cause else error.opening
            found[name] = f"not counted: {why}"
            continue
        text = f"{counted(windows, 'open window')} with {counted(rows, 'row')}"
        text = counted(keys, "key") if spec.task(name).window is None else text
        found[name] = f"{'more than ' if more else ''}{text}"
        if more and not keys and not windows:
            found[name] = f"not counted: the {counted(round(seconds), 'second')} for that were over"
    return found


def in_words(tasks: Sequence[str], known: Mapping[str, str]) -> str:
    """List tasks, each with what :func:`held_by` says of it."""
    return listed(f"{task} ({known[task]})" if task in known else task for task in tasks)


def discarded_by(handle: JobHandle, deployment: str) -> str:
    """Count what a stop of a running job would discard, and say it. The text is empty if another job can go on with it.

    Args:
        handle: of the job.
        deployment: the one that runs it.
    """
    spec = handle.spec()
    tasks = keeping(spec)
    if not tasks or laid_out(spec, deployment, handle.id).bounded or ends_here(handle.id, spec) is None:
        return ""
    return f"what {in_words(tasks, held_by(handle))} {plural(len(tasks), 'holds', 'hold')}"


def goes_on_by(job: str, spec: JobSpec, known: Predecessor | None = None, *, closed: bool = False) -> str:
    """How another job goes on from one that was stopped, or why none can, in words.

    Args:
        job: its id.
        spec: its spec.
        known: what the coordinator knows of it; None: it is still ending.
        closed: whether its windows were to close.
    """
    problem = ends_here(job, spec, known, closed=closed)
    if problem is not None:
        return f"no job can go on from here: {problem.problem}: {problem.cause}"
    command = f"sardonyx job submit SPEC --resume {job}"
    if left := left_in_words(spec):
        return f"kept: {left}. To go on with what is kept: {command}"
    return f"to go on from here: {command}"


def require_resumable(handle: JobHandle, timeout: float | None = None) -> None:
    """Wait until a job that has ended can be gone on from, for as long as a coordinator should take, or for ``timeout`` seconds.

    Raises:
        JobFailed: ``SX-JOB-RESUME``: it has not ended, or its topics are still being deleted. A coordinator would refuse the
            other job, too.
    """
    known = handle.await_resumable() if timeout is None else handle.await_resumable(timeout)
    note = handle.sought()
    if note is None or not known or note.status not in ENDED:
        raise not_resumable(handle.id, handle.spec(), "submitted" if note is None else note.status)


def not_resumable(job: str, spec: JobSpec, status: ViewStatus) -> JobFailed:
    """The error for a job from which none can go on yet: how far it has read is known when its topics are deleted."""
    ended = status in ENDED
    fix = f"run `sardonyx job stop {job}`: it says when another one can go on from there"
    if ended:
        fix = f"submit again when they are; `sardonyx job explain {job}` says so, and no broker may be away for that"
    elif laid_out(spec, "", job).bounded:
        fix = f"wait for its end (`sardonyx job await {job}`), and submit again: it ends by itself"
    return JobFailed(
        "SX-JOB-RESUME",
        f"job {job} cannot be resumed yet: it is {status}"
        + (", and its topics are still being deleted" if ended else ""),
        cause="how far it has read is known when it has ended and its topics are deleted",
        fix=fix,
        where={"resumes": job},
    )


def known_of(client: Client, job: str) -> Predecessor | None:
    """What the coordinator knows of a job from which another one may go on; None: nothing yet, or nothing any more."""
    from coordinator.core.admission import predecessor
    from coordinator.history import reader

    jobs = reader.present(client.zk).jobs
    return predecessor(jobs[job], jobs) if job in jobs else None


def rules_of(client: Client) -> int:
    """The rules by which a deployment is decided now."""
    from coordinator.history import reader

    return reader.present(client.zk).rules


__all__ = [
    "Stop",
    "check_stop",
    "discarded_by",
    "goes_on_by",
    "held_by",
    "in_words",
    "known_of",
    "not_resumable",
    "require_resumable",
    "rules_of",
]
