"""``sardonyx job progress``: how far each source partition is through all tasks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.call import Call, connected

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.client.progress import JobProgress


def register(job_app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(job_app, "progress", kafka=True)(progress)


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
