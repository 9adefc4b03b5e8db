"""The entries of a store as they will be after the changes of a plan."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.groups import Mask, Numbers, numpy, one


class Overlay:
    """A store with changes that it does not have yet. The store itself is only read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.schema: pa.Schema = store.schema
        self._schema = self.schema.append(pa.field(GONE, pa.bool_(), nullable=False))
        self._changes: pa.Table | None = None
        self._was_put: list[pa.Array] = []

    def read(self, keys: pa.Array) -> tuple[Numbers, pa.Table]:
        """The entries of these keys, as :meth:`Store.read` gives them."""
        positions, found = self._store.read(keys)
        at = numpy(positions).astype(np.int64)
        if self._changes is None:
            return at, found
        changed = pc.index_in(keys, one(self._changes[KEY]))
        mine = np.flatnonzero(numpy(changed.is_valid()))
        keep = ~np.isin(at, mine)
        newer = self._changes.take(changed.drop_null())
        there = ~numpy(one(newer[GONE]))
        at = np.concatenate([at[keep], mine[there]])
        order = np.argsort(at, kind="stable")
        both = pa.concat_tables([found.filter(pa.array(keep)), _entries(newer, there)])
        return at[order], both.take(pa.array(order))

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        """Entries in the order of their keys, as :meth:`Store.scan` gives them."""
        newer = self._changes
        if newer is not None:
            newer = newer.filter(_between(one(newer[KEY]), first, before))
        if newer is None or not newer.num_rows:
            return self._store.scan(first, before, limit)
        found = self._store.scan(first, before, None if limit is None else limit + newer.num_rows)
        keep = pc.invert(pc.is_in(one(found[KEY]), one(newer[KEY])))
        both = pa.concat_tables([found.filter(keep), _entries(newer, ~numpy(one(newer[GONE])))]).sort_by(KEY)
        return both if limit is None else both.slice(0, limit)

    def put(self, entries: pa.Table) -> None:
        """Put entries: the columns of the schema, each key once."""
        if entries.num_rows:
            self._was_put.append(one(entries[KEY]))
        self._change(entries, gone=False)

    def remove(self, keys: pa.Array) -> None:
        """Remove the entries of these keys, each once."""
        columns = [keys, *(pa.nulls(len(keys), field.type) for field in list(self.schema)[1:])]
        self._change(pa.table(columns, schema=self.schema), gone=True)

    def change(self, changes: pa.Table) -> None:
        """Put and remove entries: a table of changes, as for :meth:`Store.apply`."""
        there = ~numpy(one(changes[GONE]))
        self.put(_entries(changes, there))
        self.remove(one(changes[KEY]).filter(pa.array(~there)))

    def changes(self) -> pa.Table:
        """All changes, for :meth:`Store.apply`. Entries that came and went since are left out."""
        if self._changes is None:
            return self._schema.empty_table()
        if not self._was_put:
            return self._changes
        keys = one(self._changes[KEY])
        doubtful = pc.and_(one(self._changes[GONE]), pc.is_in(keys, pa.concat_arrays(self._was_put)))
        rows = np.flatnonzero(numpy(doubtful))
        if not len(rows):
            return self._changes
        keep = np.ones(len(keys), np.bool_)
        keep[rows] = False
        keep[rows[numpy(self._store.read(keys.take(pa.array(rows)))[0])]] = True
        return self._changes.filter(pa.array(keep))

    def _change(self, entries: pa.Table, *, gone: bool) -> None:
        if not entries.num_rows:
            return
        flags = pa.array(np.full(entries.num_rows, gone))
        further = pa.table([*entries.columns, flags], schema=self._schema)
        if self._changes is not None:
            keep = pc.invert(pc.is_in(one(self._changes[KEY]), one(further[KEY])))
            further = pa.concat_tables([self._changes.filter(keep), further])
        self._changes = further.combine_chunks()


def _entries(changes: pa.Table, there: Mask) -> pa.Table:
    return changes.drop_columns([GONE]).filter(pa.array(there))


def _between(keys: pa.Array, first: bytes, before: bytes | None) -> pa.Array:
    inside = pc.greater_equal(keys, pa.scalar(first, keys.type))
    return inside if before is None else pc.and_(inside, pc.less(keys, pa.scalar(before, keys.type)))
