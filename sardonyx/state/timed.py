"""Windows whose start and end depend on time alone: tumbling, hopping, of a calendar, everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.clocks import NEVER
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.base import KEY, Store
from sardonyx.state.closing import ended
from sardonyx.state.columns import SLICE, SX_KEY
from sardonyx.state.combine import Combiner
from sardonyx.state.engine import Engine, Times
from sardonyx.state.entry_keys import KEPT, KEPT_END, keys, ordered, starts_of
from sardonyx.state.groups import Mask, Numbers, numpy, one
from sardonyx.state.kinds import windows_of
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Piece, Planned, late_rows, stretches, too_late


class Sorted(NamedTuple):
    """The rows of some pieces by what becomes of them.

    ``open``: partial rows for windows that have not closed. ``closed``: for each piece with such rows, those for
    windows that are kept, and ``clocks`` the clocks in force before these pieces. Both have the starts of their
    windows in ``sx_slice``. ``late``: tables of late rows.
    """

    open: list[pa.Table]
    closed: list[pa.Table]
    clocks: list[int]
    late: list[pa.Table]


class TimeWindows(Engine):
    """Plans for a shard of such windows. There is an entry for each open window and key;
    :class:`~sardonyx.state.windows.WindowShard` has the rules.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], store: Store, times: Times, *, same: bool = False
    ) -> None:
        super().__init__(window, key_columns, store, times, same=same)
        self._windows = windows_of(window)
        self._combine = Combiner(window, key_columns)
        self._kept = length(window.allowed_lateness)

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""
        state = Overlay(self._store)
        self._waits.begin(state, pieces, clock, self._closed_early)
        rows = self._sorted(pieces)
        results = self._add(state, rows.open, clock)
        if self._emit.every or self._emit.by_wall:
            first = ordered(self._windows.ended(self._waits.now.closing(clock)))
            added = any(table.num_rows for table in rows.open)
            results += self._often(state, clock, now, first, added=added)
        for table in rows.closed:
            results += self._correct(state, table)
        closing, more = self._close(state, clock, limit)
        results += closing
        return Planned(self._layout.all_results(results), state.changes(), late_rows(rows.late), more)

    # --- Rows ---

    def _sorted(self, pieces: Sequence[Piece]) -> Sorted:
        found = Sorted([], [], [], [])
        for number, piece in enumerate(pieces):
            if piece.rows.num_rows:
                self._sort(number, piece, found)
        return found

    def _sort(self, number: int, piece: Piece, found: Sorted) -> None:
        rows, times = piece.rows, None
        if SLICE not in rows.column_names:
            times = self._times(rows)
            slices = self._windows.slices(np.zeros(rows.num_rows, np.int64) if times is None else times)
        else:
            slices = numpy(one(rows[SLICE]))
        clocks = piece.before_rows
        late = self._late(number, clocks, slices, found)
        if late.any():
            rows, times = rows.filter(pa.array(~late)), None if times is None else times[~late]
            slices, clocks = slices[~late], clocks[~late]
        if times is None or piece.clocks is None:
            self._spread(rows if SLICE in rows.column_names else self._combine(rows, times), piece.in_force, found)
            return
        # Rows of which no window has closed need not be cut where the clock goes on.
        waits = self._waits.now
        closed = self._windows.first(slices) < ended(self._windows, clocks, waits.grace, waits.closed)
        self._spread(self._combine(rows.filter(pa.array(~closed)), times[~closed]), NEVER, found)
        rows, times, clocks = rows.filter(pa.array(closed)), times[closed], clocks[closed]
        for start, stop, clock in stretches(clocks):
            self._spread(self._combine(rows.slice(start, stop - start), times[start:stop]), clock, found)

    def _late(self, number: int, clocks: Numbers, slices: Numbers, found: Sorted) -> Mask:
        """Which rows are late; ``found`` gets the table that says so."""
        starts, waits = self._windows.last(slices), self._waits.now
        late = starts < ended(self._windows, clocks, waits.kept, waits.forgotten)
        covered = self._windows.covered(slices)
        if covered is not None:
            late &= covered
        if late.any():
            ends = self._windows.ends(starts[late])
            told = too_late(number, late, starts[late], ends, clocks[late], waits.grace, closed=waits.closed)
            found.late.append(told)
        return late

    def _spread(self, rows: pa.Table, in_force: int, found: Sorted) -> None:
        """Partial rows of slices become partial rows of windows."""
        slices = numpy(one(rows[SLICE]))
        starts, where = self._windows.windows(slices)
        if starts is not slices:
            rows = rows.take(pa.array(where)).set_column(rows.column_names.index(SLICE), SLICE, pa.array(starts))
        bound = self._windows.ended(self._waits.now.closing(in_force))
        closed = starts < bound
        if not closed.any():
            found.open.append(rows)
            return
        found.open.append(rows.filter(pa.array(~closed)))
        kept = closed & (starts >= self._windows.ended(self._waits.now.forgetting(in_force)))
        if kept.any():
            found.closed.append(rows.filter(pa.array(kept)))
            found.clocks.append(in_force)

    def _add(self, state: Overlay, tables: Sequence[pa.Table], clock: int) -> list[pa.Table]:
        """Add rows to open windows; the results of those that do not close."""
        if not tables:
            return []
        entries, _ = self._merged(state, tables, b"")
        if not self._emit.by_rows:
            state.put(entries)
            return []
        due = starts_of(entries[KEY]) >= self._windows.ended(self._waits.now.closing(clock))
        due &= self._fresh(entries) >= self._emit.by_rows
        return self._give(state, entries, due)

    def _bounds(self, entries: pa.Table, prefix: int) -> tuple[Numbers, Numbers]:
        starts = starts_of(entries[KEY], prefix)
        return starts, self._windows.ends(starts)

    # --- Closing ---

    def _closed_early(self, state: Overlay) -> int:
        """Windows that end at this time or before have closed in any case: single ones close early, for a late row."""
        kept = state.scan(KEPT, KEPT_END)
        return int(self._bounds(kept, len(KEPT))[1].max()) if kept.num_rows else NEVER

    def _close(self, state: Overlay, clock: int, limit: int | None) -> tuple[list[pa.Table], bool]:
        bound = self._windows.ended(self._waits.now.closing(clock))
        if bound == NEVER:
            return [], False
        entries = state.scan(b"", ordered(bound), None if limit is None else limit + 1)
        more = limit is not None and entries.num_rows > limit
        results = self._closed(state, entries.slice(0, limit) if more else entries)
        if self._kept:
            kept = state.scan(KEPT, KEPT + ordered(self._windows.ended(self._waits.now.forgetting(clock))))
            state.remove(one(kept[KEY]))
        return results, more

    def _closed(self, state: Overlay, entries: pa.Table) -> list[pa.Table]:
        """The final results of these entries. They are kept for late rows, or go."""
        if not entries.num_rows:
            return []
        open_keys = one(entries[KEY])
        results = self._results(entries, final=True)
        state.remove(open_keys)
        if self._kept:
            moved = pc.binary_join_element_wise(pa.scalar(KEPT, pa.binary()), open_keys, pa.scalar(b"", pa.binary()))
            state.put(self._given(entries.set_column(0, entries.schema.field(0), moved)))
        return [results]

    def _correct(self, state: Overlay, rows: pa.Table) -> list[pa.Table]:
        """Add rows to windows that have closed. Those that are open still, because no plan has come since, close
        first.
        """
        open_keys = keys(numpy(one(rows[SLICE])), rows[SX_KEY]).unique()
        results = self._closed(state, state.read(open_keys)[1])
        entries, _ = self._merged(state, [rows], KEPT)
        return results + self._give(state, entries, np.ones(entries.num_rows, np.bool_), len(KEPT))
