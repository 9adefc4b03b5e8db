"""The loops of a running job for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from sardonyx.cli.tables import number, plain
from sardonyx.core.text import counted, listed

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.cli.call import Call
    from sardonyx.client.cycles import JobCycle


def put_cycles(call: Call, found: Sequence[JobCycle]) -> None:
    """Print how the loops of a job stand."""
    if call.json:
        call.put_json(found)
        return
    for cycle in found:
        call.put(headline(cycle))
        call.put(standing_text(cycle))
        call.console.print(queues_table(cycle))
    if not found:
        call.put("the job has no loop")


def headline(cycle: JobCycle) -> str:
    """The loop in one line: ``loop site: fresh, fetch, links; a row may come back 30 times``."""
    most = "any number of times" if cycle.max_hops is None else counted(cycle.max_hops, "time")
    return f"loop {cycle.name}: {', '.join(cycle.tasks)}; a row may come back {most}"


def standing_text(cycle: JobCycle) -> str:
    """What remains before it can end."""
    if cycle.ended:
        return "it has ended: nothing is on its way in it, and nothing can come any more"
    unknown = [queue.link for queue in cycle.queues if queue.written is None]
    if unknown:
        return f"its end cannot be proven yet: it is not known how many rows were written to {listed(unknown)}"
    on_way = f"on their way: {counted(cycle.unread, 'row')}" if cycle.unread else "nothing is on its way"
    if cycle.fed_by:
        return f"{on_way}; more may come over {listed(cycle.fed_by)}"
    if cycle.unread:
        return f"{on_way}; it ends when nothing is on its way"
    return "its tasks worked while they were asked, so their counts do not agree: look again"


def queues_table(cycle: JobCycle) -> Table:
    """A line for each queue in the loop."""
    table = plain("queue", "written", "read", "unread")
    for each in cycle.queues:
        name = escape(each.link) + (" (feedback)" if each.feedback else "")
        table.add_row(name, number(each.written), number(each.read), number(each.unread))
    return table
