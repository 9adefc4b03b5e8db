"""``sardonyx backup`` and ``sardonyx restore``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import report
from sardonyx.cli.call import Call, connected, our_version
from sardonyx.cli.event_text import clock
from sardonyx.cli.log_commands import tree_of
from sardonyx.core.text import counted

if TYPE_CHECKING:
    from coordinator.history.backup import BackupFile
    from coordinator.history.restore import RestorePlan

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]


def register(app: typer.Typer) -> None:
    """Put the commands where they belong."""
    connected(app, "backup")(backup)
    connected(app, "restore", kafka=True)(restore)


def backup(call: Call, file: File) -> None:
    """Write all that ZooKeeper holds of the deployment to a file, from which `restore` makes it again. It may run meanwhile.

    The file holds the jobs' secrets. Only its owner can read it.
    """
    from coordinator.history.backup import write

    with tree_of(call) as zk:
        header = write(zk, file, our_version())
    size = file.stat().st_size
    if call.json:
        call.put_json({"file": str(file), "bytes": size, **report.as_data(header)})
    else:
        call.put(f"{file}: deployment {header.deployment} after entry {header.n:,}, {size:,} bytes")
        call.say("it holds the secrets of the jobs: keep it as you keep passwords")


def restore(
    call: Call,
    file: File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would become of each job. Nothing is changed.")
    ] = False,
) -> None:
    """Make a deployment in ZooKeeper again from a backup, and say what becomes of each job.

    A job goes on if Kafka shows that every record still has its effect once. Otherwise it fails, with the reason. No
    coordinator may run meanwhile. If it is interrupted, run it again.
    """
    call.settings.require("zookeeper", "kafka")
    from coordinator.history.backup import BackupFile
    from coordinator.history.restore import claimed, obstacle, plan
    from coordinator.history.restore import restore as carry_out
    from coordinator.kafka.job_traces import jobs_since, letters_of, traces_of
    from sardonyx.zookeeper.session import ZooKeeperSession

    found = BackupFile(file)
    with call.patience(f"ZooKeeper at {call.settings.zookeeper.hosts}"):
        zk = ZooKeeperSession.connect(call.settings, make_top=not dry_run)
    try:
        hindrance = obstacle(zk, found)
        if hindrance is not None and not dry_run:
            raise hindrance
        with call.patience("Kafka"):
            state = found.state
            letters, traces = letters_of(call.settings, state, claimed(found)), traces_of(call.settings, state)
            since = jobs_since(call.settings, state)
        wanted = plan(found, traces, letters, time.time())
        if not dry_run:
            carry_out(zk, found, wanted)
    finally:
        zk.close()
    if call.json:
        call.put_json(_data(found, wanted, since, dry_run=dry_run) | {"refused": hindrance and hindrance.message})
        return
    _put(call, found, wanted, since)
    if hindrance is not None:
        call.say(f"as things are, it would be refused\n{report.error_text(hindrance)}")
    elif not dry_run:
        call.put("restored; start the coordinators and the peers")


def _data(found: BackupFile, wanted: RestorePlan, since: list[str], *, dry_run: bool) -> dict[str, Any]:
    header = found.header
    return {
        "deployment": header.deployment,
        "n": header.n,
        "at": header.at,
        "dry_run": dry_run,
        "jobs": [
            {"job": each.job, "was": each.was, "becomes": each.becomes, "error": each.error} for each in wanted.outcomes
        ],
        "unknown_jobs": since,
        "letters": [{"job": job, "task": task} for job, task in wanted.letters],
    }


def _put(call: Call, found: BackupFile, wanted: RestorePlan, since: list[str]) -> None:
    from sardonyx.cli.tables import plain

    header = found.header
    call.put(f"backup of deployment {header.deployment} after entry {header.n:,}, taken {clock(header.at)}")
    table = plain("job", "at the backup", "now it")
    for each in wanted.outcomes:
        if each.becomes != "stays ended":
            table.add_row(each.job, each.was, each.becomes)
    if table.row_count:
        call.console.print(table)
    ended = len(wanted.outcomes) - table.row_count
    if ended:
        call.put(
            f"{counted(ended, 'job')} had ended before; `--resume` does not take {'it' if ended == 1 else 'them'} any more"
        )
    elif not wanted.outcomes:
        call.put("no jobs")
    for each in wanted.outcomes:
        if each.error is not None:
            call.put(f"{each.error.message}\n  cause: {each.error.cause}\n  fix:   {each.error.fix}")
    if since:
        call.put(
            f"Kafka has topics or groups of {counted(len(since), 'job')} that the backup does not know: {', '.join(since)}. "
            "They were submitted after it. Nothing works on them; delete their topics when you have looked at them."
        )
    for job, task in wanted.letters:
        call.put(f"dead letters of {job}/{task} may have been redone after the backup: `dlq redo` asks for --restored")
