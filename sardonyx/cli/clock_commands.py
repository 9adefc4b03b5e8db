"""``sardonyx clock``: how far a job has come in event time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.arguments import WHICH_JOB
from sardonyx.cli.call import Call, connected
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import time_text

if TYPE_CHECKING:
    from sardonyx.client.clocks import JobClock, TaskClock

_EVERY = 1.0
"""Seconds between two looks with ``--watch``."""
_MOST = 3
"""Partitions that are named in a line."""


def register(app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(app, "clock", kafka=True)(clock)


def clock(
    call: Call,
    job: Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)],
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until the job has ended.")] = False,
) -> None:
    """Show how far each task of a job has come in event time, and what holds its clock back."""
    with call.client() as client:
        handle = call.job(client, job)
        with call.patience("Kafka"):
            found = handle.clock()
        while True:
            _show(call, found)
            if not watch or found.ended or handle.status(live=False).ended:
                return
            time.sleep(_EVERY)
            try:
                with call.patience("Kafka"):  # not around all: it would say so whenever one looks for three seconds
                    found = handle.clock()
            except SardonyxError as error:
                if error.code != "SX-CLOCK-GONE":
                    raise
                call.say(f"job {handle.id} has no clock any more: {error.cause}")
                return


def _show(call: Call, found: JobClock) -> None:
    if call.json:
        call.put_json(found)
        return
    from sardonyx.cli.tables import plain
    from sardonyx.client.clocks import against_now

    now = against_now(found)
    ordinal = found.ordinal
    call.put(f"clock {clock_text(found.clock, ended=found.ended, ordinal=ordinal)}{f'   {now}' if now else ''}")
    table = plain("task", "clock", "held by", "why")
    for task in found.tasks:
        table.add_row(
            task.task, clock_text(task.clock, ended=task.ended, ordinal=ordinal), _held(task), task.why or "-"
        )
    call.console.print(table)
    for task in found.tasks:
        if task.idle:
            call.put(f"{task.task}: idle, and not counted: {_listed(task.idle)}")


def _held(task: TaskClock) -> str:
    return _listed(task.held_by) or "-"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def clock_text(value: int | None, *, ended: bool, ordinal: bool) -> str:
    """A clock, or a time of rows, as it is written everywhere: in UTC, with its Z; times of the wall clock are local."""
    if value is None:
        return "ended" if ended else "-"
    return f"{value:,}" if ordinal else time_text(value)
