"""``sardonyx job purge``: jobs that have ended, one by one or all that ended long ago."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.arguments import Timeout, duration_of
from sardonyx.cli.call import Call, connected
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.client.client import Client, JobHandle


def register(job_app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(job_app, "purge")(purge)


def purge(
    call: Call,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids or names of jobs that have ended.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="DURATION", help='Purge all jobs that ended this long ago, e.g. "7 days".'
        ),
    ] = None,
    with_dead_letters: Annotated[
        bool,
        typer.Option("--with-dead-letters", help="Purge jobs with open dead letters too, and remove these letters."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which jobs would be purged.")] = False,
    timeout: Timeout = None,
) -> None:
    """Delete jobs that have ended: their status, tasks, counts, dead letters and state. The results that they wrote stay.

    State in a database is removed if this machine can log in there.

    A job with open dead letters, neither redone nor dropped, stays unless --with-dead-letters is given.
    """
    if bool(jobs) == (older_than is not None):
        raise SardonyxError(
            "SX-USAGE", "purge needs either jobs or --older-than", fix="name the jobs, or give --older-than DURATION"
        )
    age, wait = duration_of(older_than, "--older-than"), duration_of(timeout)
    with call.client() as client:
        kept: dict[str, int] = {}
        if age is None:
            found = [call.job(client, job) for job in jobs or ()]
            handles = list({handle.id: handle for handle in found}.values())  # two names may mean one job
            for handle in handles:  # all or none
                handle.require_purgeable(with_dead_letters=with_dead_letters)
        else:
            handles, kept = _ended_before(client, time.time() - age, with_dead_letters=with_dead_letters)
        purged, stays = [handle.id for handle in handles], list[Failure]()
        if not dry_run:
            purged = _purge(call, handles, kept, stays, with_dead_letters=with_dead_letters, timeout=wait)
    if call.json:
        left = [{"id": job, "letters": letters} for job, letters in kept.items()]
        call.put_json({"purged": purged, "kept": left, "warnings": stays, "dry_run": dry_run})
        return
    for job in purged:
        call.put(f"job {job} would be purged" if dry_run else f"job {job} is purged")
    for job, letters in kept.items():
        call.put(f"job {job} stays: it has {counted(letters, 'open dead letter')} (`sardonyx dlq list {job}`)")
    if kept:
        call.say("--with-dead-letters purges these jobs too, and removes their dead letters")
    elif not purged:
        call.put("no job ended that long ago")


def _ended_before(client: Client, before: float, *, with_dead_letters: bool) -> tuple[list[JobHandle], dict[str, int]]:
    """The jobs to purge, the oldest first, and those that stay with how many open dead letters they have."""
    from sardonyx.client.job_handle import JobHandle

    views = [view for view in client.jobs() if view.ended_at is not None and view.ended_at <= before][::-1]
    kept = {view.id: view.letters for view in views if view.letters and not with_dead_letters}
    return [JobHandle(client, view.id) for view in views if view.id not in kept], kept


def _purge(
    call: Call,
    handles: list[JobHandle],
    kept: dict[str, int],
    stays: list[Failure],
    *,
    with_dead_letters: bool,
    timeout: float | None = None,
) -> list[str]:
    """Purge the jobs and wait until they are gone.

    Args:
        call: tells of what stays.
        handles: the jobs.
        kept: gets those with dead letters that were counted only now.
        stays: gets what stays of their state in databases.
        with_dead_letters: also jobs that have such letters.
        timeout: seconds to wait for all of them together; None: for each as long as a coordinator should take.
    """
    from sardonyx.client.scales import CARRY_OUT

    deadline = None if timeout is None else time.monotonic() + timeout
    asked: list[JobHandle] = []
    for handle in handles:
        try:
            found = handle.ask_purge(with_dead_letters=with_dead_letters)
            call.warn(found)
            stays += found
            asked.append(handle)
        except SardonyxError as error:
            if error.code == "SX-JOB-LETTERS":
                kept[handle.id] = int(error.where["letters"])
            elif error.code != "SX-JOB-GONE":
                raise
            else:  # another command purged it meanwhile, which was the aim
                asked.append(handle)
    purged = []
    for handle in asked:
        try:
            with call.patience(f"job {handle.id} to be deleted"):
                left = CARRY_OUT if deadline is None else max(0.0, deadline - time.monotonic())
                handle.await_gone(left, with_dead_letters=with_dead_letters)
            purged.append(handle.id)
        except SardonyxError as error:
            if error.code != "SX-JOB-LETTERS":
                raise
            kept[handle.id] = int(error.where["letters"])
    return purged
