"""What purged jobs have left is removed beside the coordinator's loop, and tried again until Kafka is there."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from coordinator.loop.topic_gc import TopicCollector, readers_of_letters
from sardonyx.core.redoing import redo_spec
from sardonyx.core.spec import JobSpec, TaskSpec
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("threads_end")


class Kafka:
    """Fails the first ``away`` times; notes what it was asked."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.asked: list[tuple[str, ...]] = []
        self.done = threading.Event()

    def forget(self, jobs: Collection[str]) -> None:
        self.asked.append(tuple(jobs))
        if len(self.asked) <= self.away:
            raise ConnectionError("away")
        self.done.set()


def test_it_is_tried_until_kafka_is_there() -> None:
    """With the same jobs each time."""
    kafka = Kafka(away=2)
    swept = TopicCollector(kafka.forget, pause=0.001)
    swept.collect(["a", "b"])
    assert kafka.done.wait(PATIENCE)
    swept.close()
    assert kafka.asked == [("a", "b")] * 3


def test_what_is_asked_for_meanwhile_is_added() -> None:
    """Whether Kafka is away or at work at that time: nothing that was asked for before is dropped."""
    asked: list[tuple[str, ...]] = []
    done = threading.Event()

    def forget(jobs: Collection[str]) -> None:
        asked.append(tuple(jobs))
        if len(asked) == 1:
            swept.collect(["b"])
            swept.collect(["c", "a"])
            raise ConnectionError("away")
        done.set()

    swept = TopicCollector(forget, pause=0.001)
    swept.collect(["a"])
    assert done.wait(PATIENCE)
    swept.close()
    assert asked == [("a",), ("a", "b", "c")]


def test_who_reads_dead_letters_is_known_by_the_job_they_are_of() -> None:
    """From a redo as it is made; a job that reads any other topic reads none."""
    one = TaskSpec(name="one", type="input", connector="kafka", options={"topic": "t.orders-abc.one.d"})
    out = TaskSpec(name="out", type="output", connector="blackhole")
    spec = JobSpec(name="orders", workflow=[("one", "out")], catalog=[one, out])
    redo = redo_spec(spec, "out", "orders-redo", "t.orders-abc.out.dead", 0, 1)
    assert readers_of_letters({"orders-abc": spec, "orders-redo": redo}) == {"orders-abc": "orders-redo"}


def test_nothing_is_begun_for_nothing_or_when_closed() -> None:
    """No thread, no question."""
    kafka = Kafka()
    swept = TopicCollector(kafka.forget)
    before = set(threading.enumerate())
    swept.collect([])
    swept.close()
    swept.collect(["a"])
    assert set(threading.enumerate()) <= before
    assert kafka.asked == []


def test_closing_ends_the_waiting() -> None:
    """A leader that goes does not leave its thread behind until Kafka is back."""
    kafka = Kafka(away=1_000_000)
    failed = threading.Event()

    def forget(jobs: Collection[str]) -> None:
        failed.set()
        kafka.forget(jobs)

    before = set(threading.enumerate())
    swept = TopicCollector(forget)
    swept.collect(["a"])
    assert failed.wait(PATIENCE)
    swept.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
