"""What comes out of the job of a fault run, one kind of result after the other, and what should come out."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pyarrow as pa

from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Graph, compute
from tests.faults.shapes import (
    ALLOWED,
    CIRCLE,
    DELAY,
    KEYS,
    MODULUS,
    PATH,
    ROUNDS,
    SOURCE,
    THIRD,
    VERTICES,
    WINDOW,
    Shape,
    disordered,
)


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

    def told(self) -> dict[str, int]:
        """What else of the results is worth a figure."""
        return {}

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


class Pane(NamedTuple):
    """One result of a window."""

    hits: int
    total: int
    most: int
    ids: tuple[int, ...]
    final: bool


class Judged(NamedTuple):
    """What the order of its source says of a record."""

    number: int
    on_time: bool
    """Its window has not closed before it, whatever the other sources do."""
    may_be_late: bool
    """Nothing need correct its window any more."""


class PaneSight(Sight):
    """The same for windows that tell of each change, of records that are out of order: each pane is there once and counts what it
    says, one of them is final, and the last one has all records of its key and window but those that came out as too late.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.panes: dict[int, dict[int, Pane]] = {}
        """By window, and by their numbers."""
        self.late: set[int] = set()

    def record(self, place: Any, value: bytes) -> None:
        row = json.loads(value)
        if "pane" not in row:
            self.late.add(row["id"])
            self._note(place, row, -1 - row["id"], row["id"])
            return
        source, key = map(int, row["key"].split("-"))
        start = round(datetime.fromisoformat(row["window_start"]).timestamp() * 1000)
        window = source * SOURCE + start // WINDOW * KEYS + key
        pane = Pane(row["hits"], row["total"], row["most"], tuple(row["ids"]), row["final"])
        self.panes.setdefault(window, {})[row["pane"]] = pane
        self._note(place, row, window * _PANES + row["pane"], row["most"])

    def wanted(self, ids: AbstractSet[int]) -> set[int]:
        """How many panes a window has depends on how batches are cut. So all up to its last one should be there, and of the
        records that have come out as too late those that may be.
        """
        found: set[int] = set()
        for window, records in _by_window(ids).items():
            found.update(-1 - each.number for each in records if each.may_be_late and each.number in self.late)
            if any(each.number not in self.late for each in records):
                last = max(self.panes.get(window, ()), default=0)
                found.update(window * _PANES + number for number in range(last + 1))
        return found

    def wrong_values(self, ids: AbstractSet[int]) -> int:
        """How many windows have a pane that counts other records than it should, or not one that is final."""
        bad = 0
        for window, records in _by_window(ids).items():
            wrong = list(self._wrong_in(self.panes.get(window, {}), records))
            bad += bool(wrong)
            if wrong and bad <= 10:
                self.wrong.append(f"window {window} of {records}: {wrong}")
        return bad

    def _wrong_in(self, panes: dict[int, Pane], records: list[Judged]) -> Iterator[str]:
        counted = {each.number for each in records} - self.late
        on_time = {each.number for each in records if each.on_time}
        before: set[int] = set()
        for number, pane in sorted(panes.items()):
            found = set(pane.ids)
            if (pane.hits, pane.total, pane.most, len(pane.ids)) != (len(found), sum(found), max(found), len(found)):
                yield f"pane {number} does not count what it has: {pane}"
            if not before <= found <= counted:
                yield f"pane {number} has {sorted(found)}, after {sorted(before)} and of {sorted(counted)}"
            if pane.final and not on_time <= found:
                yield f"pane {number} is final without {sorted(on_time - found)}"
            before = found
        if before != counted:
            yield f"the last pane has {sorted(before)}, and should {sorted(counted)}"
        finals = sum(pane.final for pane in panes.values())
        if finals > 1 or (on_time and not finals):
            yield f"{finals} panes are final"

    def told(self) -> dict[str, int]:
        corrected = sum(not panes[max(panes)].final for panes in self.panes.values())
        return {"too_late": len(self.late), "corrected": corrected}


_PANES = 1000
"""A window has fewer panes than these."""


def _by_window(ids: AbstractSet[int]) -> dict[int, list[Judged]]:
    """Records that are out of order, by their windows. The clock that stands before each is that of the source that is furthest
    behind, so it is at most that of its own source, whose records come in the order of their numbers.
    """
    found: dict[int, list[Judged]] = {}
    seen: dict[int, int] = {}
    for number in sorted(ids):
        source, position = divmod(number, SOURCE)
        at = disordered(position)
        clock = seen.get(source, 0) - DELAY
        seen[source] = max(at, seen.get(source, 0))
        end = (at // WINDOW + 1) * WINDOW
        window = source * SOURCE + at // WINDOW * KEYS + position % KEYS
        found.setdefault(window, []).append(Judged(number, end > clock, end + ALLOWED <= clock))
    return found


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
    "panes": PaneSight,
    "keyed": KeyedSight,
    "pairs": PairSight,
    "ranks": GraphSight,
    "components": GraphSight,
    "rounds": RoundsSight,
}
"""By what a shape says of its results."""
