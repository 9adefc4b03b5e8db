"""Which vertices hang together."""

from __future__ import annotations

import numpy as np

from sardonyx.graphs.shards import Numbers, Shards


def connected(shards: Shards) -> tuple[Numbers, int]:
    """For each vertex the least one that a path leads to, whatever the directions of the edges; and how many supersteps it took.

    Each superstep joins trees of vertices (Shiloach and Vishkin, 1982): a root becomes a child of the least root that its tree
    has an edge to, if that is less than itself. Two supersteps at least halve the trees that have an edge to another one. So even
    a path of a million vertices takes few.

    Args:
        shards: each edge in either direction, or in both.
    """
    roots = np.arange(shards.vertices)
    ends = [(shard.spread(roots), shard.targets) for shard in shards]
    steps = 0
    while any(len(here) for here, _ in ends):
        steps += 1
        joined = roots.copy()
        for here, there in ends:
            np.minimum.at(joined, np.maximum(here, there), np.minimum(here, there))
        roots = _flat(joined)
        ends = [_apart(roots[here], roots[there]) for here, there in ends]
    return roots, steps


def _flat(parents: Numbers) -> Numbers:
    """The root of each vertex."""
    while True:
        grand = parents[parents]
        if np.array_equal(grand, parents):
            return parents
        parents = grand


def _apart(here: Numbers, there: Numbers) -> tuple[Numbers, Numbers]:
    """The edges between trees."""
    apart = here != there
    return here[apart], there[apart]
