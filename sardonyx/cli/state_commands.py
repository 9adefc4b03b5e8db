"""``sardonyx state get|export``: what a task of a running job keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sardonyx.cli.arguments import WHICH_JOB
from sardonyx.cli.call import Call, connected
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.client.task_state import StateRow

Job = Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)]
Task = Annotated[str, typer.Argument(metavar="TASK", help="A task with keyed state or windows.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="What it kept at a checkpoint, such as 2026-11-26T10:00:00Z (UTC)."),
]


def register(state_app: typer.Typer, job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(job_app, "checkpoints", kafka=True)(checkpoints)
    connected(state_app, "get", kafka=True)(get)
    connected(state_app, "export", kafka=True)(export)


def get(
    call: Call,
    job: Job,
    task: Task,
    key: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="The values of the key, one for each column of the task's group_by."),
    ] = None,
    *,
    at: At = None,
) -> None:
    """Show what a task keeps of one key: its states and timers, or what its open windows hold."""
    from sardonyx.client.task_state import nothing_kept
    from sardonyx.state.look import printable

    with call.client() as client, call.patience("Kafka"):
        found = [printable(row) for row in call.job(client, job).state(task, key or [], at=at)]
    if not found:
        raise nothing_kept(task, key or [])
    if call.json:
        call.put_json(found)
        return
    for row in found:
        for line in _lines(row):
            call.put(line)


def export(call: Call, job: Job, task: Task, *, at: At = None) -> None:
    """Print all that a task keeps, one JSON object a line: a key with its states and timers, or an open window."""
    from sardonyx.state.look import printable

    count = 0
    with call.client() as client, call.patience("Kafka"):
        for row in call.job(client, job).state(task, at=at):
            call.put(msgspec.json.encode(printable(row)).decode())
            count += 1
    call.say(f"{counted(count, 'line')} of task {task}")


def checkpoints(call: Call, job: Job) -> None:
    """List the times of which a job keeps the state of all its tasks, the newest last."""
    with call.client() as client, call.patience("Kafka"):
        found = call.job(client, job).checkpoints()
    if call.json:
        call.put_json(found)
        return
    if found.every is None:
        call.put("the job keeps no checkpoints: with `checkpoint_every=` it does")
        return
    for each in found.times:
        call.put(f"{each:%Y-%m-%dT%H:%M:%SZ}")
    if not found.times:
        last = (f"{each.task}: {each.times[-1]:%Y-%m-%dT%H:%M:%SZ}" for each in found.tasks if each.times)
        call.put("none is complete yet" + "".join(f"\n  the last one of task {each}" for each in last))


def _lines(row: StateRow) -> list[str]:
    if isinstance(row, dict):
        return ["  ".join(f"{name} {_text(value)}" for name, value in row.items())]
    lines = [f"key {_text(row.key)}"] if row.key else []
    lines += [f"{name:<16}  {_text(value)}" for name, value in row.states.items()]
    return lines + [f"timer {timer.name!r} at {timer.at} by the {timer.by} clock" for timer in row.timers]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
