"""Which neighbours vertices have in common: triangles, clustering, and given pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sardonyx.graphs.shards import Edges, Floats, Mask, Numbers, Shards, distinct

_AT_ONCE = 4_000_000
"""About how many pairs of edges are looked at together: a hub has as many as the square of its edges."""


class Between:
    """Which of the given edges there are.

    Args:
        edges: as they are; parallel ones count as one.
    """

    def __init__(self, edges: Edges) -> None:
        self._count = edges.vertices
        self._keys = distinct(edges.sources * edges.vertices + edges.targets)

    def there(self, sources: Numbers, targets: Numbers) -> Mask:
        """Whether there is an edge, of each of these."""
        if not len(self._keys):
            return np.zeros(len(sources), np.bool_)
        wanted = sources * self._count + targets
        places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found: Mask = self._keys[places] == wanted
        return found


def triangles(edges: Edges, shards: int = 1) -> Numbers:
    """How many triangles each vertex is in, whatever the directions of the edges; parallel edges count as one."""
    found = np.zeros(edges.vertices, np.int64)
    for corners in _triangles(edges, shards):
        for corner in corners:
            np.add.at(found, corner, 1)
    return found


def clustering(edges: Edges, shards: int = 1) -> Floats:
    """The local clustering coefficient of each vertex, as LDBC Graphalytics defines it (LCC).

    It is the number of edges among the neighbours of the vertex, divided by how many there could be. Neighbours do not depend on
    directions, and the edges among them do: one each way is two. It is 0 for fewer than two neighbours.
    """
    neighbours = Shards(edges.simple(), 1).degrees()
    between = Between(edges)
    found = np.zeros(edges.vertices, np.int64)
    for first, second, third in _triangles(edges, shards):
        for corner, a, b in ((first, second, third), (second, first, third), (third, first, second)):
            np.add.at(found, corner, between.there(a, b).astype(np.int64) + between.there(b, a))
    most = neighbours * (neighbours - 1)
    shares: Floats = np.divide(found, most, out=np.zeros(edges.vertices), where=most > 0)
    return shares


def in_common(edges: Edges, first: Numbers, second: Numbers, shards: int = 1) -> tuple[Numbers, Numbers]:
    """Of pairs of vertices: how many neighbours both have, and how many either has.

    Args:
        edges: whatever their directions; parallel edges count as one, and no vertex is its own neighbour.
        first: one vertex of each pair.
        second: the other one.
        shards: how many shards the neighbours lie in.
    """
    simple = edges.simple()
    between, parts = Between(simple), Shards(simple, shards)
    degrees = parts.degrees()
    common = np.zeros(len(first), np.int64)
    begins = _cuts(degrees[first])
    for begin, end in pairwise(begins):
        asked = np.arange(begin, end)
        for shard in parts:
            places, which = shard.out_of(first[asked])
            both = between.there(second[asked[which]], shard.targets[places])
            np.add.at(common, asked[which], both.astype(np.int64))
    return common, degrees[first] + degrees[second] - common


def _triangles(edges: Edges, count: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """The corners of all triangles, each triangle once.

    Each edge leads from the vertex with fewer neighbours to the one with more, so even a hub has few edges out of it. A triangle
    is two edges, one after the other, whose outer ends have an edge between them. (Schank and Wagner, 2005.)
    """
    pairs = edges.pairs()
    degrees = np.bincount(pairs.sources, minlength=edges.vertices) + np.bincount(
        pairs.targets, minlength=edges.vertices
    )
    order = np.argsort(degrees, kind="stable")
    place = np.empty(edges.vertices, np.int64)
    place[order] = np.arange(edges.vertices)
    here, there = place[pairs.sources], place[pairs.targets]
    upward = Edges(edges.vertices, np.minimum(here, there), np.maximum(here, there))
    between, shards = Between(upward), Shards(upward, count)
    out = shards.degrees()
    for shard in shards:
        tails = shard.spread(np.arange(edges.vertices))
        begins = _cuts(out[shard.targets])
        for begin, end in pairwise(begins):
            heads = shard.targets[begin:end]
            for other in shards:
                places, which = other.out_of(heads)
                tops, bottoms = other.targets[places], tails[begin:end][which]
                closed = between.there(bottoms, tops)
                yield order[bottoms[closed]], order[heads[which][closed]], order[tops[closed]]


def _cuts(sizes: Numbers) -> list[int]:
    """Where to cut, so that the sizes of each part are about :data:`_AT_ONCE` together."""
    if not len(sizes):
        return [0]
    part = np.cumsum(sizes) // _AT_ONCE
    return [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist(), len(sizes)]
