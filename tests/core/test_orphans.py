"""What forgotten jobs have left is removed aside from the coordinator's loop, and again until Kafka is there."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from coordinator import orphans
from coordinator.orphans import Orphans


class Kafka:
    """Away as often as it is told to be; notes what it was asked."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.asked: list[tuple[str, ...]] = []
        self.done = threading.Event()

    def forget(self, jobs: Collection[str]) -> None:
        self.asked.append(tuple(jobs))
        if len(self.asked) <= self.away:
            raise ConnectionError("away")
        self.done.set()


def test_it_is_tried_until_kafka_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same jobs each time."""
    monkeypatch.setattr(orphans, "PAUSE", 0.001)
    kafka = Kafka(away=2)
    Orphans(kafka.forget).sweep(["a", "b"])
    assert kafka.done.wait(10)
    assert kafka.asked == [("a", "b")] * 3


def test_nothing_is_begun_for_nothing_or_when_closed() -> None:
    """No thread, no question."""
    kafka = Kafka()
    swept = Orphans(kafka.forget)
    before = threading.active_count()
    swept.sweep([])
    swept.close()
    swept.sweep(["a"])
    assert threading.active_count() == before
    assert kafka.asked == []


def test_closing_ends_the_waiting() -> None:
    """A leader that goes does not leave its thread behind until Kafka is back."""
    kafka = Kafka(away=1_000_000)
    failed = threading.Event()

    def forget(jobs: Collection[str]) -> None:
        failed.set()
        kafka.forget(jobs)

    before = set(threading.enumerate())
    swept = Orphans(forget)
    swept.sweep(["a"])
    assert failed.wait(10)
    swept.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
