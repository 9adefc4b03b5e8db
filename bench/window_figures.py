"""What windows and running counts must give, whether they gave it, and how fast: pure, for every contestant the same.

A window of a key counts as done when its right count first stood in the output. So contestants can be compared that give a
result of a window once with those that give it again whenever it changes.

Of a contestant whose steps lie behind queues, the output alone says too much: where the first step is through before the last one
begins, the output grows as fast as the last one works. So its rate is that of all records from when its first step began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

MINUTE = 60_000
"""Milliseconds of a window."""


@dataclass(frozen=True)
class Results:
    """What stands in an output, a place of the arrays for each result."""

    keys: np.ndarray
    """The number of the key: see :func:`key_number`."""
    starts: np.ndarray
    """Of the window, milliseconds since 1970."""
    hits: np.ndarray
    written: np.ndarray
    """When the broker got it, in seconds since 1970."""


def key_number(key: int | str) -> int:
    """The number in a key: an id is one, and `customer-000000000042` has one at its end."""
    return int(str(key).rpartition("-")[2])


def expected(rows: pa.Table, by: str) -> tuple[np.ndarray, np.ndarray]:
    """The windows of each key, sorted, and how many rows each has; as :func:`places` has them."""
    column = rows[by]
    if pa.types.is_integer(column.type):
        keys = column.to_numpy()
    else:
        coded = column.combine_chunks().dictionary_encode()
        numbers = np.array([key_number(key) for key in coded.dictionary.to_pylist()], np.int64)
        keys = numbers[coded.indices.to_numpy()]
    return np.unique(places(keys, rows["at"].cast(pa.int64()).to_numpy() // 1000), return_counts=True)


def places(keys: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """A number for each window of a key; of two, the earlier window has the lesser.

    Args:
        keys: at most 2^31 - 1.
        moments: any of the window, in milliseconds since 1970.
    """
    return (moments // MINUTE << 31) + keys


def steady(results: Results, wanted: tuple[np.ndarray, np.ndarray], *, once: bool, since: float | None = None) -> float:
    """Records a second between the moments by which windows with a tenth and with nine tenths of all records were done.

    Args:
        results: what stands there.
        wanted: see :func:`expected`.
        once: each window gives one result.
        since: when its first step began, in seconds since 1970; None: it has no queues between its steps.

    Raises:
        AssertionError: that is not what should stand there.
    """
    windows, counts = wanted
    found = places(results.keys, results.starts)
    place = np.minimum(np.searchsorted(windows, found), len(windows) - 1)
    assert (windows[place] == found).all(), "there are results of windows that have no row"
    assert (results.hits <= counts[place]).all(), "windows count rows twice"
    right = results.hits == counts[place]
    done = np.full(len(windows), np.inf)
    np.minimum.at(done, place[right], results.written[right])
    missing = int(np.isinf(done).sum())
    assert not missing, f"{missing} of {len(windows)} windows count too few rows"
    assert not once or len(found) == len(windows), f"{len(windows)} windows gave {len(found)} results"
    order = np.argsort(done, kind="stable")
    return _rate(done[order], np.cumsum(counts[order]), since)


def running_rate(
    results: Sequence[tuple[int, int, float]], wanted: Mapping[int, int], since: float | None = None
) -> float:
    """Records a second between the moments by which a tenth and nine tenths of all records stood in running counts of their keys.

    Contestants give a key's count after each record, or after some: what a result tells is that all records up to it are counted.

    Args:
        results: key, count so far, and when it was written, in seconds since 1970.
        wanted: the last count of each key.
        since: as of :func:`steady`.

    Raises:
        AssertionError: a key's counts do not rise one by the other up to its last.
    """
    counted: dict[int, int] = {}
    steps: list[tuple[float, int]] = []
    for key, hits, written in results:
        before = counted.get(key, 0)
        assert hits > before, f"key {key} has {hits} after {before}"
        counted[key] = hits
        steps.append((written, hits - before))
    assert counted == dict(wanted), "keys count too few records, or too many"
    steps.sort()
    return _rate(np.array([written for written, _ in steps]), np.cumsum([more for _, more in steps]), since)


def joined_rate(ids: np.ndarray, written: np.ndarray, records: int, since: float | None = None) -> float:
    """Records a second of each side between the moments by which a tenth and nine tenths of the pairs were written.

    Args:
        ids: of the results; each record from 0 on has one partner.
        written: when the broker got them, in seconds since 1970.
        records: of each side.
        since: as of :func:`steady`.

    Raises:
        AssertionError: that is not what should stand there.
    """
    found, times = np.unique(ids, return_counts=True)
    assert len(found) == records, f"{records - len(found)} of {records} pairs are missing"
    assert (times == 1).all(), f"{int((times > 1).sum())} pairs were given several times"
    return _rate(np.sort(written), np.arange(1, records + 1), since)


def _rate(times: np.ndarray, records: np.ndarray, since: float | None) -> float:
    """Records a second, by how many were done up to each of the times, which ascend."""
    if since is not None:
        return float(records[-1] / max(times[-1] - since, 0.001))
    first, last = times[np.searchsorted(records, records[-1] * np.array([0.1, 0.9]))]
    return float(0.8 * records[-1] / max(last - first, 0.001))  # the broker tells milliseconds


def closed_at(made: Sequence[float], ends: Sequence[float], partitions: int) -> dict[float, float]:
    """When the row was made that closes a window: its partition is the last one to have a row that is not before the end.

    Args:
        made: when each record was made, which is its time as well; record n lies in partition n % partitions.
        ends: of windows. Those that no row has closed are left out.
        partitions: of the topic.
    """
    of = [np.array(made[number::partitions]) for number in range(partitions)]
    found = {}
    for end in set(ends):
        first = [int(np.searchsorted(times, end)) for times in of]
        if all(place < len(times) for place, times in zip(first, of, strict=True)):
            found[end] = max(float(times[place]) for place, times in zip(first, of, strict=True))
    return found


def miscounted(
    made: Sequence[float], found: Sequence[tuple[float, float, int]], ends: Sequence[float], length: float = 1.0
) -> dict[float, tuple[int, int]]:
    """Windows whose results do not count all of their rows, or more: rows counted, and rows that there are.

    Args:
        made: the time of each record, ascending.
        found: the end of its window, anything, and the rows that it counts, of each result.
        ends: of the windows that are looked at.
        length: of a window, in seconds.
    """
    times, wrong = np.array(made), {}
    for end in ends:
        first, last = np.searchsorted(times, [end - length, end])
        counted = sum(hits for of, _, hits in found if of == end)
        if counted != last - first:
            wrong[end] = (counted, int(last - first))
    return wrong
