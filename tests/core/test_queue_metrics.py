"""What a peer daemon counts of its clients of Kafka, how busy its tasks are, and what Spark takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from peer import peer_metrics
from peer.peer_metrics import Busy
from queues import queue_metrics
from queues.batch import Batch
from sardonyx.runtime.metrics import REGISTRY, Histogram
from spark_tasks import spark_metrics


def values(name: str) -> dict[str, float]:
    """By the value of its only label."""
    return {"".join(each.labels.values()): each.value for each in REGISTRY.snapshot().series(f"sardonyx_{name}")}


def counted(histogram: Histogram) -> int:
    return sum(each.count for each in histogram.taken().series)


class Reader:
    """What is measured of a reader."""

    def __init__(self, rows: int, paused: bool) -> None:
        self.rows_ahead, self.is_paused = rows, paused


def test_what_readers_have_read_ahead_is_summed_for_as_long_as_there_are_any() -> None:
    """A reader that is gone does not count, and nothing has to be told."""
    rows, paused = values("reader_buffered_rows")[""], values("readers_paused")[""]
    one, two = Reader(70, paused=True), Reader(5, paused=False)
    for reader in (one, two):
        queue_metrics.follow(reader)
    assert (values("reader_buffered_rows")[""], values("readers_paused")[""]) == (rows + 75, paused + 1)
    del one, reader
    assert (values("reader_buffered_rows")[""], values("readers_paused")[""]) == (rows + 5, paused)


@pytest.fixture
def clock() -> Iterator[list[float]]:
    yield [100.0]
    peer_metrics._AT_WORK.clear()


def busy_of(task: str) -> float:
    (found,) = [s.value for s in REGISTRY.snapshot().series("sardonyx_task_busy_ratio") if s.labels["task"] == task]
    return found


def test_a_task_is_as_busy_as_its_peers_had_batches_in_hand(clock: list[float]) -> None:
    """In the last ten seconds or so, also while a batch takes long; the mean over the peers of the daemon."""
    one = Busy("flights-aaaaaa", "label", lambda: clock[0])
    assert busy_of("label") == 0
    one.set(True)
    clock[0] += 60
    assert busy_of("label") == pytest.approx(1, abs=0.01)
    for _ in range(100):  # a batch of 0.3 s in each second
        one.set(False)
        clock[0] += 0.7
        one.set(True)
        one.set(True)
        clock[0] += 0.3
    assert busy_of("label") == pytest.approx(0.3, abs=0.05)
    two = Busy("flights-bbbbbb", "label", lambda: clock[0])
    assert busy_of("label") == pytest.approx(0.15, abs=0.03)
    one.set(False)
    clock[0] += 60
    assert busy_of("label") == pytest.approx(0, abs=0.01)
    for each in (one, two):
        each.close()
    assert REGISTRY.snapshot().series("sardonyx_task_busy_ratio") == []


def message(milliseconds: int) -> Any:
    return SimpleNamespace(timestamp=lambda: (1, milliseconds))


def test_the_oldest_record_of_a_batch_tells_how_late_it_is() -> None:
    """By the time that it has in Kafka. Of records without a time nothing is known."""
    batch = Batch({"read": [message(5000), message(7000)], "again": [message(4000)], "none": [], "old": [message(-1)]})
    assert batch.oldest == 4.0
    assert Batch({"read": [message(-1)]}).oldest is None
    assert Batch().oldest is None
    before = counted(peer_metrics.DELAY)
    result: Any = SimpleNamespace(rows_in=1, table=SimpleNamespace(num_rows=1), skipped=0, letters=[], planned=None)
    peer_metrics.count_batch("j-aaaaaa", "late", result, {}, 1.0)
    peer_metrics.count_batch("j-aaaaaa", "late", result, {}, None)
    assert counted(peer_metrics.DELAY) == before + 1


def test_the_memory_of_spark_is_that_of_its_jvm_and_of_what_runs_below_it() -> None:
    """A JVM that has ended has none."""
    below = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        spark_metrics.follow(lambda: [os.getpid()])
        assert spark_metrics.JVM.taken().series[0].value > 10e6
        assert spark_metrics.WORKERS.taken().series[0].value >= psutil.Process(below.pid).memory_info().rss / 2
    finally:
        below.communicate()
    spark_metrics.follow(lambda: [below.pid])
    assert spark_metrics.JVM.taken().series == spark_metrics.WORKERS.taken().series == []
    for gauge in (spark_metrics.JVM, spark_metrics.WORKERS):
        gauge.follow(None)
