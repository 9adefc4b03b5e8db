"""Communities by label propagation, as LDBC Graphalytics defines it (CDLP): all vertices change their labels at once."""

from __future__ import annotations

import numpy as np

from sardonyx.graphs.shards import Numbers, Shards, runs


def propagate(shards: Shards, supersteps: int) -> tuple[Numbers, int]:
    """The label of each vertex after some supersteps, and how many there were: they end early when no label changes.

    First each vertex is its own label. Then each takes the label that most of its neighbours have, the least of several.
    A neighbour counts as often as there are edges to or from it. A vertex without neighbours keeps its label.

    Args:
        shards: each edge as it is, and its reverse.
        supersteps: the most there are.
    """
    count = shards.vertices
    labels: Numbers = np.arange(count)
    for step in range(supersteps):
        parts = [_counted(np.sort(shard.targets * count + shard.spread(labels))) for shard in shards]
        keys = np.concatenate([keys for keys, _ in parts])
        votes = np.concatenate([votes for _, votes in parts])
        if len(parts) > 1:
            order = np.argsort(keys, kind="stable")
            keys, votes = keys[order], votes[order]
            first = np.flatnonzero(runs(keys))
            keys, votes = keys[first], np.add.reduceat(votes, first) if len(first) else votes
        vertices, proposed = np.divmod(keys, max(count, 1))
        most = np.zeros(count, np.int64)
        np.maximum.at(most, vertices, votes)
        best = votes == most[vertices]
        after = labels.copy()
        after[vertices[best]] = count
        np.minimum.at(after, vertices[best], proposed[best])
        if np.array_equal(after, labels):
            return labels, step
        labels = after
    return labels, supersteps


def _counted(keys: Numbers) -> tuple[Numbers, Numbers]:
    """Sorted keys, each once, and how often each was there."""
    first = np.flatnonzero(runs(keys))
    return keys[first], np.diff(np.append(first, len(keys)))
