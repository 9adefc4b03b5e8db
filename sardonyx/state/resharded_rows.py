"""What a shard of a join and the like takes of the shards of an earlier job: see :mod:`sardonyx.state.resharding`. Pure.

Their rows are packed, and begin with the number of their schema (:mod:`sardonyx.state.row_pack`). Each shard numbers its schemas
by itself. So each log is read twice: first for its schemas, and then for its rows, which get the numbers that these have here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from sardonyx.core.joining import RelationSpec
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.combine import keys_of
from sardonyx.state.entry_keys import MARK
from sardonyx.state.groups import Mask
from sardonyx.state.memory import key_list
from sardonyx.state.row_bytes import RowBytes
from sardonyx.state.row_pack import DONE, HEAD, ROWS, TIMES
from sardonyx.state.share import Share, put
from sardonyx.state.waits import RELATION_WAITS, relation_entry

_WAITING = b"w"
_SCHEMA = b"s"
_KEY_AT = {
    "join": {b"l": 9, b"r": 9},
    "lookup": {b"v": 1, b"x": 9},
    "distinct": {b"p": 9},
    "latest": {b"v": 1, b"d": 1, b"x": 9},
}
"""By kind and by the first byte of an entry's key: where the canonical bytes of the key of its rows begin."""
_SCHEMA_OF = {"join": {b"l": b"sl", b"r": b"sr"}, "lookup": {b"v": b"sr", b"w": b"sl"}, "latest": {b"v": b"s"}}
"""By kind and by the first byte of an entry's key: the prefix of the schemas of the rows in it."""

_Row = dict[str, Any]


class RelationShare(Share):
    """Of a join, a lookup, distinct rows, or latest ones.

    Args:
        number: of the shard.
        partitions: how many there are now.
        relation: which of these.
        key_columns: of the rows; of a lookup those of the left side.
    """

    turns = 2

    def __init__(self, number: int, partitions: int, relation: RelationSpec, key_columns: Sequence[str]) -> None:
        super().__init__(number, partitions)
        self._joins = relation.kind == "join"
        self._key_at = _KEY_AT[relation.kind]
        self._schema_of = _SCHEMA_OF.get(relation.kind, {})
        self._columns = key_columns
        self._learns = True
        self._schemas: dict[bytes, list[pa.Schema]] = {}
        """By prefix, those of the new shard."""
        self._numbers: dict[bytes, int] = {}
        """Of the log at hand, by the key of a schema's entry: its number in the new shard."""
        self._found: dict[bytes, pa.Schema] = {}
        """Of the log at hand, the schemas by the keys of their entries."""
        self._waiting: dict[bytes, _Row] = {}
        """Entries of rows that wait, by their time: those of several logs have one key. These are of the logs before."""
        self._here: dict[bytes, _Row] = {}
        """The same of the log at hand."""
        self._marks: list[_Row | None] = []
        """By log, the entry that says when results came last that come every so often."""
        self._waits: list[_Row | None] = []
        """By log, the entry that says how long rows are waited for."""

    def begin(self, turn: int) -> None:
        self._learns = turn == 0
        if self._learns:
            self._found, self._numbers = {}, {}
            self._marks.append(None)
            self._waits.append(None)
            self._add_waiting()
            return
        for entry, schema in sorted(self._found.items(), key=itemgetter(0)):  # in one order, whichever shard reads
            known = self._schemas.setdefault(entry[:-HEAD], [])
            if schema not in known:
                known.append(schema)
            self._numbers[entry] = known.index(schema)

    def takes(self, changes: pa.Table) -> pa.Table:
        if self._learns:
            self._learn(changes)
            return changes.slice(0, 0)
        found: list[_Row] = []
        needed = pa.array([self._needs(entry) for entry in key_list(changes[KEY])], pa.bool_())
        for row in changes.filter(needed).to_pylist():
            entry: bytes = row[KEY]
            if entry == MARK:
                self._marks[-1] = row
            elif entry == RELATION_WAITS:
                self._waits[-1] = row
            elif entry[:1] == _WAITING:
                self._wait(row)
            else:
                found.append(row if row[GONE] else self._renumbered(row))
        return pa.Table.from_pylist(found, changes.schema)

    def finish(self, stores: Mapping[str, Store]) -> None:
        self._add_waiting()
        marks = [mark for mark in self._marks if mark is not None and not mark[GONE]]
        entries = [*self._waiting.values(), *sorted(marks, key=lambda mark: mark[TIMES])[-1:]]
        for prefix, schemas in self._schemas.items():
            for number, schema in enumerate(schemas):
                data = schema.serialize().to_pybytes()
                entries.append({KEY: _numbered(prefix, number), TIMES: [0], ROWS: [data], DONE: [False]})
        if waits := [row[TIMES] for row in self._waits if row is not None]:
            grace, left, right = zip(*waits, strict=True)
            entries.append(relation_entry(min(grace), max(left), max(right)))
        put(stores["relation"], entries)

    def _needs(self, entry: bytes) -> bool:
        """Whether an entry is of a key of the new shard, or may be in part."""
        at = self._key_at.get(entry[:1])
        if at is None:
            return entry in (MARK, RELATION_WAITS) or entry[:1] == _WAITING
        return self.owns(entry[at:])

    def _learn(self, changes: pa.Table) -> None:
        for entry, rows in zip(key_list(changes[KEY]), changes[ROWS], strict=True):
            if entry[:1] == _SCHEMA and rows.is_valid:
                self._found[entry] = pa.ipc.read_schema(pa.py_buffer(rows.as_py()[0]))

    def _renumbered(self, row: _Row) -> _Row:
        """An entry whose rows have the numbers that their schemas have in the new shard. A row that is only a time has none."""
        prefix = self._schema_of.get(row[KEY][:1])
        if prefix is None:
            return row
        return {**row, ROWS: [self._row(prefix, packed) if packed else packed for packed in row[ROWS]]}

    def _row(self, prefix: bytes, packed: bytes) -> bytes:
        return struct.pack(">H", self._numbers[prefix + packed[:HEAD]]) + packed[HEAD:]

    def _wait(self, row: _Row) -> None:
        """Of the rows that wait, those of the new shard: of a join, an entry says their keys in place of them."""
        self._here.pop(row[KEY], None)
        if row[GONE]:
            return
        row = self._renumbered(row)
        mine = self.mine(row[ROWS]) if self._joins else self._mine_of_packed(row[ROWS])
        if mine.any():
            kept = np.flatnonzero(mine).tolist()
            self._here[row[KEY]] = {KEY: row[KEY]} | {
                name: [row[name][place] for place in kept] for name in (TIMES, ROWS, DONE)
            }

    def _mine_of_packed(self, rows: list[bytes]) -> Mask:
        found = np.zeros(len(rows), np.bool_)
        for place, packed in enumerate(rows):
            schema = self._schemas[b"sl"][struct.unpack(">H", packed[:HEAD])[0]]
            codes, keys = keys_of(pa.table(RowBytes(schema).decode([packed[HEAD:]]), schema=schema), self._columns)
            found[place] = self.owns(keys[int(codes[0])].as_py())
        return found

    def _add_waiting(self) -> None:
        for entry, row in self._here.items():
            known = self._waiting.setdefault(entry, {KEY: entry, TIMES: [], ROWS: [], DONE: []})
            for name in (TIMES, ROWS, DONE):
                known[name] += row[name]
        self._here = {}


def _numbered(prefix: bytes, number: int) -> bytes:
    return prefix + struct.pack(">H", number)


__all__ = ["RelationShare"]
