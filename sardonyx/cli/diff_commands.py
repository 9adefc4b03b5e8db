"""``sardonyx job diff``, ``job try`` and ``job change``: what a new version of a job changes, and to have the job go on by it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import report
from sardonyx.cli.arguments import JobId, Restart, Spec, Timeout, duration_of
from sardonyx.cli.call import LOG, Call, connected
from sardonyx.cli.share_commands import restarted
from sardonyx.core.errors import SardonyxError
from sardonyx.core.names import is_job_id
from sardonyx.core.text import listed

if TYPE_CHECKING:
    from sardonyx.core.job_diff import JobDiff
    from sardonyx.job.load import LoadedJob

OldJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id, the beginning of it, or its name, as of `job submit --resume`; or a spec, which needs no cluster.",
    ),
]
DIFFERENT = 1
"""The exit code for two jobs that differ, with ``--exit-code``."""


def register(job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(job_app, "diff")(diff)
    connected(job_app, "try", kafka=True)(try_task)
    connected(job_app, "change", kafka=True)(change)


def diff(
    call: Call,
    job: OldJob,
    spec: Spec,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the two differ, and with 0 if they are equal.")
    ] = False,
) -> int:
    """Show in what a new version of a job differs, and how that can be carried out. It changes nothing.

    It says whether `job submit --resume` would take the new version once the job is stopped, and why not if not.
    """
    from sardonyx.cli.diff_text import commands, diff_lines
    from sardonyx.job.load import load

    if job == spec == "-":
        raise SardonyxError("SX-USAGE", "both jobs cannot come from standard input", fix="name a file for one of them")
    loaded = load(spec)
    call.warn(loaded.warnings)
    found = _diff(call, job, loaded)
    data = _masked(report.as_data(found))
    if call.json:
        call.put_json({**data, "commands": commands(found, spec)})
    else:
        for line in diff_lines(_read(data), spec):
            call.put(line)
    return DIFFERENT if exit_code and not found.equal else report.COMPLETED


def try_task(
    call: Call,
    job: JobId,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task with a function and without state.")],
    spec: Spec,
    rows: Annotated[
        int, typer.Option("--rows", min=1, max=1_000_000, metavar="N", help="How many of the last rows to take.")
    ] = 1_000,
    show: Annotated[int, typer.Option("--show", min=0, metavar="N", help="How many differences to show.")] = 10,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything differs, and with 0 if nothing does.")
    ] = False,
) -> int:
    """Run another version of a task's function on the last rows of its links, beside the version that runs.

    It shows which rows become others, come or go, and for which records one of the two raises. Nothing is committed or written.
    """
    from sardonyx.cli.trial_text import trial_lines
    from sardonyx.job.load import load

    loaded = load(spec)
    call.warn(loaded.warnings)
    # What functions print is no part of the answer.
    with call.client() as client, call.patience("Kafka"), contextlib.redirect_stdout(sys.stderr):
        found = call.job(client, job).try_task(task, loaded, rows, show)
    if call.json:
        call.put_json(found)
    else:
        for line in trial_lines(found):
            call.put(line)
    return DIFFERENT if exit_code and not found.same else report.COMPLETED


def change(
    call: Call,
    job: JobId,
    spec: Spec,
    drop: Annotated[
        list[str],
        typer.Option(
            "--drop",
            metavar="TASK",
            help="A task that the new version no longer has, or a queue between two tasks that stay (FROM.TO): its unread rows "
            "and its state are lost. For each of several, say it again.",
        ),
    ] = [],  # noqa: B006 - typer makes a list of its own
    drain: Annotated[
        list[str],
        typer.Option(
            "--drain",
            metavar="TASK",
            help="The same, but what is unread is read first: nothing new comes to the task while that lasts.",
        ),
    ] = [],  # noqa: B006
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Tell rows apart by their time: those before TIME (ISO 8601, or a row's number) go the old way, those from it "
            "on the new one. Tasks that go are read to the end, and need not be named. `now` is what happens without it.",
        ),
    ] = None,
    *,
    restart: Restart = False,
    timeout: Timeout = None,
) -> None:
    """Have a running job go on by another version of it, with the queues, positions and states that it has.

    It waits until no peer works by the old version. `job diff` says beforehand what differs. With `--at` it waits until the job's
    clock has passed that time; if it is ended before, give the same command again. With `--restart` the job is stopped, and a new
    one goes on from there, whose id is printed; the coordinator does both, whatever becomes of the command.
    """
    from sardonyx.job.load import load

    if restart and (wrong := [name for name, value in {"--drop": drop, "--drain": drain, "--at": at}.items() if value]):
        raise SardonyxError("SX-USAGE", f"--restart does not go with {listed(wrong)}", fix=f"leave out {listed(wrong)}")
    loaded = load(spec)
    call.warn(loaded.warnings)
    if restart:
        restarted(call, job, loaded, timeout=timeout)
        return
    what = "its peers to commit the batch in hand and leave" if at in (None, "now") else f"its clock to pass {at}"
    with call.client() as client, call.patience(what):
        handle = call.job(client, job)
        before = handle.status(live=False).revision
        revision = handle.change(loaded, duration_of(timeout), drop=drop, drain=drain, at=at)
    if call.json:
        call.put_json({"id": handle.id, "revision": revision, "changed": revision > before})
    elif revision == before:
        call.put(f"job {handle.id} is like that already (revision {revision})")
    else:
        call.put(f"job {handle.id} goes on by revision {revision}")


def _diff(call: Call, job: str, loaded: LoadedJob) -> JobDiff:
    """The differences from a job of the deployment, or from a spec: what cannot be a job's id is one."""
    if is_job_id(job):
        with call.client() as client, call.patience(LOG):
            return client.job_to_resume(job).diff(loaded)
    from sardonyx.core.job_diff import job_diff
    from sardonyx.job.bundle import code_change
    from sardonyx.job.load import load

    old = load(job, places=False)  # what it reads may be gone by now
    return job_diff(old.spec, loaded.spec, code=code_change(old.code, loaded.code))


def _read(data: dict[str, Any]) -> JobDiff:
    import msgspec

    from sardonyx.core.job_diff import JobDiff

    return msgspec.convert(data, JobDiff)


def _masked(data: Any) -> Any:
    """The data of a diff without its secrets: a difference tells in ``field`` what its values are."""
    from sardonyx.core.secrets import MASK, is_secret, masked

    if isinstance(data, list):
        return [_masked(each) for each in data]
    if not isinstance(data, dict):
        return data
    found = {key: _masked(value) for key, value in data.items()}
    if "ways" in found and "before" in found and "kind" in found:
        for key in ("before", "after"):
            found[key] = MASK if found[key] and is_secret(found["field"]) else masked(found[key])
    return found
