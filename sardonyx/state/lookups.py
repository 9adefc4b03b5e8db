"""A shard of a lookup: rows of a stream, each with the value that a table had for its key at its time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import NEVER
from sardonyx.core.column_types import together
from sardonyx.core.joining import RelationSpec
from sardonyx.core.timing import length
from sardonyx.state.base import KEY, Store
from sardonyx.state.entry_keys import canonical_of, keys, ordered
from sardonyx.state.groups import Mask, Numbers, one
from sardonyx.state.kinds import less
from sardonyx.state.overlay import Overlay
from sardonyx.state.packed import Opened, add, keep, opened, prefixed
from sardonyx.state.planned import Planned, late_rows
from sardonyx.state.row_pack import RowPack
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece, Taken, Times, keyed, taken, without_key
from sardonyx.state.spans import ByKeyAndTime, Keyed
from sardonyx.state.two_sided import Columns, compacted, learn
from sardonyx.state.waits import RelationWaits

_SCHEMAS = (b"sl", b"sr")
_WAITING = b"w"
"""Keys of entries with rows that wait: this, and their time."""
_VALUES = b"v"
"""Keys of entries with the values of a key: this, and the key. In the order of their times; of equal ones in that of the
log."""
_NEWEST = b"x"
"""Keys of entries that say when a key had its newest value: this, the time, and the key. Only if values have an age."""


class LookupShard:
    """The lookups of one partition number. It holds nothing itself: all state is in the store.

    **What a row is given.** The right row with its key that has the greatest time not above its own; of several, the last in
    the log. With ``within`` only if it is not older than that. A key with a null has no value. A row without one gives a
    result with nulls if ``how`` is left.

    **When.** In the first plan in which the clock of the right side is above the row's ``time + grace``; with ``wait``, or the
    clock of the left side is above ``time + wait``. Without ``wait`` the results, taken as a multiset, therefore depend on the
    two logs alone. With it they depend on how the logs lie to each other.

    **Late rows** of either side: those older than the clock in force before their piece, by more than ``grace``.

    **How long values are kept.** Until another is the newest for all rows that may come; with ``within``, until they are too
    old for all of these. Values that are no longer needed go when their key has a new one.

    Results have the columns of :class:`~sardonyx.state.two_sided.Columns`, and come in the order of their times.

    Args:
        lookup: how.
        key_columns: of the left and of the right side.
        store: with the schema :data:`~sardonyx.state.row_pack.SCHEMA`.
        times: of the left and of the right side.
        known: the columns of the left and of the right side, where the job declares them. Results have them from the first on.
    """

    def __init__(
        self,
        lookup: RelationSpec,
        key_columns: tuple[Sequence[str], Sequence[str]],
        store: Store,
        times: tuple[Times, Times],
        *,
        known: tuple[pa.Schema | None, pa.Schema | None] = (None, None),
    ) -> None:
        self._keys, self._store, self._times, self._known = key_columns, store, times, known
        self._grace, self._waits = length(lookup.grace), RelationWaits(lookup)
        self._wait = None if lookup.wait is None else length(lookup.wait)
        within = lookup.within
        self._within = None if within is None or isinstance(within, list) else length(within)
        self._left_join = lookup.keeps_unmatched
        self._prefix = lookup.right_prefix

    def plan(self, pieces: Sequence[SidedPiece], clocks: tuple[int, int], limit: int | None = None) -> Planned:
        """What these pieces and these clocks make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: of each side in the order of its log. The clock in force of a side never falls, and is not below its clock
                in the plan before.
            clocks: of the left and of the right side after all of them.
            limit: about the most rows that have waited and give a result. None: no limit.

        Raises:
            FunctionError: ``SX-JOIN-COLUMN``, ``SX-KEY-COLUMN``, ``SX-KEY-TYPE``, ``SX-COLUMN-TYPE``.
            InputError: ``SX-STATE-TYPE``.
        """
        state, late = Overlay(self._store), list[pa.Table]()
        packs = RowPack(state, _SCHEMAS[LEFT]), RowPack(state, _SCHEMAS[RIGHT])
        before = self._waits.of(state, pieces, clocks)
        left, right = (
            taken(pieces, side, self._times[side], self._grace, late, before=before[side]) for side in (LEFT, RIGHT)
        )
        learn(packs, self._known, [left.rows, right.rows])
        right = right.of(~without_key(right.rows, self._keys[RIGHT]))
        needed = less(min(clocks), self._grace)
        if right.rows.num_rows:
            self._learn(state, right, packs[RIGHT])
        due, more = self._due(state, left, packs[LEFT], clocks, limit)
        waits = len(left.times) - len(due.times)
        results = self._results(state, due, packs)
        if right.rows.num_rows and not more:  # after the results: they may need what goes
            self._thin(state, right, needed)
        if self._within is not None and not more:
            self._expire(state, needed)
        return Planned(results, state.changes(), late_rows(late), more, waits)

    # --- The table ---

    def _learn(self, state: Overlay, right: Taken, pack: RowPack) -> None:
        codes, canonical = keyed(right.rows, self._keys[RIGHT])
        order = np.argsort(right.times, kind="stable")
        by_row = canonical.take(pa.array(codes[order]))
        if self._within is not None:
            before = _newest(state, canonical)
        add(state, prefixed(_VALUES, by_row), right.times[order], pack.pack(right.rows.take(pa.array(order))))
        if self._within is not None:
            self._mark(state, canonical, before, _newest(state, canonical))

    def _mark(self, state: Overlay, canonical: pa.Array, before: Numbers, after: Numbers) -> None:
        """Note when the newest values of keys are from."""
        changed = after > before
        old, new = changed & (before > NEVER), pa.array(changed)
        state.remove(keys(before[old], canonical.filter(pa.array(old)), _NEWEST))
        marks = keys(after[changed], canonical.filter(new), _NEWEST)
        nothing = pa.array([b""] * len(marks), pa.binary())
        add(state, marks, after[changed], nothing)

    def _thin(self, state: Overlay, right: Taken, needed: int) -> None:
        """Of the keys with new values, forget those that no row needs whose time is ``needed`` or later."""
        if needed <= NEVER:
            return
        _, canonical = keyed(right.rows, self._keys[RIGHT])
        entry_keys = prefixed(_VALUES, canonical)
        at, found = state.read(entry_keys)
        old = opened(found, at)
        by = ByKeyAndTime(Keyed(old.at, old.times))
        newest = by.latest(np.arange(len(entry_keys)), np.full(len(entry_keys), needed))
        first = np.full(len(entry_keys), NEVER)
        first[newest >= 0] = old.times[newest[newest >= 0]]
        stays = old.times > first[old.at]
        stays[newest[newest >= 0]] = True
        if not stays.all():
            keep(state, entry_keys.take(pa.array(at)), old._replace(at=np.searchsorted(at, old.at)), stays)

    def _expire(self, state: Overlay, needed: int) -> None:
        """Forget the keys whose newest value is too old for all rows that may come."""
        assert self._within is not None  # noqa: S101 (for the type checker: the caller asks)
        bound = less(needed, self._within)
        if bound <= NEVER:
            return
        marks = one(state.scan(_NEWEST, _NEWEST + ordered(bound))[KEY])
        if len(marks):
            state.remove(marks)
            state.remove(prefixed(_VALUES, canonical_of(marks, len(_NEWEST))))

    # --- Rows ---

    def _due(
        self, state: Overlay, left: Taken, pack: RowPack, clocks: tuple[int, int], limit: int | None
    ) -> tuple[Taken, bool]:
        """The rows to answer now, in the order of their times. Keeps those that must wait."""
        bound = less(clocks[RIGHT], self._grace)
        if self._wait is not None:
            bound = max(bound, less(clocks[LEFT], self._wait))
        now = left.times < bound
        tables, moments = [left.rows.filter(pa.array(now))] if now.any() else [], [left.times[now]]
        later = ~now
        if later.any():
            waiting = left.of(later)
            entry_keys = keys(waiting.times, pa.array([b""] * len(waiting.times), pa.binary()), _WAITING)
            add(state, entry_keys, waiting.times, pack.pack(waiting.rows))
        entries = state.scan(_WAITING, _WAITING + ordered(bound), None if limit is None else limit + 1)
        more = limit is not None and entries.num_rows > limit
        if more:
            entries = entries.slice(0, limit)
        if entries.num_rows:
            found = opened(entries)
            state.remove(one(entries[KEY]))
            tables.insert(0, pack.unpack(found.rows))
            moments.insert(0, found.times)
        times = np.concatenate(moments)
        if not len(times):
            return Taken(pack.nothing(), times), more
        order = np.argsort(times, kind="stable")
        return Taken(together([*tables, pack.nothing()]).take(pa.array(order)), times[order]), more

    def _results(self, state: Overlay, due: Taken, packs: tuple[RowPack, RowPack]) -> pa.Table:
        columns = Columns(due.rows.column_names, packs[RIGHT].nothing(), self._keys[RIGHT], self._prefix)
        rows, which, values = due.rows, np.full(due.rows.num_rows, -1), packs[RIGHT].nothing()
        if rows.num_rows:
            which, old = self._values(state, due)
            there = which >= 0
            if not self._left_join:
                rows, which = rows.filter(pa.array(there)), which[there]
                there = which >= 0
            used, places = compacted(which[there])
            values = packs[RIGHT].unpack(old.rows.take(pa.array(used)))
            which = which.copy()
            which[there] = places
        return pa.table(columns.results(rows, values, which))

    def _values(self, state: Overlay, due: Taken) -> tuple[Numbers, Opened]:
        """For each row the position of its value among those of all keys; -1: it has none."""
        alone: Mask = without_key(due.rows, self._keys[LEFT])
        codes, canonical = keyed(due.rows, self._keys[LEFT])
        at, found = state.read(prefixed(_VALUES, canonical))
        old = opened(found, at)
        which = ByKeyAndTime(Keyed(old.at, old.times)).latest(codes, due.times)
        which[alone] = -1
        if self._within is not None and len(old.times):
            which[(which >= 0) & (due.times - old.times[which] > self._within)] = -1
        return which, old


def _newest(state: Overlay, canonical: pa.Array) -> Numbers:
    """The time of the newest value of each key; :data:`NEVER`: it has none."""
    found = np.full(len(canonical), NEVER)
    at, entries = state.read(prefixed(_VALUES, canonical))
    old = opened(entries, at)
    np.maximum.at(found, old.at, old.times)
    return found


__all__ = ["LookupShard"]
