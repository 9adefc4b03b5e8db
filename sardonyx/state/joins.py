"""A shard of a join: rows of two streams with equal keys whose times are near each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import NEVER
from sardonyx.core.column_types import together
from sardonyx.core.joining import JOIN_TIME, RelationSpec
from sardonyx.core.timing import length
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import with_columns
from sardonyx.state.entry_keys import keys, ordered
from sardonyx.state.groups import Column, Groups, Mask, Numbers, one
from sardonyx.state.kinds import less
from sardonyx.state.overlay import Overlay
from sardonyx.state.packed import Opened, add, entries_of, forget, opened
from sardonyx.state.planned import INSTANT, Planned, late_rows
from sardonyx.state.row_pack import RowPack
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece, Taken, Times, keyed, renumbered, taken, without_key
from sardonyx.state.spans import Buckets, ByKeyAndTime, Keyed
from sardonyx.state.two_sided import Columns, compacted, learn
from sardonyx.state.waits import RelationWaits

_ROWS = (b"l", b"r")
"""Keys of entries with rows of the two sides: this, the start of a bucket, and the key of the rows."""
_SCHEMAS = (b"sl", b"sr")
_WAITING = b"w"
"""Keys of entries with left rows that have no partner yet: this, and their time. In place of rows stand their keys."""


class _Side(NamedTuple):
    """What one side brings to a plan.

    ``new``: the rows of the batch with a key. ``codes``: the numbers of their keys. ``pack``: for rows of this side. ``old``:
    the rows in the state that may be partners of the other side's new rows; ``entries``: the keys of the entries that they are
    in, and ``found``: the numbers of those that there are.
    """

    new: Taken
    codes: Numbers
    pack: RowPack
    old: Opened
    old_codes: Numbers
    entries: pa.Array


class _Pairs(NamedTuple):
    """Positions of left and right rows: those in the state first, then those of the batch."""

    left: Numbers
    right: Numbers


class JoinShard:
    """The join of one partition number. It holds nothing itself: all state is in the store.

    **Which rows pair.** A left and a right row with equal keys pair if the time of the right one less that of the left one is
    not below ``lower`` and not above ``upper``. Each such pair gives one result, in the first plan that has seen both. A key
    with a null equals no other.

    **Late rows.** A row is late if it is older than the clock in force before its piece, by more than ``grace``. It pairs with
    no other.

    **Left rows without a partner** give a result of their own if ``how`` is left: in the first plan whose clock is above
    ``time + upper + grace``, and at once if their key has a null.

    **How long rows are kept.** A left row until the clock is above ``time + upper + grace``, a right row until it is above
    ``time - lower + grace``. A row that comes after that on the other side, and is not late, is too far away. The clock of a
    plan is the least of the clocks of both sides. So the results, taken as a multiset, depend on the two logs alone: not on
    how they are cut into batches, and not on how they lie to each other.

    Results have the columns of :class:`~sardonyx.state.two_sided.Columns` and ``join_time``, which is the later of the two
    times. They come in the order of these times.

    Args:
        join: how.
        key_columns: of the left and of the right side.
        store: with the schema :data:`~sardonyx.state.row_pack.SCHEMA`.
        times: of the left and of the right side.
        ordinal: times are numbers, not moments.
        known: the columns of the left and of the right side, where the job declares them. Results have them from the first on.
        joined: whether the times of the left and of the right side are those of another join. ``join_time`` then takes their
            place.
    """

    def __init__(
        self,
        join: RelationSpec,
        key_columns: tuple[Sequence[str], Sequence[str]],
        store: Store,
        times: tuple[Times, Times],
        *,
        ordinal: bool = False,
        known: tuple[pa.Schema | None, pa.Schema | None] = (None, None),
        joined: tuple[bool, bool] = (False, False),
    ) -> None:
        self._keys, self._store, self._times, self._ordinal = key_columns, store, times, ordinal
        self._known, self._of_joins = known, joined
        self._lower, self._upper = bounds(join)
        self._grace, self._waits = length(join.grace), RelationWaits(join)
        self._left_join, self._none_waits = join.keeps_unmatched, False
        self._prefix = join.right_prefix
        self._buckets = Buckets(2 * (self._upper - self._lower))

    def plan(self, pieces: Sequence[SidedPiece], clocks: tuple[int, int], limit: int | None = None) -> Planned:
        """What these pieces and these clocks make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: of each side in the order of its log. The clock in force of a side never falls, and is not below its clock
                in the plan before.
            clocks: of the left and of the right side after all of them.
            limit: about the most left rows in the state that give a result without a partner. None: no limit.

        Raises:
            FunctionError: ``SX-JOIN-COLUMN``, ``SX-KEY-COLUMN``, ``SX-KEY-TYPE``, ``SX-COLUMN-TYPE``.
            InputError: ``SX-STATE-TYPE``.
        """
        state, late = Overlay(self._store), list[pa.Table]()
        clock = min(clocks)
        packs = RowPack(state, _SCHEMAS[LEFT]), RowPack(state, _SCHEMAS[RIGHT])
        before = self._waits.of(state, pieces, clocks)
        news = [taken(pieces, n, self._times[n], self._grace, late, before=before[n]) for n in (LEFT, RIGHT)]
        learn(packs, self._known, [new.rows for new in news])
        results = [self._without_key(news[LEFT], packs)] if self._left_join else []
        if any(new.rows.num_rows for new in news):
            results += self._joined(state, [self._with_key(new, side) for side, new in enumerate(news)], packs, clock)
        more = False
        if not self._left_join:
            self._forget_waiting(state)
        else:
            unmatched, more = self._expired(state, packs, clock, limit)
            results += unmatched
        self._forget(state, clock, keep_left=more)
        found = [table for table in results if table.num_rows]
        table = together(found) if found else self._results(packs, Taken(packs[LEFT].nothing(), _none()))
        return Planned(table.sort_by(JOIN_TIME), state.changes(), late_rows(late), more)

    # --- Pairs ---

    def _with_key(self, new: Taken, side: int) -> Taken:
        return new.of(~without_key(new.rows, self._keys[side]))

    def _without_key(self, new: Taken, packs: tuple[RowPack, RowPack]) -> pa.Table:
        alone = without_key(new.rows, self._keys[LEFT])
        if not alone.any():
            return pa.table({})
        return self._results(packs, Taken(new.rows.filter(pa.array(alone)), new.times[alone]))

    def _joined(
        self, state: Overlay, news: Sequence[Taken], packs: tuple[RowPack, RowPack], clock: int
    ) -> list[pa.Table]:
        """The results of all pairs with a new row, and of new left rows that need not be kept. Keeps the new rows."""
        left_codes, left_keys = keyed(news[LEFT].rows, self._keys[LEFT])
        right_codes, right_keys = keyed(news[RIGHT].rows, self._keys[RIGHT])
        left_numbers, right_numbers, canonical = renumbered(left_keys, right_keys)
        left = Keyed(left_numbers[left_codes], news[LEFT].times)
        right = Keyed(right_numbers[right_codes], news[RIGHT].times)
        sides = (
            self._side(state, LEFT, news[LEFT], packs[LEFT], left, (right, -self._upper, -self._lower), canonical),
            self._side(state, RIGHT, news[RIGHT], packs[RIGHT], right, (left, self._lower, self._upper), canonical),
        )
        pairs = self._pairs(sides)
        results = [self._of_pairs(packs, sides, pairs)]
        matched = np.zeros(len(sides[LEFT].old.times) + len(left.times), np.bool_)
        matched[pairs.left] = True
        old, new = np.split(matched, [len(sides[LEFT].old.times)])
        if self._left_join:
            self._tell_matched(state, sides[LEFT], old)
            gone = ~new & (left.times < less(clock, self._upper + self._grace))
            results.append(
                self._results(packs, news[LEFT].of(gone) if gone.any() else Taken(news[LEFT].rows.slice(0, 0), _none()))
            )
        self._keep(state, LEFT, sides[LEFT], canonical, less(clock, self._upper + self._grace), new)
        self._keep(state, RIGHT, sides[RIGHT], canonical, less(clock, self._grace - self._lower), None)
        return results

    def _side(
        self,
        state: Overlay,
        side: int,
        new: Taken,
        pack: RowPack,
        own: Keyed,
        asked: tuple[Keyed, int, int],
        canonical: pa.Array,
    ) -> _Side:
        """``asked``: the new rows of the other side, and how far from their times partners may be."""
        others, first, last = asked
        wanted = self._buckets.touched(others.codes, others.times + first, others.times + last)
        entry_keys = keys(wanted.times, canonical.take(pa.array(wanted.codes)), _ROWS[side])
        at, found = state.read(entry_keys)
        old = opened(found, at)
        return _Side(new, own.codes, pack, old, wanted.codes[old.at], entry_keys)

    def _pairs(self, sides: tuple[_Side, _Side]) -> _Pairs:
        left, right = sides
        old_left, old_right = Keyed(left.old_codes, left.old.times), Keyed(right.old_codes, right.old.times)
        new_left, new_right = Keyed(left.codes, left.new.times), Keyed(right.codes, right.new.times)
        l_new, r_any = ByKeyAndTime(old_right.and_those(new_right)).between(
            new_left.codes, new_left.times + self._lower, new_left.times + self._upper
        )
        r_new, l_old = ByKeyAndTime(old_left).between(
            new_right.codes, new_right.times - self._upper, new_right.times - self._lower
        )
        return _Pairs(
            np.concatenate([l_new + len(old_left.times), l_old]), np.concatenate([r_any, r_new + len(old_right.times)])
        )

    def _of_pairs(self, packs: tuple[RowPack, RowPack], sides: tuple[_Side, _Side], pairs: _Pairs) -> pa.Table:
        times = [np.concatenate([side.old.times, side.new.times]) for side in sides]
        later = np.maximum(times[LEFT][pairs.left], times[RIGHT][pairs.right])
        order = np.argsort(later, kind="stable")
        left_used, left = compacted(pairs.left[order])
        right_used, right = compacted(pairs.right[order])
        rows = _rows(sides[LEFT], left_used).take(pa.array(left))
        return self._results(packs, Taken(rows, later[order]), _rows(sides[RIGHT], right_used), right)

    # --- State ---

    def _keep(
        self, state: Overlay, number: int, side: _Side, canonical: pa.Array, bound: int, matched: Mask | None
    ) -> None:
        """Keep the new rows that are not older than ``bound``: others have no partner to come."""
        stays = side.new.times >= bound
        if not stays.any():
            return
        new, codes = side.new.of(stays), side.codes[stays]
        keys_by_row = canonical.take(pa.array(codes))
        entry_keys = keys(self._buckets.of(new.times), keys_by_row, _ROWS[number])
        done = None if matched is None else matched[stays]
        add(state, entry_keys, new.times, side.pack.pack(new.rows), done)
        if done is not None and self._left_join and not done.all():
            alone = pa.array(~done)
            times = new.times[~done]
            add(state, keys(times, _empty(len(times)), _WAITING), times, keys_by_row.filter(alone))

    def _tell_matched(self, state: Overlay, side: _Side, matched: Mask) -> None:
        """Note of left rows in the state that they have a partner now."""
        first = matched & ~side.old.done
        if first.any():
            _put_done(state, side.entries, side.old, first)

    def _expired(
        self, state: Overlay, packs: tuple[RowPack, RowPack], clock: int, limit: int | None
    ) -> tuple[list[pa.Table], bool]:
        """The results of left rows for which no partner can come any more."""
        bound = less(clock, self._upper + self._grace)
        if bound <= NEVER:
            return [], False
        waiting = state.scan(_WAITING, _WAITING + ordered(bound), None if limit is None else limit + 1)
        more = limit is not None and waiting.num_rows > limit
        if more:
            waiting = waiting.slice(0, limit)
        if not waiting.num_rows:
            return [], False
        asked = opened(waiting)
        entry_keys = keys(self._buckets.of(asked.times), asked.rows, _ROWS[LEFT]).unique()
        at, found = state.read(entry_keys)
        old = opened(found, at)
        over = ~old.done & (old.times <= int(asked.times[-1]))
        state.remove(one(waiting[KEY]))
        if not over.any():
            return [], more
        _put_done(state, entry_keys, old, over)
        chosen = old.of(over)
        order = np.argsort(chosen.times, kind="stable")
        chosen = chosen.of(order)
        return [self._results(packs, Taken(packs[LEFT].unpack(chosen.rows), chosen.times))], more

    def _forget(self, state: Overlay, clock: int, *, keep_left: bool) -> None:
        for side, reach in ((LEFT, self._upper), (RIGHT, -self._lower)):
            bound = less(clock, reach + self._grace)
            if bound > NEVER and not (side == LEFT and keep_left):
                forget(state, _ROWS[side], _ROWS[side] + ordered(self._buckets.before(bound)))

    def _forget_waiting(self, state: Overlay) -> None:
        """Forget what an earlier version of the job noted, if left rows without a partner gave results there."""
        if not self._none_waits:
            noted = one(state.scan(_WAITING, _WAITING + b"\xff")[KEY])
            self._none_waits = not len(noted)
            state.remove(noted)

    # --- Results ---

    def _results(
        self, packs: tuple[RowPack, RowPack], left: Taken, right: pa.Table | None = None, which: Numbers | None = None
    ) -> pa.Table:
        """Results of left rows with the right rows of these numbers, or with none."""
        known = packs[RIGHT].nothing()
        names = {*left.rows.column_names, *packs[LEFT].nothing().column_names, JOIN_TIME}
        dropped = [*self._keys[RIGHT], JOIN_TIME] if self._of_joins[RIGHT] else self._keys[RIGHT]
        columns = Columns(names, known, dropped, self._prefix)
        which = np.full(left.rows.num_rows, -1) if which is None else which
        found: dict[str, Column] = columns.results(left.rows, known if right is None else right, which)
        if self._of_joins[LEFT]:
            found.pop(JOIN_TIME, None)
        times = pa.array(left.times)
        return with_columns(pa.table(found), {JOIN_TIME: times if self._ordinal else times.cast(INSTANT)})


def bounds(join: RelationSpec) -> tuple[int, int]:
    """The least and the greatest difference between the times of a right and a left row that pair, in microseconds."""
    within = join.within
    if isinstance(within, list):
        return signed(within[0]), signed(within[1])
    reach = length(within)
    return -reach, reach


def signed(text: str | int) -> int:
    """A length that may begin with a minus."""
    if isinstance(text, str) and text.strip().startswith("-"):
        return -length(text.strip()[1:])
    return length(text)


def _rows(side: _Side, used: Numbers) -> pa.Table:
    """The rows at these positions, ascending: those in the state first."""
    known = len(side.old.times)
    of_state, of_batch = used[used < known], used[used >= known] - known
    tables = []
    if len(of_state):
        tables.append(side.pack.unpack(side.old.rows.take(pa.array(of_state))))
    if len(of_batch):
        tables.append(side.new.rows.take(pa.array(of_batch)))
    return together([*tables, side.pack.nothing()])


def _put_done(state: Overlay, entry_keys: pa.Array, old: Opened, first: Mask) -> None:
    """Note of rows in the state that they have given a result."""
    touched = np.zeros(len(entry_keys), np.bool_)
    touched[old.at[first]] = True
    rows = touched[old.at]
    changed = Opened(old.at, old.times, old.rows, old.done | first).of(rows)
    numbers = np.cumsum(touched) - 1
    groups = Groups(numbers[changed.at], int(np.count_nonzero(touched)))
    chosen = entry_keys.filter(pa.array(touched))
    state.put(entries_of(chosen, groups, changed.times, changed.rows, changed.done))


def _empty(count: int) -> pa.Array:
    return pa.array([b""] * count, pa.binary())


def _none() -> Numbers:
    return np.zeros(0, np.int64)


__all__ = ["JoinShard", "bounds", "signed"]
