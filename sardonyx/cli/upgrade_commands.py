"""``sardonyx upgrade``."""

from __future__ import annotations

from typing import Annotated

import typer

from sardonyx.cli import report
from sardonyx.cli.call import Call, connected
from sardonyx.core.text import counted


def register(app: typer.Typer) -> None:
    """Put the command where it belongs."""
    connected(app, "upgrade")(upgrade)


def upgrade(
    call: Call,
    check: Annotated[bool, typer.Option("--check", help="Only look; nothing else is there to do.")] = True,
) -> int:
    """Show which coordinators and peers run which release, what is in force, and what stands in the way of an upgrade."""
    from sardonyx.cli.tables import plain
    from sardonyx.client.upgrade import look

    del check
    with call.client() as client:
        found = look(client.zk)
    if call.json:
        call.put_json(found)
    else:
        call.put(f"in force: log format {found.format or 'none yet'}, rules {found.rules or 'none yet'}")
        call.put(f"this release: {found.version}, reads format {found.reads_format}, knows rules {found.knows_rules}")
        table = plain("daemon", "release", "format", "rules", "peers")
        for note in found.coordinators:
            table.add_row(f"coordinator {note.name}", note.version or "?", str(note.format), str(note.rules), "")
        for each in found.peers:
            table.add_row(
                counted(each.daemons, "peer daemon"), each.version or "?", str(each.format or "?"), "", str(each.peers)
            )
        call.console.print(table)
        for problem in found.problems:
            call.put(f"in the way: {problem}")
        if not found.problems:
            call.put("nothing stands in the way")
    return report.FAILED if found.problems else report.COMPLETED
