"""The rows of a graph, or of rounds, until all are there, and then the results until all are given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from queues import block
from sardonyx.core.clocks import END
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.rounds import joined_plain
from sardonyx.graphs.rows import COLUMN, SOURCE, TARGET, VERTEX, WEIGHT, joined, read_rows
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import MARK, OPEN_END, ordered
from sardonyx.state.groups import numpy, one
from sardonyx.state.overlay import Overlay
from sardonyx.state.window_rows import IPC, SCHEMA

EDGES, VERTICES, PAIRS = b"e", b"v", b"p"
"""What rows are, and what the keys of their entries begin with."""
RESULTS = b"r"
"""What the keys of entries with results that are still to be given begin with."""
_DONE = MARK + b"d"
"""The key of the entry that says that results have been computed."""
MOST_BYTES = block.MAX_BYTES // 2
"""Of the rows in one entry. An entry goes into a message, with its key."""


Run = Callable[[Any, Graph], Computed]
"""Computes what a task wants of a graph, or of the rows of rounds, which stand for its edges. The first argument is the spec."""


class GraphPlan(NamedTuple):
    """What a batch makes of a graph's shard.

    ``results``: rows. ``changes``: for :meth:`~sardonyx.state.base.Store.apply`. ``more``: results remain to be given; a further
    plan must follow before anything else is planned. ``computed``: of the plan that computed; its rows are in ``results`` and in
    ``changes``. ``seconds``: how long that took.
    """

    results: pa.Table
    changes: pa.Table
    more: bool = False
    computed: Computed | None = None
    seconds: float = 0.0


class GraphShard:
    """The rows of one graph. It holds nothing itself: all state is in the store.

    Until the input ends, each plan puts its rows into entries. The first plan after that computes, gives the first results, and
    puts the others in place of the rows. So what is computed is computed once for all results, whichever peers give them.

    Args:
        spec: the graph and what is computed, or what rounds are about.
        store: with the schema :data:`~sardonyx.state.window_rows.SCHEMA`.
        run: computes.
    """

    def __init__(self, spec: GraphSpec | IterateSpec, store: Store, run: Run = compute) -> None:
        self._spec, self._store, self._run = spec, store, run
        self._columns: dict[bytes, dict[str, str] | None] = {EDGES: None}
        """By what rows are, their columns; None: all as they are."""
        if isinstance(spec, GraphSpec):
            self._columns = {**columns_of(spec)}

    def plan(self, pieces: Sequence[tuple[bytes, pa.Table]], clock: int, limit: int) -> GraphPlan:
        """What these rows and this clock make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: rows, each with what they are.
            clock: after them; ``END`` if there are no others.
            limit: about how many results a plan gives.

        Raises:
            FunctionError: ``SX-GRAPH-COLUMN``, ``SX-GRAPH-ID``, ``SX-GRAPH-WEIGHT``, ``SX-GRAPH-VERTEX``, ``SX-ITERATE-ROWS``;
                what ``run`` raises.
        """
        state = Overlay(self._store)
        rows = {kind: [table for each, table in pieces if each == kind and table.num_rows] for kind in self._columns}
        if any(rows.values()):
            self._add(state, rows)
        if clock < END:
            return GraphPlan(pa.table({}), state.changes())
        computed, began = None, time.monotonic()
        if not state.scan(_DONE, None, 1).num_rows:
            computed = self._run(self._spec, Graph(*(self._taken(state, kind) for kind in (EDGES, VERTICES, PAIRS))))
            put_results(state, computed.rows, limit)
            state.put(entries_of([_DONE], [None], [computed.rows.num_rows]))
        seconds = time.monotonic() - began
        results, more = give(state, limit)
        return GraphPlan(results, state.changes(), more, computed, seconds)

    def _add(self, state: Overlay, rows: Mapping[bytes, Sequence[pa.Table]]) -> None:
        mark = state.scan(MARK, _DONE, 1)
        number = int(numpy(one(mark[ROWS]))[0]) if mark.num_rows else 0
        for kind, tables in rows.items():
            if tables:
                columns = self._columns[kind]
                read = (
                    joined_plain(tables) if columns is None else joined([read_rows(table, columns) for table in tables])
                )
                number = put_blocks(state, kind, number, block.encode(read, MOST_BYTES))
        state.put(entries_of([MARK], [None], [number]))

    def _taken(self, state: Overlay, kind: bytes) -> pa.Table | None:
        """All rows of a kind, out of the state."""
        if kind != EDGES and not self._declared(kind):
            return None
        entries = state.scan(kind, after(kind))
        columns = self._columns.get(kind)
        if not entries.num_rows:
            return empty_rows(columns or ())
        state.remove(one(entries[KEY]))
        tables = [block.decode([value.as_buffer()]) for value in one(entries[IPC])]
        return joined_plain(tables) if columns is None else joined(tables)

    def _declared(self, kind: bytes) -> bool:
        return (
            isinstance(self._spec, GraphSpec)
            and {VERTICES: self._spec.vertices, PAIRS: self._spec.pairs}[kind] is not None
        )


def columns_of(spec: GraphSpec) -> dict[bytes, dict[str, str]]:
    """By what rows are, their columns as :func:`~sardonyx.graphs.rows.read_rows` names them, and the user's names."""
    weight = {} if spec.weight is None else {WEIGHT: spec.weight}
    weight |= {COLUMN + name: name for name in spec.columns}
    ends = {SOURCE: spec.source, TARGET: spec.target}
    return {EDGES: ends | weight, VERTICES: {VERTEX: spec.id}, PAIRS: ends}


def empty_rows(columns: Iterable[str]) -> pa.Table:
    """A table of :func:`~sardonyx.graphs.rows.read_rows` without rows."""
    return pa.table({name: pa.array([], _type_of(name)) for name in columns})


def _type_of(name: str) -> pa.DataType:
    """Of a column of a graph without rows."""
    if name.startswith(COLUMN):
        return pa.null()
    return pa.float64() if name == WEIGHT else pa.int64()


def has_rows(store: Store) -> bool:
    """Whether a shard holds rows that the end of the input lets out."""
    return bool(store.scan(b"", OPEN_END, 1).num_rows)


def put_blocks(state: Overlay, kind: bytes, number: int, blocks: Sequence[block.Block]) -> int:
    """Put an entry for each block, numbered from a number on. Returns the number after the last one."""
    if blocks:
        keys = [kind + ordered(number + place) for place in range(len(blocks))]
        state.put(entries_of(keys, [each.value for each in blocks], [each.rows for each in blocks]))
    return number + len(blocks)


def put_results(state: Overlay, rows: pa.Table, limit: int) -> None:
    """Put results, about so many in an entry, for :func:`give`."""
    put_blocks(state, RESULTS, 0, block.encode(rows, MOST_BYTES, limit))


def entries_of(keys: list[bytes], values: Sequence[bytes | None], rows: list[int]) -> pa.Table:
    """Entries, with the number of rows in each."""
    return pa.table([keys, values, rows], schema=SCHEMA)


def give(state: Overlay, limit: int) -> tuple[pa.Table, bool]:
    """The next results, which leave the state, and whether there are others after them."""
    tables: list[pa.Table] = []
    while sum(table.num_rows for table in tables) < limit:
        entries = state.scan(RESULTS, after(RESULTS), 1)
        if not entries.num_rows:
            break
        tables.append(block.decode([one(entries[IPC])[0].as_buffer()]))
        state.remove(one(entries[KEY]))
    more = state.scan(RESULTS, after(RESULTS), 1).num_rows > 0
    return pa.concat_tables(tables) if tables else pa.table({}), more


def after(kind: bytes) -> bytes:
    """What comes after all keys that begin with a byte."""
    return bytes([kind[0] + 1])


def range_of(prefix: bytes) -> tuple[bytes, bytes]:
    """The first key with a prefix, and the first one after all of them."""
    return prefix, prefix[:-1] + after(prefix[-1:])


__all__ = [
    "EDGES",
    "MOST_BYTES",
    "PAIRS",
    "RESULTS",
    "VERTICES",
    "GraphPlan",
    "GraphShard",
    "Run",
    "after",
    "columns_of",
    "empty_rows",
    "entries_of",
    "give",
    "has_rows",
    "put_blocks",
    "put_results",
    "range_of",
]
