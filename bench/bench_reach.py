"""What tables of distances cost and save, beside a search: ``PYTHONPATH=. python bench/bench_reach.py [nodes ...]``.

A graph as large jobs could have it: each task comes after one to three earlier ones. Measured are a look-up of pairs by chance,
building the graph, and a link that goes and comes back. Beside it stand a breadth-first search in plain Python and, if it is
installed (the extra ``bench``), networkx: both keep no table, so their links cost next to nothing and their look-ups a search.
``with all distances`` is what they take to know as much as the tables do. All sides take turns in one process, and must give the
same answers. Time is that of the processor.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from machine import machine

from sardonyx.core.reach import Reach

ROUNDS = 7
PAIRS = {"tables": 20_000, "search": 200, "networkx": 200}
"""So many look-ups a round, so that each side takes some milliseconds."""
LINKS = 20


class Tables(Reach[int]):
    """The tables, asked for a distance."""

    def distance(self, source: int, target: int) -> int | None:
        return self.after(source).get(target)


class Search:
    """The graph alone: the nodes after each, and a search for each question."""

    def __init__(self) -> None:
        self.targets: dict[int, set[int]] = {}

    def add(self, node: int, after: list[int]) -> None:
        self.targets[node] = set()
        for source in after:
            self.targets[source].add(node)

    def link(self, source: int, target: int) -> None:
        self.targets[source].add(target)

    def unlink(self, source: int, target: int) -> None:
        self.targets[source].discard(target)

    def distances(self, start: int, stop: int | None = None) -> dict[int, int]:
        found, waiting = {start: 0}, [start]
        for node in waiting:
            for target in self.targets[node]:
                if target not in found:
                    found[target] = found[node] + 1
                    if target == stop:
                        return found
                    waiting.append(target)
        return found

    def distance(self, source: int, target: int) -> int | None:
        return self.distances(source, target).get(target)

    def all_distances(self) -> dict[int, dict[int, int]]:
        return {node: self.distances(node) for node in self.targets}


class Networkx:
    """The same questions to networkx."""

    def __init__(self) -> None:
        import networkx as nx

        self.networkx = nx
        self.graph = nx.DiGraph()

    def add(self, node: int, after: list[int]) -> None:
        self.graph.add_node(node)
        self.graph.add_edges_from((source, node) for source in after)

    def link(self, source: int, target: int) -> None:
        self.graph.add_edge(source, target)

    def unlink(self, source: int, target: int) -> None:
        self.graph.remove_edge(source, target)

    def distance(self, source: int, target: int) -> int | None:
        try:
            return int(self.networkx.shortest_path_length(self.graph, source, target))
        except self.networkx.NetworkXNoPath:
            return None

    def all_distances(self) -> dict[int, dict[int, int]]:
        return dict(self.networkx.all_pairs_shortest_path_length(self.graph))


def spent(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and what came of it."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def graph(nodes: int, rng: random.Random) -> list[list[int]]:
    """For each node those that it comes after."""
    return [rng.sample(range(node), min(node, rng.choice([1, 1, 1, 2, 3]))) for node in range(nodes)]


def one_round(side: str, make: Callable[[], Any], nodes: int, seed: int) -> tuple[dict[str, float], Any]:
    """Seconds for each kind of work, once; and all answers that were given."""
    rng = random.Random(seed)  # noqa: S311 - any graph will do, and the same one for each side
    after = graph(nodes, rng)
    pairs = [(rng.randrange(nodes), rng.randrange(nodes)) for _ in range(PAIRS["tables"])][: PAIRS[side]]
    links = rng.sample([(source, node) for node in range(nodes) for source in after[node]], LINKS)

    def build() -> Any:
        made = make()
        for node, sources in enumerate(after):
            made.add(node, sources)
        return made

    def look_up() -> list[int | None]:
        distance = made.distance
        return [distance(source, target) for source, target in pairs]

    figures: dict[str, float] = {}
    figures["build"], made = spent(build)
    figures["build, with all distances"] = figures["build"]
    if side != "tables":
        figures["build, with all distances"] += spent(made.all_distances)[0]
    taken, answers = spent(look_up)
    figures["look-up"] = taken / len(pairs)
    figures["unlink"] = spent(lambda: [made.unlink(*link) for link in links])[0] / LINKS
    without = [made.distance(*pair) for pair in pairs[: PAIRS["search"]]]
    figures["link"] = spent(lambda: [made.link(*link) for link in links])[0] / LINKS
    again = [made.distance(*pair) for pair in pairs[: PAIRS["search"]]]
    return figures, (answers[: PAIRS["search"]], without, again)


def readable(seconds: float) -> str:
    for unit, size in (("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def main() -> None:
    sides: dict[str, Callable[[], Any]] = {"tables": Tables, "search": Search}
    if importlib.util.find_spec("networkx"):
        sides["networkx"] = Networkx
        Networkx()  # imported before the clock runs
    print(f"{machine()}; medians of {ROUNDS} rounds, least and most in brackets")
    for nodes in [int(text) for text in sys.argv[1:]] or [100, 1000]:
        taken: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for number in range(ROUNDS):
            answers = {}
            for side, make in sides.items():
                figures, answers[side] = one_round(side, make, nodes, seed=number)
                taken[side].append(figures)
            assert all(found == answers["tables"] for found in answers.values()), f"{nodes} nodes, round {number}"
        for kind in taken["tables"][0]:
            for side, rounds in taken.items():
                found = sorted(figures[kind] for figures in rounds)
                middle, least, most = (readable(found[at]) for at in (len(found) // 2, 0, -1))
                print(f"{nodes:>5} tasks  {kind:<26} {side:<9} {middle:>9}  ({least} to {most})")


if __name__ == "__main__":
    main()
