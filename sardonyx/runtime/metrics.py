"""Counters, gauges and histograms of this process, by name and labels, and their way to another process.

Names, labels and bucket bounds follow Prometheus' conventions. :mod:`sardonyx.runtime.metrics_server` serves a
:class:`Snapshot` to it; :func:`written_to` writes one into a file. A process that ran for months has worked on many jobs, so each
metric keeps a bounded number of series.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from sardonyx.core.wire_types import ready_for_threads

log = structlog.get_logger()

MOST_SERIES = 100
"""Series of one metric, if it does not say how many."""

KEPT = 300.0
"""Seconds for which a series is kept that is not used, if a new one needs its place."""

OTHER = "_other"
"""The job, task or code of a series that stands for all that found no place."""

FOLDED = frozenset({"sx_job", "task", "code"})
"""Labels of which there may be any number of values."""

WRITE_EVERY = 1.0
"""Seconds between two snapshots in a file."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of buckets for durations."""

Read = Callable[[], Mapping[tuple[str, ...], float]]
"""Reads a metric's values at this moment, by the values of its labels. It must not raise."""


class Series(msgspec.Struct, frozen=True):
    """One combination of labels, at one moment."""

    labels: dict[str, str]
    value: float
    """A counter's or gauge's value; the sum of what a histogram observed."""
    count: int = 0
    """Observations of a histogram."""
    buckets: list[int] = []
    """For each bound of a histogram, how many observations were at most that large."""


class Metric(msgspec.Struct, frozen=True):
    """All series of one name, at one moment; in the order in which they began."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    series: list[Series]
    bounds: list[float] = []
    """Upper bounds of a histogram's buckets."""


@ready_for_threads
class Snapshot(msgspec.Struct, frozen=True):
    """All metrics of a process, at one moment."""

    metrics: list[Metric]

    def series(self, name: str) -> list[Series]:
        """The series of a metric; none if there is no such metric."""
        return next((metric.series for metric in self.metrics if metric.name == name), [])


@dataclass
class _Series:
    value: float = 0.0
    count: int = 0
    buckets: list[int] = field(default_factory=list)
    """Of a histogram: how many observations were within each bound, and not within the one before."""
    used: float = 0.0


class _Family:
    """The series of one name."""

    kind: Literal["counter", "gauge", "histogram"]
    bounds: tuple[float, ...] = ()

    def __init__(self, lock: threading.Lock, name: str, help_text: str, labels: Sequence[str], most: int) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.most = most
        """Series that it has at most, besides those that stand for others."""
        self._lock = lock
        self._series: dict[tuple[str, ...], _Series] = {}
        self._read: Read | None = None

    def _of(self, labels: dict[str, str]) -> _Series:
        """The series with these labels. The caller holds the lock."""
        try:
            key = tuple([labels[name] for name in self.labels])
        except KeyError:
            key = ()
        if not len(key) == len(labels) == len(self.labels):
            raise ValueError(f"{self.name} has the labels {', '.join(self.labels)}, not {', '.join(labels)}")
        found = self._series.get(key)
        now = time.monotonic()
        if found is None:
            if len(self._series) >= self.most:
                key = self._make_room(key, now)
            found = self._series.setdefault(key, _Series())
        found.used = now
        return found

    def _make_room(self, key: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Remove the series that was not used for the longest time; if all are in use, the new one stands for many."""
        oldest = min(self._series, key=lambda each: self._series[each].used)
        if now - self._series[oldest].used > KEPT:
            del self._series[oldest]
            return key
        return tuple([OTHER if name in FOLDED else value for name, value in zip(self.labels, key, strict=True)])

    def _follow(self, read: Read | None) -> None:
        self._read = read

    def taken(self) -> Metric:
        """As it is now. The registry does not hold the lock."""
        read = self._read
        followed = {} if read is None else read()
        with self._lock:
            series = [
                Series(dict(zip(self.labels, key, strict=True)), each.value, each.count, list(accumulate(each.buckets)))
                for key, each in self._series.items()
            ]
        series += [
            Series(dict(zip(self.labels, key, strict=True)), value)
            for key, value in islice(followed.items(), self.most)
        ]
        return Metric(self.name, self.kind, self.help, series, list(self.bounds))


class Counter(_Family):
    """A number that only grows. Made by :meth:`Registry.counter`."""

    kind = "counter"

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count so much more, from any thread."""
        if amount < 0:
            raise ValueError(f"{self.name} cannot go down")
        with self._lock:
            self._of(labels).value += amount

    def follow(self, read: Read | None) -> None:
        """Have the values read whenever a snapshot is taken, instead of counted here; None: no more."""
        self._follow(read)


class Gauge(_Family):
    """A number that goes up and down. Made by :meth:`Registry.gauge`."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        """It is so much now, from any thread."""
        with self._lock:
            self._of(labels).value = value

    def follow(self, read: Read | None) -> None:
        """Have the values read whenever a snapshot is taken; None: no more."""
        self._follow(read)


class Histogram(_Family):
    """How many observations there were, their sum, and how large they were. Made by :meth:`Registry.histogram`."""

    kind = "histogram"

    def __init__(
        self, lock: threading.Lock, name: str, help_text: str, labels: Sequence[str], most: int, bounds: Sequence[float]
    ) -> None:
        super().__init__(lock, name, help_text, labels, most)
        self.bounds = tuple(bounds)

    def observe(self, value: float, **labels: str) -> None:
        """Count one observation, from any thread."""
        with self._lock:
            series = self._of(labels)
            series.value += value
            series.count += 1
            series.buckets = series.buckets or [0] * len(self.bounds)
            index = bisect_left(self.bounds, value)
            if index < len(self.bounds):
                series.buckets[index] += 1


class Registry:
    """The metrics of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    @property
    def families(self) -> list[Counter | Gauge | Histogram]:
        """All metrics, in the order in which they were made."""
        with self._lock:
            return list(self._metrics.values())

    def counter(self, name: str, help_text: str, labels: Sequence[str] = (), *, most: int = MOST_SERIES) -> Counter:
        """A new counter of at most so many series. Raises ``ValueError`` if the name is taken."""
        made = Counter(self._lock, name, help_text, labels, most)
        self._add(name, made)
        return made

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = (), *, most: int = MOST_SERIES) -> Gauge:
        """A new gauge of at most so many series. Raises ``ValueError`` if the name is taken."""
        made = Gauge(self._lock, name, help_text, labels, most)
        self._add(name, made)
        return made

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = SECONDS,
        *,
        most: int = MOST_SERIES,
    ) -> Histogram:
        """A new histogram of at most so many series. Raises ``ValueError`` if the name is taken."""
        made = Histogram(self._lock, name, help_text, labels, most, bounds)
        self._add(name, made)
        return made

    def _add(self, name: str, metric: Counter | Gauge | Histogram) -> None:
        with self._lock:
            if name in self._metrics:
                raise ValueError(f"there is a metric {name} already")
            self._metrics[name] = metric

    def snapshot(self) -> Snapshot:
        """All metrics as they are at this moment."""
        return Snapshot([family.taken() for family in self.families])


REGISTRY = Registry()
"""The metrics of this process."""


@contextlib.contextmanager
def written_to(path: Path | None, registry: Registry = REGISTRY) -> Iterator[None]:
    """Write snapshots to a file while the block runs, and a last one when it ends. Without a path nothing is written.

    Another process may read the file at any time with :func:`read_snapshot`: each snapshot replaces the one before it whole.
    """
    if path is None:
        yield
        return
    over = threading.Event()

    def write_again_and_again() -> None:
        while not over.wait(WRITE_EVERY):
            _write(path, registry)

    writer = threading.Thread(target=write_again_and_again, name="metrics", daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
        _write(path, registry)


def read_snapshot(path: Path) -> Snapshot:
    """The last snapshot that another process wrote; an empty one if it has written none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except FileNotFoundError:
        return Snapshot([])


def _write(path: Path, registry: Registry) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_bytes(msgspec.json.encode(registry.snapshot()))
        new.replace(path)
    except OSError as error:  # a full disk must not end the daemon
        log.warning("metrics_not_written", path=str(path), error=str(error))
