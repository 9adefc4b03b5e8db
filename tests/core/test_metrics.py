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
    monkeypatch.setattr(metrics, "KEPT", -1)
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.", ["sx_job"], most=2)
    for job in ("a", "b", "a", "c"):
        rows.add(sx_job=job)
    assert [series.labels["sx_job"] for series in registry.snapshot().series("rows_total")] == ["a", "c"]


def test_what_finds_no_place_is_counted_together() -> None:
    """Series in use stay, and nothing that is counted is lost: jobs, tasks and codes become ``_other``, other labels stay."""
    registry = Registry()
    rows = registry.counter("rows_total", "Rows.", ["sx_job", "what"], most=2)
    for job in ("a", "b", "c", "d", "a"):
        rows.add(sx_job=job, what="in")
    assert registry.snapshot().series("rows_total") == [
        Series({"sx_job": "a", "what": "in"}, 2),
        Series({"sx_job": "b", "what": "in"}, 1),
        Series({"sx_job": "_other", "what": "in"}, 2),
    ]


def test_a_gauge_goes_up_and_down() -> None:
    """The last value counts."""
    registry = Registry()
    level = registry.gauge("level", "Level.")
    level.set(3)
    level.set(1)
    assert registry.snapshot().series("level") == [Series({}, 1)]


def test_values_can_be_read_when_a_client_asks() -> None:
    """What other code keeps is not counted a second time; no more series than the metric may have."""
    registry = Registry()
    states = registry.gauge("peers", "Peers.", ["state"], most=2)
    found = {("idle",): 1.0}
    states.follow(lambda: found)
    assert registry.snapshot().series("peers") == [Series({"state": "idle"}, 1)]
    found = {(state,): 2.0 for state in ("idle", "active", "dead")}
    assert [series.value for series in registry.snapshot().series("peers")] == [2, 2]
    states.follow(None)
    assert registry.snapshot().series("peers") == []


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
