"""Counters and histograms: what they count, how they are kept small, and how another process reads them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sardonyx.runtime import metrics
from sardonyx.runtime.metrics import Registry, Series, Snapshot, read_snapshot, written_to
from tests.waiting import until


def test_a_counter_counts_by_labels() -> None:
    """Each combination is a series of its own; they keep the order in which they began."""
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.", ["job", "task"])
    rows.add(3, job="j", task="a")
    rows.add(task="b", job="j")
    rows.add(4, job="j", task="a")
    assert registry.snapshot().series("rows_total") == [
        Series({"job": "j", "task": "a"}, 7),
        Series({"job": "j", "task": "b"}, 1),
    ]
    assert registry.snapshot().series("none") == []


def test_a_histogram_keeps_sum_count_and_buckets() -> None:
    """Buckets are cumulative, as Prometheus has them, and their bounds belong to them."""
    registry = Registry()
    taken = registry.histogram("seconds", "Time.", bounds=[0.1, 1.0])
    for value in (0.05, 0.1, 0.5, 5.0):
        taken.observe(value)
    (metric,) = registry.snapshot().metrics
    assert metric.bounds == [0.1, 1.0]
    (series,) = metric.series
    assert (series.count, series.value, series.buckets) == (4, pytest.approx(5.65), [2, 3])


def test_what_is_wrong_is_refused() -> None:
    """Other labels, a counter that would go down, a second metric of one name."""
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.", ["job"])
    with pytest.raises(ValueError, match="rows_total has the labels job"):
        rows.add(1, task="a")
    with pytest.raises(ValueError, match="cannot go down"):
        rows.add(-1, job="j")
    with pytest.raises(ValueError, match="already"):
        registry.histogram("rows_total", "Rows.")


def test_series_that_were_not_used_for_long_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that runs for months has seen many jobs, and must not keep all of them."""
    monkeypatch.setattr(metrics, "MOST_SERIES", 2)
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.", ["job"])
    for job in ("a", "b", "a", "c"):
        rows.add(job=job)
    assert [series.labels["job"] for series in registry.snapshot().series("rows_total")] == ["a", "c"]


def test_many_threads_lose_nothing() -> None:
    """Virtual peers count at the same time."""
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.")
    threads = [threading.Thread(target=lambda: [rows.add() for _ in range(2_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.snapshot().series("rows_total") == [Series({}, 16_000)]


def test_another_process_reads_them_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are counted, and what was counted last; nothing was written yet, or nowhere, is no error."""
    monkeypatch.setattr(metrics, "WRITE_EVERY", 0.01)
    registry, path = Registry(), tmp_path / "metrics.json"
    rows = registry.counter("rows_total", "Rows.")
    assert read_snapshot(path) == Snapshot([])
    with written_to(path, registry):
        rows.add(5)
        until(lambda: read_snapshot(path).series("rows_total") == [Series({}, 5)], what="the file to tell of it")
        monkeypatch.setattr(metrics, "WRITE_EVERY", 100)
        rows.add(1)
    assert read_snapshot(path).series("rows_total") == [Series({}, 6)]
    with written_to(None, registry):
        pass


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """The daemon goes on without it."""
    with written_to(tmp_path / "no such folder" / "metrics.json", Registry()):
        pass
