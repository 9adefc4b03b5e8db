"""In which windows the rows of messages are, for a task that holds them."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.core.errors import FunctionError, SetupError
from sardonyx.core.graph import Link
from sardonyx.core.timing import WindowSpec

FIXED = ("tumbling", "hopping", "calendar")
"""Kinds of windows that begin and end at times which no row decides."""


def windows_in(window: WindowSpec, link: Link, values: Iterable[bytes]) -> list[tuple[int, int]] | None:
    """The windows of all rows of these messages, ascending: start and end in microseconds since 1970, or numbers of rows.

    Args:
        window: of the task that reads the link, of a kind that is in :data:`FIXED`.
        link: between two tasks, so that its messages are blocks of rows.
        values: of its messages.

    Returns:
        None: it cannot be told, since the rows have no time, or a newer release wrote them.
    """
    import numpy as np

    from queues import block
    from sardonyx.state.calendars import outside
    from sardonyx.state.columns import SLICE
    from sardonyx.state.kinds import windows_of
    from sardonyx.state.times import column_of, times_of

    kinds = windows_of(window)
    found: set[tuple[int, int]] = set()
    for value in values:
        try:
            rows = block.decode([value])
        except SetupError:
            return None
        if SLICE in rows.column_names:
            slices = rows[SLICE].combine_chunks().to_numpy(zero_copy_only=False)
        elif link.row_time is None:
            return None
        else:
            try:
                column = column_of(rows, link.row_time.column, f"task {link.source}")
                times, missing = times_of(column, link.row_time.unit, ordinal=link.row_time.ordinal)
            except FunctionError:
                return None
            if missing.any():
                return None
            slices = kinds.slices(times[~outside(times)] if window.kind == "calendar" else times)
        starts, _ = kinds.windows(np.unique(slices))
        found |= {(int(start), int(end)) for start, end in zip(starts, kinds.ends(starts), strict=True)}
    return sorted(found)


__all__ = ["FIXED", "windows_in"]
