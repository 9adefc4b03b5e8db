"""One shard of a graph that several peers compute together: docs/design/supersteps.md."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queues import block
from sardonyx.core.errors import FunctionError, refuse_newer
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.wire_types import ready_for_threads
from sardonyx.graphs.barriers import FIRST, Barrier, Totals, check_order, moved, verdict
from sardonyx.graphs.compute import Computed, Reason
from sardonyx.graphs.homes import Home, both_ways, parted
from sardonyx.graphs.rows import SOURCE, TARGET, VERTEX, joined, read_rows
from sardonyx.graphs.sharded import ALGORITHMS, Algorithm, Part
from sardonyx.state.base import KEY, Store
from sardonyx.state.entry_keys import MARK
from sardonyx.state.graph_rows import (
    EDGES,
    MOST_BYTES,
    VERTICES,
    after,
    columns_of,
    empty_rows,
    entries_of,
    give,
    put_blocks,
    put_results,
)
from sardonyx.state.groups import one
from sardonyx.state.overlay import Overlay
from sardonyx.state.window_rows import IPC

INBOX, HOME, IDS, VALUES = b"m", b"g", b"i", b"x"
"""What the keys of entries begin with: of messages that wait; of edges and vertices at home; of the state of vertices."""
_STANDING = MARK + b"s"
"""The key of the entry that says how far the shard is."""
_BODY = MOST_BYTES * 4 // 5
"""Bytes of one message from shard to shard, at most. It goes into an entry with its column names, as a row."""

MESSAGES = pa.schema(
    [("step", pa.int64()), ("shard", pa.int64()), ("kind", pa.string()), pa.field("body", pa.large_binary())]
)
"""The rows of a feedback link: which superstep, of which shard; what ``body`` is, or ``marker``."""
MARKER = "marker"

FORMAT = 1
"""The format of the entries of a shard."""


@ready_for_threads
class Standing(msgspec.Struct):
    """How far a shard is."""

    format: int = FORMAT
    step: int = 0
    """The next superstep."""
    rows: int = 0
    """The number of entries that it has had of rows and messages."""
    told: dict[int, dict[int, Totals]] = {}
    """The markers that have come and are not used yet: by superstep and shard, the totals."""
    vertices: int = 0
    """The vertices of all shards, from superstep 2 on; as ``edges`` and ``is_text``."""
    edges: int = 0
    is_text: bool = False
    over: bool = False
    """The algorithm has ended."""


class SuperstepPlan(NamedTuple):
    """What a batch makes of a shard; see :class:`~sardonyx.state.graph_rows.GraphPlan`.

    ``sent``: by partition of the feedback link, the blocks that go there, in their order. ``computed``: of the plan of shard 0
    that ended; its rows are empty. ``step``: the superstep of ``sent``.
    """

    results: pa.Table
    changes: pa.Table
    more: bool = False
    sent: Mapping[int, Sequence[block.Block]] = {}
    computed: Computed | None = None
    seconds: float = 0.0
    step: int = 0


class SuperstepShard:
    """Plans for one shard. It holds nothing of its own but what it has read from the store, and what does not change there.

    Args:
        spec: the graph, and what is computed.
        store: with the schema :data:`~sardonyx.state.window_rows.SCHEMA`.
        number: of the shard.
        shards: how many there are.
    """

    def __init__(self, spec: GraphSpec, store: Store, number: int, shards: int) -> None:
        self._spec, self._store = spec, store
        self._number, self._shards = number, shards
        self._columns = columns_of(spec)
        self._both_ways = ALGORITHMS[spec.algorithm].both_ways or not spec.directed
        self._made: tuple[Home, Algorithm] | None = None
        """Of entries that stay as they are from superstep 2 on."""

    def plan(
        self, pieces: Sequence[tuple[bytes, pa.Table]], messages: Sequence[pa.Table], limit: int, *, ended: bool
    ) -> SuperstepPlan:
        """What these rows make. Nothing is changed: the same call gives the same again.

        Args:
            pieces: rows of other tasks, each with what they are.
            messages: rows of the feedback link, in their order.
            limit: about how many results a plan gives.
            ended: no further row comes from other tasks.

        Raises:
            FunctionError: ``SX-GRAPH-COLUMN``, ``SX-GRAPH-ID``, ``SX-GRAPH-WEIGHT``, ``SX-GRAPH-VERTEX``.
            InternalError: ``SX-GRAPH-BARRIER``.
        """
        began = time.monotonic()
        state = Overlay(self._store)
        before = _read(state)
        standing = msgspec.structs.replace(before)
        for kind, columns in self._columns.items():
            rows = [read_rows(table, columns) for each, table in pieces if each == kind and table.num_rows]
            if rows:
                standing.rows = put_blocks(state, kind, standing.rows, block.encode(joined(rows), MOST_BYTES))
        barrier, waiting = self._heard(standing, messages)
        sent: dict[int, list[block.Block]] = {}
        computed = None
        is_due = ended if not standing.step else barrier.is_whole(standing.step - 1)
        if is_due and not standing.over:
            got, waiting = self._inbox(state, standing.step - 1, waiting)
            reduced = barrier.take(standing.step - 1) if standing.step else {}
            sent, reason = self._superstep(state, standing, got, reduced, limit)
            if reason is not None and not self._number:
                done = standing.step - FIRST
                computed = Computed(pa.table({}), standing.vertices, standing.edges, done, reason, moved(reduced))
        standing.told = barrier.told
        standing.rows = put_blocks(state, INBOX, standing.rows, _inbox_blocks(waiting))
        if standing != before:
            state.put(entries_of([_STANDING], [msgspec.json.encode(standing)], [0]))
        results, more = give(state, limit) if standing.over else (pa.table({}), False)
        return SuperstepPlan(results, state.changes(), more, sent, computed, time.monotonic() - began, before.step)

    def _heard(self, standing: Standing, messages: Sequence[pa.Table]) -> tuple[Barrier, list[pa.Table]]:
        """The markers, with those among new messages; and the other messages."""
        barrier = Barrier(self._shards, standing.told)
        waiting: list[pa.Table] = []
        for rows in messages:
            is_marker = pc.equal(rows["kind"], MARKER)
            for step, shard in zip(rows["step"].to_pylist(), rows["shard"].to_pylist(), strict=True):
                check_order(standing.step, step, shard)
            for row in rows.filter(is_marker).to_pylist():
                barrier.hear(row["step"], row["shard"], msgspec.json.decode(row["body"]))
            others = rows.filter(pc.invert(is_marker))
            if others.num_rows:
                waiting.append(others)
        return barrier, waiting

    def _inbox(self, state: Overlay, step: int, waiting: list[pa.Table]) -> tuple[pa.Table, list[pa.Table]]:
        """The messages of a superstep, which leave the state; and those that wait for another one."""
        entries = state.scan(INBOX, after(INBOX))
        if entries.num_rows:
            state.remove(one(entries[KEY]))
        every = pa.concat_tables(
            [MESSAGES.empty_table(), *(block.decode([each.as_buffer()]) for each in one(entries[IPC])), *waiting]
        )
        is_due = pc.equal(every["step"], step)
        later = every.filter(pc.invert(is_due))
        return every.filter(is_due), [later] if later.num_rows else []

    def _superstep(
        self, state: Overlay, standing: Standing, got: pa.Table, totals: Totals, limit: int
    ) -> tuple[dict[int, list[block.Block]], Reason | None]:
        """Do the next superstep: what it sends, and why it was none but the end."""
        step = standing.step
        parcels: Iterable[tuple[int, str, pa.Table]] = ()
        own: Totals
        if step == 0:
            own = {"edges": _rows(state, EDGES, self._columns[EDGES]).num_rows}
            parcels = self._to_homes(*self._given(state))
        elif step == 1:
            standing.edges = totals["edges"]
            own = self._settle(state, standing, got)
        else:
            if step == FIRST:
                _agree(totals)
                standing.vertices, standing.is_text = totals["vertices"], totals["texts"] > 0
            home, algorithm = self._own(state, standing)
            turn = algorithm.begin() if step == FIRST else None
            if turn is None:
                done, values = step - FIRST - 1, self._values(state)
                values = algorithm.begin().values if values is None else values
                reason = verdict(self._spec, done, totals)
                if reason is not None:
                    columns, which = algorithm.results(values)
                    self._end(state, home.ids if which is None else home.ids.take(pa.array(which)), columns, limit)
                    standing.over = True
                    return {}, reason
                turn = algorithm.go_on(values, [_read_body(body) for body in got["body"]], done, totals)
            self._put(state, VALUES, turn.values)
            own = turn.totals
            parcels = ((shard, "values", table) for shard, table in home.to_shards(turn.slots, turn.sent))
        standing.step += 1
        return self._sent(step, parcels, own), None

    # --- superstep 0 and 1 ---

    def _given(self, state: Overlay) -> tuple[pa.Table, pa.Table]:
        """The edges that came to this shard, in all directions in which they count; and the vertices."""
        edges = _rows(state, EDGES, self._columns[EDGES])
        return (both_ways(edges) if self._both_ways else edges), _rows(state, VERTICES, self._columns[VERTICES])

    def _to_homes(self, edges: pa.Table, vertices: pa.Table) -> Iterator[tuple[int, str, pa.Table]]:
        """What other shards must know of them. The targets of edges are vertices: who has an edge back knows it."""
        for shard, rows in parted(edges, SOURCE, self._shards):
            if shard != self._number:
                yield shard, "edges", rows
        for table in (vertices, *(() if self._both_ways else [edges.select([TARGET]).rename_columns([VERTEX])])):
            named = table.group_by(VERTEX).aggregate([])
            for shard, rows in parted(named, VERTEX, self._shards):
                if shard != self._number:
                    yield shard, "vertices", rows

    def _settle(self, state: Overlay, standing: Standing, got: pa.Table) -> Totals:
        """Put what is at home here in place of what came."""
        edges, vertices = self._given(state)
        targets = edges.select([TARGET]).rename_columns([VERTEX])
        came: dict[str, list[pa.Table]] = {"edges": [], "vertices": []}
        for kind, body in zip(got["kind"].to_pylist(), got["body"], strict=True):
            came[kind].append(_read_body(body))
        for kind, tables in (("edges", [(edges, SOURCE)]), ("vertices", [(vertices, VERTEX), (targets, VERTEX)])):
            for table, column in tables:
                came[kind] += [rows for shard, rows in parted(table, column, self._shards) if shard == self._number]
        mine = joined(came["edges"]) if came["edges"] else edges.slice(0, 0)
        ids = joined([empty_rows([VERTEX])] if not came["vertices"] else came["vertices"])
        home = Home(mine, ids[VERTEX], self._shards)
        for kind in (EDGES, VERTICES):
            _clear(state, kind)
        standing.rows = self._put(state, HOME, mine, standing.rows)
        standing.rows = self._put(state, IDS, pa.table({VERTEX: home.ids}), standing.rows)
        is_text = int(home.is_text)
        return {"vertices": len(home), "texts": is_text, "numbers": int(len(home) > 0) - is_text}

    # --- the algorithm ---

    def _own(self, state: Overlay, standing: Standing) -> tuple[Home, Algorithm]:
        if self._made is None:
            ids = _rows(state, IDS, {VERTEX: ""})[VERTEX]
            if standing.is_text and not len(ids):
                ids = ids.cast(pa.string())
            home = Home(_rows(state, HOME, self._columns[EDGES]), ids, self._shards)
            part = Part(self._spec, home, self._number, self._shards, standing.vertices, standing.is_text)
            self._made = home, ALGORITHMS[self._spec.algorithm](part)
        return self._made

    def _values(self, state: Overlay) -> pa.Table | None:
        """The state of the vertices; None: there are no vertices."""
        entries = state.scan(VALUES, after(VALUES))
        if not entries.num_rows:
            return None
        return pa.concat_tables([block.decode([each.as_buffer()]) for each in one(entries[IPC])])

    def _end(self, state: Overlay, ids: pa.Array, columns: Mapping[str, pa.Array], limit: int) -> None:
        """Put the results in place of all else."""
        for kind in (HOME, IDS, VALUES):
            _clear(state, kind)
        put_results(state, pa.table({self._spec.id: ids, **columns}), limit)

    def _put(self, state: Overlay, kind: bytes, table: pa.Table, number: int = 0) -> int:
        _clear(state, kind)
        return put_blocks(state, kind, number, block.encode(table, MOST_BYTES))

    # --- messages ---

    def _sent(
        self, step: int, parcels: Iterable[tuple[int, str, pa.Table]], totals: Totals
    ) -> dict[int, list[block.Block]]:
        """The blocks to each partition: what shards send, and behind it the marker."""
        rows: dict[int, list[tuple[str, bytes]]] = {shard: [] for shard in range(self._shards)}
        for shard, kind, table in parcels:
            rows[shard] += [(kind, each.value) for each in block.encode(table, _BODY)]
        marker = MARKER, msgspec.json.encode(totals)
        return {shard: _blocks(step, self._number, [*some, marker]) for shard, some in rows.items()}


def _blocks(step: int, shard: int, rows: Sequence[tuple[str, bytes]]) -> list[block.Block]:
    columns = [
        np.full(len(rows), step),
        np.full(len(rows), shard),
        [kind for kind, _ in rows],
        [body for _, body in rows],
    ]
    return block.encode(pa.table(columns, schema=MESSAGES))


def _inbox_blocks(waiting: Sequence[pa.Table]) -> list[block.Block]:
    return block.encode(pa.concat_tables(waiting), MOST_BYTES) if waiting else []


def _read_body(body: pa.Scalar) -> pa.Table:
    return block.decode([body.as_buffer()])


def _read(state: Overlay) -> Standing:
    entry = state.scan(_STANDING, None, 1)
    if not entry.num_rows:
        return Standing()
    found = msgspec.json.decode(one(entry[IPC])[0].as_py(), type=Standing)
    refuse_newer("entries of a graph that several peers compute", found.format, FORMAT)
    return found


def _rows(state: Overlay, kind: bytes, columns: Mapping[str, str]) -> pa.Table:
    """All rows of a kind, out of the state."""
    entries = state.scan(kind, after(kind))
    if not entries.num_rows:
        return empty_rows(columns)
    return joined([block.decode([value.as_buffer()]) for value in one(entries[IPC])])


def _clear(state: Overlay, kind: bytes) -> None:
    state.remove(one(state.scan(kind, after(kind))[KEY]))


def _agree(totals: Totals) -> None:
    """All shards have vertices of one type."""
    if totals["texts"] and totals["numbers"]:
        raise FunctionError(
            "SX-GRAPH-ID",
            "some vertices of a graph are numbers and others texts",
            cause=f"{totals['numbers']} of its partitions have numbers, and {totals['texts']} have texts",
            fix="convert all of them to one type in the tasks before: 1 and '1' are two vertices",
        )


__all__ = ["MARKER", "MESSAGES", "Standing", "SuperstepPlan", "SuperstepShard"]
