"""The components of a graph that has grown: those that there were, joined by the edges that came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.graphs.components import connected
from sardonyx.graphs.rows import Vertices
from sardonyx.graphs.shards import Edges, Mask, Numbers, Shards


class Parts(NamedTuple):
    """The components of a graph.

    ``ids``: all vertices, in their order. ``roots``: for each the place of the least vertex of its component.
    """

    ids: pa.Array
    roots: Numbers

    @classmethod
    def of(cls, rows: pa.Table) -> Parts:
        """Out of the results of ``connected_components``: a column with the vertices, and one with their components."""
        ids, components = (
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type) for column in rows
        )
        return cls(ids, _places(ids, components))


class Grown(NamedTuple):
    """``changed``: the vertices that are new, or in another component. ``steps``: supersteps that it took."""

    parts: Parts
    changed: Mask
    steps: int


def grown(
    before: Parts, sources: pa.ChunkedArray, targets: pa.ChunkedArray, further: Sequence[pa.ChunkedArray]
) -> Grown | None:
    """The components after further edges: bit by bit those that the whole graph has. It takes time for what came, and some for
    each vertex, but none for the edges that there were.

    Args:
        before: the components without them.
        sources: of the edges that came.
        targets: of each.
        further: vertices that came besides.

    Returns:
        None: the vertices that came are of another type than those that there were.

    Raises:
        FunctionError: ``SX-GRAPH-ID``.
    """
    came = Vertices([sources, targets, *further])
    if not len(came):
        return Grown(before, np.zeros(len(before.ids), np.bool_), 0)
    if came.type != before.ids.type:
        return None
    count, places = len(before.ids), _places(before.ids, came.ids)
    new = np.flatnonzero(places < 0)
    ids, roots = before.ids, before.roots
    if len(new):
        places[new] = count + np.arange(len(new))
        both = pa.concat_arrays([before.ids, came.ids.take(pa.array(new))])
        order = _order(both)
        moved = np.empty(len(both), np.int64)
        moved[order] = np.arange(len(both))
        ids, places = both.take(pa.array(order)), moved[places]
        roots = np.arange(len(both))
        roots[moved[:count]] = moved[before.roots]
    changed = np.zeros(len(ids), np.bool_)
    changed[places[new]] = True
    here, there = (roots[places[came.column(side)]] for side in (0, 1))
    joined, ends = np.unique(np.concatenate([here, there]), return_inverse=True)
    least, steps = connected(Shards(Edges(len(joined), ends[: len(here)], ends[len(here) :])))
    into = np.arange(len(ids))
    into[joined] = joined[least]
    now = into[roots]
    return Grown(Parts(ids, now), changed | (now != roots), steps)


def _places(ids: pa.Array, wanted: pa.Array) -> Numbers:
    """The places of vertices among all, which are in their order; -1: it is none of them."""
    if not kinds.is_integer(ids.type):
        found: Numbers = pc.fill_null(pc.index_in(wanted, ids), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return found
    if not len(ids):
        return np.full(len(wanted), -1)
    every, values = ids.to_numpy(), wanted.to_numpy()
    places = np.minimum(np.searchsorted(every, values), len(every) - 1)
    return np.where(every[places] == values, places, -1)


def _order(ids: pa.Array) -> Numbers:
    """The places of vertices in their order. Two runs in order, one after the other, take little time."""
    if kinds.is_integer(ids.type):
        return np.argsort(ids.to_numpy(), kind="stable")
    found: Numbers = pc.sort_indices(ids).to_numpy().astype(np.int64)
    return found


__all__ = ["Grown", "Parts", "grown"]
