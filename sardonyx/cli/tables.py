"""Jobs, peers and tasks as tables for people. Rich is imported only when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from sardonyx.cli.event_text import clock
from sardonyx.client.cluster_views import PeerView
from sardonyx.client.lags import Lag, LinkLag
from sardonyx.client.views import JobView, TaskView
from sardonyx.core.events import UNKNOWN_JOB
from sardonyx.core.units import bytes_text, duration

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.client.deployments import DeploymentView

STYLES = {
    "completed": "green",
    "complete": "green",
    "running": "cyan",
    "active": "cyan",
    "planning": "yellow",
    "submitted": "yellow",
    "waiting": "yellow",
    "sealing": "yellow",
    "acking": "yellow",
    "revoked": "red",
    "killed": "red",
    "failed": "red",
    "dead": "dim",
    "pending": "dim",
    "stopped": "yellow",
    "stopping": "yellow",
    "suspended": "yellow",
    "changing": "yellow",
}


def number(value: int | None) -> str:
    """A count with separators; a dash if it is not known."""
    return "-" if value is None else f"{value:,}"


def jobs_table(views: Iterable[JobView]) -> Table:
    """One line a job."""
    table = plain("id", "name", "status", "tasks", "submitted", "took")
    for view in views:
        done = sum(task.state == "complete" for task in view.tasks)
        table.add_row(
            view.id,
            view.name,
            styled(status_of(view)),
            f"{done}/{len(view.tasks)} complete",
            clock(view.submitted_at)[:-4] if view.submitted_at else "-",
            took(view),
        )
    return table


def tasks_table(views: Sequence[TaskView], *, ended: bool = False) -> Table:
    """One line a task. Columns that would be empty for all are left out; the tasks of an ended job have no peers."""
    skipped = any(task.skipped for task in views)
    dead = any(task.dead for task in views)
    late = any(task.late for task in views)
    failures = any(task.failures for task in views)
    lag = any(task.lag for task in views)
    wanted = (
        ("unread", lag),
        ("oldest waits", lag),
        ("skipped", skipped),
        ("late", late),
        ("dead letters", dead),
        ("failures", failures),
    )
    extra = [name for name, has_any in wanted if has_any]
    table = plain("task", "type", "state", *(() if ended else ("peers",)), "rows in", "rows out", *extra)
    for task in views:
        cells = [task.name, task.type, styled(task.state)]
        cells += [] if ended else ["-" if task.bound else str(task.peers)]
        cells += [number(task.rows_in), number(task.rows_out)]
        cells += (lag_cells(task.lag) if task.lag else ["-", "-"]) if lag else []
        cells += [number(task.skipped)] if skipped else []
        cells += [number(task.late)] if late else []
        cells += [number(task.dead)] if dead else []
        cells += [str(task.failures)] if failures else []
        table.add_row(*cells)
    return table


MARKS: dict[str, tuple[str, str]] = {
    "estimate": ("~", "~ is an estimate, from the first messages"),
    "at-most": ("<=", "<= is at most: ends of transactions are counted with it"),
}


def lag_cells(lag: Lag) -> list[str]:
    """How much is unread, with how well that is known, and for how long the oldest of it has waited."""
    mark, _ = MARKS.get(lag.precision, ("", ""))
    unit = "" if lag.unit == "records" or lag.records is None else f" {lag.unit}"
    waits = "-" if lag.seconds is None else duration(lag.seconds) if lag.records else "0 s"
    return [f"{mark}{number(lag.records)}{unit}", waits]


def kept_cells(lag: LinkLag) -> list[str]:
    """About how many bytes a link's topic holds, and how old its oldest record is."""
    size = "-" if lag.kept_bytes is None else f"~{bytes_text(lag.kept_bytes)}" if lag.kept_bytes else "0 B"
    return [size, "-" if lag.kept_seconds is None else duration(lag.kept_seconds) if lag.kept_bytes else "-"]


def lag_legend(lags: Iterable[Lag]) -> list[str]:
    """What the marks mean that :func:`lag_cells` has set."""
    used = {lag.precision for lag in lags}
    return [text for precision, (_, text) in MARKS.items() if precision in used]


def peers_table(views: Iterable[PeerView], now: float | None) -> Table:
    """One line a virtual peer, and how long before ``now`` (seconds since 1970; None: not known) it came into its state."""
    table = plain("peer", "state", "for", "job", "task", "slot", "host", "pid")
    for peer in views:
        table.add_row(
            peer.id,
            styled(peer.state) + (", drained" if peer.drained else ""),
            "-" if peer.since is None or now is None else duration(now - peer.since),
            peer.job or "-",
            peer.task or "-",
            "-" if peer.slot is None else str(peer.slot),
            peer.host or "-",
            str(peer.pid or "-"),
        )
    return table


def deployments_table(views: Iterable[DeploymentView]) -> Table:
    """One line a deployment."""
    table = plain("deployment", "leader", "epoch", "standbys", "jobs", "running", "peers")
    for view in views:
        if view.note:
            table.add_row(view.name, view.note)
            continue
        leader = view.leader or "[red]none[/red]"
        counts = (view.epoch, view.standbys, view.jobs, view.running, view.peers)
        table.add_row(view.name, leader, *map(str, counts))
    return table


def status_of(view: JobView) -> str:
    """The status of a job for people: also what a user wants of a job that has not ended."""
    if view.ended:
        return view.status
    wanted = {"changing": view.changing, "suspended": view.suspended, "stopping": view.stopping}
    return next((word for word, holds in wanted.items() if holds), view.status)


def job_headline(view: JobView) -> str:
    """The job in one line, in rich's markup."""
    words = [f"[bold]{view.id}[/bold]", styled(status_of(view))]
    if view.submitted_at:
        words.append(f"submitted {clock(view.submitted_at)[:-4]}" + (f" by {escape(view.by)}" if view.by else ""))
    if view.ended:
        words.append(f"took {took(view)}")
    if view.revision > 1:
        words.append(f"revision {view.revision}")
    if view.resumes:
        words.append(f"{'replays' if view.replays else 'resumes'} {view.resumes}")
    if view.resumed_by == UNKNOWN_JOB:
        words.append("perhaps resumed before a restore")
    elif view.resumed_by:
        words.append(f"resumed by {view.resumed_by}")
    return "  ".join(words)


def took(view: JobView) -> str:
    """How long a job that has ended took."""
    if view.ended_at is None or view.submitted_at is None:
        return "-"
    return duration(view.ended_at - view.submitted_at)


def styled(state: str) -> str:
    """A state in its colour."""
    style = STYLES.get(state)
    return f"[{style}]{state}[/{style}]" if style else state


def plain(*columns: str) -> Table:
    """A table without lines; numbers to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        right = column in {
            "rows in",
            "rows out",
            "peers",
            "skipped",
            "late",
            "dead letters",
            "failures",
            "slot",
            "files",
            "records",
            "rows",
            "unread",
            "oldest waits",
            "letters",
            "open",
            "partitions",
            "offsets",
        }
        right = right or column in {"epoch", "standbys", "jobs", "running"}
        table.add_column(
            column, justify="right" if right else "left", overflow="fold", no_wrap=column in {"id", "task"}
        )
    return table
