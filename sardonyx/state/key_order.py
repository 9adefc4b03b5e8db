"""The order of the keys of a store in memory, kept while keys come and go.

Windows close by a scan of the least keys after most batches. So no scan may sort all keys again. Keys stand in sorted runs, each
at most half as long as the one before it: a log-structured merge, as in a store on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain

_FEW = 1_000
"""So many removed keys may stay in the runs, however few keys there are."""


class KeyOrder:
    """Keys in the order of their bytes.

    Args:
        keys: each once.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._runs = [sorted(keys)]
        self._begins = [0]
        """Of each run: where it begins. The keys before that are removed."""
        self._new: list[bytes] = []
        """Keys that came after the last scan."""
        self._removed: set[bytes] = set()
        """Keys that still stand in a run or in ``_new``."""
        self._size = len(self._runs[0])
        """The keys in runs and in ``_new``, removed ones included."""

    def add(self, keys: list[bytes]) -> None:
        """Add keys that are not there, each once."""
        if self._removed:
            back = self._removed.intersection(keys)
            if back:
                self._removed -= back
                keys = [key for key in keys if key not in back]
        self._new += keys
        self._size += len(keys)

    def remove(self, keys: list[bytes]) -> None:
        """Remove keys that are there, each once."""
        self._removed.update(keys)
        for place in range(len(self._runs)):
            self._move_begin(place)
        if len(self._removed) > self._size // 2 + _FEW:
            self._runs, self._begins, self._new = [self._remaining()], [0], []
            self._size = len(self._runs[0])
            self._removed = set()

    def between(self, first: bytes, before: bytes | None, limit: int | None) -> list[bytes]:
        """The keys from ``first`` on that are less than ``before``, in order, at most ``limit``."""
        self._sort_new()
        parts = [
            self._of_run(keys, bisect_left(keys, first, begin), before, limit)
            for keys, begin in zip(self._runs, self._begins, strict=True)
        ]
        found = parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts))  # runs in it are merged, not sorted
        return found if limit is None else found[:limit]

    def _of_run(self, keys: list[bytes], low: int, before: bytes | None, limit: int | None) -> list[bytes]:
        high = len(keys) if before is None else bisect_left(keys, before, low)
        removed = self._removed
        if not removed:
            return keys[low : high if limit is None else min(high, low + limit)]
        found: list[bytes] = []
        step = high - low if limit is None else limit
        while low < high and (limit is None or len(found) < limit):
            found += [key for key in keys[low : min(high, low + step)] if key not in removed]
            low += step
        return found

    def _sort_new(self) -> None:
        if self._new:
            self._runs.append(sorted(self._new))
            self._begins.append(0)
            self._new = []
        while len(self._runs) > 1 and 2 * self._length(-1) >= self._length(-2):
            last, begin = self._runs.pop(), self._begins.pop()
            merged = sorted(chain(self._runs[-1][self._begins[-1] :], last[begin:]))
            self._runs[-1], self._begins[-1] = self._without_removed(merged), 0

    def _length(self, place: int) -> int:
        return len(self._runs[place]) - self._begins[place]

    def _without_removed(self, keys: list[bytes]) -> list[bytes]:
        gone = self._removed.intersection(keys) if self._removed else None
        if not gone:
            return keys
        self._removed -= gone
        self._size -= len(gone)
        return [key for key in keys if key not in gone]

    def _remaining(self) -> list[bytes]:
        everything = chain(*(keys[begin:] for keys, begin in zip(self._runs, self._begins, strict=True)), self._new)
        removed = self._removed
        return sorted(key for key in everything if key not in removed)

    def _move_begin(self, place: int) -> None:
        """The least keys go first when windows close: no scan shall pass by them again."""
        keys, begin = self._runs[place], self._begins[place]
        start = begin
        while begin < len(keys) and keys[begin] in self._removed:
            self._removed.discard(keys[begin])
            begin += 1
        self._size -= begin - start
        if 2 * begin > len(keys):
            del keys[:begin]
            begin = 0
        self._begins[place] = begin
