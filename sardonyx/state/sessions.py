"""Windows that end when a key has had no row for some time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ENDS, NEW, PANE, ROWS, START
from sardonyx.state.combine import keys_of
from sardonyx.state.engine import Engine, Times
from sardonyx.state.entry_keys import canonical_of, indexed, keys, ordered, starts_of
from sardonyx.state.groups import Groups, Mask, Numbers, listed, numpy, one, unlisted
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Piece, Planned, late_rows, too_late
from sardonyx.state.times import set_back


class _Items(NamedTuple):
    """Open sessions and rows, as they are chained. Sessions come first in each column.

    ``codes``: the numbers of their keys. ``first``, ``last``: the times of their first and last rows.
    """

    codes: Numbers
    first: Numbers
    last: Numbers


class _Stretch(NamedTuple):
    """Rows of a piece that are taken in at once: the number of the piece, how many rows of it come before them, they themselves,
    their times, and the clock in force.
    """

    number: int
    before: int
    rows: pa.Table
    times: Numbers
    in_force: int


class _Open(NamedTuple):
    """The sessions in the store of some keys. ``codes``, ``ends``: of all; ``entries``, ``positions``: those that may
    take rows.
    """

    codes: Numbers
    ends: Numbers
    entries: pa.Table
    positions: Numbers


class SessionWindows(Engine):
    """Sessions. Each piece is taken in at once, or, if it says the clock before each row, the stretches of it between which a
    session may have closed; by these rules:

    The rows of the piece and the key's sessions that are open (``end + grace`` is above the clock in force) are put
    in the order of their first times; a session comes before rows of its first time. Going through them, each joins
    the session before it if it begins less than ``gap`` after that one's last row, and if with it that one is not
    longer than ``most``; else it begins a session. A session is from its first row's time to ``gap`` after its last
    row's. A ``most`` below ``gap`` counts as ``gap``. A session that only rows of the piece make is late, with all
    its rows, if ``end + grace`` is not above the clock in force.

    Results come by the rules of all windows. A session that has taken in others has given as many results as they
    have together. If it changes after a result, the next result has its new start and end.

    The key of a session's entry begins with its end. For each key with open sessions there is an entry that lists
    their ends.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], store: Store, times: Times, *, same: bool = False
    ) -> None:
        super().__init__(window, key_columns, store, times, same=same)
        self._gap = length(window.gap)
        self._most = None if window.most is None else max(length(window.most), self._gap)
        if length(window.allowed_lateness):
            raise FunctionError(
                "SX-WINDOW-LATE",
                "sessions are not kept after they have closed",
                cause="a late row could join two sessions that have given their final results",
                fix="use `grace=` in place of `allowed_lateness=`",
            )

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""
        state = Overlay(self._store)
        self._waits.begin(state, pieces, clock)
        late: list[pa.Table] = []
        changed: list[pa.Array] = []
        for number, piece in enumerate(pieces):
            if not piece.rows.num_rows:
                continue
            times = self._times(piece.rows)
            times = np.zeros(piece.rows.num_rows, np.int64) if times is None else times
            for start, stop, in_force in self._stretches(state, piece, times):
                stretch = _Stretch(number, start, piece.rows.slice(start, stop - start), times[start:stop], in_force)
                self._take(state, stretch, changed, late)
        first = ordered(self._waits.now.closing(clock) + 1)
        results = self._early(state, changed, clock) if self._emit.by_rows else []
        if self._emit.every or self._emit.by_wall:
            results += self._often(state, clock, now, first, added=bool(changed))
        entries = state.scan(b"", first, None if limit is None else limit + 1)
        more = limit is not None and entries.num_rows > limit
        results += self._close(state, entries.slice(0, limit) if more else entries)
        return Planned(self._layout.all_results(results), state.changes(), late_rows(late), more)

    def _bounds(self, entries: pa.Table, prefix: int) -> tuple[Numbers, Numbers]:
        return numpy(one(entries[START])), starts_of(entries[KEY], prefix)

    # --- Rows of a piece ---

    def _stretches(self, state: Overlay, piece: Piece, times: Numbers) -> list[tuple[int, int, int]]:
        """The first row of each stretch, the one after its last, and the clock in force. A row begins one if by its own clock
        a session of its key has closed that it would else join, or that it would make.
        """
        clocks = piece.before_rows
        count = len(clocks)
        reached = np.maximum(set_back(clocks, self._waits.now.grace), self._waits.now.closed)
        if piece.clocks is None or not (times < reached).any():
            return [(0, count, int(clocks[0]))]
        codes, canonical = keys_of(piece.rows, self._layout.keys)
        held = self._held(state, canonical, NEVER)
        ends, owners = np.concatenate([held.ends, times + self._gap]), np.concatenate([held.codes, codes])
        values = np.unique(np.concatenate([ends, times, reached]))
        size = len(values) + 1
        items = np.sort(owners * size + np.searchsorted(values, ends))
        first = np.searchsorted(items, codes * size + np.searchsorted(values, times), side="right")
        last = np.searchsorted(items, codes * size + np.searchsorted(values, reached), side="right")
        starts = np.unique([0, *np.flatnonzero((times < reached) & (last > first)).tolist()])
        starts = starts[np.concatenate([[True], clocks[starts[1:]] != clocks[starts[:-1]]])]
        return list(zip(starts.tolist(), [*starts[1:].tolist(), count], clocks[starts].tolist(), strict=True))

    def _take(self, state: Overlay, stretch: _Stretch, changed: list[pa.Array], late: list[pa.Table]) -> None:
        number, before, rows, times, in_force = stretch
        codes, canonical = keys_of(rows, self._layout.keys)
        held = self._held(state, canonical, self._waits.now.closing(in_force))
        mine = held.positions
        items = _Items(
            np.concatenate([held.codes[mine], codes]),
            np.concatenate([numpy(one(held.entries[START])), times]),
            np.concatenate([held.ends[mine] - self._gap, times]),
        )
        chains = self._chained(items)
        start, end, owner = _spans(chains, items)
        end += self._gap
        inner = Groups(chains.ids[len(mine) :], chains.count)
        with_rows = inner.sizes() > 0
        with_session = np.zeros(chains.count, np.bool_)
        with_session[chains.ids[: len(mine)]] = True
        closed = ~with_session & (end <= self._waits.now.closing(in_force))
        gone = closed[inner.ids]
        if gone.any():
            of = inner.ids[gone]
            clocks = np.broadcast_to(in_force, len(of))
            waits = self._waits.now
            late.append(too_late(number, gone, start[of], end[of], clocks, waits.grace, before, waits.closed))
        live = with_rows & ~closed
        if not live.any():
            return
        entries = self._joined(held, rows, times, chains, live)
        numbers = np.flatnonzero(live)
        entries = self._layout.entries(
            entries
            | {KEY: keys(end[numbers], canonical.take(pa.array(owner[numbers]))), START: pa.array(start[numbers])}
        )
        taken = live[chains.ids[: len(mine)]]
        state.remove(one(held.entries[KEY]).filter(pa.array(taken)))
        state.put(entries)
        stay = np.ones(len(held.ends), np.bool_)
        stay[mine[taken]] = False
        self._index(
            state,
            canonical,
            np.concatenate([held.codes[stay], owner[numbers]]),
            np.concatenate([held.ends[stay], end[numbers]]),
            np.unique(owner[numbers]),
        )
        changed.append(one(entries[KEY]))

    def _held(self, state: Overlay, canonical: pa.Array, closed: int) -> _Open:
        """``closed``: those that end at this time or before take no rows."""
        at, found = state.read(indexed(canonical))
        ends, inner = unlisted(one(found[ENDS]), Groups(at, len(canonical)))
        numbers = numpy(ends).astype(np.int64)
        may = np.flatnonzero(numbers > closed)
        entry_keys = keys(numbers[may], canonical.take(pa.array(inner.ids[may])))
        positions, entries = state.read(entry_keys)
        return _Open(inner.ids, numbers, entries, may[positions])

    def _chained(self, items: _Items) -> Groups:
        """Which session each item is in afterwards."""
        order = np.lexsort((np.arange(len(items.codes)), items.first, items.codes))
        codes, first, last = items.codes[order], items.first[order], items.last[order]
        by_last = np.lexsort((last, codes))
        rank = np.empty(len(order), np.int64)
        rank[by_last] = np.arange(len(order))
        latest = last[by_last][
            np.maximum.accumulate(rank)
        ]  # the greatest last time so far within the key: ranks go up by key
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (first[1:] - latest[:-1] >= self._gap)
        if self._most is not None:
            self._shorten(begins, first, latest, self._most - self._gap)
        ids = np.empty(len(order), np.int64)
        ids[order] = np.cumsum(begins) - 1
        return Groups(ids, int(np.count_nonzero(begins)))

    def _shorten(self, begins: Mask, first: Numbers, latest: Numbers, span: int) -> None:
        """Divide chains whose last row comes more than ``span`` after their first."""
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], len(begins))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            here = start
            while latest[stop - 1] - first[here] > span:
                here = max(here + 1, here + int(np.searchsorted(latest[here:stop], first[here] + span, side="right")))
                begins[here] = True

    def _joined(self, held: _Open, rows: pa.Table, times: Numbers, chains: Groups, live: Mask) -> dict[str, pa.Array]:
        """The columns of the sessions that have rows of the piece, in the order of their numbers."""
        numbers = np.cumsum(live) - 1
        old = chains.ids[: len(held.positions)]
        kept = live[old] & (numpy(one(held.entries[ROWS])) > 0)
        new = chains.ids[len(held.positions) :]
        chosen = live[new]
        count = int(np.count_nonzero(live))
        groups = Groups(numbers[new[chosen]], count)
        rows, times = (rows, times) if chosen.all() else (rows.filter(pa.array(chosen)), times[chosen])
        heads = pa.array(groups.heads())
        lifted = self._layout.aggregates.lift(rows, groups, times) | self._layout.key_columns(rows, heads)
        columns = dict(lifted)
        if kept.any():
            names = list(lifted)
            further = self._layout.entries(lifted | {KEY: pa.array([b""] * count, pa.binary())}).select(names)
            both = pa.concat_tables([held.entries.filter(pa.array(kept)).select(names), further])
            every = Groups(np.concatenate([numbers[old[kept]], np.arange(count)]), count)
            columns |= self._layout.aggregates.merge(both, every)
            columns |= {name: both[name].take(pa.array(every.heads())) for name in self._layout.held}
        if self._layout.panes:
            taken = live[old]
            before = held.entries.filter(pa.array(taken))
            for name, values in ((PANE, np.zeros(count, np.int64)), (NEW, groups.sizes())):
                np.add.at(values, numbers[old[taken]], numpy(one(before[name])))
                columns[name] = pa.array(values)
        return columns

    # --- Entries ---

    def _index(self, state: Overlay, canonical: pa.Array, codes: Numbers, ends: Numbers, changed: Numbers) -> None:
        """List the ends of the sessions of keys that have changed.

        Args:
            state: what to change.
            canonical: the keys' bytes by number.
            codes: the keys' numbers for all sessions.
            ends: the sessions' ends.
            changed: the numbers of the keys to list.
        """
        number = np.full(len(canonical), -1)
        number[changed] = np.arange(len(changed))
        mine = number[codes] >= 0
        lists = listed(pa.array(ends[mine]), Groups(number[codes[mine]], len(changed)))
        entry_keys = indexed(canonical.take(pa.array(changed)))
        empty = numpy(lists.value_lengths()) == 0
        state.remove(entry_keys.filter(pa.array(empty)))
        state.put(
            self._layout.entries({KEY: entry_keys.filter(pa.array(~empty)), ENDS: lists.filter(pa.array(~empty))})
        )

    def _early(self, state: Overlay, changed: Sequence[pa.Array], clock: int) -> list[pa.Table]:
        if not changed:
            return []
        entries = state.read(pa.concat_arrays(changed).unique())[1]
        due = self._fresh(entries) >= self._emit.by_rows
        due &= starts_of(entries[KEY]) > self._waits.now.closing(clock)
        return self._give(state, entries, due)

    def _close(self, state: Overlay, entries: pa.Table) -> list[pa.Table]:
        if not entries.num_rows:
            return []
        results = [self._results(entries, final=True)]
        state.remove(one(entries[KEY]))
        canonical = canonical_of(entries[KEY]).unique()
        held = self._held(state, canonical, -(2**63))
        there = held.positions  # those that are still in the store
        self._index(state, canonical, held.codes[there], held.ends[there], np.arange(len(canonical)))
        return results


def _spans(chains: Groups, items: _Items) -> tuple[Numbers, Numbers, Numbers]:
    """The first and the last time of each chain, and the number of its key."""
    first = np.full(chains.count, 2**63 - 1)
    np.minimum.at(first, chains.ids, items.first)
    last = np.full(chains.count, -(2**63))
    np.maximum.at(last, chains.ids, items.last)
    owner = np.empty(chains.count, np.int64)
    owner[chains.ids] = items.codes
    return first, last, owner
