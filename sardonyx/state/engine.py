"""What windows of all kinds share: entries that take in partial rows, and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.clocks import END
from sardonyx.core.timing import WindowSpec
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import NEW, PANE, ROWS, SLICE, SX_KEY
from sardonyx.state.emits import Emit
from sardonyx.state.entry_keys import MARK, OPEN_END, keys
from sardonyx.state.groups import Groups, Mask, Numbers, grouped, numpy, one
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Layout, Piece, Planned, once
from sardonyx.state.waits import WindowWaits

Times: TypeAlias = Callable[[pa.Table], "Numbers | None"]


class Engine(ABC):
    """Plans for a shard of windows. :class:`~sardonyx.state.windows.WindowShard` has the rules.

    Args:
        window: the windows.
        key_columns: the columns of the key.
        store: the entries.
        times: the times of raw rows.
        same: see :class:`~sardonyx.state.planned.Layout`.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], store: Store, times: Times, *, same: bool = False
    ) -> None:
        self._store, self._times = store, times
        self._layout = Layout(window, key_columns, store.schema, same=same)
        self._emit = Emit(window.emit)
        self._accumulate = window.accumulate
        self._waits = WindowWaits(window)
        if not window.aggregate:
            once(window)

    @abstractmethod
    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""

    def wake(self) -> int | None:
        """See :meth:`~sardonyx.state.windows.WindowShard.wake`."""
        if not self._emit.by_wall:
            return None
        mark = self._store.scan(MARK, None, 1)
        return (int(numpy(one(mark[ROWS]))[0]) + 1) * self._emit.by_wall if mark.num_rows else None

    @abstractmethod
    def _bounds(self, entries: pa.Table, prefix: int) -> tuple[Numbers, Numbers]:
        """The starts and ends of the windows of these entries, whose keys begin with a prefix of this length."""

    def _give(self, state: Overlay, entries: pa.Table, due: Mask, prefix: int = 0) -> list[pa.Table]:
        """Put entries, and give results, that are not final, of those that are due."""
        if not due.any():
            state.put(entries)
            return []
        chosen = entries.filter(pa.array(due))
        result = self._results(chosen, prefix, final=False)
        state.put(pa.concat_tables([entries.filter(pa.array(~due)), self._given(chosen)]))
        return [result]

    def _given(self, entries: pa.Table) -> pa.Table:
        """Entries after a result."""
        columns = dict(zip(entries.column_names, entries.columns, strict=True))
        columns[PANE] = pc.add(entries[PANE], 1)
        columns[NEW] = pa.array(np.zeros(entries.num_rows, np.int64))
        given = pa.table(columns, schema=entries.schema)
        return given if self._accumulate else self._layout.blank(given)

    def _results(self, entries: pa.Table, prefix: int = 0, *, final: bool) -> pa.Table:
        pane = entries[PANE] if self._layout.panes else None
        return self._layout.results(entries, *self._bounds(entries, prefix), pane, final=final)

    def _fresh(self, entries: pa.Table) -> Numbers:
        """How many rows the windows have had since their last results."""
        found: Numbers = numpy(one(entries[NEW]))
        return found

    def _merged(self, state: Overlay, tables: Sequence[pa.Table], prefix: bytes) -> tuple[pa.Table, Mask]:
        """The entries of the windows of these rows, with the rows added; and which of them there were before."""
        further = pa.concat_tables([self._keyed(table, prefix) for table in tables])
        groups = grouped(further[KEY])
        heads = pa.array(groups.heads())
        distinct = one(further[KEY]).take(heads)
        at, found = state.read(distinct)
        old_rows = numpy(one(found[ROWS]))
        old, positions = found, at
        if not old_rows.all():  # those that have had no row since their last result
            old, positions = found.filter(pa.array(old_rows > 0)), at[old_rows > 0]
        both = pa.concat_tables([old.select(further.column_names), further])
        every = Groups(np.concatenate([positions, groups.ids]), groups.count)
        columns = self._layout.aggregates.merge(both, every)
        first = pa.array(every.heads())
        columns |= {name: both[name].take(first) for name in self._layout.held}
        columns[KEY] = distinct
        if self._layout.panes:
            added = np.bincount(groups.ids, numpy(one(further[ROWS])), minlength=groups.count).astype(np.int64)
            pane = np.zeros(groups.count, np.int64)
            pane[at] = numpy(one(found[PANE]))
            added[at] += numpy(one(found[NEW]))
            columns |= {PANE: pa.array(pane), NEW: pa.array(added)}
        known = np.zeros(groups.count, np.bool_)
        known[at] = True
        return self._layout.entries(columns), known

    def _keyed(self, rows: pa.Table, prefix: bytes) -> pa.Table:
        held = dict(zip(self._layout.held, self._layout.keys, strict=True))
        names = [name for name in self._layout.schema.names if name not in {KEY, PANE, NEW}]
        columns = {KEY: keys(numpy(one(rows[SLICE])), rows[SX_KEY], prefix)} | {
            name: rows[held.get(name, name)] for name in names
        }
        return self._layout.entries(columns).select([KEY, *names])

    def _often(self, state: Overlay, clock: int, now: int, first: bytes, *, added: bool) -> list[pa.Table]:
        """The results that come every so often, by either clock."""
        if self._emit.by_wall:
            return self._by_wall(state, now, first, added=added and clock < END)
        return self._regular(state, clock, first)

    def _regular(self, state: Overlay, clock: int, first: bytes) -> list[pa.Table]:
        """The results that come every so often. ``first``: the least key of an entry whose window this clock does not
        close.
        """
        mark = state.scan(MARK, None, 1)
        now = max(clock, -(2**62)) // self._emit.every
        if mark.num_rows and numpy(one(mark[ROWS]))[0] >= now:
            return []
        state.put(self._layout.entries({KEY: pa.array([MARK]), ROWS: pa.array([now])}))
        if not mark.num_rows:
            return []
        return self._fresh_ones(state, first)

    def _by_wall(self, state: Overlay, now: int, first: bytes, *, added: bool) -> list[pa.Table]:
        """The results that come every so often by the machine's clock. The mark says in which stretch of it the first row came
        since the last ones; without a row there is none. ``added``: this plan has had rows. ``first``: as of :meth:`_regular`.
        """
        mark = state.scan(MARK, None, 1)
        stretch = now // self._emit.by_wall
        if not mark.num_rows:
            if added:
                state.put(self._layout.entries({KEY: pa.array([MARK]), ROWS: pa.array([stretch])}))
            return []
        if numpy(one(mark[ROWS]))[0] == stretch:
            return []
        state.remove(one(mark[KEY]))
        return self._fresh_ones(state, first)

    def _fresh_ones(self, state: Overlay, first: bytes) -> list[pa.Table]:
        """The results of the windows from this key on that have had rows since their last ones."""
        entries = state.scan(first, OPEN_END)
        changed = entries.filter(pc.greater(entries[NEW], 0))
        return self._give(state, changed, np.ones(changed.num_rows, np.bool_))
