"""How virtual peers are divided among jobs: ``cluster policy`` and ``job scale``."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec
import typer

from sardonyx.cli.call import Call, connected
from sardonyx.cli.job_commands import JobId
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import Scheduler
from sardonyx.core.text import near


def register(cluster_app: typer.Typer, job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(cluster_app, "policy")(policy)
    connected(job_app, "scale")(scale)


def policy(
    call: Call,
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[set SCHEDULER]", help="turns, balanced, greedy or percentage; none: show the present one."
        ),
    ] = None,
) -> None:
    """Show how virtual peers are divided among jobs, and what each job is entitled to; or choose another scheduler."""
    with call.client() as client, call.patience("the log to be replayed"):
        found = client.set_policy(_scheduler(change)) if change else client.policy()
    if call.json:
        call.put_json(found)
        return
    call.put(f"scheduler {found.scheduler}, {found.peers} virtual peers")
    for job in found.jobs:
        queued = ", queued" if job.queued else ""
        limit = "" if job.max_peers is None else f", at most {job.max_peers}"
        percent = "" if job.percentage is None else f", {job.percentage:g} percent"
        call.put(
            f"  {job.id}: has {job.has} of {job.share}{queued} (priority {job.priority}, weight {job.weight:g}{percent}{limit})"
        )


def _scheduler(change: list[str]) -> Scheduler:
    known = get_args(Scheduler)
    if len(change) != 2 or change[0] != "set" or change[1] not in known:
        raise SardonyxError(
            "SX-CLI-POLICY",
            f"{' '.join(change)!r} is no change of the policy{near(change[-1], known)}",
            cause="it names no scheduler that there is",
            fix=f"write `sardonyx cluster policy set SCHEDULER`, with one of {', '.join(known)}",
        )
    found: Scheduler = msgspec.convert(change[1], Scheduler)
    return found


def scale(
    call: Call,
    job: JobId,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="Jobs of a higher priority get their shares first.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="N", help="Its share, relative to other jobs of its priority.")
    ] = None,
    percentage: Annotated[
        float | None,
        typer.Option("--percentage", metavar="N", help="Its share where the scheduler is percentage; 0: none."),
    ] = None,
    max_peers: Annotated[
        int | None, typer.Option("--max-peers", metavar="N", help="The most virtual peers that it gets; 0: no limit.")
    ] = None,
) -> None:
    """Change what a job that runs is entitled to. What is not given stays as it is."""
    with call.client() as client, call.patience("the coordinator to process it"):
        handle = client.job(job)
        handle.scale(priority=priority, weight=weight, percentage=percentage, max_peers=max_peers)
        call.say(f"job {handle.id} is scaled; `sardonyx cluster policy` shows the shares")
