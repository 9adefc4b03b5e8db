"""``sardonyx dlq list|show|redo|drop|export``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.arguments import WHICH_JOB
from sardonyx.cli.call import Call, connected
from sardonyx.cli.files import write_lines
from sardonyx.cli.report import exit_code, to_json
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted, listed, plural, shorten

if TYPE_CHECKING:
    from sardonyx.client.dead_letters import DeadLetters, Stored
    from sardonyx.client.job_handle import JobHandle

JobId = Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)]
Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only dead letters of this task.")]
OneTask = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="TASK", help="The task that failed on them; needed if several tasks keep dead letters."
    ),
]

SHOWN = 100
"""Letters listed one by one at most."""


def register(dlq_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(dlq_app, "list", kafka=True)(list_letters)
    connected(dlq_app, "show", kafka=True)(show)
    connected(dlq_app, "redo", kafka=True)(redo)
    connected(dlq_app, "drop", kafka=True)(drop)
    connected(dlq_app, "export", kafka=True)(export)


def list_letters(
    call: Call,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help=f"{WHICH_JOB} Default: all jobs."),
    ] = None,
) -> None:
    """List the dead letters by job and task, and how many of them are open: neither redone nor dropped."""
    from sardonyx.cli.event_text import clock
    from sardonyx.cli.tables import number, plain
    from sardonyx.client.dead_letters import DeadLetters

    with call.client() as client, call.patience("Kafka"):
        piles = DeadLetters(client).piles(None if job is None else call.job(client, job).id)
    if call.json:
        call.put_json(piles)
    elif piles:
        table = plain("job", "task", "letters", "open", "first", "last")
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
        int | None,
        typer.Argument(metavar="[OFFSET]", help="Number of one letter, to see all of it; default: list them."),
    ] = None,
    task: OneTask = None,
) -> None:
    """List a job's dead letters, or show one: the record, where it came from, and what went wrong."""
    from sardonyx.client.dead_letters import DeadLetters

    with call.client() as client, call.patience("Kafka"):
        letters = DeadLetters(client)
        name = call.job(client, job).id
        found = letters.letters(name, task, most=SHOWN + 1) if offset is None else [letters.show(name, offset, task)]
    more, found = len(found) > SHOWN, found[:SHOWN]
    if call.json:
        call.put_json(found if offset is None else found[0])
    elif offset is not None:
        for line in _whole(found[0]):
            call.put(line)
    else:
        for each in found:
            call.put(_line(each, call.console.width if call.console.is_terminal else None))
        if not found:
            call.put(f"no dead letters of job {job}")
    if more:
        call.say(f"these are the first {SHOWN}; `sardonyx dlq export {job}` gives all")


def redo(
    call: Call,
    job: JobId,
    task: Task = None,
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec", metavar="SPEC", help="The corrected job: FILE.py, a YAML file, ...; default: as it was."
        ),
    ] = None,
    restored: Annotated[
        bool, typer.Option("--restored", help="Also letters that may have been redone before a restore.")
    ] = False,
) -> int | None:
    """Submit a new job for each task with open dead letters. It reads each of these letters once.

    The new job has the task and all tasks after it.
    """
    from sardonyx.client.dead_letters import DeadLetters
    from sardonyx.job.load import load

    corrected = None if spec is None else load(spec, places=False)
    done: list[dict[str, str]] = []
    with call.client() as client, call.patience("Kafka"):
        letters = DeadLetters(client)
        name = call.job(client, job).id
        try:
            for each, handle in letters.redo_each(name, task, corrected, restored=restored):
                done.append({"task": each, "id": handle.id})
                if not call.json:
                    _tell(call, each, handle)
        except SardonyxError as error:
            if not done:
                raise
            call.tell(error, {"jobs": done})  # the jobs that were submitted run, whatever became of the rest
            return exit_code(error)
        if not call.json and not done:
            for line in _nothing_open(letters, job, task, "redo"):
                call.put(line)
    if call.json:
        call.put_json({"jobs": done})
    return None


def drop(call: Call, job: JobId, task: Task = None) -> int | None:
    """Mark the open dead letters of a job as dropped: they are never redone, and the job can be purged.

    `sardonyx dlq export` saves them before.
    """
    from sardonyx.client.dead_letters import DeadLetters

    done: list[dict[str, str | int]] = []
    with call.client() as client, call.patience("Kafka"):
        letters = DeadLetters(client)
        name = call.job(client, job).id
        try:
            for each, count in letters.drop_each(name, task):
                done.append({"task": each, "letters": count})
                if not call.json:
                    call.put(f"dropped {counted(count, 'dead letter')} of task {each}, job {name}")
        except SardonyxError as error:
            if not done:
                raise
            call.tell(error, {"job": name, "dropped": done})
            return exit_code(error)
        if not call.json and not done:
            for line in _nothing_open(letters, job, task, "drop"):
                call.put(line)
    if call.json:
        call.put_json({"job": name, "dropped": done})
    return None


def export(
    call: Call,
    job: JobId,
    task: Task = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Write all dead letters of a job as JSON, one letter a line, with those that were redone or dropped."""
    from sardonyx.client.dead_letters import DeadLetters

    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        with call.client() as client, call.patience("Kafka"):
            for each in DeadLetters(client).each(call.job(client, job).id, task):
                count += 1
                yield to_json(each).encode() + b"\n"

    write_lines(out, lines())
    if out is None:
        return
    if call.json:
        call.put_json({"file": str(out), "letters": count})
    else:
        call.put(f"{out}: {counted(count, 'dead letter')}")


def _tell(call: Call, task: str, handle: JobHandle) -> None:
    call.put(handle.id)
    call.say(f"it redoes the dead letters of task {task}; `sardonyx job await {handle.id}` waits for its end")


def _nothing_open(letters: DeadLetters, job: str, task: str | None, verb: str) -> list[str]:
    """Why there is nothing to redo or drop, and where letters that failed again are now."""
    piles = [pile for pile in letters.piles(job) if task in (None, pile.task)]
    if not piles:
        return [f"job {job} has no dead letters" + (f" of task {task}" if task else "")]
    gone = sum(pile.dropped for pile in piles)
    by = [name for pile in piles for name in pile.redone_by]
    how = [f"{gone:,} {plural(gone, 'was', 'were')} dropped"] if gone else []
    how += [f"{sum(pile.letters for pile in piles) - gone:,} redone by {listed(by)}"] if by else []
    lines = [f"job {job} has no open dead letters: {', '.join(how)}"]
    again = letters.successors(job, task)
    return lines + [
        f"{counted(pile.waiting, 'dead letter')} failed again and {plural(pile.waiting, 'is', 'are')} now in job "
        f"{pile.job}, task {pile.task}: `sardonyx dlq {verb} {pile.job}`"
        for pile in again
    ]


def _line(stored: Stored, width: int | None) -> str:
    """One letter in one line: cut to the width of a terminal, whole elsewhere."""
    state = " (redone)" if stored.redone_by else " (dropped)" if stored.dropped else ""
    message = stored.letter.failure.message.splitlines() or [""]
    text = f"{stored.offset:>6}  {stored.letter.error}{state}: {message[0]}"
    return text if width is None else shorten(text, max(width, 40))


def _whole(stored: Stored) -> list[str]:
    from sardonyx.cli.event_text import clock

    letter, origin = stored.letter, stored.letter.origin
    place = f"{origin.topic}, partition {origin.partition}, offset {origin.offset}"
    place += "" if origin.row is None else f", row {origin.row} within the message"
    lines = [
        f"dead letter {stored.offset} of task {letter.task}, job {stored.job}, {clock(stored.at)[:-4]}",
        f"  came from  {place}",
        f"  failed     {counted(letter.attempts, 'time')}, with {letter.error}",
        f"  state      {_state(stored)}",
        f"  record     {stored.record}",
        "",
        *([letter.failure.traceback.rstrip()] if letter.failure.traceback else []),
        f"{letter.failure.code}: {letter.failure.message}",
    ]
    return lines + [f"  {name}: {text}" for name, text in _why(stored) if text]


def _state(stored: Stored) -> str:
    if stored.dropped:
        return "dropped"
    return f"redone by {stored.redone_by}" if stored.redone_by else "open: neither redone nor dropped"


def _why(stored: Stored) -> list[tuple[str, str]]:
    return [("cause", stored.letter.failure.cause), ("fix", stored.letter.failure.fix)]
