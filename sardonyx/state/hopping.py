"""Hopping windows by slices: a row changes one entry, however many windows it is in."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues.keys import checksums_of_canonical
from sardonyx.core.clocks import NEVER
from sardonyx.core.timing import WindowSpec, panes
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ROWS, SLICE
from sardonyx.state.engine import Times
from sardonyx.state.entry_keys import MARK, OPEN_END, canonical_of, keys, ordered, starts_of
from sardonyx.state.groups import Mask, grouped, numpy, one
from sardonyx.state.kinds import Hopping
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Piece, Planned, late_rows
from sardonyx.state.timed import Sorted, TimeWindows

_APART = MARK + b"p"
"""Keys of entries about keys that came from a shard of an earlier job which had closed more windows than others: those that start
before the number in the entry have given their results for these keys. Behind this come how many shards there were, and which of
them it was, the last job first, and perhaps ``k`` and the last of these keys. The byte before says how many jobs.
"""
_PLACE = struct.Struct(">II")


class Given(NamedTuple):
    """Which windows of a shard have given their results, for another shard that takes its keys."""

    start: int = -(2**63)
    """Those that start before this have."""
    key: bytes | None = None
    """The one that starts there has for keys up to this."""
    apart: Mapping[bytes, int] = {}
    """Entries with :data:`_APART`."""

    @classmethod
    def read(cls, entries: Mapping[bytes, Mapping[str, Any]]) -> Given:
        """Read the entries that are of no single key."""
        apart = {key: row[ROWS] for key, row in entries.items() if key.startswith(_APART)}
        mark = next((key for key in entries if key not in apart), None)
        if mark is None:
            return cls(apart=apart)
        given = mark[len(MARK) :]
        return cls(entries[mark][ROWS], given[1:] if given else None, apart)

    def told(self, shards: int, number: int, least: int) -> dict[bytes, int]:
        """The entries of a shard that takes keys of this one.

        Args:
            shards: how many there were.
            number: which of them this is.
            least: windows that start before this have given their results for all keys.
        """
        place = _PLACE.pack(shards, number)
        found = {_APART + b"\1" + place: self.start}
        if self.key is not None:
            found[_APART + b"\1" + place + b"k" + self.key] = self.start + 1
        for entry, start in self.apart.items():
            count, rest = entry[len(_APART)], entry[len(_APART) + 1 :]
            found[_APART + bytes([count + 1]) + place + rest] = start
        return {entry: start for entry, start in found.items() if start > least}


def _apart(state: Overlay) -> dict[bytes, int]:
    entries = state.scan(_APART)
    return dict(zip(entries[KEY].to_pylist(), entries[ROWS].to_pylist(), strict=True))


def _told_of(entry: bytes, canonical: pa.Array) -> Mask:
    """Which keys an entry with :data:`_APART` is about."""
    sums = checksums_of_canonical(canonical)
    found = np.ones(len(canonical), np.bool_)
    at = len(_APART) + 1
    for _ in range(entry[at - 1]):
        shards, number = _PLACE.unpack(entry[at : at + _PLACE.size])
        found &= sums % shards == number
        at += _PLACE.size
    if entry[at:]:
        found &= numpy(pc.less_equal(canonical, pa.scalar(entry[at + 1 :], pa.binary())))
    return found


def by_slices(window: WindowSpec) -> bool:
    """Whether these windows are kept by slices: they overlap, and give one result each."""
    if window.kind != "hopping" or panes(window) or not window.aggregate:
        return False
    windows = Hopping.of(window)
    return windows.every < windows.size


class HoppingSlices(TimeWindows):
    """There is an entry for each slice and key, until the last window with it has closed. Windows close one after the
    other, for all keys at once. One entry of the shard, the mark, says which windows have closed.

    Rows may come for a slice when some of its windows have closed and others have not. They are added after the
    former have closed in this plan, and before the latter do.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], store: Store, times: Times, *, same: bool = False
    ) -> None:
        super().__init__(window, key_columns, store, times, same=same)
        self._hops = Hopping.of(window)

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:  # noqa: ARG002
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""
        state = Overlay(self._store)
        self._waits.begin(state, pieces, clock, self._closed_early)
        rows = self._sorted(pieces)
        if rows.open:
            state.put(self._merged(state, rows.open, b"")[0])
        results: list[pa.Table] = []
        for table, in_force in zip(rows.closed, rows.clocks, strict=True):
            results += self._close_up_to(state, in_force, None)[0]
            bound = self._hops.ended(self._waits.now.closing(in_force))
            self._set_mark(state, max(-(-bound // self._hops.every) * self._hops.every, self._mark(state)[0]), None)
            state.put(self._merged(state, [table], b"")[0])
        closing, more = self._close_up_to(state, clock, limit)
        return Planned(self._layout.all_results(results + closing), state.changes(), late_rows(rows.late), more)

    def _spread(self, rows: pa.Table, in_force: int, found: Sorted) -> None:
        """Partial rows whose windows are all open, and those with some that have closed."""
        closed = self._hops.first(numpy(one(rows[SLICE]))) < self._hops.ended(self._waits.now.closing(in_force))
        if not closed.any():
            found.open.append(rows)
            return
        found.open.append(rows.filter(pa.array(~closed)))
        found.closed.append(rows.filter(pa.array(closed)))
        found.clocks.append(in_force)

    def _closed_early(self, state: Overlay) -> int:
        """Windows that end at this time or before have closed in any case: those that have given results, also if only for
        some keys.
        """
        start, given = self._mark(state)
        first_open = max([start if given is None else start + 1, *_apart(state).values()])
        return NEVER if first_open == NEVER else first_open - 1 + self._hops.size

    def _close_up_to(self, state: Overlay, clock: int, limit: int | None) -> tuple[list[pa.Table], bool]:
        bound = self._hops.ended(self._waits.now.closing(clock))
        mark, given = self._mark(state)
        results: list[pa.Table] = []
        left = limit
        while True:
            least = state.scan(b"", OPEN_END, 1)
            if not least.num_rows:
                return results, False
            start = max(mark, int(self._hops.first(starts_of(least[KEY]))[0]))
            if start >= bound:
                return results, False
            if start > mark:
                given = None
            windows = self._window(state, start, given, in_order=limit is not None)
            if left is not None and windows.num_rows > left:
                results.append(self._results(windows.slice(0, left), final=True))
                self._set_mark(state, start, canonical_of(windows[KEY])[left - 1].as_py())
                return results, True
            left = None if left is None else left - windows.num_rows
            results.append(self._results(windows, final=True))
            mark, given = start + self._hops.every, None
            self._set_mark(state, mark, None)
            state.remove(one(state.scan(b"", ordered(mark))[KEY]))
            if left == 0:
                return results, True

    def _window(self, state: Overlay, start: int, after: bytes | None, *, in_order: bool) -> pa.Table:
        """What the slices of a window make for each key. ``after``: only of keys that come after this one."""
        entries = state.scan(ordered(start), ordered(start + self._hops.size))
        canonical = canonical_of(entries[KEY])
        keep = None if after is None else pc.greater(canonical, pa.scalar(after, pa.binary()))
        for entry, before in _apart(state).items():
            if start < before:
                given = pc.invert(pa.array(_told_of(entry, canonical)))
                keep = given if keep is None else pc.and_(keep, given)
        if keep is not None:
            entries, canonical = entries.filter(keep), canonical.filter(keep)
        groups = grouped(canonical)
        heads = pa.array(groups.heads())
        columns = dict(self._layout.aggregates.merge(entries, groups))
        columns |= {name: entries[name].take(heads) for name in self._layout.held}
        columns[KEY] = keys(np.full(groups.count, start), canonical.take(heads))
        made = self._layout.entries(columns)
        return made.sort_by(KEY) if in_order else made

    def _mark(self, state: Overlay) -> tuple[int, bytes | None]:
        """Windows that start before this have closed, and the one that starts there has for keys up to this one."""
        mark = state.scan(MARK, None, 1)
        if not mark.num_rows:
            return -(2**63), None
        given = mark[KEY][0].as_py()[len(MARK) :]
        return mark[ROWS][0].as_py(), given[1:] if given else None

    def _set_mark(self, state: Overlay, start: int, given: bytes | None) -> None:
        told = state.scan(MARK)
        inert = pc.or_(pc.less(told[KEY], pa.scalar(_APART, pa.binary())), pc.less_equal(told[ROWS], start))
        state.remove(one(told[KEY].filter(inert)))
        key = MARK if given is None else MARK + b"k" + given
        state.put(self._layout.entries({KEY: pa.array([key], pa.binary()), ROWS: pa.array([start])}))
