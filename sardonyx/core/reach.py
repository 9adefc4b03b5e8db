"""Which nodes of a graph reach which others, and over how many links. A look-up takes constant time. Pure.

The idea is Mass's: two tables of distances, forwards and backwards. A question about the graph is then a look-up, and walks no
path.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Reach(Generic[Node]):
    """A directed graph with the distance of each node to every other one that it reaches.

    A distance is the least number of links from one node to another. It is 0 from a node to itself, also on a cycle. The
    tables take memory for each pair of nodes of which one reaches the other.

    Every method raises ``KeyError`` for a node that is not in the graph.

    Args:
        nodes: of the graph; a node that is named twice counts once.
        links: between them, as pairs (from, to). They may form cycles. To fill the tables takes a search from each node.
    """

    __slots__ = ("_after", "_before", "_targets")

    def __init__(self, nodes: Iterable[Node], links: Iterable[tuple[Node, Node]]) -> None:
        self._after: dict[Node, dict[Node, int]] = {node: {} for node in nodes}
        """Forwards: node -> each node that it reaches -> distance."""
        self._before: dict[Node, dict[Node, int]] = {node: {} for node in self._after}
        """Backwards: node -> each node that reaches it -> distance. The transpose of ``_after``."""
        self._targets: dict[Node, dict[Node, None]] = {node: {} for node in self._after}
        """The links out of each node, in the order in which they were given."""
        for source, target in links:
            if target not in self._after:
                raise KeyError(target)
            self._targets[source][target] = None
        for node in self._after:
            self._search(node)

    def reaches(self, source: Node, target: Node) -> bool:
        """Whether there is a path; True from a node to itself."""
        if target not in self._after:
            raise KeyError(target)
        return target in self._after[source]

    def after(self, node: Node) -> Mapping[Node, int]:
        """All nodes that this one reaches, and itself, with their distances from it."""
        return MappingProxyType(self._after[node])

    def before(self, node: Node) -> Mapping[Node, int]:
        """All nodes that reach this one, and itself, with their distances to it."""
        return MappingProxyType(self._before[node])

    def path(self, source: Node, target: Node) -> list[Node]:
        """A shortest path with both ends; empty if there is none. Of equal ones, that of the links which were given first.

        Takes a step for each link out of the nodes on the path.
        """
        if not self.reaches(source, target):
            return []
        found = [source]
        for distance in range(self._after[source][target] - 1, -1, -1):
            found.append(next(node for node in self._targets[found[-1]] if self._after[node].get(target) == distance))
        return found

    def cycle(self) -> list[Node]:
        """A shortest cycle, its first node again at the end; empty if there is none. Takes a step for each link.

        It begins with the node that was given first. Of equally short cycles it is the one whose first node was given first.
        """
        shortest, closing = math.inf, None
        for source, targets in self._targets.items():
            for target in targets:
                back = self._after[target].get(source, math.inf)
                if back < shortest:
                    shortest, closing = back, (source, target)
        return [] if closing is None else [closing[0], *self.path(closing[1], closing[0])]

    def _search(self, node: Node) -> None:
        """Fill the row of a node by breadth-first search."""
        row = self._after[node]
        row[node] = 0
        waiting = [node]
        for each in waiting:
            for target in self._targets[each]:
                if target not in row:
                    row[target] = row[each] + 1
                    waiting.append(target)
        for other, distance in row.items():
            self._before[other][node] = distance
