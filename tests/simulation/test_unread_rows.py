"""How many rows are unread on the queues that a task writes, as users change its topics. Its clients are simulated."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import queues.unread_rows
from queues.unread_rows import UnreadRows
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.settings import Settings
from tests.simulation.metadata import Topics, at_once


def test_rows_of_partitions_that_were_added_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the task would count as one that has written less than was read, and a full queue would hold it no more."""
    edges = [("in", "a"), ("a", "out")]
    given = TaskSpec(name="in", type="input", connector="kafka", options={"topic": "given"})
    tasks = [
        given,
        TaskSpec(name="a", type="function", fn="m:f"),
        TaskSpec(name="out", type="output", connector="blackhole"),
    ]
    graph = graph_of(JobSpec(name="j", workflow=edges, catalog=tasks), "d", "j")
    (queue,) = graph.stage("a").counted
    written = {("given", 0): 10, ("given", 1): 500}
    partitions = {"given": 1, queue.topic: 1}
    passed = [1000.0]

    class Client(Topics):
        def __init__(self, *_: Any, **_more: Any) -> None:
            super().__init__(partitions)

        def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            del timeout
            return [self._told(place) for place in places]

        def _told(self, place: TopicPartition) -> TopicPartition:
            rows = written.get((place.topic, place.partition))
            position = Position(5, Counts(300)) if rows is None else Position(9, Counts(rows), told=(rows,))
            return TopicPartition(place.topic, place.partition, position.offset, metadata=position.metadata())

        def poll(self, _timeout: float) -> None:
            pass

    monkeypatch.setattr(queues.unread_rows, "Consumer", Client)
    monkeypatch.setattr(BackgroundThread, "submit", at_once)
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    facts = {link.name: LinkFacts(1) for link in graph.links}
    unread = UnreadRows(
        Settings.model_construct(deployment="d"), "j", graph.stage("a"), {queue.name: graph.stage("out")}, facts
    )

    def told() -> int | None:
        passed[0] += 11.0
        unread.latest()
        return unread.latest()[queue.name]

    assert told() == 0  # by one partition, 10 rows were written and 300 were read
    partitions["given"] = 2
    assert told() == 210
