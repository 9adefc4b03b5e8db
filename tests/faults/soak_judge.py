"""How a soak is judged: what must not grow, and what must move on. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.faults.shapes import PARTITIONS
from tests.faults.soak_records import BACKLOG, LINKS, RECORD, RETENTION, SEGMENT

MIB = 1 << 20
WINDOWS = 12
"""Parts into which the later part of a run is cut. What a figure falls back to in each is compared, so that what swings does
not seem to grow."""
T = 2.228
"""Student's t for :data:`WINDOWS` - 2 degrees of freedom: a slope lies within so many standard errors, with 95%."""
JUDGED = 3000.0
"""Seconds from which on a run is long enough to judge slopes: in half an hour memory swings too much to tell."""
MORE = 4
"""Into so many parts the time is cut by which a run goes on, at most, while a figure cannot be told."""
LATER = 1 / 3
"""The part of a run from which on it is judged."""
STEPS = 90
"""The percentile of what goes up and down in steps, with the tasks that a daemon has in hand: a leak raises what it reaches."""
SAW = 10
"""The percentile of saw teeth: a leak raises what they fall back to. Those of the JVM and of Kafka are longer than a window,
since the JVM collects its garbage seldom, and Kafka deletes whole segments."""

LINK_SEGMENT = 16 << 20
"""As ``queues.admin`` sets it."""
FREED = 60.0 + 30.0 + 30.0
"""Seconds that what was read stays on the disk: until the next round of the coordinator, until the broker looks for free
segments, and as long again as either may be away."""
OWN = 8 * 4 * (8 << 20) + (128 << 20)
"""Bytes of Kafka's own topics: groups and transactions, four partitions each, of which up to four small segments are not yet
compacted; and the cluster's metadata."""

Sample = dict[str, Any]
"""What was found at one moment, by name."""


class Trend(NamedTuple):
    """How a figure changes: units an hour, and how far off this may be (95%)."""

    mean: float
    slope: float
    error: float


class Verdict(NamedTuple):
    """What came of one figure."""

    name: str
    trend: Trend
    limit: float
    """So much it may grow: an hour, or from one half to the next."""

    @property
    def says(self) -> str:
        """``flat`` only if it does not grow by more than the limit with 95% certainty; a figure that swings too much to tell is
        not shown to be flat.
        """
        if self.trend.slope + self.trend.error <= self.limit:
            return "flat"
        return "grows" if self.trend.slope - self.trend.error > self.limit else "cannot tell"


def trend(points: Sequence[tuple[float, float]], begin: float, end: float) -> Trend | None:
    """The slope of a figure from ``begin`` to ``end``: least squares over the 10th percentiles of windows of equal length.

    They are what a process keeps: above them are the batches that it has in hand, and those come and go. A leak raises them.
    Whether the peaks rise is a figure of its own.

    Args:
        points: (seconds, value).
        begin: where the first window begins.
        end: where the last one ends.

    Returns:
        None if a window holds no point.
    """
    width = (end - begin) / WINDOWS
    windows = [
        [value for at, value in points if begin + n * width <= at < begin + (n + 1) * width] for n in range(WINDOWS)
    ]
    if not all(windows):
        return None
    floors = [_percentile(window, SAW) for window in windows]
    hours = [(n + 0.5) * width / 3600 for n in range(WINDOWS)]
    slope, offset = statistics.linear_regression(hours, floors)
    rest = sum((value - offset - slope * hour) ** 2 for hour, value in zip(hours, floors, strict=True))
    spread = statistics.pvariance(hours) * WINDOWS
    return Trend(_mean(windows), slope, T * math.sqrt(rest / (WINDOWS - 2) / spread))


def rise(points: Sequence[tuple[float, float]], begin: float, end: float, percentile: int) -> Trend | None:
    """By how much a percentile of a figure is higher in the later half than in the earlier one. For a figure that no line fits.

    Args:
        points: (seconds, value).
        begin: where the earlier half begins.
        end: where the later half ends.
        percentile: :data:`STEPS` or :data:`SAW`.

    Returns:
        The difference in place of a slope; in a run of an hour there are 20 minutes between the middles of the halves. None if a
        half holds fewer than ten points.
    """
    middle = (begin + end) / 2
    halves = [[value for at, value in points if a <= at < b] for a, b in ((begin, middle), (middle, end))]
    if min(map(len, halves)) < 10:
        return None
    earlier, later = (_percentile(half, percentile) for half in halves)
    return Trend(_mean(halves), later - earlier, 0.0)


def _percentile(values: Sequence[float], percentile: int) -> float:
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=100, method="inclusive")[percentile - 1]


def _mean(parts: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(value for part in parts for value in part)


class Figure(NamedTuple):
    """What is judged: its name, how it is found in a sample, and what it may grow by (:attr:`Verdict.limit`), given its mean."""

    name: str
    of: Callable[[Sample], float | None]
    limit: Callable[[float], float]
    percentile: int | None = None
    """Of a figure that goes up and down too slowly for a line: the one that :func:`rise` compares."""


def figures(peer: str, coordinator: str) -> list[Figure]:
    """Of the two daemons that live through the run, and of the services."""

    def held(daemon: str, what: str) -> Callable[[Sample], float | None]:
        return lambda sample: sample["daemons"].get(daemon, {}).get(what)

    found = []
    for label, daemon in (("peer", peer), ("coordinator", coordinator)):
        found += [
            Figure(f"{label}: RSS, MiB", held(daemon, "rss"), lambda mean: 0.1 * mean),
            Figure(f"{label}: RSS at its peaks, MiB", held(daemon, "rss"), lambda mean: 0.1 * mean, STEPS),
            Figure(f"{label}: threads", held(daemon, "threads"), lambda mean: 0.1 * mean, STEPS),
            Figure(f"{label}: descriptors", held(daemon, "descriptors"), lambda mean: 0.1 * mean, STEPS),
        ]
    found += [
        Figure("peer's JVM: RSS, MiB", held(peer, "jvm"), lambda mean: 0.25 * mean, SAW),
        Figure("peer's Python workers: RSS, MiB", held(peer, "workers"), lambda mean: 0.1 * mean),
        Figure("topics", lambda sample: sample.get("topics"), lambda _: 0.5),
        Figure("groups", lambda sample: sample.get("groups"), lambda _: 0.5),
        Figure("nodes of ZooKeeper beside the log", lambda sample: sample.get("nodes"), lambda _: 30.0),
        Figure("bytes in Kafka's log directories, MiB", lambda sample: sample["disk"], lambda mean: 0.1 * mean, SAW),
    ]
    return found


def points(samples: Sequence[Sample], figure: Figure) -> list[tuple[float, float]]:
    return [(sample["at"], value) for sample in samples if (value := figure.of(sample)) is not None]


def judge(samples: Sequence[Sample], wanted: Sequence[Figure]) -> list[Verdict]:
    """A verdict for each figure that was sampled throughout the later part of the run."""
    begin, end = samples[-1]["at"] * LATER, samples[-1]["at"]
    found = []
    for figure in wanted:
        sampled, percentile = points(samples, figure), figure.percentile
        about = trend(sampled, begin, end) if percentile is None else rise(sampled, begin, end, percentile)
        if about is not None:
            found.append(Verdict(figure.name, about, figure.limit(about.mean)))
    return found


def standing(samples: Sequence[Sample], seconds: float) -> list[str]:
    """Partitions of links whose first offset did not move within some stretch of that length while the last one did."""
    known = [sample for sample in samples if "low" in sample]
    wrong = []
    first = 0
    for at, sample in enumerate(known):
        if sample["at"] - known[first]["at"] < seconds:
            continue
        before = known[first]
        for place, low in enumerate(sample["low"]):
            if low <= before["low"][place] and sample["high"][place] > before["high"][place]:
                wrong.append(f"partition {place}: {low} from {before['at']:.0f} to {sample['at']:.0f} s")
        first = at
    return wrong


def unsure(samples: Sequence[Sample], wanted: Sequence[Figure]) -> list[str]:
    """The figures of a run that is long enough to judge, of which it cannot be told whether they grow."""
    if not samples or samples[-1]["at"] < JUDGED:
        return []
    return [each.name for each in judge(samples, wanted) if each.says == "cannot tell"]


def disk_bound(samples: list[Sample], servers: int) -> float:
    """MiB that Kafka's log directories may take up, whatever the length of the run.

    Of each partition of a link: its last segment, what is unread, and what is written until what was read is freed. Of each
    partition of the topics that go in and come out: what Kafka keeps, one segment, and what is written until the broker looks. At
    the highest rate seen, and as if nothing were compressed. And Kafka's own topics.
    """
    pairs = zip(samples, samples[6:], strict=False)
    fastest = max(((b["in"] - a["in"]) / (b["at"] - a["at"]) for a, b in pairs), default=0.0)
    written = (LINKS + 2) * fastest * RECORD * FREED + BACKLOG * RECORD
    return (LINKS * PARTITIONS * LINK_SEGMENT + 2 * PARTITIONS * (RETENTION + SEGMENT) + written + OWN) * servers / MIB
