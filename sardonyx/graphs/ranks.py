"""PageRank (Page et al., 1999), in exact sums."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sardonyx.graphs.shards import Floats, Numbers, Shards

ONE = 1 << 62
"""The sum of all ranks. Ranks are computed as whole numbers, because sums of whole numbers are the same in every order. The sum
of any of them fits into 64 bits."""


class Ranks(NamedTuple):
    """Ranks of all vertices, after so many supersteps, and the sum of how far they moved in the last one."""

    ranks: Floats
    supersteps: int
    moved: float


def pagerank(
    shards: Shards, damping: float, supersteps: int, tolerance: float | None = None, start: Floats | None = None
) -> Ranks:
    """The ranks after some supersteps, as LDBC Graphalytics defines them: their sum is 1.

    The rank of a vertex without edges out of it is shared out among all vertices, in proportion to ``start``.

    Args:
        shards: edges, each sent along in its own direction; parallel ones count as often as they are there.
        damping: the share of a rank that goes along the edges, from 0 to 1.
        supersteps: the most there are.
        tolerance: they end when all ranks together move by no more than this in one; None: they do not.
        start: where the rest of a rank goes, by vertex; not negative, and more than 0 in sum. None: to all alike.
    """
    count = shards.vertices
    if not count:
        return Ranks(np.zeros(0), 0, 0.0)
    degrees = shards.degrees()
    divisors = np.maximum(degrees, 1)
    dangling = np.flatnonzero(degrees == 0)
    wanted = np.full(count, 1 / count) if start is None else start / math.fsum(start[start > 0])
    ranks: Numbers = np.full(count, ONE // count)
    inbox = np.zeros(count, np.int64)
    moved, done = float("inf"), 0
    while done < supersteps and (tolerance is None or moved > tolerance):
        inbox[:] = 0
        shares = ranks // divisors
        for shard in shards:
            np.add.at(inbox, shard.targets, shard.spread(shares))
        lost = float(ranks[dangling].sum())
        after = (wanted * (damping * lost + (1 - damping) * ONE) + damping * inbox).astype(np.int64)
        moved = float(np.abs(after - ranks).sum(dtype=np.uint64)) / ONE  # may be 2
        ranks, done = after, done + 1
    return Ranks(ranks / ONE, done, moved)
