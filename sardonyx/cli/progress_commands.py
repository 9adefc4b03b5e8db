"""``sardonyx job progress`` and ``job trace``: how far a job is with each source partition, and where a record of one is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.call import Call, connected
from sardonyx.core.errors import SardonyxError

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.client.progress import JobProgress, RecordTrace
    from sardonyx.core.trace import State


def register(job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(job_app, "progress", kafka=True)(progress)
    connected(job_app, "trace", kafka=True)(trace)


def progress(
    call: Call,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of it, or its name.")],
) -> None:
    """Show for each source partition how far it is read, up to where all is through the job, and what the rest waits for."""
    with call.client() as client, call.patience("Kafka"):
        found = client.job(job).progress()
    if call.json:
        call.put_json(found)
        return
    call.console.print(table_of(found))
    if not found.lineage and any(each.read is not None and each.everywhere is None for each in found.sources):
        call.put("the job keeps no lineage: with `lineage=True` it is known at any time how far each partition is")


def table_of(found: JobProgress) -> Table:
    """A line for each source partition."""
    from rich.markup import escape

    from sardonyx.cli.tables import number, plain

    table = plain("source", "read", "everywhere", "pending", "held by", "why")
    for each in found.sources:
        unknown = each.everywhere is None and each.read is not None
        table.add_row(
            escape(f"{each.source}[{each.partition}]") + (" (splits)" if each.unit == "splits" else ""),
            number(each.read),
            "not known" if unknown else number(each.everywhere),
            number(each.pending),
            ", ".join(each.held_by) or "-",
            each.why or "-",
        )
    return table


def trace(
    call: Call,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's id, the beginning of it, or its name.")],
    record: Annotated[
        str, typer.Argument(metavar="TOPIC[P]@OFFSET", help="A record of a source, such as hits[3]@4711.")
    ],
) -> None:
    """Show where a record is on its way through a job: which tasks it is through, which holds it, and where it is dead."""
    source, partition, offset = place_of(record)
    with call.client() as client, call.patience("Kafka"):
        found = client.job(job).trace(source, partition, offset)
    if call.json:
        call.put_json(found)
        return
    call.console.print(way_of(found))
    for letter in found.letters:
        call.put(f"{letter.task}: dead letter {letter.number}, {letter.code}: {letter.error}")
    if not found.lineage:
        call.put("the job keeps no lineage: with `lineage=True` it is known which tasks the record is through")


def place_of(text: str) -> tuple[str, int, int]:
    """A record as people name it: its source, partition and offset.

    Raises:
        SardonyxError: ``SX-USAGE``.
    """
    found = re.fullmatch(r"(.+)\[(\d+)\]@(\d+)", text)
    if found is None:
        raise SardonyxError("SX-USAGE", f"{text!r} names no record", fix="write for example 'hits[3]@4711'")
    return found[1], int(found[2]), int(found[3])


def way_of(found: RecordTrace) -> Table:
    """A line for each task."""
    from sardonyx.cli.clock_commands import clock_text
    from sardonyx.cli.tables import plain

    table = plain("task", "record is", "why")
    for each in found.tasks:
        why = each.why
        if each.state == "held":
            clock = "" if each.until is None else clock_text(each.until, ended=False, ordinal=found.ordinal)
            why += f", until the clock is {clock}" if clock else ", until its window is full or the input ends"
        table.add_row(each.task, _STATES[each.state], why or "-")
    return table


_STATES: dict[State, str] = {
    "unread": "not read",
    "waiting": "not there yet",
    "held": "held",
    "through": "through",
    "unknown": "not known",
}
