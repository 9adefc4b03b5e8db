"""When the rows that a task with state was given are out: in results, or dropped. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.clocks import END
from sardonyx.core.joining import RelationSpec
from sardonyx.core.spec import TaskSpec, whole_of
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.emits import Emit
from sardonyx.state.groups import Numbers
from sardonyx.state.joins import bounds
from sardonyx.state.kinds import windows_of


def holds_rows(task: TaskSpec) -> bool:
    """Whether a task may hold rows back that it has read: in windows, to wait for others, or until all rows are there.

    A state of keys does not hold rows back: the function has seen the row.
    """
    if whole_of(task) is not None:
        return True
    if task.window is not None:
        return not (task.window.kind == "everything" and task.window.emit == "changes")
    relation = task.relation
    if relation is None or relation.kind == "distinct":
        return False
    return relation.kind != "latest" or relation.emit != "changes"


def gives_once(task: TaskSpec) -> bool:
    """Whether a task that holds rows back gives no result of a row after the clock by which it is out. Late rows may make windows
    give results again, and what is known of a table, of a key or of a graph is in later results, too.
    """
    window, relation = task.window, task.relation
    if window is not None:
        again = window.kind == "everything" and Emit(window.emit).every
        return not again and not length(window.allowed_lateness)
    return relation is not None and relation.kind == "join"


def window_release(window: WindowSpec, times: Sequence[Numbers | None], clock: int) -> int | None:
    """The clock by which the final results of windows with these rows are out.

    Args:
        window: the windows.
        times: of the rows, or the starts of their slices, block by block; None: the windows have no times.
        clock: of the plan that was given the rows.

    Returns:
        ``END``: only at the end of the input, or when the state is empty. None: all is out with the batch, as of the results of
        ``everything`` that come after each batch.
    """
    if window.kind == "everything":
        emit = Emit(window.emit)
        return _next(clock, emit.every) if emit.every else None if emit.by_rows == 1 else END
    if window.kind == "counted" or (window.kind == "session" and window.most is None):
        return END
    greatest = max((int(each.max()) for each in times if each is not None and len(each)), default=None)
    if greatest is None:
        return END
    grace = length(window.grace)
    if window.kind == "session":
        gap = length(window.gap)
        return greatest + max(length(window.most), gap) + gap + grace
    windows = windows_of(window)
    latest = next(each for each in times if each is not None and len(each) and int(each.max()) == greatest)
    return int(windows.ends(windows.last(windows.slices(latest[latest == greatest][:1])))[0]) + grace


def relation_release(relation: RelationSpec, times: Sequence[Numbers], clock: int) -> int | None:
    """The same of joins and the like: the clock by which these rows make no result any more.

    The rows of a table, and what is known of a key, do not wait.
    """
    if relation.kind == "distinct":
        return None
    if relation.kind == "latest":
        emit = Emit(relation.emit)
        return _next(clock, emit.every) if emit.every else END if emit.final else None
    greatest = max((int(each.max()) for each in times if len(each)), default=None)
    if greatest is None:
        return None
    reach = max(map(abs, bounds(relation))) if relation.kind == "join" else 0
    return greatest + reach + length(relation.grace) + 1


def _next(clock: int, every: int) -> int:
    """The multiple of a length of time that comes after a clock."""
    return END if clock >= END else (clock // every + 1) * every


__all__ = ["gives_once", "holds_rows", "relation_release", "window_release"]
