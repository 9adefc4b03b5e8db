"""The rows of a graph that changes: they wait for the end of their window, and then make a version of the graph."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from queues import block
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.growing import Parts, grown
from sardonyx.graphs.rows import SOURCE, TARGET, VERTEX, Vertices, joined, read_rows
from sardonyx.state.base import KEY, Store
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import MARK, ordered, starts_of
from sardonyx.state.graph_rows import (
    EDGES,
    MOST_BYTES,
    RESULTS,
    VERTICES,
    GraphPlan,
    Run,
    columns_of,
    empty_rows,
    entries_of,
    give,
    put_blocks,
    put_results,
    range_of,
)
from sardonyx.state.groups import Mask, Numbers, grouped, numpy, one
from sardonyx.state.kinds import ordinal, windows_of
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import INSTANT
from sardonyx.state.stored_rows import StoredRows
from sardonyx.state.window_rows import IPC

REMOVED = b"x"
"""What rows are that remove edges: in the keys of entries that wait, beside :data:`EDGES` and :data:`VERTICES`."""
_WAITING, _LATEST = b"w", b"l"
"""What the keys of entries begin with: rows whose window has not ended; the latest results, for ``emit="changes"``."""
_VERSION = MARK + b"v"
"""The key of the entry with the start of the latest version's window, and what tells the version from all others."""
_TIME, _ORDER = "sx_time", "sx_order"
"""Columns of rows that wait: their time, and how many came before them."""


class Timely(NamedTuple):
    """Rows of a link.

    ``kind``: what they are. ``times``: of each. ``in_force``: the clock before them, or before each.
    """

    kind: bytes
    rows: pa.Table
    times: Numbers
    in_force: int | Numbers


class _Known(NamedTuple):
    """The components of a version."""

    version: bytes
    """Which one, as the store says it."""
    parts: Parts


class _Version(NamedTuple):
    computed: Computed
    changed: Mask | None
    """Which results are others than in the version before; None: that is not known."""
    id: bytes
    """What tells it from all other versions: a checksum of all rows that it is made of, however they came."""


class VersionShard:
    """A graph that changes window by window. All state is in the store.

    The rows of a window wait in entries. When the clock has passed its end, a plan applies them to the graph, in the order of
    their times, computes over all of it, and gives the first results; the others are entries until they are given. So each
    version is computed in one transaction, and its results are of one computation, whichever peers give them.

    The components of a graph that has only grown are made out of those of the version before, if this shard has planned that and
    the store says that it has become the latest one. Otherwise they are computed over all edges, with the same results.

    Args:
        spec: the graph, with windows, and what is computed.
        store: with the schema :data:`~sardonyx.state.window_rows.SCHEMA`.
        run: computes.
    """

    def __init__(self, spec: GraphSpec, store: Store, run: Run = compute) -> None:
        assert spec.window is not None  # noqa: S101 (for the type checker: the caller asks)
        self._spec, self._store, self._run = spec, store, run
        self._windows, self._ordinal = windows_of(spec.window), ordinal(spec.window)
        self._known: _Known | None = None
        self._columns = {**columns_of(spec), REMOVED: {SOURCE: spec.source, TARGET: spec.target}}

    def plan(self, pieces: Sequence[Timely], clock: int, limit: int) -> GraphPlan:
        """What these rows and this clock make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: rows, in the order of the log.
            clock: after them.
            limit: about how many results a plan gives.

        Raises:
            FunctionError: ``SX-GRAPH-COLUMN``, ``SX-GRAPH-ID``, ``SX-GRAPH-WEIGHT``; what ``run`` raises.
        """
        state = Overlay(self._store)
        self._add(state, [piece for piece in pieces if piece.rows.num_rows])
        computed, began = None, time.monotonic()
        start = self._due(state, clock)
        if start is not None and not state.scan(*range_of(RESULTS), 1).num_rows:
            made = self._version(state, start)
            computed = made.computed
            put_results(state, self._bounded(self._to_give(state, computed.rows, made.changed), start), limit)
            state.put(entries_of([_VERSION], [made.id], [start]))
        seconds = time.monotonic() - began
        results, more = give(state, limit)
        more = more or self._due(state, clock) is not None
        return GraphPlan(results, state.changes(), more, computed, seconds)

    def until(self, pieces: Sequence[Timely]) -> int | None:
        """The clock by which the versions that these rows go into are out."""
        ends = [int(self._windows.ends(self._starts(each)).max()) for each in pieces if each.rows.num_rows]
        return max(ends, default=None)

    # --- Rows that wait ---

    def _starts(self, piece: Timely) -> Numbers:
        """The window that each row is in. A late row is in the first one that has not ended."""
        clocks = np.broadcast_to(piece.in_force, len(piece.times))
        known = (clocks > NEVER) & (clocks < END)
        return self._windows.slices(np.where(known, np.maximum(piece.times, clocks), piece.times))

    def _add(self, state: Overlay, pieces: Sequence[Timely]) -> None:
        if not pieces:
            return
        number, latest = _number(state, MARK) or 0, _number(state, _VERSION)
        least = NEVER if latest is None else int(self._windows.ends(np.array([latest]))[0])
        rows: dict[tuple[int, bytes], list[pa.Table]] = {}
        for piece in pieces:
            starts = np.maximum(self._starts(piece), least)  # after the end of the input, no clock says what is late
            orders = np.arange(number, number + len(starts))
            number += len(starts)
            for kind, chosen in self._kinds(piece):
                read = read_rows(piece.rows.filter(pa.array(chosen)), self._columns[kind])
                read = read.append_column(_TIME, pa.array(piece.times[chosen]))
                read = read.append_column(_ORDER, pa.array(orders[chosen]))
                for start in np.unique(starts[chosen]).tolist():
                    here = read.filter(pa.array(starts[chosen] == start))
                    rows.setdefault((start, kind), []).append(here)
        for (start, kind), tables in sorted(rows.items()):
            first = int(tables[0][_ORDER][0].as_py())
            put_blocks(state, _WAITING + ordered(start) + kind, first, block.encode(joined(tables), MOST_BYTES))
        state.put(entries_of([MARK], [None], [number]))

    def _kinds(self, piece: Timely) -> list[tuple[bytes, Mask]]:
        """The kinds of rows of a piece, each with which rows are of it."""
        every = np.ones(piece.rows.num_rows, np.bool_)
        if piece.kind != EDGES or self._spec.remove is None:
            return [(piece.kind, every)]
        gone = _flags(piece.rows, self._spec.remove)
        return [(kind, chosen) for kind, chosen in ((EDGES, ~gone), (REMOVED, gone)) if chosen.any()]

    def _due(self, state: Overlay, clock: int) -> int | None:
        """The start of the first window with rows that this clock ends."""
        found = state.scan(_WAITING, _WAITING + ordered(self._windows.ended(clock)), 1)
        return int(starts_of(found[KEY], len(_WAITING))[0]) if found.num_rows else None

    # --- A version ---

    def _version(self, state: Overlay, start: int) -> _Version:
        """Apply the rows of a window to the graph, and compute."""
        edges, vertices = StoredRows(state, EDGES), StoredRows(state, VERTICES)
        before, edges_before = _value(state, _VERSION), edges.count
        sums = blake2b((before or b"") + ordered(start), digest_size=16)
        added, removed, new_vertices = (self._taken(state, start, kind, sums) for kind in (EDGES, REMOVED, VERTICES))
        named: list[pa.Table] = [] if new_vertices is None else [new_vertices.select([VERTEX])]
        if removed is not None:
            added, lost = self._removed(edges, added, removed)
            named += [pa.table({VERTEX: table[end]}) for table in lost for end in (SOURCE, TARGET)]
        only_grows = edges.count == edges_before
        if added is not None:
            edges.add(added.drop_columns([_TIME, _ORDER]))
        if named:
            vertices.add(_unknown(joined(named), vertices.table))
        version, known, self._known = sums.digest(), self._known, None
        if only_grows and known is not None and known.version == before:
            found = self._grown(known.parts, added, named, version, edges.count)
            if found is not None:
                return found
        computed = self._run(self._spec, self._graph(edges.table, vertices.table))
        if self._spec.algorithm == "connected_components":
            self._known = _Known(version, Parts.of(computed.rows))
        return _Version(computed, None, version)

    def _graph(self, edges: pa.Table | None, vertices: pa.Table | None) -> Graph:
        """The graph of these rows. A vertex to begin at need not have edges yet."""
        tables = [] if vertices is None else [vertices]
        if self._spec.start is not None:
            tables.append(pa.table({VERTEX: pa.array(self._spec.start)}))
        all_edges = empty_rows(self._columns[EDGES]) if edges is None else edges
        return Graph(all_edges, joined(tables) if tables else None)

    def _grown(
        self, parts: Parts, added: pa.Table | None, named: Sequence[pa.Table], version: bytes, edges: int
    ) -> _Version | None:
        """The components of a version that has only more edges and vertices than the one before."""
        none = pa.chunked_array([], parts.ids.type)
        ends = (none, none) if added is None else (added[SOURCE], added[TARGET])
        found = grown(parts, *ends, [table[VERTEX] for table in named])
        if found is None:
            return None
        ids, roots = found.parts
        self._known = _Known(version, found.parts)
        rows = pa.table({self._spec.id: ids, "component": ids.take(pa.array(roots))})
        return _Version(Computed(rows, len(ids), edges, found.steps, "quiescent"), found.changed, version)

    def _taken(self, state: Overlay, start: int, kind: bytes, sums: blake2b) -> pa.Table | None:
        """Take the rows of a window out of the state, in the order of their times. They go into the checksum."""
        prefix = _WAITING + ordered(start) + kind
        entries = state.scan(*range_of(prefix))
        if not entries.num_rows:
            return None
        state.remove(one(entries[KEY]))
        values = [value.as_buffer() for value in one(entries[IPC])]
        for value in values:
            sums.update(kind + ordered(value.size))
            sums.update(value)
        rows = joined([block.decode([value]) for value in values])
        return rows.sort_by([(_TIME, "ascending"), (_ORDER, "ascending")])

    def _removed(
        self, edges: StoredRows, added: pa.Table | None, removed: pa.Table
    ) -> tuple[pa.Table | None, list[pa.Table]]:
        """Take edges away. Returns those of the window's edges that no later row removes, and all that are lost."""
        tables = [table for table in (edges.table, added, removed) if table is not None]
        pairs = iter(_pairs(tables, directed=self._spec.directed))
        old = None if edges.table is None else next(pairs)
        new = None if added is None else next(pairs)
        last = next(pairs)
        lost: list[pa.Table] = []
        if old is not None:
            lost.append(edges.remove(np.isin(old, last)))
        if added is not None and new is not None:
            # Of each removed pair the last row that removes it, as its place among all rows of the window by their times.
            places = _places(added, removed)
            codes, which = np.unique(last, return_inverse=True)
            latest = np.full(len(codes), -1)
            np.maximum.at(latest, which, places[len(new) :])
            at = np.minimum(np.searchsorted(codes, new), len(codes) - 1)
            gone = (codes[at] == new) & (latest[at] > places[: len(new)])
            lost.append(added.filter(pa.array(gone)))
            added = added.filter(pa.array(~gone))
        return (added if added is not None and added.num_rows else None), lost

    # --- Its results ---

    def _to_give(self, state: Overlay, rows: pa.Table, which: Mask | None) -> pa.Table:
        """All results of a version, or those that differ from the version before: these rows, if that is known."""
        latest, ids = StoredRows(state, _LATEST), self._spec.id
        if self._spec.emit == "all":
            latest.clear()
            return rows
        if which is not None:
            changed = rows.filter(pa.array(which))
        else:
            before = latest.table
            if before is None or before.schema != rows.schema:
                latest.clear()  # an earlier version of the task may have had other columns
                latest.add(rows)
                return rows
            before = before.take(pa.array(grouped(before[ids]).tails()))
            changed = pa.concat_tables([_changed(rows, before, ids), _without_row(rows, before, ids)])
        if latest.count + changed.num_rows > 2 * rows.num_rows:
            latest.clear()
            latest.add(rows)
        else:
            latest.add(changed)
        return changed

    def _bounded(self, rows: pa.Table, start: int) -> pa.Table:
        """Results with the columns of their window."""
        end = int(self._windows.ends(np.array([start]))[0])
        found: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name, at in (("window_start", start), ("window_end", end), ("window_time", end - 1)):
            column = pa.array(np.full(rows.num_rows, at))
            found[name] = column if self._ordinal else column.cast(INSTANT)
        ids, results = rows.column_names[0], rows.column_names[1:]
        bounds = {name: found[name] for name in ("window_start", "window_end")}
        own = {name: rows[name] for name in results}
        return pa.table({ids: rows[ids], **bounds, **own, "window_time": found["window_time"]})


def is_waiting(store: Store) -> bool:
    """Whether a shard holds rows of windows that have not ended, or results."""
    return any(store.scan(*range_of(kind), 1).num_rows for kind in (_WAITING, RESULTS))


def _value(state: Overlay, key: bytes) -> bytes | None:
    """The value of an entry of the shard itself."""
    _, found = state.read(pa.array([key], pa.binary()))
    value: bytes | None = found[IPC][0].as_py() if found.num_rows else None
    return value


def _number(state: Overlay, key: bytes) -> int | None:
    """The number in an entry of the shard itself."""
    _, found = state.read(pa.array([key], pa.binary()))
    return int(numpy(one(found[ROWS]))[0]) if found.num_rows else None


def _flags(rows: pa.Table, column: str) -> Mask:
    """Which rows remove an edge."""
    if column not in rows.column_names:
        raise FunctionError(
            "SX-GRAPH-COLUMN",
            f"there is no column {column!r} in the rows of a graph",
            cause=f"they have {', '.join(rows.column_names)}",
            fix="name one of these in `remove=`, or let the task before give the column with every batch",
        )
    flags = rows[column]
    if not (kinds.is_boolean(flags.type) or kinds.is_null(flags.type)):
        raise FunctionError(
            "SX-GRAPH-COLUMN",
            f"column {column!r} is {flags.type}, and `remove=` names one with true and false",
            fix="convert the column to boolean in the task before",
        )
    found: Mask = numpy(one(flags.cast(pa.bool_())).fill_null(False))
    return found


def _pairs(tables: Sequence[pa.Table], *, directed: bool) -> list[Numbers]:
    """For each row of each table a number for its two ends, the same for the same ends."""
    vertices = Vertices([table[end] for table in tables for end in (SOURCE, TARGET)])
    found: list[Numbers] = []
    for number in range(len(tables)):
        source, target = vertices.column(2 * number), vertices.column(2 * number + 1)
        if not directed:
            source, target = np.minimum(source, target), np.maximum(source, target)
        found.append(source * len(vertices) + target)
    return found


def _places(*tables: pa.Table) -> Numbers:
    """The place of each row of all tables among them by time, and then by how they came."""
    times, orders = (np.concatenate([table[name].to_numpy() for table in tables]) for name in (_TIME, _ORDER))
    places = np.empty(len(times), np.int64)
    places[np.lexsort((orders, times))] = np.arange(len(times))
    return places


def _unknown(vertices: pa.Table, known: pa.Table | None) -> pa.Table:
    """The vertices of a table, each once, that are not known yet."""
    found = vertices[VERTEX].unique()
    if known is not None and known[VERTEX].type == found.type:
        found = found.filter(pc.invert(pc.is_in(found, one(known[VERTEX]))))
    return pa.table({VERTEX: found})


def _changed(rows: pa.Table, before: pa.Table, ids: str) -> pa.Table:
    """Results that were others before, or were not there."""
    at = pc.index_in(rows[ids], one(before[ids]))
    same = pc.is_valid(at)
    for name in rows.column_names[1:]:
        same = pc.and_(same, _same(rows[name], before[name].take(at)))
    return rows.filter(pc.invert(same))


def _same(one_column: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where two columns have equal values. Nulls are equal, and so are NaNs."""
    equal = pc.fill_null(pc.equal(one_column, other), False)
    tests = [pc.is_null, pc.is_nan] if kinds.is_floating(one_column.type) else [pc.is_null]
    for test in tests:
        equal = pc.or_(equal, pc.fill_null(pc.and_(test(one_column), test(other)), False))
    return equal


def _without_row(rows: pa.Table, before: pa.Table, ids: str) -> pa.Table:
    """Vertices that had a result and have none any more, with nulls: those that are out of reach of ``k_hop``."""
    gone = before.filter(pc.invert(pc.is_in(before[ids], one(rows[ids]))))
    for name in rows.column_names[1:]:
        gone = gone.filter(pc.is_valid(gone[name]))
    columns: Mapping[str, pa.Array] = {name: pa.nulls(gone.num_rows, rows[name].type) for name in rows.column_names[1:]}
    return pa.table({ids: gone[ids], **columns}).cast(rows.schema)


__all__ = ["REMOVED", "Timely", "VersionShard", "is_waiting"]
