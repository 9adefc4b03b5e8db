"""Windows that are ended by the number of a key's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.clocks import END
from sardonyx.core.column_types import together
from sardonyx.core.timing import WindowSpec
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ROWS, SLICE
from sardonyx.state.combine import Combiner, keys_of
from sardonyx.state.engine import Engine, Times
from sardonyx.state.entry_keys import OPEN_END, canonical_of, indexed, starts_of
from sardonyx.state.groups import Groups, Numbers, numpy, one
from sardonyx.state.kinds import Hopping
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Piece, Planned, late_rows


class CountedWindows(Engine):
    """The rows of a key have numbers, from 0 on in the order of the log. The windows are those of :class:`Hopping` on
    these numbers.

    A window gives its final result in the plan with its last row, whatever the clock; and at the end of the input,
    with the rows that it has. No row is late. ``grace`` and ``allowed_lateness`` do not count.

    There is an entry for each open window and key, with the number of its first row in place of a time, and one for
    each key with the number of its rows so far.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], store: Store, times: Times, *, same: bool = False
    ) -> None:
        super().__init__(window, key_columns, store, times, same=same)
        size = int(window.size or 1)
        self._windows = Hopping(size, int(window.every or size))
        self._combine = Combiner(window, key_columns)

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""
        state = Overlay(self._store)
        results = self._add(state, [piece.rows for piece in pieces if piece.rows.num_rows], ending=clock >= END)
        more = False
        if clock >= END:
            entries = state.scan(b"", OPEN_END, None if limit is None else limit + 1)
            more = limit is not None and entries.num_rows > limit
            entries = entries.slice(0, limit) if more else entries
            results += [self._results(entries, final=True)]
            state.remove(one(entries[KEY]))
        elif self._emit.every or self._emit.by_wall:
            results += self._often(state, clock, now, b"", added=any(piece.rows.num_rows for piece in pieces))
        return Planned(self._layout.all_results(results), state.changes(), late_rows([]), more)

    def _add(self, state: Overlay, tables: Sequence[pa.Table], *, ending: bool) -> list[pa.Table]:
        if not tables:
            return []
        rows = together(tables)
        codes, canonical = keys_of(rows, self._layout.keys)
        numbers, counts = self._numbered(state, rows, codes, canonical)
        slices = self._windows.slices(numbers)
        times = self._times(rows)
        covered = self._windows.covered(slices)
        if covered is not None and not covered.all():
            rows, codes, slices = rows.filter(pa.array(covered)), codes[covered], slices[covered]
            times = None if times is None else times[covered]
        if not len(codes):
            return []
        partials = self._combine.partials(rows, times, codes, canonical, slices)
        starts, where = self._windows.windows(numpy(one(partials[SLICE])))
        starts, where = starts[starts >= 0], where[starts >= 0]
        partials = partials.take(pa.array(where)).set_column(
            partials.column_names.index(SLICE), SLICE, pa.array(starts)
        )
        entries, known = self._merged(state, [partials], b"")
        owner = numpy(pc.index_in(canonical_of(entries[KEY]), canonical))
        full = starts_of(entries[KEY]) + self._windows.size <= counts[owner]
        results = [self._results(entries.filter(pa.array(full)), final=True)] if full.any() else []
        state.remove(one(entries[KEY]).filter(pa.array(full & known)))
        return results + self._put(state, entries.filter(pa.array(~full)), ending=ending)

    def _put(self, state: Overlay, entries: pa.Table, *, ending: bool) -> list[pa.Table]:
        due = np.full(entries.num_rows, bool(self._emit.by_rows) and not ending)
        if due.any():
            due &= self._fresh(entries) >= self._emit.by_rows
        return self._give(state, entries, due)

    def _numbered(self, state: Overlay, rows: pa.Table, codes: Numbers, canonical: pa.Array) -> tuple[Numbers, Numbers]:
        """The number of each row among those of its key; and by key how many rows it has had with these."""
        groups = Groups(codes, len(canonical))
        at, found = state.read(indexed(canonical))
        before = np.zeros(groups.count, np.int64)
        before[at] = numpy(one(found[ROWS]))
        sizes = groups.sizes()
        order = np.argsort(codes, kind="stable")
        numbers = np.empty(len(codes), np.int64)
        numbers[order] = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        heads = pa.array(groups.heads())
        columns = {KEY: indexed(canonical), ROWS: pa.array(before + sizes)}
        state.put(self._layout.entries(columns | self._layout.key_columns(rows, heads)))
        return numbers + before[codes], before + sizes

    def _bounds(self, entries: pa.Table, prefix: int) -> tuple[Numbers, Numbers]:
        starts = starts_of(entries[KEY], prefix)
        return starts, self._windows.ends(starts)
