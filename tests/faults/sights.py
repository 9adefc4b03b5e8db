"""What comes out of the job of a fault run, one kind of result after the other, and what should come out."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa

from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Graph, compute
from tests.faults.shapes import CIRCLE, KEYS, MODULUS, PATH, ROUNDS, SOURCE, THIRD, VERTICES, WINDOW, Shape


class Sight:
    """What has come out so far; fed by one thread. Each place (a partition, or a file) is kept as it was seen.

    Args:
        shape: what is promised.
    """

    def __init__(self, shape: Shape) -> None:
        self._vias = {via: number for number, via in enumerate(shape.vias)}
        self._ordered = shape.ordered
        self.count = 0
        self.through: dict[int, int] = {}
        """By source, the latest record that was seen."""
        self.seen: set[int] = set()
        """Ids times copies, plus which copy; or what else tells the results of a shape apart."""
        self.places: dict[Any, array[int]] = {}
        self.wrong: list[str] = []
        self.doubled = self.out_of_order = 0
        self._last: dict[str, int] = {}

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        number, key = row["id"], row["key"]
        self._note(place, row, number * len(self._vias) + self._vias[row.get("via", "")], number)
        position = number % SOURCE
        if self._ordered:
            if self._last.get(key, -1) >= position:
                self.out_of_order += 1
                self.wrong.append(f"{row} came after {self._last[key]} of its key at {place}")
            self._last[key] = position

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        """What :attr:`seen` should be when these records have gone in."""
        copies = len(self._vias)
        return {number * copies + copy for number in ids for copy in range(copies)}

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many results say something wrong."""
        return 0

    def _note(self, place: Any, row: Any, result: int, number: int) -> None:
        """A result, as a number, and the latest record that went into it."""
        if result in self.seen:
            self.doubled += 1
            self.wrong.append(f"{row} came twice, the second time at {place}")
        self.seen.add(result)
        self.places.setdefault(place, array("q")).append(result)
        source, position = divmod(number, SOURCE)
        self.through[source] = max(position, self.through.get(source, -1))
        self.count += 1


class WindowSight(Sight):
    """The same for results of windows: one for each key and window, with the records that it counts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.values: dict[int, tuple[int, int]] = {}
        """By window: how many records, and the sum of their ids."""

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        window = _window(row["most"])
        self.values[window] = (row["hits"], row["total"])
        self._note(place, row, window, row["most"])

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        return set(map(_window, ids))

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many windows do not count the records that they should."""
        wanted: dict[int, tuple[int, int]] = {}
        for number in ids:
            hits, total = wanted.get(_window(number), (0, 0))
            wanted[_window(number)] = hits + 1, total + number
        bad = [window for window, value in self.values.items() if wanted.get(window) != value]
        self.wrong += [f"window {each} gives {self.values[each]} and should {wanted.get(each)}" for each in bad[:10]]
        return len(bad)


class KeyedSight(Sight):
    """The same for running counts and sums of each key, one for each record; and what its timer gives, once for each window."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.values: dict[int, int] = {}
        """By window: how many records its timer has counted."""
        self._bad = 0

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        number = row["id"]
        if "rows" in row and row["rows"] is not None:
            self.values[_window(number)] = row["rows"]
            self._note(place, row, -1 - _window(number), number)
            return
        super().record(place, value)
        before = number % SOURCE // KEYS
        first = number - before * KEYS
        right = before + 1, (before + 1) * first + KEYS * before * (before + 1) // 2
        if (row["hits"], row["total"]) != right:
            self._bad += 1
            self.wrong.append(f"{row} should count and add up to {right}")

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        return {*ids, *(-1 - _window(number) for number in ids)}

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many counts and sums are wrong, of records and of timers."""
        wanted = Counter(map(_window, ids))
        bad = [window for window, rows in self.values.items() if wanted[window] != rows]
        self.wrong += [f"the timer of {each} counts {self.values[each]} and should {wanted[each]}" for each in bad[:10]]
        return len(bad) + self._bad


class PairSight(Sight):
    """The same for a left join of all records with every third one: those of their key that are no further on than the next."""

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        self._note(place, row, _pair(row["id"], row.get("other_id")), row["id"])

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        return pairs_of(ids)

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many records are joined with others than they should be, or with none although there is one."""
        bad = sorted({pair // _PAIRS for pair in self.seen - pairs_of(ids)})
        self.wrong += [f"record {each} is joined with another than it should be" for each in bad[:10]]
        return len(bad)


class GraphSight(Sight):
    """The same for what comes of a graph: a row for each vertex, in the end. Every edge counts, and no bit differs from what one
    process computes of all edges.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._column = {"ranks": "rank", "components": "component"}[shape.results]
        self._edge = {"circles": _edge, "paths": _step}[shape.edges]
        self.values: dict[int, Any] = {}

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        self.values[row["id"]] = row[self._column]
        self._note(place, row, row["id"], row["id"])

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        return {vertex for edge in map(self._edge, ids) for vertex in edge}

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many vertices have another value than networkx says, or than they have without faults."""
        edges = sorted(map(self._edge, ids))
        algorithm: Any = {"rank": "pagerank", "component": "connected_components"}[self._column]
        tolerance = 1e-13 if algorithm == "pagerank" else None
        spec = GraphSpec(algorithm=algorithm, edges="", source="", target="", tolerance=tolerance)
        ends = list(zip(*edges, strict=True)) or [(), ()]
        rows = compute(
            spec, Graph(pa.table({"source": pa.array(ends[0], pa.int64()), "target": pa.array(ends[1], pa.int64())}))
        )
        calm = dict(zip(*(column.to_pylist() for column in rows.rows.columns), strict=True))
        right = _ranks(edges) if algorithm == "pagerank" else _components(edges)
        bad = [v for v, value in self.values.items() if value != calm.get(v) or abs(value - right[v]) > _EXACT]
        self.wrong += [f"vertex {v} has {self.values[v]}, and should {calm.get(v)}, {right.get(v)}" for v in bad[:10]]
        return len(bad)


class RoundsSight(Sight):
    """The same for what comes of rounds: a row for each record, in the end, with a number that all records of its key make."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.values: dict[int, int] = {}

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        self.values[row["id"]] = row["value"]
        super().record(place, value)

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many records have another number than a plain loop gives."""
        right = _mixed(ids)
        bad = [number for number, value in self.values.items() if value != right.get(number)]
        self.wrong += [f"record {each} has {self.values[each]}, and should {right.get(each)}" for each in bad[:10]]
        return len(bad)


def _mixed(ids: AbstractSet[int]) -> dict[int, int]:
    """What the rounds of a job should give of these records."""
    numbers = np.array(sorted(ids), np.int64)
    keys = numbers // SOURCE * KEYS + numbers % SOURCE % KEYS
    values = numbers % MODULUS
    for _ in range(ROUNDS - 1):
        sums = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
        np.add.at(sums, keys, values)
        values = (values**2 + sums[keys]) % MODULUS
    return dict(zip(numbers.tolist(), values.tolist(), strict=True))


_EXACT = 1e-12
"""By how much a rank may differ from that of networkx, which adds up doubles; so may no component, which is a whole number."""


def _edge(number: int) -> tuple[int, int]:
    """The edge that a record is."""
    a = number * 7919 % VERTICES
    return a, a - a % CIRCLE + number // 7 % CIRCLE


def _step(number: int) -> tuple[int, int]:
    """The same in a graph of paths: one edge back, or none but to itself."""
    return number, number - (number % SOURCE % PATH > 0)


def _ranks(edges: list[tuple[int, int]]) -> dict[int, float]:
    found: dict[int, float] = nx.pagerank(nx.MultiDiGraph(edges), tol=1e-17, max_iter=999)
    return found


def _components(edges: list[tuple[int, int]]) -> dict[int, int]:
    return {v: min(part) for part in nx.connected_components(nx.Graph(edges)) for v in part}


_PAIRS = 3
"""A record has no partner, or itself, or the next of its key."""


def _pair(left: int, right: int | None) -> int:
    """A result of a join, as a number."""
    return left * _PAIRS + (0 if right is None else 1 if right == left else 2)


def pairs_of(ids: AbstractSet[int]) -> set[int]:
    """What a join should give of these records."""
    found: set[int] = set()
    for left in ids:
        partners = [right for right in (left, left + KEYS) if right in ids and right % THIRD == 0]
        found.update(_pair(left, right) for right in partners or [None])
    return found


def _window(number: int) -> int:
    """The window of a record, as a number: source, window, key."""
    source, position = divmod(number, SOURCE)
    return source * SOURCE + position // WINDOW * KEYS + position % KEYS


KINDS = {
    "records": Sight,
    "windows": WindowSight,
    "keyed": KeyedSight,
    "pairs": PairSight,
    "ranks": GraphSight,
    "components": GraphSight,
    "rounds": RoundsSight,
}
"""By what a shape says of its results."""
