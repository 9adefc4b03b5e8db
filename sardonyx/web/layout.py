"""Where the tasks of a graph are drawn: layers from left to right, few crossings, straight where it can be. Pure.

A task stands in the layer after the last of those that it reads from. An edge over several layers passes points in between, which
keep its place free. Sweeps over the layers sort each by the mean place of its neighbours; the order with the fewest crossings
stays. Then each task moves towards the median of its neighbours, without coming too near to another. The same graph always looks
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

WIDTH = 236
"""The width of a task, in pixels."""
HEIGHT = 108
GAP_X = 118
"""Between two layers: an edge's figures stand there."""
GAP_Y = 34
MARGIN = 20
SWEEPS = 8
ROUNDS = 8
THIN = 0.45
"""How much of a task's place an edge takes that only passes a layer."""


class Layout(NamedTuple):
    """Where everything is drawn, in pixels."""

    places: dict[str, tuple[float, float]]
    """Task -> the upper left corner of its box."""
    ways: dict[tuple[str, str], list[tuple[float, float]]]
    """Edge -> the points that it goes through, from the right side of one box to the left side of another."""
    width: float
    height: float
    crossings: int


def lay_out(order: Sequence[str], edges: Sequence[tuple[str, str]]) -> Layout:
    """Place a graph.

    Args:
        order: its tasks in topological order.
        edges: pairs of tasks.
    """
    if not order:
        return Layout({}, {}, 2.0 * MARGIN, 2.0 * MARGIN, 0)
    return _Layers(order, edges).layout()


class _Layers:
    """The layers with numbers in place of names: tasks first, then the points that edges pass."""

    def __init__(self, order: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
        self._order = order
        number = {name: index for index, name in enumerate(order)}
        self._edges = [(number[source], number[target]) for source, target in edges]
        self._layer = self._layers(len(order))
        self._ways = [self._passed(*edge) for edge in self._edges]
        self._before: list[list[int]] = [[] for _ in self._layer]
        self._after: list[list[int]] = [[] for _ in self._layer]
        for way in self._ways:
            for one, other in pairwise(way):
                self._after[one].append(other)
                self._before[other].append(one)
        self._rows: list[list[int]] = [[] for _ in range(max(self._layer) + 1)]
        for each, layer in enumerate(self._layer):
            self._rows[layer].append(each)

    def layout(self) -> Layout:
        crossings = self._sort()
        heights = self._heights()
        top = min(heights)
        y = [MARGIN + (height - top) * (HEIGHT + GAP_Y) for height in heights]
        x = [MARGIN + layer * (WIDTH + GAP_X) for layer in range(len(self._rows))]
        tasks = range(len(self._order))
        ways = {}
        for (source, target), way in zip(self._edges, self._ways, strict=True):
            points = [(x[self._layer[source]] + WIDTH, y[source] + HEIGHT / 2)]
            for passed in way[1:-1]:
                left, height = x[self._layer[passed]], y[passed] + HEIGHT / 2
                points += [(left, height), (left + WIDTH, height)]
            points.append((x[self._layer[target]], y[target] + HEIGHT / 2))
            ways[self._order[source], self._order[target]] = points
        return Layout(
            {self._order[task]: (x[self._layer[task]], round(y[task], 1)) for task in tasks},
            {edge: [(round(one, 1), round(other, 1)) for one, other in way] for edge, way in ways.items()},
            x[-1] + WIDTH + MARGIN,
            round(max(y[task] for task in range(len(y))) + HEIGHT + MARGIN, 1),
            crossings,
        )

    def _layers(self, count: int) -> list[int]:
        layer = [0] * count
        into: list[list[int]] = [[] for _ in range(count)]
        out: list[list[int]] = [[] for _ in range(count)]
        for source, target in self._edges:
            out[source].append(target)
            into[target].append(source)
        for each in range(count):  # the order is topological
            layer[each] = max((layer[source] + 1 for source in into[each]), default=0)
        for each in reversed(range(count)):  # a source stands right before the first that reads it
            if not into[each] and out[each]:
                layer[each] = min(layer[target] for target in out[each]) - 1
        return layer

    def _passed(self, source: int, target: int) -> list[int]:
        """An edge as a chain with a point in each layer that it passes."""
        way = [source]
        for layer in range(self._layer[source] + 1, self._layer[target]):
            self._layer.append(layer)
            way.append(len(self._layer) - 1)
        return [*way, target]

    def _sort(self) -> int:
        """Sort the layers; gives the number of crossings that stay."""
        place = {each: index for row in self._rows for index, each in enumerate(row)}
        best = self._crossings(place), [row[:] for row in self._rows]
        for sweep in range(SWEEPS):
            forth = sweep % 2 == 0
            near = self._before if forth else self._after
            for layer in range(1, len(self._rows)) if forth else range(len(self._rows) - 2, -1, -1):
                row = self._rows[layer]
                mean = {
                    each: sum(place[other] for other in near[each]) / len(near[each]) if near[each] else place[each]
                    for each in row
                }
                row.sort(key=lambda each: (mean[each], place[each]))
                place.update({each: index for index, each in enumerate(row)})
            found = self._crossings(place)
            if found < best[0]:
                best = found, [row[:] for row in self._rows]
        self._rows = best[1]
        return best[0]

    def _crossings(self, place: dict[int, int]) -> int:
        """How many pairs of edges cross: inversions, counted with a Fenwick tree."""
        count = 0
        for row, following in pairwise(self._rows):
            ends = sorted((place[each], place[other]) for each in row for other in self._after[each])
            tree = [0] * (len(following) + 1)
            for seen, (_, end) in enumerate(ends):
                index, smaller = end + 1, 0
                while index > 0:
                    smaller += tree[index]
                    index -= index & -index
                count += seen - smaller
                index = end + 1
                while index < len(tree):
                    tree[index] += 1
                    index += index & -index
        return count

    def _heights(self) -> list[float]:
        """A height for each, in places: the order of each layer is kept, and nothing comes too near to another."""
        tasks = len(self._order)
        height = [0.0] * len(self._layer)
        for row in self._rows:
            for above, each in pairwise(row):
                height[each] = height[above] + self._apart(above, each, tasks)
        for turn in range(ROUNDS):
            for row in self._rows if turn % 2 == 0 else reversed(self._rows):
                wanted = [self._median(each, height) for each in row]
                down, up = list(wanted), list(wanted)
                for index in range(1, len(row)):
                    apart = self._apart(row[index - 1], row[index], tasks)
                    down[index] = max(down[index], down[index - 1] + apart)
                for index in range(len(row) - 2, -1, -1):
                    apart = self._apart(row[index], row[index + 1], tasks)
                    up[index] = min(up[index], up[index + 1] - apart)
                for index, each in enumerate(row):
                    height[each] = (down[index] + up[index]) / 2
        return height

    @staticmethod
    def _apart(one: int, other: int, tasks: int) -> float:
        """How far two neighbours in a layer are apart at least: a box is a place high, an edge that passes is thin."""
        return ((1.0 if one < tasks else THIN) + (1.0 if other < tasks else THIN)) / 2

    def _median(self, each: int, height: list[float]) -> float:
        near = sorted(height[other] for other in (*self._before[each], *self._after[each]))
        if not near:
            return height[each]
        return (near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2
