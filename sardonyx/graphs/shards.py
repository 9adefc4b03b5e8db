"""Edges between numbered vertices, and how messages go along them, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


V = TypeVar("V", bound=np.generic)


class Edges(NamedTuple):
    """Edges of a graph whose vertices are the numbers from 0 to ``vertices`` - 1.

    ``sources``, ``targets`` and ``weights`` are as long as there are edges. Weights are finite and not negative, or the numbers
    of the rows that edges come from.
    """

    vertices: int
    sources: Numbers
    targets: Numbers
    weights: Floats | Numbers | None = None

    def both_ways(self) -> Edges:
        """Each edge and its reverse. An edge from a vertex to itself stays one edge."""
        other = self.sources != self.targets
        sources = np.concatenate([self.sources, self.targets[other]])
        targets = np.concatenate([self.targets, self.sources[other]])
        weights = None if self.weights is None else np.concatenate([self.weights, self.weights[other]])
        return Edges(self.vertices, sources, targets, weights)

    def pairs(self) -> Edges:
        """Each two vertices with an edge between them once, the lesser first: no direction, no parallel edges, no edges from
        a vertex to itself.
        """
        keys = np.minimum(self.sources, self.targets) * self.vertices + np.maximum(self.sources, self.targets)
        keys = distinct(keys[self.sources != self.targets])
        sources, targets = np.divmod(keys, max(self.vertices, 1))
        return Edges(self.vertices, sources, targets)

    def simple(self) -> Edges:
        """The neighbours of each vertex: :meth:`pairs`, both ways."""
        return self.pairs().both_ways()


class Shard:
    """The edges out of some vertices, sorted by their sources: of ``count`` shards, number i has the vertices i, i + count, ...

    Args:
        edges: of all shards.
        number: of this shard, from 0.
        count: of shards.
    """

    def __init__(self, edges: Edges, number: int, count: int) -> None:
        self._number, self._count = number, count
        sources, targets, weights = edges.sources, edges.targets, edges.weights
        if count > 1:
            here = np.flatnonzero(sources % count == number)
            sources, targets = sources[here] // count, targets[here]
            weights = None if weights is None else weights[here]
        size = max(edges.vertices - number + count - 1, 0) // count
        if weights is None:  # sorting numbers is ten times as fast as sorting their places
            sources, targets = np.divmod(np.sort(sources * edges.vertices + targets), max(edges.vertices, 1))
        else:
            order = np.argsort(sources, kind="stable")
            sources, targets, weights = sources[order], targets[order], weights[order]
        self._counts: Numbers = np.bincount(sources, minlength=size).astype(np.int64)
        self._starts: Numbers = np.cumsum(self._counts) - self._counts
        self.targets: Numbers = targets
        self.weights = weights

    def own(self, values: NDArray[V]) -> NDArray[V]:
        """The values of this shard's vertices, out of those of all."""
        return values[self._number :: self._count]

    def spread(self, values: NDArray[V]) -> NDArray[V]:
        """For each edge the value of its source, out of those of all vertices."""
        return np.repeat(self.own(values), self._counts)

    def degrees(self) -> Numbers:
        """How many edges go out of each of this shard's vertices."""
        return self._counts

    def among(self, vertices: Numbers) -> Numbers:
        """Those of some vertices that are in this shard."""
        return vertices if self._count == 1 else vertices[vertices % self._count == self._number]

    def out_of(self, vertices: Numbers) -> tuple[Numbers, Numbers]:
        """The edges of this shard out of any of some vertices: their places in the shard, and those of their sources in
        ``vertices``.
        """
        if self._count == 1:
            return ranges(self._starts[vertices], self._counts[vertices])
        here = np.flatnonzero(vertices % self._count == self._number)
        local = vertices[here] // self._count
        places, which = ranges(self._starts[local], self._counts[local])
        return places, here[which]


class Shards:
    """All edges of a graph, in one or more shards.

    Args:
        edges: each is sent along in its own direction.
        count: how many shards.
    """

    def __init__(self, edges: Edges, count: int = 1) -> None:
        self.vertices = edges.vertices
        self.count = count
        self._shards = [Shard(edges, number, count) for number in range(count)]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def degrees(self) -> Numbers:
        """How many edges go out of each vertex."""
        found = np.zeros(self.vertices, np.int64)
        for shard in self._shards:
            shard.own(found)[:] = shard.degrees()
        return found

    def reached(self, vertices: Numbers) -> Numbers:
        """The targets of all edges out of these vertices, as often as there are such edges."""
        return np.concatenate([shard.targets[shard.out_of(vertices)[0]] for shard in self._shards])


def ranges(starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers from each start on, so many as its count says; and for each the place of its start."""
    which = np.repeat(np.arange(len(starts)), counts)
    ends = np.cumsum(counts)
    return np.arange(len(which)) + (starts - ends + counts)[which], which


def distinct(values: Numbers) -> Numbers:
    """Each value once, ascending."""
    ordered: Numbers = np.sort(values)
    return ordered[runs(ordered)]


def runs(values: Numbers) -> Mask:
    """Of sorted values: which are not equal to the one before."""
    first = np.ones(len(values), np.bool_)
    first[1:] = values[1:] != values[:-1]
    return first


class Once:
    """Drops repeats of vertices in time that grows with what is given, and not with the number of vertices."""

    def __init__(self, count: int) -> None:
        self._seen = np.zeros(count, np.int64)

    def __call__(self, vertices: Numbers) -> Numbers:
        order = np.arange(len(vertices))
        self._seen[vertices] = order
        last: Mask = self._seen[vertices] == order
        return vertices[last]
