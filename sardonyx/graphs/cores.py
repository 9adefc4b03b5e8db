"""How deep in the densest parts of a graph a vertex is."""

from __future__ import annotations

import numpy as np

from sardonyx.graphs.shards import Numbers, Once, Shards


def cores(shards: Shards) -> tuple[Numbers, int]:
    """For each vertex the greatest k for which it is in the k-core; and how many supersteps it took.

    The k-core is what is left when vertices with fewer than k neighbours are taken away until there are none. (Seidman, 1983;
    Matula and Beck, 1983.)

    Args:
        shards: the neighbours of each vertex: :meth:`~sardonyx.graphs.shards.Edges.simple`.
    """
    left = shards.degrees()
    found = np.zeros(shards.vertices, np.int64)
    there = np.arange(shards.vertices)
    alive = np.ones(shards.vertices, np.bool_)
    once = Once(shards.vertices)
    steps = k = 0
    while len(there):
        k = max(k, int(left[there].min()))
        gone = there[left[there] <= k]
        while len(gone):
            steps += 1
            found[gone] = k
            alive[gone] = False
            told = shards.reached(gone)
            told = told[alive[told]]
            np.subtract.at(left, told, 1)
            gone = once(told[left[told] <= k])
        there = there[alive[there]]
    return found, steps
