"""The state that a shard would have if it had been given less: its entries, but for those that differ. Pure.

The *undo* of a checkpoint is, for each store, a table of changes. Applied to the entries of the shard as they stand, it gives
those of the checkpoint. It has an entry for each key that once differed, and grows with each batch,
in two phases, as the stores do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.column_types import as_schema, together
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.groups import Mask, one
from sardonyx.state.overlay import Overlay

Undo: TypeAlias = Mapping[str, pa.Table]
"""By name of the store: a table of changes."""


class UndoChange(NamedTuple):
    """What a commit writes of the undo of checkpoints, by their times.

    ``changed``: the entries that the commit changes. ``whole``: all of it after the commit. It is written instead if the log is
    to begin anew there.
    """

    changed: Mapping[int, Undo]
    whole: Mapping[int, Undo]


class ShadowStore:
    """A store as a checkpoint has it: see :class:`sardonyx.state.base.Store`. The store of the shard is only read.

    Args:
        store: the entries of the shard, as they are after the last commit.
        undo: of the checkpoint.
    """

    def __init__(self, store: Store, undo: pa.Table | None = None) -> None:
        self.schema: pa.Schema = store.schema
        self._store = store
        self._undo = undo
        self._overlay = Overlay(store)
        if undo is not None:
            self._overlay.change(as_entries(undo, store))
        self._touched: list[pa.Array] = []

    def __len__(self) -> int:
        return int(self.scan().num_rows)

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        positions, found = self._overlay.read(keys)
        return pa.array(positions, pa.int64()), found

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        return self._overlay.scan(first, before, limit)

    def apply(self, changes: pa.Table) -> None:
        if changes.num_rows:
            self._overlay.change(changes)
            self._touched.append(one(changes[KEY]))

    def clear(self) -> None:
        """It holds nothing of its own."""

    def close(self) -> None:
        """It holds nothing of its own."""

    def differs(self, changes: pa.Table | None) -> pa.Table:
        """What is new in the undo of the checkpoint: of what was applied here, and of what a batch changes in the shard.

        Args:
            changes: of the batch, in the store of the shard; not applied yet.
        """
        real = Overlay(self._store)
        touched = pa.concat_arrays([pa.array([], pa.binary()), *self._touched]).unique()
        known = pa.array([], pa.binary()) if self._undo is None else one(self._undo[KEY])
        keys = touched
        if changes is not None and changes.num_rows:
            real.change(changes)
            further = one(changes[KEY])
            further = further.filter(pc.invert(pc.is_in(further, pa.concat_arrays([touched, known]))))
            keys = pa.concat_arrays([touched, further])
        mine, theirs = _looked_up(self._overlay, keys), _looked_up(real, keys)
        wanted = _differing(mine, theirs) | np.asarray(pc.is_in(keys, known))
        return mine.filter(pa.array(wanted))


def after(undo: pa.Table | None, changed: pa.Table) -> pa.Table:
    """The undo of a store with further entries."""
    if undo is None or not undo.num_rows:
        return changed
    if not changed.num_rows:
        return undo
    left = undo.filter(pc.invert(pc.is_in(one(undo[KEY]), one(changed[KEY]))))
    return together([left, changed]).combine_chunks()


def as_entries(undo: pa.Table, store: Store) -> pa.Table:
    """The undo of a store whose types may have become wider since."""
    return as_schema(undo, store.schema.append(undo.schema.field(GONE)))


def _looked_up(store: Overlay, keys: pa.Array) -> pa.Table:
    """The entries of these keys as a table of changes, in this order."""
    at, found = store.read(keys)
    place = np.full(len(keys), -1)
    place[at] = np.arange(len(at))
    gone = place < 0
    rows = found.drop_columns([KEY]).take(pa.array(place, mask=gone))
    table = pa.table([keys, *rows.columns, pa.array(gone)], names=[KEY, *rows.column_names, GONE])
    return table.cast(store.schema.append(pa.field(GONE, pa.bool_(), nullable=False)))


def _differing(one_table: pa.Table, other: pa.Table) -> Mask:
    """Which rows differ. Those that are equal may be among them, if they hold what equals nothing."""
    found = np.zeros(one_table.num_rows, np.bool_)
    for mine, theirs in zip(one_table.columns[1:], other.columns[1:], strict=True):
        if pa.types.is_nested(mine.type):
            pairs = zip(mine.to_pylist(), theirs.to_pylist(), strict=True)
            found |= np.fromiter((a != b for a, b in pairs), np.bool_, len(mine))
            continue
        same = pc.fill_null(pc.equal(mine, theirs), False)
        both = pc.and_(pc.is_null(mine), pc.is_null(theirs))
        found |= ~np.asarray(pc.or_(same, both))
    return found


__all__ = ["ShadowStore", "Undo", "UndoChange", "after", "as_entries"]
