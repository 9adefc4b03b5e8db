"""``sardonyx dlq list|show|redo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.call import Call, connected
from sardonyx.cli.report import exit_code
from sardonyx.cli.words import clock
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from sardonyx.client.dead_letters import Stored

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of it, or its name.")]
Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Of which task; needed if several have any.")]


def register(dlq_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(dlq_app, "list")(list_letters)
    connected(dlq_app, "show")(show)
    connected(dlq_app, "redo")(redo)


def list_letters(call: Call, job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None) -> None:
    """How many dead letters there are, by job and task, and how many of them were not redone."""
    from sardonyx.cli.tables import number, plain
    from sardonyx.client.dead_letters import DeadLetters

    with call.client() as client, call.patience("Kafka"):
        piles = DeadLetters(client).piles(job)
    if call.json:
        call.put_json(piles)
    elif piles:
        table = plain("job", "task", "letters", "not redone", "first", "last")
        for pile in piles:
            times = [clock(at)[:-4] if at else "-" for at in (pile.first_at, pile.last_at)]
            table.add_row(pile.job, pile.task, number(pile.letters), number(pile.waiting), *times)
        call.console.print(table)
    else:
        call.put("no dead letters" + ("" if job is None else f" of job {job}"))


def show(
    call: Call,
    job: JobId,
    offset: Annotated[
        int | None, typer.Argument(metavar="[OFFSET]", help="Which one; without it all are listed.")
    ] = None,
    task: Task = None,
) -> None:
    """One dead letter whole: the record, where it came from, and what went wrong."""
    from sardonyx.client.dead_letters import DeadLetters

    with call.client() as client, call.patience("Kafka"):
        letters = DeadLetters(client)
        found = letters.letters(job, task, most=SHOWN) if offset is None else [letters.show(job, offset, task)]
    if call.json:
        call.put_json(found if offset is None else found[0])
    elif offset is not None:
        for line in _whole(found[0]):
            call.put(line)
    else:
        for each in found:
            call.put(f"{each.offset:>6}  {each.letter.error}: {each.letter.failure.message.splitlines()[0][:120]}")
        if not found:
            call.put(f"no dead letters of job {job}")


SHOWN = 100
"""Letters listed one by one at most."""


def redo(
    call: Call,
    job: JobId,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Of which task; without it of every one that has any.")
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option("--spec", metavar="SPEC", help="The job as it should have been: FILE.py, a YAML file ..."),
    ] = None,
) -> int | None:
    """Work on dead letters again: for each task, hand in a job that reads those that were not redone, each once.

    It has the task and everything behind it, as in the job that they come from, or as in SPEC.
    """
    from sardonyx.client.dead_letters import DeadLetters
    from sardonyx.job.load import load

    mended = None if spec is None else load(spec, places=False)
    done: list[dict[str, str]] = []
    with call.client() as client, call.patience("Kafka"):
        try:
            for name, handle in DeadLetters(client).redo_each(job, task, mended):
                done.append({"task": name, "id": handle.id})
                if not call.json:
                    _tell(call, name, handle.id)
        except SardonyxError as error:
            if not done:
                raise
            call.tell(error, {"jobs": done})  # what was handed in works, whatever became of the rest
            return exit_code(error)
    if call.json:
        call.put_json({"jobs": done})
    elif not done:
        call.put("no dead letters that were not redone")
    return None


def _tell(call: Call, task: str, job: str) -> None:
    call.put(job)
    call.say(f"it works on the dead letters of task {task}; `sardonyx job await {job}` waits for its end")


def _whole(stored: Stored) -> list[str]:
    letter, origin = stored.letter, stored.letter.origin
    place = f"{origin.topic}, partition {origin.partition}, offset {origin.offset}"
    place += "" if origin.row is None else f", row {origin.row} within the message"
    lines = [
        f"dead letter {stored.offset} of task {letter.task}, job {stored.job}, {clock(stored.at)[:-4]}",
        f"  came from  {place}",
        f"  failed     {counted(letter.attempts, 'time')}, with {letter.error}",
        f"  redone by  {stored.redone_by or 'nobody yet'}",
        f"  record     {stored.record}",
        "",
        *([letter.failure.traceback.rstrip()] if letter.failure.traceback else []),
        f"{letter.failure.code}: {letter.failure.message}",
    ]
    return lines + [f"  {name}: {text}" for name, text in _why(stored) if text]


def _why(stored: Stored) -> list[tuple[str, str]]:
    return [("cause", stored.letter.failure.cause), ("fix", stored.letter.failure.fix)]
