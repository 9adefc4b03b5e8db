"""How a job gets on, while one waits for it: live bars on a terminal, plain lines otherwise. Everything but Live is pure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sardonyx.cli.tables import number, plain, styled
from sardonyx.client.views import JobView, TaskView

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

LINE_EVERY = 1.0
"""Seconds between two plain lines about one task, at least."""
NOT_BEGUN = "has not begun"


class Progress(Protocol):
    """Shows how a job proceeds."""

    def show(self, view: JobView, remark: str | None = None) -> None:
        """The job as it is now, and what it waits for, if for anything."""
        ...


@dataclasses.dataclass
class _Seen:
    rows: int
    at: float
    rate: float = 0.0


class Rates:
    """Rows a second per task, smoothed a little, from one view to the next. Pure: time is an argument."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def update(self, task: TaskView, now: float) -> float:
        """Return the rate of the task now, in rows a second. A task that reads splits counts the rows that it writes. The rate is
        0 if the rows are not known.
        """
        seen = self._seen.get(task.name)
        if task.rows_in is None and task.rows_out is None:
            return 0.0  # and what was seen before stays: nothing has begun anew
        rows = max(task.rows_in or 0, task.rows_out or 0)
        if seen is None:
            self._seen[task.name] = _Seen(rows, now)
            return 0.0
        passed = now - seen.at
        if passed >= 0.2:  # shorter than that, a rate says nothing
            fresh = max(rows - seen.rows, 0) / passed
            seen.rate = fresh if seen.rate == 0.0 else 0.5 * seen.rate + 0.5 * fresh
            seen.rows, seen.at = rows, now
        return 0.0 if task.state == "complete" else seen.rate


class PlainLines:
    """Lines for a log or a pipe: a task's line only when it has changed, and at most once a second. Pure."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._said: dict[str, tuple[str, float]] = {}
        self._status = ""
        self._remark: str | None = None

    def lines(self, view: JobView, now: float, remark: str | None = None) -> list[str]:
        """What is to be said about this view at this moment (seconds, monotonic)."""
        said = []
        if view.status != self._status:
            self._status = view.status
            said.append(f"{view.id}: {view.status}")
        if remark != self._remark:
            self._remark = remark
            said += [f"{view.id}: {remark}"] if remark else []
        for task in view.tasks:
            rate = self._rates.update(task, now)
            line = f"  {task.name}: {_told(task)}"
            last, at = self._said.get(task.name, (f"  {task.name}: {NOT_BEGUN}", -LINE_EVERY))
            if line != last and (now - at >= LINE_EVERY or task.state == "complete" or view.ended):
                self._said[task.name] = (line, now)
                said.append(line + (f" ({rate:,.0f} rows/s)" if rate else ""))
        return said


def _told(task: TaskView) -> str:
    """How far a task is, in words."""
    if task.state == "pending":
        return NOT_BEGUN
    rows = [
        text
        for text, known in (
            (f"{number(task.rows_in)} rows in", task.rows_in is not None),
            (f"{number(task.rows_out)} out", task.rows_out is not None),
            (f"{number(task.skipped)} skipped", task.skipped),
            (f"{number(task.late)} late", task.late),
            (f"{number(task.dead)} dead letters", task.dead),
        )
        if known
    ]
    return f"{task.state}, {', '.join(rows) or 'rows not known'}"


class Lines:
    """Plain lines on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = PlainLines()

    def show(self, view: JobView, remark: str | None = None) -> None:
        for line in self._plain.lines(view, time.monotonic(), remark):
            self._console.print(line, markup=False)


class Bars:
    """A table that lives: a bar a task."""

    def __init__(self, live: Live, upstream: Mapping[str, Sequence[str]]) -> None:
        self._live = live
        self._upstream = upstream
        self._rates = Rates()
        self._began = time.monotonic()

    def show(self, view: JobView, remark: str | None = None) -> None:
        self._live.update(self.table(view, time.monotonic(), remark), refresh=True)

    def table(self, view: JobView, now: float, remark: str | None = None) -> Table:
        """The job at this moment (seconds, monotonic)."""
        from rich.markup import escape
        from rich.progress_bar import ProgressBar

        table = plain("task", "", "state", "peers", "rows in", "rows out", "rows/s")
        for task in view.tasks:
            rate = self._rates.update(task, now)
            done, known = share(view, task, self._upstream.get(task.name, ()))
            working = task.state == "running"
            bar = ProgressBar(
                total=known, completed=done, width=24, pulse=working and known is None, animation_time=now
            )
            cells = [number(task.rows_in), number(task.rows_out), f"{rate:,.0f}" if rate else ""]
            table.add_row(task.name, bar, styled(task.state), "" if task.bound else str(task.peers), *cells)
        seconds = f"{now - self._began:.0f} s"
        table.title = f"{view.id}  {styled(view.status)}  {seconds}" + (
            f"  [yellow]{escape(remark)}[/yellow]" if remark else ""
        )
        table.title_justify = "left"
        return table


def share(view: JobView, task: TaskView, upstream: Sequence[str]) -> tuple[float, float | None]:
    """How much of what is known to be a task's work is done: (done, known), known None if nothing is known. Pure.

    Known is what the tasks before it have written so far. The size of an input is unknown until its end.
    """
    if task.state == "complete":
        return 1.0, 1.0
    if task.state == "pending":
        return 0.0, 1.0
    written = [view.task(name).rows_out for name in upstream]
    if not written or task.rows_in is None or None in written:
        return 0.0, None
    known = sum(rows for rows in written if rows is not None)
    return (float(task.rows_in), float(known)) if known else (0.0, None)


@contextmanager
def progress(console: Console, upstream: Mapping[str, Sequence[str]]) -> Iterator[Progress]:
    """Bars on a terminal, lines otherwise.

    Args:
        console: where to.
        upstream: task name -> the tasks in front of it.
    """
    if not console.is_terminal:
        yield Lines(console)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield Bars(live, upstream)
