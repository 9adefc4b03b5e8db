"""Rows with equal keys whose times are not far apart: found by sorting and searching, many at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sardonyx.state.groups import Numbers


class Keyed(NamedTuple):
    """Rows as they are compared: the number of each row's key, and its time."""

    codes: Numbers
    times: Numbers

    def and_those(self, others: Keyed) -> Keyed:
        """These rows, and then others."""
        return Keyed(np.concatenate([self.codes, others.codes]), np.concatenate([self.times, others.times]))


class ByKeyAndTime:
    """Rows in the order of their keys and times; of equal ones, in the order in which they are given."""

    def __init__(self, rows: Keyed) -> None:
        self._order = np.lexsort((rows.times, rows.codes))
        self._times = np.unique(rows.times)
        self._size = len(self._times) + 1
        """Ranks of times are less than this."""
        ranks = np.searchsorted(self._times, rows.times[self._order])
        self._placed = rows.codes[self._order] * self._size + ranks

    def between(self, codes: Numbers, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """For each key and two times, all rows of the key from the one time to the other, both included.

        Returns:
            The positions in ``codes``, ascending, and for each the position of a row.
        """
        low = np.searchsorted(self._placed, codes * self._size + np.searchsorted(self._times, first))
        counts = np.maximum(self._after(codes, last) - low, 0)
        where = np.repeat(np.arange(len(codes)), counts)
        steps = np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)
        return where, self._order[low[where] + steps]

    def latest(self, codes: Numbers, times: Numbers) -> Numbers:
        """For each key and time, the position of the key's latest row that is not after it; of several, the last. -1: none."""
        after = self._after(codes, times)
        there = after > np.searchsorted(self._placed, codes * self._size)
        found = np.full(len(codes), -1, np.int64)
        found[there] = self._order[after[there] - 1]
        return found

    def _after(self, codes: Numbers, times: Numbers) -> Numbers:
        ranks = np.searchsorted(self._times, times, side="right") - 1
        return np.searchsorted(self._placed, codes * self._size + ranks, side="right")


class Buckets:
    """Stretches of time of one length, from each multiple of it on: state is kept, found and forgotten by them.

    Args:
        size: their length.
    """

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)

    def of(self, times: Numbers) -> Numbers:
        """The start of the bucket with each time."""
        return times // self.size * self.size

    def touched(self, codes: Numbers, first: Numbers, last: Numbers) -> Keyed:
        """The starts of the buckets with each of two times, which are at most ``size`` apart; with the key, each once."""
        low, high = self.of(first), self.of(last)
        more = high > low
        return self.distinct(np.concatenate([codes, codes[more]]), np.concatenate([low, high[more]]))

    def distinct(self, codes: Numbers, starts: Numbers) -> Keyed:
        """Each pair of a key and a start once."""
        known = np.unique(starts)
        pairs = np.unique(codes * max(len(known), 1) + np.searchsorted(known, starts))
        keys, ranks = np.divmod(pairs, max(len(known), 1))
        return Keyed(keys, known[ranks])

    def before(self, bound: int) -> int:
        """Buckets with a start less than this, and no others, hold no time that is ``bound`` or later."""
        return bound if abs(bound) >= 2**62 else bound - self.size + 1
