"""How far vertices are from given ones: in edges, or by the weights of the edges."""

from __future__ import annotations

import numpy as np

from sardonyx.graphs.shards import Floats, Numbers, Once, Shards

FAR = -1
"""The depth of a vertex that no path leads to."""


def breadth_first(shards: Shards, start: Numbers, hops: int | None = None) -> tuple[Numbers, int]:
    """The least number of edges on a path from any of the given vertices to each, or :data:`FAR`; and the number of supersteps.

    Args:
        shards: edges, each sent along in its own direction.
        start: at least one vertex.
        hops: longer paths do not count; None: all do.
    """
    depths = np.full(shards.vertices, FAR, np.int64)
    once = Once(shards.vertices)
    front, depth = once(start), 0
    depths[front] = 0
    while len(front) and (hops is None or depth < hops):
        depth += 1
        found = shards.reached(front)
        front = once(found[depths[found] == FAR])
        depths[front] = depth
    return depths, depth


def shortest(shards: Shards, start: Numbers) -> tuple[Floats, int]:
    """The least sum of weights on a path from any of the given vertices to each, infinite if none leads there; and how many
    supersteps it took.

    Args:
        shards: edges with weights, each sent along in its own direction.
        start: at least one vertex.

    Raises:
        OverflowError: a sum is greater than any number with 64 bits.
    """
    distances = np.full(shards.vertices, np.inf)
    offers = np.full(shards.vertices, np.inf)
    once = Once(shards.vertices)
    front, steps = once(start), 0
    distances[front] = 0
    while len(front):
        steps += 1
        reached: list[Numbers] = []
        for shard in shards:
            assert shard.weights is not None  # noqa: S101 (for the type checker: the caller gives weights)
            places, which = shard.out_of(front)
            targets = shard.targets[places]
            with np.errstate(over="ignore"):
                sums = distances[front[which]] + shard.weights[places]
            if np.isinf(sums).any():
                raise OverflowError("the sum of the weights on a path is too great")
            np.minimum.at(offers, targets, sums)
            reached.append(targets)
        told = once(np.concatenate(reached))
        front = told[offers[told] < distances[told]]
        distances[front] = offers[front]
        offers[told] = np.inf
    return distances, steps
