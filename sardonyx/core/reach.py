"""Which nodes of a graph reach which others, and over how many links. A look-up takes constant time. Pure.

The idea is Mass's: two tables of distances, forwards and backwards, which are filled as nodes are added and removed. A question
about the graph is then a look-up, and walks no path.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Reach(Generic[Node]):
    """A directed graph with the distance of each node to every other one that it reaches.

    A distance is the least number of links from one node to another. It is 0 from a node to itself, also on a cycle. After each
    change both tables hold what a breadth-first search from each node would find. They take memory for each pair of nodes of
    which one reaches the other.

    Every method raises ``KeyError`` for a node that is not in the graph, and then changes nothing.

    Args:
        nodes: to begin with; a node that is named twice counts once.
        links: between them, as pairs (from, to). They may form cycles. To fill the tables takes a search from each node.
    """

    __slots__ = ("_after", "_before", "_sources", "_targets")

    def __init__(self, nodes: Iterable[Node] = (), links: Iterable[tuple[Node, Node]] = ()) -> None:
        self._after: dict[Node, dict[Node, int]] = {node: {} for node in nodes}
        """Forwards: node -> each node that it reaches -> distance."""
        self._before: dict[Node, dict[Node, int]] = {node: {} for node in self._after}
        """Backwards: node -> each node that reaches it -> distance. Always the transpose of ``_after``."""
        self._targets: dict[Node, dict[Node, None]] = {node: {} for node in self._after}
        """The links out of each node, in the order in which they were given."""
        self._sources: dict[Node, dict[Node, None]] = {node: {} for node in self._after}
        for source, target in links:
            self._targets[source][target] = self._sources[target][source] = None
        for node in self._after:
            self._search(node)

    # Changes

    def add(self, node: Node, after: Iterable[Node] = ()) -> None:
        """Add a node with links from the nodes ``after`` which it comes. Takes a step for each link and node before it.

        A new node has no links out, so no distance between other nodes changes.

        Raises:
            ValueError: the node is there already.
        """
        sources = dict.fromkeys(after)
        if node in self._after:
            raise ValueError(f"{node!r} is already in the graph")
        column: dict[Node, int] = {node: 0}
        for source in sources:
            for other, distance in self._before[source].items():
                column[other] = min(distance + 1, column.get(other, distance + 1))
        self._after[node], self._targets[node] = {}, {}
        self._before[node], self._sources[node] = column, sources
        for other, distance in column.items():
            self._after[other][node] = distance
        for source in sources:
            self._targets[source][node] = None

    def link(self, source: Node, target: Node) -> None:
        """Add a link; it may close a cycle. Nothing changes if it is there already.

        Takes a step for each node before ``source``, and for one that comes closer to ``target`` a step for each node after it.
        """
        # No shortest path to `source` or from `target` uses the new link, so the distances read here are already the new ones.
        rest, before = list(self._after[target].items()), list(self._before[source].items())
        self._targets[source][target] = self._sources[target][source] = None
        for other, distance in before:
            row, over = self._after[other], distance + 1
            if row.get(target, math.inf) <= over:  # it has as short a path to `target`, and so to all nodes after it
                continue
            for node, more in rest:
                if over + more < row.get(node, math.inf):
                    row[node] = self._before[node][other] = over + more

    def unlink(self, source: Node, target: Node) -> None:
        """Remove a link. Searches the graph anew from each node that has lost its only shortest path to ``target``.

        Raises:
            KeyError: there is no such link.
        """
        self._cut([(source, target)])

    def remove(self, node: Node) -> None:
        """Remove a node with its links."""
        self._cut([(node, target) for target in self._targets[node]])
        for other in self._before[node]:  # without links out, no path between other nodes leads through it
            del self._after[other][node]
        for source in self._sources[node]:
            del self._targets[source][node]
        del self._after[node], self._before[node], self._sources[node], self._targets[node]

    # Look-ups

    def reaches(self, source: Node, target: Node) -> bool:
        """Whether there is a path; True from a node to itself."""
        if target not in self._after:
            raise KeyError(target)
        return target in self._after[source]

    def after(self, node: Node) -> Mapping[Node, int]:
        """All nodes that this one reaches, and itself, with their distances from it. A view: it shows later changes."""
        return MappingProxyType(self._after[node])

    def before(self, node: Node) -> Mapping[Node, int]:
        """All nodes that reach this one, and itself, with their distances to it. A view: it shows later changes."""
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

    # Inside

    def _cut(self, links: list[tuple[Node, Node]]) -> None:
        """Remove links, and search anew from each node whose row has changed.

        A row stays as it is if each target keeps, over another link, a path of the length that it had. For then each node keeps
        a node right before it on a shortest path.
        """
        for source, target in links:
            del self._targets[source][target], self._sources[target][source]
        changed: dict[Node, None] = {}
        for source, target in links:
            for other, distance in self._before[source].items():
                row = self._after[other]
                if row[target] == distance + 1 and all(row.get(near) != distance for near in self._sources[target]):
                    changed[other] = None
        for node in changed:
            self._search(node)

    def _search(self, node: Node) -> None:
        """Fill the row of a node by breadth-first search."""
        row = self._after[node]
        for other in row:
            del self._before[other][node]
        row.clear()  # the same object, because views show it
        row[node] = 0
        waiting = [node]
        for each in waiting:
            for target in self._targets[each]:
                if target not in row:
                    row[target] = row[each] + 1
                    waiting.append(target)
        for other, distance in row.items():
            self._before[other][node] = distance
