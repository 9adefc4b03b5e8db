"""Rows of one kind in a store that grow and shrink over many batches, such as the edges of a graph that changes."""

from __future__ import annotations

import pyarrow as pa

from queues import block
from sardonyx.graphs.rows import joined
from sardonyx.state.base import KEY
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import ordered, starts_of
from sardonyx.state.graph_rows import MOST_BYTES, put_blocks, range_of
from sardonyx.state.groups import Mask, one
from sardonyx.state.overlay import Overlay
from sardonyx.state.window_rows import IPC

_LARGE, _LARGE_ROWS = MOST_BYTES // 3, block.TARGET_BYTES // 3
"""Bytes from which on an entry is not joined with others: of its value, and of its rows as they are in memory. An entry is cut at
three times as many, so one that was cut is not joined again, however well its rows compress."""


class StoredRows:
    """Rows of one kind in the state, in entries. Those added last are in small ones, which join as more are added: so an added
    row is written a few times at most, and entries stay few.

    Args:
        state: the entries.
        kind: what their keys begin with.
    """

    def __init__(self, state: Overlay, kind: bytes) -> None:
        self._state, self._kind = state, kind
        entries = state.scan(*range_of(kind))
        self._keys: list[bytes] = entries[KEY].to_pylist()
        self._counts: list[int] = entries[ROWS].to_pylist()
        self._values = [value.as_buffer() for value in one(entries[IPC])] if self._keys else []
        self._tables: list[pa.Table | None] = [None] * len(self._keys)

    @property
    def table(self) -> pa.Table | None:
        """All rows; None: there are none."""
        return joined([self._at(place) for place in range(len(self._keys))]) if self._keys else None

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(self._counts)

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if not rows.num_rows:
            return
        joining = [rows]
        while self._keys and self._joins(sum(table.num_rows for table in joining)):
            joining.insert(0, self._pop(len(self._keys) - 1))
        number = 1 + int(starts_of(pa.array(self._keys[-1:]), len(self._kind))[0]) if self._keys else 0
        blocks = block.encode(joined(joining), MOST_BYTES)
        put_blocks(self._state, self._kind, number, blocks)
        self._keys += [self._kind + ordered(number + place) for place in range(len(blocks))]
        self._counts += [each.rows for each in blocks]
        self._values += [pa.py_buffer(each.value) for each in blocks]
        self._tables += [None] * len(blocks)

    def remove(self, chosen: Mask) -> pa.Table:
        """Remove rows, by their places in :attr:`table`, and return them. There are rows."""
        lost, left, end = [self._at(0).schema.empty_table()], [], len(chosen)
        for place in range(len(self._keys) - 1, -1, -1):
            first = end - self._counts[place]
            here, end = chosen[first:end], first
            if here.any():
                rows = self._pop(place)
                lost.append(rows.filter(pa.array(here)))
                left.append(rows.filter(pa.array(~here)))
        for rows in reversed(left):
            self.add(rows)
        return joined(lost)

    def clear(self) -> None:
        """Remove all rows."""
        while self._keys:
            self._pop(len(self._keys) - 1)

    def _joins(self, rows: int) -> bool:
        """Whether the last entry is so small that it is written again with further rows."""
        if self._counts[-1] > rows or self._values[-1].size >= _LARGE:
            return False
        return bool(self._at(-1).nbytes < _LARGE_ROWS)

    def _at(self, place: int) -> pa.Table:
        """The rows of an entry."""
        table = self._tables[place]
        if table is None:
            table = self._tables[place] = block.decode([self._values[place]])
        return table

    def _pop(self, place: int) -> pa.Table:
        table = self._at(place)
        self._state.remove(pa.array([self._keys.pop(place)], pa.binary()))
        for each in (self._counts, self._values, self._tables):
            del each[place]
        return table


__all__ = ["StoredRows"]
