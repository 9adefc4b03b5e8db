"""``sardonyx state get|export``: what a task of a running job keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sardonyx.cli.call import Call, connected
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.client.task_state import StateRow

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of it, or its name.")]
Task = Annotated[str, typer.Argument(metavar="TASK", help="A task with keyed state or windows.")]


def register(state_app: typer.Typer) -> None:
    """Put the commands where they belong."""
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
) -> None:
    """Show what a task keeps of one key: its states and timers, or what its open windows hold."""
    with call.client() as client, call.patience("Kafka"):
        found = list(client.job(job).state(task, key or []))
    if call.json:
        call.put_json(found)
        return
    for row in found:
        for line in _lines(row):
            call.put(line)
    if not found:
        call.put("nothing is kept of this key")


def export(call: Call, job: Job, task: Task) -> None:
    """Print all that a task keeps, one JSON object a line: a key with its states and timers, or an open window."""
    count = 0
    with call.client() as client, call.patience("Kafka"):
        for row in client.job(job).state(task):
            call.put(msgspec.json.encode(row).decode())
            count += 1
    call.say(f"{counted(count, 'line')} of task {task}")


def _lines(row: StateRow) -> list[str]:
    if isinstance(row, dict):
        return ["  ".join(f"{name} {_text(value)}" for name, value in row.items())]
    lines = [f"{name:<16}  {_text(value)}" for name, value in row.states.items()]
    return lines + [f"timer {timer.name!r} at {timer.at} by the {timer.by} clock" for timer in row.timers]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
