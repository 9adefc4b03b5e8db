"""Commands that only look: ``doctor``, ``config``, ``peers list``, ``log tail``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import report
from sardonyx.cli.call import Call, connected
from sardonyx.cli.words import clock, summary

if TYPE_CHECKING:
    from coordinator.events import AnyEvent

REREAD = 5.0
"""Seconds after which `log tail --follow` looks again although no watch told it to."""


def register(app: typer.Typer, peers_app: typer.Typer, log_app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(app, "doctor")(doctor)
    connected(app, "config")(config)
    connected(peers_app, "list")(list_peers)
    connected(log_app, "tail")(tail)


def doctor(call: Call) -> int:
    """What this machine and the cluster have and lack: Java, packages, ZooKeeper, Kafka; each with what fixes it."""
    from sardonyx.doctor import examine

    findings = examine(call.settings)
    bad = sum(finding.ok is False for finding in findings)
    if call.json:
        call.put_json({"ok": not bad, "findings": findings})
        return report.FAILED if bad else report.COMPLETED
    marks = {True: "[green]ok[/green]", False: "[red]no[/red]", None: "[yellow]-[/yellow]"}
    for finding in findings:
        call.console.print(f"{marks[finding.ok]:<16} {finding.name}: ", end="")
        call.console.print(finding.detail, markup=False)
        if finding.fix and finding.ok is not True:
            call.console.print(f"     fix: {finding.fix}", markup=False)
    call.put("all that is needed is there" if not bad else f"{bad} of {len(findings)} need mending")
    return report.FAILED if bad else report.COMPLETED


def config(call: Call) -> None:
    """Every setting, its value and where that came from; secrets are masked."""
    shown = call.settings.shown()
    if call.json:
        call.put_json({key: {"value": value, "origin": origin} for key, value, origin in shown})
        return
    from sardonyx.cli.tables import plain

    table = plain("setting", "value", "origin")
    for key, value, origin in shown:
        table.add_row(key, value or "-", origin)
    call.console.print(table, markup=False)


def list_peers(call: Call) -> None:
    """All virtual peers, what they are, and what they work on."""
    with call.client() as client:
        peers = [peer for peer in client.peers() if peer.state != "dead"]
    if call.json:
        call.put_json(peers)
    elif peers:
        from sardonyx.cli.tables import peers_table

        call.console.print(peers_table(peers))
    else:
        call.put(f"no peers in deployment {call.settings.deployment}; start some with `sardonyx peer`")


def tail(
    call: Call,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last entries.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> None:
    """The last entries of the coordinator's log: number, time, kind, and what happened."""
    call.settings.require("zookeeper")
    from coordinator import layout
    from coordinator.log import read_log
    from coordinator.log import tail as last_entries
    from coordinator.tree import Tree

    tree = Tree.connect(call.settings, survive_expiry=True)
    try:
        next_n = 0
        for n, event in last_entries(tree, lines):
            _put(call, n, event)
            next_n = n + 1
        if not follow:
            return
        if lines == 0:
            next_n = 1 + max((n for n, _ in last_entries(tree, 1)), default=-1)
        changed = threading.Event()

        def wake(_event: object) -> None:
            changed.set()

        while True:
            changed.clear()
            tree.read(layout.CHECKPOINT, watch=wake)  # it moves behind every batch of entries
            for n, event in read_log(tree, first=next_n):
                _put(call, n, event)
                next_n = n + 1
            changed.wait(REREAD)
    finally:
        tree.close()


def _put(call: Call, n: int, event: AnyEvent) -> None:
    from coordinator.events import kind_of

    if call.json:
        call.put_json({"n": n, "kind": kind_of(event), "summary": summary(event), "event": event})
    else:
        call.put(f"{n:>7}  {clock(event.at)}  {kind_of(event):<13}  {summary(event)}")
