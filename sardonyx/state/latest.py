"""A shard of latest rows: of each key the row with the greatest time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.column_types import together
from sardonyx.core.joining import RelationSpec
from sardonyx.core.timing import length
from sardonyx.state.base import KEY, Store
from sardonyx.state.emits import Emit
from sardonyx.state.entry_keys import MARK, canonical_of, keys, ordered
from sardonyx.state.groups import Groups, Mask, Numbers, one
from sardonyx.state.kinds import less
from sardonyx.state.overlay import Overlay
from sardonyx.state.packed import entries_of, opened, prefixed, unprefixed
from sardonyx.state.planned import Planned, late_rows
from sardonyx.state.row_pack import RowPack
from sardonyx.state.sides import LEFT, SidedPiece, Taken, Times, keyed, taken

_NEWEST = b"v"
"""Keys of entries with the newest row of a key: this, and the key. Where each change is given at once, only its time."""
_OWED = b"d"
"""Keys of entries that say which keys have a newest row that is not given yet: this, and the key."""
_AGE = b"x"
"""Keys of entries that say when the newest row of a key is from: this, the time, and the key. Only if keys are forgotten."""
_SCHEMAS = b"s"


class _Changed(NamedTuple):
    """The keys that rows came for, with their newest time before and after. ``row``: their newest row; -1: none is newer."""

    canonical: pa.Array
    before: Numbers
    after: Numbers
    row: Numbers


class LatestShard:
    """The latest rows of one partition number. It holds nothing itself: all state is in the store.

    **Which row is the newest** of a key: one that no row of the key before it in the log is newer than. Rows without times are
    all as new as each other. A null is a key like any other.

    **When rows come.** By ``emit``:

    - ``changes``: each row that is the newest, in the order of the log. So what comes depends on the log alone.
    - ``every d``: if the plan's clock has reached a multiple of d that no earlier plan's had, the newest rows of all keys that
      had a newer one since.
    - ``final``: the newest row of each key, when the clock is ``END``.

    **With ``within``** a key is forgotten when the clock is above the time of its newest row and ``within``. A newest row that
    has not come yet comes then. A row that is older than the clock in force before its piece by more than ``within`` is late.
    Without it no row is late, and nothing is forgotten.

    Args:
        latest: how.
        key_columns: of the key.
        store: with the schema :data:`~sardonyx.state.row_pack.SCHEMA`.
        times: of the rows.
    """

    def __init__(self, latest: RelationSpec, key_columns: Sequence[str], store: Store, times: Times) -> None:
        self._keys, self._store, self._times = key_columns, store, times
        within = latest.within
        self._within = None if within is None or isinstance(within, list) else length(within)
        self._emit = Emit(latest.emit)

    def plan(self, pieces: Sequence[SidedPiece], clocks: Sequence[int], limit: int | None = None) -> Planned:
        """What these pieces and this clock make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: in the order of the log. The clock in force never falls, and is not below the clock of the plan before.
            clocks: after all of them, of each link.
            limit: about the most rows that come at the end. None: no limit.

        Raises:
            FunctionError: ``SX-KEY-COLUMN``, ``SX-KEY-TYPE``, ``SX-COLUMN-TYPE``.
            InputError: ``SX-STATE-TYPE``.
        """
        state, late, clock = Overlay(self._store), list[pa.Table](), min(clocks)
        pack = RowPack(state, _SCHEMAS)
        new = taken(pieces, LEFT, self._times, self._within or 0, late, shaped=self._within is not None)
        pack.know(new.rows)
        results: list[pa.Table] = []
        if new.rows.num_rows:
            newest, changed = self._newest(state, new)
            self._put(state, new, changed, pack)
            if self._emit.by_rows:
                results.append(new.rows.filter(pa.array(newest)))
        if self._emit.every:
            results += self._regular(state, pack, clock)
        more = False
        if self._emit.final and clock >= END:
            owed = state.scan(_OWED, _OWED + b"\xff" * 9, None if limit is None else limit + 1)
            more = limit is not None and owed.num_rows > limit
            results.append(self._given(state, pack, one((owed.slice(0, limit) if more else owed)[KEY])))
        if self._within is not None:
            results += self._forget(state, pack, less(clock, self._within))
        return Planned(together([*results, pack.nothing()]), state.changes(), late_rows(late), more)

    def _newest(self, state: Overlay, new: Taken) -> tuple[Mask, _Changed]:
        """Which rows are the newest when they come."""
        codes, canonical = keyed(new.rows, self._keys)
        before = np.full(len(canonical), NEVER)
        at, found = state.read(prefixed(_NEWEST, canonical))
        old = opened(found, at)
        before[old.at] = old.times
        order = np.argsort(codes, kind="stable")
        ranks_of = np.unique(np.concatenate([new.times, before]))
        size = len(ranks_of) + 1
        ranks = np.searchsorted(ranks_of, new.times)
        floor = np.searchsorted(ranks_of, before)
        own = codes[order] * size + ranks[order]
        so_far = np.maximum.accumulate(np.maximum(own, codes[order] * size + floor[codes[order]]))
        newest = np.zeros(len(codes), np.bool_)
        newest[order] = own == so_far
        row = np.full(len(canonical), -1)
        chosen = np.flatnonzero(newest)
        row[codes[chosen]] = chosen  # the last one of a key wins
        after = before.copy()
        after[row >= 0] = new.times[row[row >= 0]]
        return newest, _Changed(canonical, before, after, row)

    def _put(self, state: Overlay, new: Taken, changed: _Changed, pack: RowPack) -> None:
        there = changed.row >= 0
        if not there.any():
            return
        canonical = changed.canonical.filter(pa.array(there))
        before, after, row = changed.before[there], changed.after[there], changed.row[there]
        if self._emit.by_rows:
            rows = _empty(len(row))
        else:
            rows = pack.pack(new.rows.take(pa.array(row)))
            _put_one(state, prefixed(_OWED, canonical), after, _empty(len(row)))
        _put_one(state, prefixed(_NEWEST, canonical), after, rows)
        if self._within is not None:
            moved = (after > before) & (before > NEVER)
            state.remove(keys(before[moved], canonical.filter(pa.array(moved)), _AGE))
            _put_one(state, keys(after, canonical, _AGE), after, _empty(len(row)))

    def _regular(self, state: Overlay, pack: RowPack, clock: int) -> list[pa.Table]:
        if clock <= NEVER:
            return []
        mark = state.scan(MARK, None, 1)
        now = max(clock, -(2**62)) // self._emit.every
        if mark.num_rows and opened(mark).times[0] >= now:
            return []
        _put_one(state, pa.array([MARK], pa.binary()), np.array([now]), _empty(1))
        return [self._given(state, pack, one(state.scan(_OWED, _OWED + b"\xff" * 9)[KEY]))]

    def _given(self, state: Overlay, pack: RowPack, owed: pa.Array) -> pa.Table:
        """The newest rows of these keys, in the order of their times; they are owed no more."""
        state.remove(owed)
        _, found = state.read(prefixed(_NEWEST, unprefixed(_OWED, owed)))
        rows = opened(found)
        order = np.argsort(rows.times, kind="stable")
        return pack.unpack(rows.of(order).rows)

    def _forget(self, state: Overlay, pack: RowPack, bound: int) -> list[pa.Table]:
        if bound <= NEVER:
            return []
        marks = one(state.scan(_AGE, _AGE + ordered(bound))[KEY])
        if not len(marks):
            return []
        canonical = canonical_of(marks, len(_AGE))
        owed = prefixed(_OWED, canonical)
        at, _ = state.read(owed)
        results = [self._given(state, pack, owed.take(pa.array(at)))] if len(at) else []
        state.remove(marks)
        state.remove(prefixed(_NEWEST, canonical))
        return results


def _put_one(state: Overlay, entry_keys: pa.Array, times: Numbers, rows: pa.Array) -> None:
    """Put entries with one row each."""
    groups = Groups(np.arange(len(entry_keys)), len(entry_keys))
    state.put(entries_of(entry_keys, groups, times, rows, np.zeros(len(entry_keys), np.bool_)))


def _empty(count: int) -> pa.Array:
    return pa.array([b""] * count, pa.binary())


__all__ = ["LatestShard"]
