"""What comes out of the job of a fault run, one kind of result after the other, and what should come out."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Any

from tests.faults.shapes import KEYS, SOURCE, THIRD, WINDOW, Shape


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


KINDS = {"records": Sight, "windows": WindowSight, "keyed": KeyedSight, "pairs": PairSight}
"""By what a shape says of its results."""
