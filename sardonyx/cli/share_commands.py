"""Which peers jobs get: ``cluster policy``, ``job scale``, ``job suspend`` and ``job resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import msgspec
import typer

from sardonyx.cli.arguments import JobId, Restart, Timeout, duration_of
from sardonyx.cli.call import LOG, Call, connected
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import Scheduler
from sardonyx.core.text import counted, listed, near, plural

if TYPE_CHECKING:
    from sardonyx.client.views import JobView
    from sardonyx.job.load import LoadedJob


def register(cluster_app: typer.Typer, job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(cluster_app, "policy")(policy)
    connected(job_app, "scale")(scale)
    connected(job_app, "suspend")(suspend)
    connected(job_app, "resume")(resume)


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
    with call.client() as client, call.patience(LOG):
        found = client.set_policy(_scheduler(change)) if change else client.policy()
    if call.json:
        call.put_json(found)
        return
    call.put(f"scheduler {found.scheduler}, {counted(found.peers, 'virtual peer')}")
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
            f"{' '.join(change)!r} is not a change of the policy{near(change[-1], known)}",
            cause="there is no scheduler of that name",
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
        int | None,
        typer.Option(
            "--max-peers", metavar="N", help="The most virtual peers that it gets, or that the task gets; 0: no limit."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Scale this task of the job, and not the whole job.")
    ] = None,
    min_peers: Annotated[
        int | None,
        typer.Option("--min-peers", metavar="N", help="Of a task: it begins only when so many peers are free for it."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="Of a task: how many rows a batch has at most.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="N", help="Of the job's queues. Its inputs stand still until these are read."
        ),
    ] = None,
    *,
    restart: Restart = False,
    timeout: Timeout = None,
) -> None:
    """Change what a job that runs is entitled to; or with `--task`, how many peers one task gets, and how large its batches are.

    What is not given stays as it is. With `--task` it is a change of the job, as `job change` makes it: it waits until its peers
    have left after the batch in hand. So it is with `--partitions`, which waits until all queues are read to their end. A job
    that keeps a state takes `--partitions` with `--restart` only. `--timeout` is of these two.
    """
    if restart and partitions is None:
        raise SardonyxError(
            "SX-USAGE", "--restart goes with --partitions only", fix="give --partitions N, or leave it out"
        )
    if partitions is not None:
        named = [
            ("--priority", priority),
            ("--weight", weight),
            ("--percentage", percentage),
            ("--max-peers", max_peers),
        ]
        of_tasks = [("--task", task), ("--min-peers", min_peers), ("--batch-size", batch_size)]
        besides = [name for name, value in (*named, *of_tasks) if value is not None]
        if besides:
            fix = "scale the job with it, and then without it"
            raise SardonyxError("SX-USAGE", f"--partitions does not go with {listed(besides)}", fix=fix)
        if restart:
            restarted(call, job, partitions=partitions, timeout=timeout)
        else:
            _scale_partitions(call, job, partitions, timeout)
        return
    shares = {"--priority": priority, "--weight": weight, "--percentage": percentage}
    of_task = {"--min-peers": min_peers, "--batch-size": batch_size, "--timeout": timeout}
    wrong = [name for name, value in (of_task if task is None else shares).items() if value is not None]
    if wrong:
        needs, does = plural(len(wrong), "needs", "need"), plural(len(wrong), "does", "do")
        what, fix = (needs, "give --task NAME") if task is None else (f"{does} not go with", "leave out --task")
        raise SardonyxError("SX-USAGE", f"{listed(wrong)} {what} --task", fix=f"{fix}, or leave out {listed(wrong)}")
    if task is not None:
        _scale_task(
            call, job, task, {"min_peers": min_peers, "max_peers": max_peers, "batch_size": batch_size}, timeout
        )
        return
    with call.client() as client, call.patience("the coordinator to process it"):
        handle = call.job(client, job)
        handle.scale(priority=priority, weight=weight, percentage=percentage, max_peers=max_peers)
    if call.json:
        call.put_json({"id": handle.id})
    else:
        call.put(f"job {handle.id} is scaled; `sardonyx cluster policy` shows the shares")


def _scale_task(call: Call, job: str, task: str, given: dict[str, int | None], timeout: str | None) -> None:
    with call.client() as client, call.patience("its peers to commit the batch in hand and leave"):
        handle = call.job(client, job)
        before = handle.status(live=False).revision
        revision = handle.scale_task(task, **given, timeout=duration_of(timeout))
    if call.json:
        call.put_json({"id": handle.id, "task": task, "revision": revision, "changed": revision > before})
    elif revision == before:
        call.put(f"task {task} of job {handle.id} is like that already (revision {revision})")
    else:
        call.put(f"task {task} of job {handle.id} is scaled: the job goes on by revision {revision}")


def _scale_partitions(call: Call, job: str, partitions: int, timeout: str | None) -> None:
    with call.client() as client, call.patience("its queues to be read to their end"):
        handle = call.job(client, job)
        before = handle.status(live=False).revision
        revision = handle.scale_partitions(partitions, duration_of(timeout))
    if call.json:
        call.put_json({"id": handle.id, "partitions": partitions, "revision": revision, "changed": revision > before})
    elif revision == before:
        call.put(f"job {handle.id} has {counted(partitions, 'partition')} already (revision {revision})")
    else:
        call.put(f"job {handle.id} has {counted(partitions, 'partition')}: it goes on by revision {revision}")


def restarted(
    call: Call, job: str, loaded: LoadedJob | None = None, *, partitions: int | None = None, timeout: str | None
) -> None:
    """Stop a job, have another one go on from it, and tell which."""
    with call.client() as client:
        handle = call.job(client, job)
        call.say(
            f"job {handle.id} is stopped when what it has read has gone through its tasks, and another one goes on from there; "
            f"nothing else is read meanwhile, and `sardonyx link lag {handle.id}` tells how much is left"
        )
        with call.patience("what its inputs have read to go through its tasks"):
            found = handle.restart(loaded, partitions=partitions, timeout=duration_of(timeout))
    if call.json:
        call.put_json({"id": found.id, "resumes": handle.id})
    else:
        call.put(found.id)


def suspend(call: Call, job: JobId) -> None:
    """Take all peers off a job, and wait until they have left after their batches. Its queues, positions and state stay.

    `job resume` lets it go on where it was. The coordinator keeps its positions in Kafka meanwhile.
    """
    with call.client() as client:
        handle = call.job(client, job)
        with call.patience("the coordinator to process it"):
            handle.suspend()
        with call.patience("its peers to commit the batch in hand and leave"):
            was = False
            for view in handle.follow():
                was = was or view.suspended
                if view.ended or not any(task.peers for task in view.tasks) or (was and not view.suspended):
                    break
        if was and not view.suspended and not view.ended:
            call.say(f"job {view.id} has peers again: it was resumed meanwhile, or stopped")
        _tell(call, view)


def resume(call: Call, job: JobId) -> None:
    """Let a suspended job have peers again: it goes on where it was."""
    with call.client() as client, call.patience("the coordinator to process it"):
        handle = call.job(client, job)
        handle.resume()
        _tell(call, handle.status(live=False))


def _tell(call: Call, view: JobView) -> None:
    from sardonyx.cli.tables import status_of

    if call.json:
        call.put_json({"id": view.id, "status": view.status, "suspended": view.suspended})
    else:
        call.put(f"job {view.id} is {status_of(view)}")
