"""A shard of windows: from blocks of rows, with the clock in force before each, to results, late rows and changes of
the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from sardonyx.core.timing import WindowSpec, panes
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ENDS, KEY_PART, NEW, PANE, SLICE, START, SX_KEY
from sardonyx.state.combine import Combiner
from sardonyx.state.counted import CountedWindows
from sardonyx.state.engine import Times
from sardonyx.state.hopping import HoppingSlices, by_slices
from sardonyx.state.planned import Piece, Planned
from sardonyx.state.sessions import SessionWindows
from sardonyx.state.timed import TimeWindows
from sardonyx.state.window_rows import SCHEMA, WindowRows


class _Plans(Protocol):
    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned: ...

    def wake(self) -> int | None: ...


class WindowShard:
    """The windows of one partition of a link. It holds nothing itself: all state is in the store.

    **Which window a row is in.** The windows whose start is not above the row's time and whose end is above it.
    ``tumbling`` windows begin at each multiple of ``size`` since 1970 (UTC), ``hopping`` ones at each multiple of
    ``every``, so that a row is in several if ``every`` is less than ``size``, and may be in none if it is greater.
    Those of a ``calendar`` begin where the zone's clock begins a unit (:class:`~sardonyx.state.calendars.Calendar`).
    ``everything`` is one window that ends with the input, when the clock is ``END``. For sessions and for counted
    windows see :class:`~sardonyx.state.sessions.SessionWindows` and :class:`~sardonyx.state.counted.CountedWindows`.

    **Late rows.** A window has *closed* for a row if ``end + grace`` is not above the clock in force before the row:
    its own, if its piece says it, or that before its piece. The row counts in those of its windows that have not closed,
    and in those that have closed but not for longer than ``allowed_lateness``: ``end + grace + allowed_lateness`` is
    above that clock. A row that counts in no window, though it is in some, is late. What a row counts in therefore
    depends on its place in the log, and not on how the log is cut into batches.

    **Final results.** A window gives its final result in the first plan whose clock is not below ``end + grace``. It
    counts all rows for which the window had not closed. Final results, and those for rows within
    ``allowed_lateness``, depend on the log alone.

    **Earlier results** have ``final`` false. They come at the end of a plan that does not close the window, by
    ``emit``:

    - ``final``: none.
    - ``changes``: if the plan had rows for the window.
    - ``count n``: if the plan had rows for the window, and it has had at least n rows since its last result.
    - ``every d``: if the plan's clock has reached a multiple of d (since 1970) that no earlier plan's had, for all
      windows with rows since their last results. In the first plan of a shard there are none.
    - ``every d by wall``: if the machine's clock has reached a multiple of d since the first row after the results before, for
      all windows with rows since then. What has come depends on when the batch was made; it is committed with it.

    **Later results.** Each piece with rows for a window that has closed, within ``allowed_lateness``, gives the window
    a further result with ``final`` false; a piece that says the clock before each row, one for each clock.

    **What a result counts.** With ``accumulate`` all rows of the window so far, without it those since the result
    before it. The final result comes even if there are none. ``pane`` is the number of results of this window and key
    before it. ``window_time`` is a microsecond (on an ordinal time: one) less than the window's end; of ``counted``
    and ``everything``, whose starts and ends are null, it is the greatest time of the rows that it counts.

    **Rows in place of results.** Without aggregates the results are the rows of the windows that close, with
    ``window_start`` and ``window_end``: all rows of a window in one plan, in the order of the log.

    Args:
        window: the windows.
        key_columns: the columns of the key; none: all rows have one key.
        store: with the schema of :func:`entry_schema`.
        times: gives the times of rows that are not combined, or None if they have none.
        same: whether the rows are results of windows with the same bounds: see :func:`~sardonyx.core.window_inputs.same_bounds`.
    """

    def __init__(
        self,
        window: WindowSpec,
        key_columns: Sequence[str],
        store: Store,
        times: Times = lambda _: None,
        *,
        same: bool = False,
    ) -> None:
        self._engine: _Plans = _engine(window)(window, key_columns, store, times, same=same)

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None = None, now: int = 0) -> Planned:
        """What these pieces and this clock make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: in the order of the log. The clock in force never falls from piece to piece, nor from plan to plan,
                and it is not below the clock of the plan before.
            clock: after all of them; not below any clock in force before a piece. Those of rows may be above it.
            limit: the most final results of a plan. Other results are not held back, nor are those of windows for
                which a piece has late rows within ``allowed_lateness``. Windows of rows close whole: no further one
                does when there are so many rows. None: no limit.
            now: what the machine's clock says, in microseconds since 1970.

        Raises:
            FunctionError: as :class:`~sardonyx.state.combine.Combiner`; ``SX-COLUMN-TYPE``.
        """
        return self._engine.plan(pieces, clock, limit, now)

    def wake(self) -> int | None:
        """The time of the machine's clock, in microseconds, at which results are due without rows; None: at none."""
        return self._engine.wake()


class _Makes(Protocol):
    def __call__(
        self, window: WindowSpec, keys: Sequence[str], store: Store, times: Times, /, *, same: bool
    ) -> _Plans: ...


def _engine(window: WindowSpec) -> _Makes:
    if window.kind == "session":
        return SessionWindows
    if window.kind == "counted":
        return CountedWindows
    if not window.aggregate:
        return WindowRows
    return HoppingSlices if by_slices(window) else TimeWindows


def entry_schema(window: WindowSpec, key_columns: Sequence[str], rows: pa.Schema) -> pa.Schema:
    """The schema of the entries of a window's shards.

    Args:
        window: the windows.
        key_columns: the columns of the key.
        rows: the schema of what comes in the link: of partial rows, or of the user's rows.
    """
    if not window.aggregate and window.kind not in {"session", "counted"}:
        return SCHEMA
    if SLICE not in rows.names:
        rows = Combiner(_timeless(window), key_columns)(rows.empty_table(), None).schema
    fields = [pa.field(KEY, pa.binary(), nullable=False)]
    names = {name: KEY_PART + name for name in key_columns}
    fields += [pa.field(names.get(f.name, f.name), f.type) for f in rows if f.name not in {SX_KEY, SLICE}]
    if panes(window):
        fields += [pa.field(PANE, pa.int64()), pa.field(NEW, pa.int64())]
    if window.kind == "session":
        fields += [pa.field(START, pa.int64()), pa.field(ENDS, pa.list_(pa.int64()))]
    return pa.schema(fields)


def _timeless(window: WindowSpec) -> WindowSpec:
    return WindowSpec(kind="everything", aggregate=window.aggregate)


__all__ = ["Piece", "Planned", "WindowShard", "entry_schema"]
