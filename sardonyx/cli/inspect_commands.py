"""``sardonyx doctor|config|deployments``: commands that only read."""

from __future__ import annotations

import typer

from sardonyx.cli import report
from sardonyx.cli.call import Call, connected


def register(app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(app, "doctor", kafka=True)(doctor)
    connected(app, "config", kafka=True)(config)
    connected(app, "deployments")(deployments)


def doctor(call: Call) -> int:
    """Check Java, packages, ZooKeeper and Kafka, and say how to fix what is missing. Exit code 1: something is missing."""
    from sardonyx.dev.doctor import examine

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
    call.put("nothing is missing" if not bad else f"{bad} of {len(findings)} checks failed")
    return report.FAILED if bad else report.COMPLETED


def config(call: Call) -> None:
    """Show every setting, its value and where the value comes from. Secrets are masked."""
    shown = call.settings.shown()
    if call.json:
        call.put_json({key: {"value": value, "origin": origin} for key, value, origin in shown})
        return
    from sardonyx.cli.tables import plain

    table = plain("setting", "value", "origin")
    for key, value, origin in shown:
        table.add_row(key, value or "-", origin)
    call.console.print(table, markup=False)


def deployments(call: Call) -> None:
    """List the deployments in this ZooKeeper: which coordinator leads each, and what runs there."""
    from sardonyx.client.deployments import look

    call.settings.require("zookeeper")
    with call.patience(f"ZooKeeper at {call.settings.zookeeper.hosts}"):
        found = look(call.settings)
    if call.json:
        call.put_json(found)
        return
    if not found:
        call.put("no deployments; a coordinator creates its deployment when it starts")
        return
    from sardonyx.cli.tables import deployments_table

    call.console.print(deployments_table(found))
