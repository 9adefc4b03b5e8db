"""``sardonyx link lag``, ``link audit``, ``link peek`` and ``link keep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli.arguments import WHICH_JOB
from sardonyx.cli.call import Call, connected
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import counted
from sardonyx.core.units import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sardonyx.client.peek import Peek
    from sardonyx.client.views import JobView

JobId = Annotated[str, typer.Argument(metavar="JOB", help=WHICH_JOB)]


def register(link_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(link_app, "lag", kafka=True)(lag)
    connected(link_app, "audit", kafka=True)(audit)
    connected(link_app, "peek", kafka=True)(peek)
    connected(link_app, "keep")(keep)


def lag(call: Call, job: JobId) -> None:
    """Show how much is unread on each link that a task reads, how long the oldest of it has waited, and what the link's topic
    holds, read or not.
    """
    from sardonyx.cli.tables import kept_cells, lag_cells, lag_legend, number, plain
    from sardonyx.client.held_tasks import held_tasks

    with call.client() as client, call.patience("Kafka"):
        handle = call.job(client, job)
        found = handle.lag()
        view = handle.status()
        held = held_tasks(client, handle.id, found)
    if call.json:
        call.put_json({"job": view.id, "status": view.status, "links": found, "held": held})
        return
    if not any(each.records is not None for each in found):
        call.put(_nothing_known(view))
        return
    bounds = ["at most"] if any(each.max_backlog for each in found) else []
    table = plain("link", "read by", "kind", "unread", *bounds, "oldest waits", "holds", "oldest record")
    for each in found:
        unread, waits = lag_cells(each)
        most = [number(each.max_backlog)] if bounds else []
        table.add_row(each.link, each.reader, each.kind, unread, *most, waits, *kept_cells(each))
    call.console.print(table)
    for hold in held:
        call.put(hold.text)
    for line in lag_legend(found):
        call.put(line)


def audit(call: Call, job: JobId) -> int:
    """Show how many rows were written to each link between two tasks, how many were read, and how many are unread or lost.

    The exit code is 1 if any are lost, or there twice.
    """
    from sardonyx.cli.tables import number, plain

    with call.client() as client, call.patience("Kafka"):
        handle = call.job(client, job)
        found = handle.audit()
        view = handle.status()
    if call.json:
        call.put_json({"job": view.id, "status": view.status, "links": found})
    elif not any(each.read is not None for each in found):
        call.put(_nothing_known(view) if found else f"job {view.id} has no link between two tasks")
    else:
        twice = any(each.twice for each in found)
        table = plain("link", "written", "read", "unread", "lost", *(["twice"] if twice else []))
        for each in found:
            cells = [each.written, each.read, each.unread, each.lost, *([each.twice] if twice else [])]
            table.add_row(each.link, *map(number, cells))
        call.console.print(table)
    return int(any(each.lost or each.twice for each in found))


def peek(
    call: Call,
    job: JobId,
    link: Annotated[str, typer.Argument(metavar="LINK", help="Such as clean.label; `link lag` lists them.")],
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=1000, metavar="N", help="Rows of each partition at most.")
    ] = 20,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="N", help="Only this partition; default: the first 32.")
    ] = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest rows, and not those around the reader's position.")
    ] = False,
) -> None:
    """Show rows of a link, around the position of the task that reads it. Nothing is changed, and no row is taken."""
    with call.client() as client, call.patience("Kafka"):
        found = call.job(client, job).peek(link, rows, partition, "end" if newest else "position")
    if call.json:
        call.put_json(found)
        return
    for line in _peeked(found):
        call.put(line)
    if found.more:
        call.say(f"{counted(found.more, 'partition')} more; --partition N shows one of them")


def _peeked(found: Peek) -> Iterator[str]:
    """A link in lines: where the reader stands is a line between two rows."""
    from sardonyx.cli.event_text import clock
    from sardonyx.cli.report import to_json

    read_by = "read by no task" if found.reader is None else f"read by {found.reader}"
    yield f"{found.link}: {found.kind} link, written by {found.writer}, {read_by}; topic {found.topic}"
    for each in found.partitions:
        yield f"partition {each.number}: offsets {each.first:,} to {each.end:,}" + ("" if each.rows else ", no rows")
        here = f"  -- {found.reader} has read up to here" + (
            " --" if each.position is None else f": next is offset {each.position:,} --"
        )
        told = found.reader is None
        for row in each.rows:
            if not told and not row.read:
                told = True
                yield here
            number = f"{row.offset:,}" if row.row is None else f"{row.offset:,}.{row.row}"
            at = "-" if row.at is None else clock(row.at)[:-4]
            key = "" if row.key is None else f"  key {to_json(row.key)}"
            yield f"  {number:>12}  {at}  {row.by or '-'}{key}  {to_json(row.record)}"
        if not told:
            yield here
        if each.cut:
            yield "  there may be more rows: reading them took too long, or they are large"


def keep(
    call: Call,
    job: JobId,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help='Such as "1 h"; 0: no longer than needed.')],
) -> None:
    """Let records stay in the queues of a running job for at least this long, also when all readers have processed them."""
    try:
        seconds(duration)
    except ValueError as error:
        raise SardonyxError("SX-USAGE", str(error), fix='write for example "1 h"') from None
    with call.client() as client, call.patience("the coordinator to process it"):
        handle = call.job(client, job)
        kept = handle.keep(duration)
    if call.json:
        call.put_json({"job": handle.id, "keep": kept})
    elif kept is None:
        call.put(f"{handle.id} keeps records no longer than its tasks need them")
    else:
        call.put(f"{handle.id} keeps records for at least {kept}")


def _nothing_known(view: JobView) -> str:
    if view.ended:
        return f"job {view.id} is {view.status}: its links are deleted"
    if view.status in ("submitted", "planning"):
        return f"job {view.id} is {view.status}: its links do not exist yet"
    return f"nothing is known of the links of job {view.id}: Kafka has not answered in time, or its topics are gone"
