"""Graph algorithms as plain loops over dictionaries, from the definitions of LDBC Graphalytics. Slow, and easy to believe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Pairs = Iterable[tuple[Any, Any]]


def ways(edges: Pairs, *, directed: bool) -> list[tuple[Any, Any]]:
    """The edges in all directions in which they count. A self-loop is one edge."""
    found = list(edges)
    return found if directed else found + [(b, a) for a, b in found if a != b]


def pagerank(
    vertices: Iterable[Any],
    edges: Pairs,
    *,
    directed: bool,
    damping: float,
    supersteps: int,
    start: Mapping[Any, float] | None = None,
) -> dict[Any, float]:
    vertices, every = list(vertices), ways(edges, directed=directed)
    total = len(vertices) if start is None else sum(start.values())
    wanted = {v: (1 if start is None else start.get(v, 0)) / total for v in vertices}
    out = Counter(a for a, _ in every)
    ranks = {v: 1 / len(vertices) for v in vertices}
    for _ in range(supersteps):
        lost = sum(ranks[v] for v in vertices if not out[v])
        after = {v: wanted[v] * (1 - damping + damping * lost) for v in vertices}
        for a, b in every:
            after[b] += damping * ranks[a] / out[a]
        ranks = after
    return ranks


def propagate(vertices: Iterable[Any], edges: Pairs, supersteps: int) -> dict[Any, Any]:
    """CDLP. A neighbour counts for each edge, of either direction."""
    labels = {v: v for v in vertices}
    told = ways(edges, directed=False)
    for _ in range(supersteps):
        votes: dict[Any, Counter[Any]] = {v: Counter() for v in labels}
        for a, b in told:
            votes[b][labels[a]] += 1
        labels = {v: min(votes[v], key=lambda x: (-votes[v][x], x)) if votes[v] else labels[v] for v in labels}
    return labels


def clustering(vertices: Iterable[Any], edges: Pairs, *, directed: bool) -> dict[Any, float]:
    """LCC: the edges among the neighbours of a vertex, over those that there could be."""
    there = set(ways(edges, directed=directed))
    found = {}
    for v in vertices:
        near = {b for a, b in there if a == v} | {a for a, b in there if b == v}
        near.discard(v)
        most = len(near) * (len(near) - 1)
        found[v] = sum((a, b) in there for a in near for b in near if a != b) / most if most else 0.0
    return found
