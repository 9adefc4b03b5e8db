"""``sardonyx job rollback`` and ``job replay``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sardonyx.cli import report
from sardonyx.cli.arguments import JobId, Timeout, Yes, duration_of
from sardonyx.cli.call import Call, connected
from sardonyx.cli.publishing_again import ask, confirm, replay_lines
from sardonyx.core.replaying import SAME


def register(job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(job_app, "rollback", kafka=True)(rollback)
    connected(job_app, "replay", kafka=True)(replay)


def rollback(
    call: Call,
    job: JobId,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="To the last complete checkpoint at or before this time, such as 2026-11-26T10:00Z (UTC); else to the last one.",
        ),
    ] = None,
    *,
    yes: Yes = False,
    timeout: Timeout = None,
) -> None:
    """Let a running job go back to a checkpoint: it ends at once, and a new one of the same spec goes on from there.

    The new one has the state of that time, and reads again what came since. `job checkpoints` lists the times.
    """
    wait = duration_of(timeout)
    with call.client() as client, call.patience("Kafka"):
        handle = call.job(client, job)
        back = handle.going_back(to)
    ask(call, back, yes=yes)
    with call.client() as client, call.patience("the topics of the job to be deleted"):
        found = client.job(back.job).rollback(back.at, wait)
    if call.json:
        call.put_json({"id": found.id, **report.as_data(back)})
    else:
        call.put(found.id)


def replay(
    call: Call,
    job: JobId,
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="The first time of the rows, such as 2026-11-26T10:00Z (UTC).")
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Rows of this time or later are left out.")],
    *,
    with_state: Annotated[
        bool,
        typer.Option(
            "--with-state",
            help="Begin with the states of the checkpoint at --from, and not without any.",
        ),
    ] = False,
    outputs: Annotated[
        str,
        typer.Option(
            "--outputs",
            metavar="same|WORD",
            help="same: give results to the outputs of the job, once more. Any other word: to outputs with this word after their "
            "names, such as topic totals.again.",
        ),
    ] = "again",
    kept: Annotated[
        bool, typer.Option("--kept", help="Take what Kafka still holds, though rows of these times may be deleted.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Work rows of a job once more: those that it has read whose time is from --from to before --to.

    A job of the same spec does it, and ends. The job itself stays as it is. It prints the id of the new one.
    """
    wanted: dict[str, Any] = {"with_state": with_state, "outputs": outputs, "kept": kept}
    with call.client() as client, call.patience("Kafka"):
        planned = call.job(client, job).replaying(since, until, **wanted)
    for line in replay_lines(planned):
        call.say(line)
    if planned.outputs == SAME:
        confirm("Publish them again?", planned.job, yes=yes)
    with call.client() as client, call.patience("Kafka"):
        found = client.job(planned.job).replay(since, until, **wanted)
    if call.json:
        call.put_json({"id": found.id, **report.as_data(planned)})
    else:
        call.put(found.id)
