"""``sardonyx job progress`` and ``job trace``: how far a job is with each source partition, and where a record of one is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.arguments import WHICH_JOB
from sardonyx.cli.call import Call, connected
from sardonyx.cli.clock_commands import clock_text
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from sardonyx.client.progress import JobProgress
    from sardonyx.client.record_trace import OutputOnWay, RecordTrace, TaskOnWay
    from sardonyx.core.trace import State


MOST_STRETCHES = 5
"""Stretches of offsets of one partition that are shown."""


def register(job_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(job_app, "progress", kafka=True)(progress)
    connected(job_app, "trace", kafka=True)(trace)


def progress(
    call: Call,
    job: Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)],
) -> None:
    """Show for each source partition how far it is read, up to where all is through the job, and what the rest waits for."""
    with call.client() as client, call.patience("Kafka"):
        found = call.job(client, job).progress()
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
    job: Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)],
    record: Annotated[
        str, typer.Argument(metavar="TOPIC[P]@OFFSET", help="A record of a source, such as hits[3]@4711.")
    ],
) -> None:
    """Show where a record is on its way through a job: which tasks it is through, which holds it, in which batches it was worked,
    what these wrote, and where it is dead.
    """
    source, partition, offset = place_of(record)
    with call.client() as client, call.patience("Kafka"):
        found = call.job(client, job).trace(source, partition, offset)
    if call.json:
        call.put_json(found)
        return
    call.console.print(way_of(found))
    for task in found.tasks:
        for line in lines_of(task):
            call.put(line)
    for letter in found.letters:
        own = "" if letter.sure else " of a row that was worked with it"
        call.put(f"{letter.task}: dead letter {letter.number}{own}, {letter.code}: {letter.error}")
    if not found.lineage:
        call.put(
            "the job keeps no lineage: with `lineage=True` it is known which tasks the record is through, and where it went"
        )


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
    from sardonyx.cli.tables import plain

    table = plain("task", "record is", "why")
    for each in found.tasks:
        why = each.why
        if each.state == "held":
            clock = "" if each.until is None else clock_text(each.until, ended=False, ordinal=found.ordinal)
            why += f", until the clock is {clock}" if clock else ", until its window is full or the input ends"
            why += _windows(each, ordinal=found.ordinal)
        table.add_row(each.task, _STATES[each.state], why or "-")
    return table


def _windows(task: TaskOnWay, *, ordinal: bool) -> str:
    from sardonyx.cli.clock_commands import clock_text

    if not task.windows:
        return ""
    first, last = (
        clock_text(time, ended=False, ordinal=ordinal)
        for time in (task.windows[0][0], max(end for _, end in task.windows))
    )
    count = len(task.windows)
    return f"; its window is {first} to {last}" if count == 1 else f"; in some of {count} windows, {first} to {last}"


def lines_of(task: TaskOnWay) -> Iterator[str]:
    """In which batches a task has worked a record, what they wrote, and what is not known."""
    from sardonyx.cli.event_text import clock

    for batch in task.batches:
        read = ", ".join(f"{each.link}[{each.partition}]@{_offsets(each.start, each.end - 1)}" for each in batch.read)
        when = "" if batch.at is None else f" at {clock(batch.at)}"
        yield (
            f"{task.task}: worked in a batch of {counted(batch.rows, 'row')}{when}, with {read}, "
            f"by peer {batch.peer} (assignment {batch.assignment}, slot {batch.slot})"
        )
    for output in task.outputs:
        yield f"{task.task}: {'it went' if output.sure else 'what was made of it is among what was written'} to {_place(output)}"
    if task.dropped:
        yield f"{task.task}: dropped it: the batch that worked it wrote nothing"
    for text in task.unknown:
        yield f"{task.task}: not known: {text}"


def _place(output: OutputOnWay) -> str:
    offsets = ", ".join(_offsets(*stretch) for stretch in output.offsets[:MOST_STRETCHES])
    more = len(output.offsets) - MOST_STRETCHES
    offsets += f" and {more:,} more" if more > 0 else ""
    what = f" (file {listed(output.files)})" if output.files else f" ({counted(output.rows, 'row')})"
    where = output.topic if output.yours else output.link
    return f"{where}[{output.partition}]@{offsets}{what}"


def _offsets(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


_STATES: dict[State, str] = {
    "unread": "not read",
    "waiting": "not there yet",
    "held": "held",
    "through": "through",
    "unknown": "not known",
}
