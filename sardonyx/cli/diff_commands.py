"""``sardonyx job diff``: in what a new version of a job differs, and how that can be carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import report
from sardonyx.cli.call import Call, connected
from sardonyx.cli.job_commands import Spec
from sardonyx.core.errors import SardonyxError
from sardonyx.core.names import is_job_id

if TYPE_CHECKING:
    from sardonyx.core.job_diff import JobDiff
    from sardonyx.job.load import LoadedJob

OldJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job's id, the beginning of it, or its name; or a spec, which needs no cluster."
    ),
]
DIFFERENT = 1
"""The exit code for two jobs that differ, with ``--exit-code``."""


def register(job_app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(job_app, "diff")(diff)


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


def _diff(call: Call, job: str, loaded: LoadedJob) -> JobDiff:
    """The differences from a job of the deployment, or from a spec: what cannot be a job's id is one."""
    if is_job_id(job):
        with call.client() as client, call.patience("the log to be replayed"):
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
    from sardonyx.runtime.settings_sections import MASK, is_secret, masked

    if isinstance(data, list):
        return [_masked(each) for each in data]
    if not isinstance(data, dict):
        return data
    found = {key: _masked(value) for key, value in data.items()}
    if "ways" in found and "before" in found and "kind" in found:
        for key in ("before", "after"):
            found[key] = MASK if found[key] and is_secret(found["field"]) else masked(found[key])
    return found
