"""What windows are given, as the specs alone say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.core.row_times import Times
from sardonyx.core.spec import Route, TaskSpec
from sardonyx.core.timing import RowTime, WindowSpec, valid_length


def gives_same_bounds(source: TaskSpec, route: Route, outer: WindowSpec | None) -> bool:
    """Whether what goes over a link into windows are results of windows with the same bounds: see :func:`same_bounds`. A function
    of the source may do with the columns what it likes, and late rows are in no window.
    """
    if source.window is None or outer is None or source.fn is not None or route.of != "results":
        return False
    return same_bounds(source.window, outer)


def same_bounds(inner: WindowSpec, outer: WindowSpec) -> bool:
    """Whether each result of ``inner`` comes into a window of ``outer`` with the bounds of its own: they are of one length, or of
    one unit of a calendar, and do not overlap; or both have no bounds in time. It depends on the specs alone, so the columns of
    results do not depend on the rows.
    """
    if not inner.by_time or not outer.by_time:
        return not inner.by_time and not outer.by_time
    if outer.time not in (None, "window_time"):
        return False
    if inner.kind == outer.kind == "calendar":
        return (inner.unit or "day", inner.zone) == (outer.unit or "day", outer.zone)
    return _apart(inner) is not None and _apart(inner) == _apart(outer)


def _apart(window: WindowSpec) -> tuple[int, int, bool] | None:
    """The length of windows that do not overlap, how far they are apart, and whether both are numbers of rows; None: others."""
    if window.kind not in {"tumbling", "hopping"}:
        return None
    size = valid_length(window.size)
    every = valid_length(window.every) or size
    return None if every < size else (size, every, isinstance(window.size, int))


def timing_calendars(
    tasks: Mapping[str, TaskSpec], before: Mapping[str, Sequence[str]], times: Mapping[str, Times]
) -> set[str]:
    """The inputs by the times of whose rows windows of a calendar go. Functions keep the column; what windows give has times of
    its own.

    Args:
        tasks: by their names.
        before: by task, those from which rows come to it.
        times: by task with state, of the rows that it reads.
    """
    found: set[str] = set()
    for task in tasks.values():
        window = task.window or (task.graph and task.graph.window)
        if not window or window.kind != "calendar":
            continue
        known = times.get(task.name, frozenset())
        columns = {window.time} if window.time else {each.column for each in known if isinstance(each, RowTime)}
        reached = [*before[task.name]]
        for name in reached:
            time = tasks[name].time
            if time is not None and time.column in columns:
                found.add(name)
            reached += [further for further in before[name] if further not in reached]
    return found


__all__ = ["gives_same_bounds", "same_bounds", "timing_calendars"]
