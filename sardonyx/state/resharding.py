"""The shards of a job that has another number of partitions than the one that it goes on from: what each takes of the old ones.
Pure.

The key of an entry says which key of the rows it is of, and so to which partition it belongs (:mod:`queues.keys`). Each new
shard reads the logs of all old ones, one after the other, and takes what is its own. A key was in one old shard, so no two logs
have entries of it. What an old shard kept of all its keys together is gathered, and put together when all logs are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sardonyx.core.spec import TaskSpec
from sardonyx.core.timing import WindowSpec
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.columns import ROWS
from sardonyx.state.combine import keys_of
from sardonyx.state.emits import Emit
from sardonyx.state.entry_keys import MARK, OPEN_END, WAITS, ordered, starts_of
from sardonyx.state.hopping import Given, by_slices
from sardonyx.state.keyed_entries import DUE, ENDED, EXPIRES, SHAPE, STATE, TIMER, VALUE, WALL
from sardonyx.state.memory import key_list
from sardonyx.state.resharded_rows import RelationShare
from sardonyx.state.share import Share, put
from sardonyx.state.waits import together
from sardonyx.state.window_rows import IPC, stream

_Row = dict[str, Any]


class _Gathering(Share, ABC):
    """Gathers, by old shard, the entries that are of all keys of a shard."""

    def __init__(self, number: int, partitions: int) -> None:
        super().__init__(number, partitions)
        self.others: list[dict[bytes, _Row]] = []

    def begin(self, turn: int) -> None:  # noqa: ARG002 - there is one
        self.others.append({})

    def gather(self, row: _Row) -> None:
        """Take a change of such an entry from the log at hand."""
        if row[GONE]:
            self.others[-1].pop(row[KEY], None)
        else:
            self.others[-1][row[KEY]] = row


class _ByKey(_Gathering):
    """Takes the entries whose keys say of which key they are, and gathers the others."""

    def takes(self, changes: pa.Table) -> pa.Table:
        mine = np.zeros(changes.num_rows, np.bool_)
        for row, entry in enumerate(key_list(changes[KEY])):
            key = self.key_of(entry)
            if key is not None:
                mine[row] = self.owns(key)
                continue
            self.gather(*changes.slice(row, 1).to_pylist())
        return changes.filter(pa.array(mine))

    @abstractmethod
    def key_of(self, entry: bytes) -> bytes | None:
        """The canonical bytes of the key that an entry is of; None: it is of all keys of a shard."""


class KeyedShare(_ByKey):
    """Of keyed state (:mod:`sardonyx.state.keyed_entries`)."""

    def key_of(self, entry: bytes) -> bytes | None:
        kind = entry[:1]
        if kind in (ENDED, SHAPE):
            return None
        at = {STATE: 1, TIMER: 1, DUE: 9, WALL: 9, EXPIRES: 10}[kind]
        return entry[at + 4 : at + 4 + int.from_bytes(entry[at : at + 4], "big")]

    def finish(self, stores: Mapping[str, Store]) -> None:
        """What is written with other types than those that are there is refused, and nothing but new states can differ: so the
        types of all shards together are those of one that knows all states.
        """
        found = [said[SHAPE][VALUE] for said in self.others if SHAPE in said]
        shape: dict[str, str] = {}
        for each in found:
            shape |= msgspec.msgpack.decode(each, type=dict[str, str])
        if found:
            value = msgspec.msgpack.encode(dict(sorted(shape.items())))
            put(stores["keyed"], [{KEY: SHAPE, VALUE: value}])


class WindowShare(_ByKey):
    """Of windows with aggregates (:mod:`sardonyx.state.entry_keys`)."""

    def __init__(self, number: int, partitions: int, window: WindowSpec) -> None:
        super().__init__(number, partitions)
        self._by_slices = by_slices(window)
        self._least = bool(Emit(window.emit).by_wall)

    def key_of(self, entry: bytes) -> bytes | None:
        if not entry.startswith(OPEN_END):
            return entry[8:]
        return {b"k": entry[17:], b"x": entry[9:]}.get(entry[8:9])

    def finish(self, stores: Mapping[str, Store]) -> None:
        """The mark says when results came last that come every so often. By the machine's clock, it is that of the rows that have
        waited longest.
        """
        if "windows" not in stores or not any(self.others):
            return
        _put_waits(stores["windows"], self.others)
        if not any(self.others):
            return
        if self._by_slices:
            put(stores["windows"], [{KEY: key, ROWS: start} for key, start in self._given().items()])
            return
        marks = [said[MARK][ROWS] for said in self.others if MARK in said]
        put(stores["windows"], [{KEY: MARK, ROWS: min(marks) if self._least else max(marks)}])

    def _given(self) -> dict[bytes, int]:
        """Up to where the old shards have closed their windows. Not all of them have come equally far."""
        told = [Given.read(said) for said in self.others]
        least = min(each.start for each in told)
        found = {MARK: least}
        for place, each in enumerate(told):
            found |= each.told(len(told), place, least)
        return found


def _put_waits(store: Store, others: Sequence[dict[bytes, _Row]]) -> None:
    """Note how long windows wait that came of several shards, and take what these have noted of it out of the other entries."""
    noted = [{entry: said.pop(entry)[ROWS] for entry in list(said) if entry.startswith(WAITS)} for said in others]
    if found := together(noted):
        put(store, [{KEY: entry, ROWS: value} for entry, value in found.items()])


class WindowRowsShare(_Gathering):
    """Of windows of rows (:mod:`sardonyx.state.window_rows`): entries hold rows of many keys, and are told apart by numbers."""

    def __init__(self, number: int, partitions: int, key_columns: Sequence[str]) -> None:
        super().__init__(number, partitions)
        self._columns = key_columns
        self._first = 0
        """The number that the first entry of the log at hand gets."""
        self._next = 0

    def begin(self, turn: int) -> None:
        super().begin(turn)
        self._first = self._next

    def takes(self, changes: pa.Table) -> pa.Table:
        found: list[_Row] = []
        for row in changes.to_pylist():
            if row[KEY] == MARK:
                self._next = max(self._next, self._first + (row[ROWS] or 0) + 1)
                continue
            if row[KEY].startswith(WAITS):
                self.gather(row)
                continue
            entry = row[KEY][:8] + ordered(int(starts_of(pa.array([row[KEY]]), 8)[0]) + self._first)
            rows = None if row[GONE] else self._mine(pa.ipc.open_stream(row[IPC]).read_all())
            if rows is None:
                found.append({KEY: entry, GONE: True})
            elif rows.num_rows:
                found.append({KEY: entry, IPC: stream(rows), ROWS: rows.num_rows, GONE: False})
        return pa.Table.from_pylist(found, changes.schema)

    def finish(self, stores: Mapping[str, Store]) -> None:
        if self._next:
            put(stores["windows"], [{KEY: MARK, ROWS: self._next - 1}])
            _put_waits(stores["windows"], self.others)

    def _mine(self, rows: pa.Table) -> pa.Table:
        codes, canonical = keys_of(rows, self._columns)
        return rows.filter(pa.array(self.mine(key_list(canonical))[codes]))


def share_of(task: TaskSpec, partitions: int) -> Callable[[int], Share]:
    """What makes the shares of a task's shards, by their number.

    Args:
        task: windows, keyed state, or a relation.
        partitions: of the new job.
    """
    columns = list(task.group_by or ())
    window, relation = task.window, task.relation
    if relation is not None:
        return lambda number: RelationShare(number, partitions, relation, columns)
    if window is None:
        return lambda number: KeyedShare(number, partitions)
    if not window.aggregate and window.kind not in ("session", "counted"):
        return lambda number: WindowRowsShare(number, partitions, columns)
    return lambda number: WindowShare(number, partitions, window)


__all__ = ["share_of"]
