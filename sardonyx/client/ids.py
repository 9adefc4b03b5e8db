"""Makes ids of jobs, and finds the job or peer that a user means. Everything except :func:`new_id` and :func:`asker` is pure."""

from __future__ import annotations

import base64
import getpass
import math
import os
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence

import msgspec

from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.notes import JobNote
from sardonyx.core.text import counted, near, plural
from sardonyx.core.version import VERSION


def new_id(name: str) -> str:
    """Make a new id for a job of this name: the name and six random base32 characters."""
    return f"{name}-{base64.b32encode(secrets.token_bytes(5))[:6].decode().lower()}"


def asker() -> str:
    """Who asks, for the log: ``user@host`` and the version of this client."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} {VERSION}"


def find_job(
    wanted: str,
    names: Mapping[str, str],
    running: Collection[str],
    since: Mapping[str, float],
    refused: Collection[str] = (),
) -> str:
    """Find the one job that an id, the beginning of an id, or a name means. Pure.

    A name means the running job of that name, or else the job of that name that users submitted last. One that was refused is
    meant only if no other has the name.

    Args:
        wanted: the text that the user wrote.
        names: job id -> name.
        running: ids of the jobs that have not ended.
        since: job id -> submission time, seconds since 1970. A missing job was submitted just now.
        refused: ids of the jobs that were never taken.

    Raises:
        SardonyxError: ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``: several jobs of that name run, or several ids start so.
    """
    if wanted in names:
        return wanted
    named = [job for job, name in names.items() if name == wanted]
    meant = [job for job in named if job in running]
    if not meant and named:
        taken = [job for job in named if job not in refused]
        return max(taken or named, key=lambda job: (since.get(job, math.inf), job))
    meant = meant or [job for job in names if job.startswith(wanted)]
    if len(meant) == 1:
        return meant[0]
    if not meant or not wanted:
        raise unknown_job(wanted, [*names, *names.values()])
    raise SardonyxError(
        "SX-JOB-AMBIGUOUS",
        f"{wanted} may mean {len(meant)} jobs: {', '.join(sorted(meant))}",
        fix="give more of the id",
    )


class LaterAttempt(msgspec.Struct, frozen=True):
    """An attempt to submit a job that was refused, while its name means an earlier job."""

    id: str
    submitted_at: float
    """Seconds since 1970."""
    code: str
    """Of the error with which it was refused."""


def refused_attempts(notes: Mapping[str, JobNote]) -> set[str]:
    """Return the jobs that the coordinator refused, such as one that cannot resume the other: nothing was created. Pure."""
    return {job for job, note in notes.items() if note.status == "failed" and note.links == "none"}


def later_attempt(wanted: str, meant: str, notes: Mapping[str, JobNote]) -> LaterAttempt | None:
    """Return the newest attempt under a name if it was refused after the job that the name means. Pure.

    Args:
        wanted: what the user wrote; only of a name there is a later attempt.
        meant: the id of the job that it means.
        notes: of all jobs.
    """
    if wanted == meant or meant not in notes or notes[meant].name != wanted:
        return None
    named = {job: note for job, note in notes.items() if note.name == wanted}
    last = max(named, key=lambda job: (named[job].submitted_at, job))
    error = named[last].error
    if last == meant or last not in refused_attempts(named):
        return None
    return LaterAttempt(last, named[last].submitted_at, "" if error is None else error.code)


def superseded_attempts(notes: Mapping[str, JobNote]) -> set[str]:
    """Return the refused attempts after which there was a later one of the same name, refused or not. Pure."""
    latest: dict[str, float] = {}
    for note in notes.values():
        latest[note.name] = max(note.submitted_at, latest.get(note.name, -math.inf))
    return {job for job in refused_attempts(notes) if notes[job].submitted_at < latest[notes[job].name]}


def unknown_job(wanted: str, known: Sequence[str]) -> SardonyxError:
    """Make the error for a job that does not exist. The error names the nearest job that exists."""
    return SardonyxError(
        "SX-JOB-UNKNOWN",
        f"there is no job {wanted}" + near(wanted, known, cutoff=0.4),
        cause="no job of this id or name was submitted to this deployment, or it has ended and was purged: by a user, or "
        "because more jobs ended than coordinator.keep_jobs keeps",
        fix="run `sardonyx job list` to see all jobs; check the deployment (--deployment) too; "
        "`sardonyx job explain` with the whole id still knows the jobs that were purged last",
        where={"job": wanted},
    )


def job_gone(job: str) -> SardonyxError:
    """Make the error for a job whose id the client knew, and of which nothing is left."""
    return SardonyxError(
        "SX-JOB-GONE",
        f"job {job} is gone: it was purged, or never taken in",
        cause="it had ended and was purged, by a user or because more jobs ended than coordinator.keep_jobs keeps; or the "
        "coordinator could not read its submission. What a job has written stays",
        fix=f"run `sardonyx job explain {job}`, which says which of these it was, if it was not long ago; look at the "
        "coordinator's log for submissions that it could not read",
        where={"job": job},
    )


def not_ended(job: str, status: str, waited: float, why: str | None) -> Interrupted:
    """Make the error for a job that has not ended in time. ``why``: what it waits for, if anything."""
    return Interrupted(
        "SX-JOB-TIMEOUT",
        f"job {job} has not ended within {waited:g} s; it is {status} and continues",
        cause=why or "it is still at work",
        fix=f"wait longer, look at it (`sardonyx job show {job}`), or end it (`sardonyx job kill {job}`)",
        where={"job": job},
    )


def name_taken(job: str, name: str, status: str, *, follows: bool) -> SardonyxError:
    """Make the error for a submission whose name belongs to a job that has not ended.

    Args:
        job: the id of that job.
        name: its name.
        status: its status.
        follows: whether the one that is submitted could go on from that job, if it were stopped.
    """
    instead = (
        f"stop it and have this one go on from there (`sardonyx job change {job} SPEC --restart`), " if follows else ""
    )
    return SardonyxError(
        "SX-JOB-NAME-TAKEN",
        f"a job named {name} is {status} already: {job}",
        cause="a name means one job that has not ended, so that two of them cannot be confused",
        fix=f"change it while it runs (`sardonyx job change {job} SPEC`), {instead}wait for it (`sardonyx job await {job}`), "
        f"end it at once (`sardonyx job kill {job}`), or give this one another name",
        where={"job": job},
    )


def job_has_letters(job: str, letters: int) -> SardonyxError:
    """Make the error for a purge that would remove dead letters that no user has redone or dropped."""
    return SardonyxError(
        "SX-JOB-LETTERS",
        f"job {job} has {counted(letters, 'dead letter')} that {plural(letters, 'was', 'were')} neither redone nor dropped",
        cause="a purge removes a job's dead letters with it",
        fix=f"redo them (`sardonyx dlq redo {job}`), save them (`sardonyx dlq export {job}`), drop them "
        f"(`sardonyx dlq drop {job}`), or purge the job with --with-dead-letters",
        where={"job": job, "letters": letters},
    )


def find_peer(wanted: str, known: Collection[str]) -> str:
    """Find the one peer that an id or the beginning of an id means.

    Raises:
        SardonyxError: ``SX-PEER-UNKNOWN``, ``SX-PEER-AMBIGUOUS``.
    """
    if wanted in known:
        return wanted
    meant = sorted(peer for peer in known if peer.startswith(wanted)) if wanted else []
    if len(meant) == 1:
        return meant[0]
    if meant:
        few = ", ".join(meant[:5]) + (", ..." if len(meant) > 5 else "")
        raise SardonyxError(
            "SX-PEER-AMBIGUOUS", f"{wanted} may mean {len(meant)} peers: {few}", fix="give more of the id"
        )
    raise unknown_peer(wanted, known)


def unknown_peer(wanted: str, known: Collection[str]) -> SardonyxError:
    """Make the error for a peer that does not exist. The error names the nearest peer that exists."""
    return SardonyxError(
        "SX-PEER-UNKNOWN",
        f"there is no peer {wanted}" + near(wanted, known, cutoff=0.4),
        cause="no peer of this id is registered in this deployment, or was, as far back as the log is kept",
        fix="run `sardonyx peers list` to see the peers that are alive, `sardonyx log show --kind born` to see all that came",
        where={"peer": wanted},
    )
