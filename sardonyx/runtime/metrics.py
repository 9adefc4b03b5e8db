"""Counters and histograms of this process, by name and labels, and their way to another process.

Names, labels and bucket bounds follow Prometheus' conventions, so that an endpoint for it has only to print a
:class:`Snapshot`. A process that ran for months has worked on many jobs, so each metric keeps a bounded number of series.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import structlog

log = structlog.get_logger()

MOST_SERIES = 1_000
"""Series of one metric. For a new one, the series goes that was not used for the longest time."""

WRITE_EVERY = 1.0
"""Seconds between two snapshots in a file."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of buckets for durations."""


class Series(msgspec.Struct, frozen=True):
    """One combination of labels, at one moment."""

    labels: dict[str, str]
    value: float
    """A counter's value; the sum of what a histogram observed."""
    count: int = 0
    """Observations of a histogram."""
    buckets: list[int] = []
    """For each bound of a histogram, how many observations were at most that large."""


class Metric(msgspec.Struct, frozen=True):
    """All series of one name, at one moment; in the order in which they began."""

    name: str
    kind: Literal["counter", "histogram"]
    help: str
    series: list[Series]
    bounds: list[float] = []
    """Upper bounds of a histogram's buckets."""


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
    used: int = 0


class _Family:
    """The series of one name."""

    def __init__(self, lock: threading.Lock, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self._lock = lock
        self._help = help_text
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], _Series] = {}
        self._uses = 0

    def _of(self, labels: dict[str, str]) -> _Series:
        """The series with these labels. The caller holds the lock."""
        if labels.keys() != set(self._labels):
            raise ValueError(f"{self.name} has the labels {', '.join(self._labels)}, not {', '.join(labels)}")
        key = tuple(labels[name] for name in self._labels)
        found = self._series.get(key)
        if found is None:
            if len(self._series) >= MOST_SERIES:
                del self._series[min(self._series, key=lambda each: self._series[each].used)]
            found = self._series[key] = _Series()
        self._uses += 1
        found.used = self._uses
        return found

    def _taken(self) -> list[Series]:
        return [
            Series(dict(zip(self._labels, key, strict=True)), each.value, each.count, list(each.buckets))
            for key, each in self._series.items()
        ]


class Counter(_Family):
    """A number that only grows. Made by :meth:`Registry.counter`."""

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count so much more, from any thread."""
        if amount < 0:
            raise ValueError(f"{self.name} cannot go down")
        with self._lock:
            self._of(labels).value += amount

    def taken(self) -> Metric:
        """As it is now. The registry holds the lock."""
        return Metric(self.name, "counter", self._help, self._taken())


class Histogram(_Family):
    """How many observations there were, their sum, and how large they were. Made by :meth:`Registry.histogram`."""

    def __init__(
        self, lock: threading.Lock, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        super().__init__(lock, name, help_text, labels)
        self._bounds = tuple(bounds)

    def observe(self, value: float, **labels: str) -> None:
        """Count one observation, from any thread."""
        with self._lock:
            series = self._of(labels)
            series.value += value
            series.count += 1
            series.buckets = series.buckets or [0] * len(self._bounds)
            for index in range(bisect_left(self._bounds, value), len(self._bounds)):
                series.buckets[index] += 1

    def taken(self) -> Metric:
        """As it is now. The registry holds the lock."""
        return Metric(self.name, "histogram", self._help, self._taken(), list(self._bounds))


class Registry:
    """The metrics of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: dict[str, Counter | Histogram] = {}

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """A new counter. Raises ``ValueError`` if the name is taken."""
        made = Counter(self._lock, name, help_text, labels)
        self._add(name, made)
        return made

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """A new histogram. Raises ``ValueError`` if the name is taken."""
        made = Histogram(self._lock, name, help_text, labels, bounds)
        self._add(name, made)
        return made

    def _add(self, name: str, metric: Counter | Histogram) -> None:
        with self._lock:
            if name in self._metrics:
                raise ValueError(f"there is a metric {name} already")
            self._metrics[name] = metric

    def snapshot(self) -> Snapshot:
        """All metrics as they are at this moment."""
        with self._lock:
            return Snapshot([metric.taken() for metric in self._metrics.values()])


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
