"""A shard of distinct rows: of rows with equal keys that are near each other in time, the first one passes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.core.timing import length
from sardonyx.state.base import Store
from sardonyx.state.entry_keys import keys, ordered
from sardonyx.state.groups import Mask, Numbers
from sardonyx.state.kinds import less
from sardonyx.state.overlay import Overlay
from sardonyx.state.packed import add, forget, opened
from sardonyx.state.planned import Planned, late_rows
from sardonyx.state.row_pack import RowPack
from sardonyx.state.sides import LEFT, SidedPiece, Times, keyed, taken
from sardonyx.state.spans import Buckets, ByKeyAndTime, Keyed
from sardonyx.state.waits import RelationWaits

_PASSED = b"p"
"""Keys of entries with the times of rows that have passed: this, the start of a bucket, and the key. Their rows are empty."""
_SCHEMAS = b"s"
_ROUNDS = 20
"""After so many rounds over all rows, the rest is gone through one by one: a key has many rows that pass."""


class DistinctShard:
    """The distinct rows of one partition number. It holds nothing itself: all state is in the store.

    **Which rows pass.** Rows are looked at in the order of the log. A row is a repeat if a row with its key has passed whose
    time is not further from its own than ``within``; without ``within``, if any has. All others pass, as they are. A null is a
    key like any other.

    **Late rows**, those older than the clock in force before their piece by more than ``grace``, do not pass. Without
    ``within`` no row is late.

    **What is kept** of a row that has passed is its key and time, until the clock is above ``time + within + grace``. A row
    that comes after that, and is not late, is too far away. So which rows pass depends on the log alone.

    Args:
        distinct: how.
        key_columns: of the key.
        store: with the schema :data:`~sardonyx.state.row_pack.SCHEMA`.
        times: of the rows.
    """

    def __init__(self, distinct: RelationSpec, key_columns: Sequence[str], store: Store, times: Times) -> None:
        self._keys, self._store, self._times = key_columns, store, times
        within = distinct.within
        self._within = None if within is None or isinstance(within, list) else length(within)
        self._grace, self._waits = length(distinct.grace), RelationWaits(distinct)
        self._buckets = Buckets(2 * (self._within or 0))

    def plan(self, pieces: Sequence[SidedPiece], clocks: Sequence[int], limit: int | None = None) -> Planned:  # noqa: ARG002
        """What these pieces and this clock make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: in the order of the log. The clock in force never falls, and is not below the clock of the plan before.
            clocks: after all of them, of each link.
            limit: nothing is held back.

        Raises:
            FunctionError: ``SX-KEY-COLUMN``, ``SX-KEY-TYPE``, ``SX-COLUMN-TYPE``.
        """
        state, late = Overlay(self._store), list[pa.Table]()
        pack = RowPack(state, _SCHEMAS)
        timed = self._within is not None
        before = self._waits.of(state, pieces, clocks)[LEFT] if timed else NEVER
        new = taken(pieces, LEFT, self._times, self._grace, late, shaped=timed, before=before)
        pack.know(new.rows)
        results = pack.nothing()
        if new.rows.num_rows:
            times = new.times if timed else np.zeros(new.rows.num_rows, np.int64)
            results = new.rows.filter(pa.array(self._passing(state, new.rows, times)))
        if self._within is not None:
            bound = less(min(clocks), self._within + self._grace)
            if bound > NEVER:
                forget(state, _PASSED, _PASSED + ordered(self._buckets.before(bound)))
        return Planned(results, state.changes(), late_rows(late), False)

    def _passing(self, state: Overlay, rows: pa.Table, times: Numbers) -> Mask:
        codes, canonical = keyed(rows, self._keys)
        reach = self._within or 0
        wanted = self._buckets.touched(codes, times - reach, times + reach)
        at, found = state.read(keys(wanted.times, canonical.take(pa.array(wanted.codes)), _PASSED))
        old = opened(found, at)
        before, _ = ByKeyAndTime(Keyed(wanted.codes[old.at], old.times)).between(codes, times - reach, times + reach)
        open_ = np.ones(len(codes), np.bool_)
        open_[before] = False
        passes = first_ones(codes, times, np.flatnonzero(open_), len(canonical), reach)
        chosen = np.flatnonzero(passes)
        entry_keys = keys(self._buckets.of(times[chosen]), canonical.take(pa.array(codes[chosen])), _PASSED)
        add(state, entry_keys, times[chosen], pa.array([b""] * len(chosen), pa.binary()))
        return passes


def first_ones(codes: Numbers, times: Numbers, rest: Numbers, count: int, reach: int) -> Mask:
    """Which rows pass among themselves.

    Args:
        codes: the number of each row's key.
        times: of the rows.
        rest: the rows to look at, in their order.
        count: how many keys there are.
        reach: rows of a key that are not further apart are repeats.
    """
    passes = np.zeros(len(codes), np.bool_)
    for _ in range(_ROUNDS):
        if not len(rest):
            return passes
        own = codes[rest]
        first = np.full(count, -1, np.int64)
        first[own[::-1]] = rest[::-1]
        firsts = first[own]
        passes[firsts] = True
        rest = rest[np.abs(times[rest] - times[firsts]) > reach]
    passed: dict[int, list[int]] = {}
    known = np.flatnonzero(passes)
    for code, time in zip(codes[known].tolist(), times[known].tolist(), strict=True):
        insort(passed.setdefault(code, []), time)
    for row, code, time in zip(rest.tolist(), codes[rest].tolist(), times[rest].tolist(), strict=True):
        mine = passed.setdefault(code, [])
        place = bisect_left(mine, time - reach)
        if place == len(mine) or mine[place] > time + reach:
            insort(mine, time)
            passes[row] = True
    return passes


__all__ = ["DistinctShard", "first_ones"]
