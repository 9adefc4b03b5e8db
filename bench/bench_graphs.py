"""Graph algorithms beside scipy and networkx: `PYTHONPATH=. python bench/bench_graphs.py [--scale 17] [--edges 8] [--rounds 5]`.

One thread, seconds of processor, the least of some rounds in which the sides alternate. The graph is a seeded R-MAT graph, as
Graph500 makes it (0.57, 0.19, 0.19): with `--scale 17 --edges 8` it has 1,048,576 edges. A superstep of PageRank stands beside
one product of scipy's matrix with a vector, which is the least that PageRank needs. The ranks are compared first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import networkx as nx
import numpy as np
import pyarrow as pa
from machine import machine
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Graph, compute
from sardonyx.graphs.ranks import pagerank
from sardonyx.graphs.shards import Edges, Numbers, Shards


def r_mat(scale: int, degree: int, seed: int = 7) -> tuple[Numbers, Numbers]:
    """The sources and targets of a graph with 2**scale vertices, many of which have no edge."""
    chance = np.random.default_rng(seed)
    count = degree << scale
    source, target = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for bit in range(scale):
        drawn = chance.random(count)
        source |= (drawn >= 0.76).astype(np.int64) << bit
        target |= (((drawn >= 0.57) & (drawn < 0.76)) | (drawn >= 0.95)).astype(np.int64) << bit
    names = chance.permutation(1 << scale)
    return names[source], names[target]


def spent(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def least(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each side."""
    found = {name: [spent(act) for _ in range(1)] for name, act in sides.items()}
    for _ in range(rounds - 1):
        for name, act in sides.items():
            found[name].append(spent(act))
    return {name: min(times) for name, times in found.items()}


def line(what: str, ours: float, theirs: float | None = None, beside: str = "") -> None:
    text = f"{what:<44} {ours * 1e3:>10,.1f} ms"
    print(text if theirs is None else f"{text}   {beside:<28} {theirs * 1e3:>10,.1f} ms   {theirs / ours:.2f} x")


def ranks(edges: Edges, rounds: int) -> None:
    matrix = sparse.csr_matrix((np.ones(len(edges.sources)), (edges.targets, edges.sources)), (edges.vertices,) * 2)
    vector = np.full(edges.vertices, 1 / edges.vertices)
    shards = Shards(edges)
    degrees = shards.degrees()
    wanted = vector
    for _ in range(3):
        lost = wanted[degrees == 0].sum()
        wanted = (0.15 + 0.85 * lost) / edges.vertices + 0.85 * (matrix @ (wanted / np.maximum(degrees, 1)))
    assert np.abs(pagerank(shards, 0.85, 3).ranks - wanted).max() < 1e-12
    for count in (1, 2, 4, 8):
        parts = Shards(edges, count)
        found = least({"ours": lambda parts=parts: pagerank(parts, 0.85, 10), "scipy": lambda: matrix @ vector}, rounds)
        line(f"PageRank, a superstep, shards {count}", found["ours"] / 10, found["scipy"], "scipy, a product")


def others(sources: Numbers, targets: Numbers, edges: Edges, rounds: int) -> None:
    table = Graph(pa.table({"source": sources, "target": targets}))
    line("rows to sorted edges, once", least({"ours": lambda: _rows(table)}, rounds)["ours"])
    matrix = sparse.csr_matrix((np.ones(len(sources)), (edges.sources, edges.targets)), (edges.vertices,) * 2)
    graph = nx.Graph(zip(edges.sources.tolist(), edges.targets.tolist(), strict=True))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    start = int(edges.sources[0])
    from_one = {"start": [int(sources[0])]}
    for algorithm, beside, theirs, given in (
        ("connected_components", "networkx", lambda: list(nx.connected_components(graph)), {}),
        ("connected_components", "scipy", lambda: connected_components(matrix, directed=False), {}),
        ("k_core", "networkx", lambda: nx.core_number(graph), {}),
        ("bfs", "networkx", lambda: nx.single_source_shortest_path_length(graph, start), from_one),
        ("label_propagation", "", None, {"max_supersteps": 10}),
        ("triangles", "", None, {}),  # networkx takes minutes
    ):
        spec = GraphSpec(algorithm=algorithm, edges="e", source="a", target="b", directed=False, **given)
        ours = {"ours": lambda spec=spec: compute(spec, table)}
        times = least(ours | ({} if theirs is None else {"theirs": theirs}), min(rounds, 3))
        line(f"{algorithm}, from rows to rows", times["ours"], times.get("theirs"), f"{beside}, compute only")


def _rows(table: Graph) -> None:
    compute(GraphSpec(algorithm="pagerank", edges="e", source="a", target="b", max_supersteps=1), table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=17)
    parser.add_argument("--edges", type=int, default=8, help="for each vertex")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    sources, targets = r_mat(given.scale, given.edges)
    there, places = np.unique(np.concatenate([sources, targets]), return_inverse=True)
    edges = Edges(len(there), places[: len(sources)], places[len(sources) :])
    print(f"{machine()}\nR-MAT: {edges.vertices:,} vertices with an edge, {len(sources):,} edges")
    ranks(edges, given.rounds)
    others(sources, targets, edges, given.rounds)


if __name__ == "__main__":
    main()
