"""The part of a graph that one shard has: the vertices whose home it is, and the edges out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from queues.keys import checksums
from sardonyx.graphs.rows import SOURCE, TARGET, VERTEX, WEIGHT, Vertices
from sardonyx.graphs.shards import Floats, Numbers, ranges


def homes_of(vertices: pa.Array | pa.ChunkedArray, shards: int) -> Numbers:
    """The shard of each vertex: the partition to which the links of a graph's task send rows with this key."""
    if not len(vertices):
        return np.zeros(0, np.int64)
    return (checksums([vertices]) % shards).astype(np.int64)


def both_ways(edges: pa.Table) -> pa.Table:
    """Each edge and its reverse. An edge from a vertex to itself stays one edge."""
    other = edges.filter(pc.not_equal(edges[SOURCE], edges[TARGET]))
    turned = {SOURCE: other[TARGET], TARGET: other[SOURCE]}
    turned |= {name: other[name] for name in edges.column_names if name == WEIGHT}
    return pa.concat_tables([edges, pa.table(turned).select(edges.column_names)])


def parted(rows: pa.Table, column: str, shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Rows by the home of one of their vertices: each shard that has some, with its rows."""
    homes = homes_of(rows[column], shards)
    for shard in np.unique(homes).tolist():
        yield shard, rows.filter(pa.array(homes == shard))


class Home:
    """The vertices of a shard, numbered from 0 in their order, and the edges out of them, sorted by their sources.

    Messages go along edges. Those to one vertex are combined before they are sent, so each vertex that edges lead to has a
    *slot*: its number among them. Slots are in the order of shards.

    Args:
        edges: whose sources are at home here, in the columns of :func:`~sardonyx.graphs.rows.read_rows`.
        vertices: further vertices that are.
        shards: how many there are.

    Raises:
        FunctionError: ``SX-GRAPH-ID``, some vertices are numbers and others texts.
    """

    def __init__(self, edges: pa.Table, vertices: pa.ChunkedArray, shards: int) -> None:
        known = Vertices([edges[SOURCE], vertices])
        self.ids: pa.Array = known.ids
        sources = known.column(0)
        order = np.argsort(sources, kind="stable")
        self.counts: Numbers = np.bincount(sources, minlength=len(known)).astype(np.int64)
        self._starts: Numbers = np.cumsum(self.counts) - self.counts
        self.sources: Numbers = sources[order]
        self.weights: Floats | None = edges[WEIGHT].to_numpy()[order] if WEIGHT in edges.column_names else None
        named = Vertices([edges[TARGET]])
        homes = homes_of(named.ids, shards)
        by_home = np.argsort(homes, kind="stable")
        slot = np.empty(len(by_home), np.int64)
        slot[by_home] = np.arange(len(by_home))
        self.slots: Numbers = slot[named.column(0)][order]
        """The slot of the target of each edge."""
        self.targets: pa.Array = named.ids.take(pa.array(by_home))
        """The vertex of each slot."""
        self._bounds = np.searchsorted(homes[by_home], np.arange(shards + 1))
        self.is_text = kinds.is_string(self.ids.type)

    def __len__(self) -> int:
        return len(self.ids)

    def out_of(self, vertices: Numbers) -> tuple[Numbers, Numbers]:
        """The edges out of any of some vertices: their places, and those of their sources in ``vertices``."""
        return ranges(self._starts[vertices], self.counts[vertices])

    def find(self, wanted: pa.ChunkedArray | pa.Array) -> Numbers:
        """The numbers of vertices that are at home here."""
        if self.is_text:
            return np.asarray(pc.index_in(wanted, self.ids), np.int64)
        return np.asarray(np.searchsorted(self.ids.to_numpy(), wanted.to_numpy()), np.int64)

    def to_shards(self, slots: Numbers, values: pa.Array | None) -> Iterator[tuple[int, pa.Table]]:
        """Messages by the shard that they go to.

        Args:
            slots: those that get one, ascending.
            values: what each gets; None: messages say nothing but that they come.
        """
        ends = np.searchsorted(slots, self._bounds)
        for shard, (first, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if first < end:
                columns = {VERTEX: self.targets.take(pa.array(slots[first:end]))}
                columns |= {} if values is None else {VALUE: values.slice(first, end - first)}
                yield shard, pa.table(columns)


VALUE = "value"
"""The column of messages with what they say."""


def together(tables: Sequence[pa.Table], column: str) -> pa.ChunkedArray | None:
    """A column of several tables; None: there are no rows."""
    chunks = [chunk for table in tables for chunk in table[column].chunks if len(chunk)]
    return pa.chunked_array(chunks) if chunks else None


__all__ = ["VALUE", "Home", "both_ways", "homes_of", "parted", "together"]
