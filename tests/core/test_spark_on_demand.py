"""Spark starts once, when the first task needs it, and a start that fails is tried again by the next one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peer import preparation
from peer.assignment import RunnerLost
from sardonyx.core import node_paths
from sardonyx.core.errors import SetupError
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.runtime.settings import load_settings
from spark_tasks.on_demand import SparkOnDemand
from tests.waiting import PATIENCE, until


class Starts:
    """Starts a session when it may, and counts."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> Any:
        self.count += 1
        assert self.may.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return object()


def test_nothing_starts_until_it_is_asked_for_and_all_have_the_same() -> None:
    """``begin`` does not wait. Those who need the session wait for the one start."""
    start, up = Starts(), list[Any]()
    spark = SparkOnDemand(start, up.append)
    assert (spark.running, spark.starts, spark.has_ended, start.count) == (None, False, False, 0)
    spark.begin()
    spark.begin()
    until(lambda: start.count, what="the start")
    assert (spark.running, spark.starts) == (None, True)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(spark.session())) for _ in range(8)]
    for thread in threads:
        thread.start()
    start.may.set()
    for thread in threads:
        thread.join(PATIENCE)
    until(lambda: up, what="the word that it has started")
    assert [*map(id, found)] == 8 * [id(spark.running)]
    assert (start.count, spark.starts, up) == (1, False, [spark.running])


def test_a_start_that_fails_is_told_to_all_who_wait_and_tried_again() -> None:
    """What was missing may have come. No call gets the error of a start before."""
    start, up = Starts(), list[Any]()
    spark = SparkOnDemand(start, up.append)
    start.error = SetupError("SX-SPARK-START", "Spark did not start")
    start.may.set()
    for _ in range(2):
        with pytest.raises(SetupError, match="did not start"):
            spark.session()
    assert (spark.running, spark.starts, start.count, up) == (None, False, 2, [])
    start.error = None
    assert spark.session() is spark.running
    assert start.count == 3


class Dead(SparkOnDemand):
    """Spark, whose JVM has ended."""

    has_ended = True  # type: ignore[assignment]
    running = object()  # type: ignore[assignment]


class Nodes(dict[str, bytes]):
    """The nodes that the preparation of a task reads."""

    def read(self, path: str) -> bytes | None:
        return self.get(path)


def test_where_spark_has_ended_a_peer_takes_the_tasks_that_need_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks nothing of the JVM that has ended, not even to forget code that no task uses."""
    spec = JobSpec(
        name="j",
        workflow=[("read", "work"), ("work", "drop")],
        catalog=[
            TaskSpec(name="read", type="input", connector="kafka", options={"topic": "in"}),
            TaskSpec(name="work", type="function", fn="json:dumps"),
            TaskSpec(name="drop", type="output", connector="blackhole"),
        ],
    )
    links = msgspec.json.encode(LinksNote({}))
    nodes: Any = Nodes({node_paths.job_spec("j-1"): encode_spec(spec), node_paths.job_links("j-1"): links})
    asked: list[object] = []
    monkeypatch.setattr(preparation, "free_unused", asked.append)
    monkeypatch.setattr(preparation, "assemble", lambda _settings, spark, *_, **__: ("taken", spark))

    def prepared(task: str) -> Any:
        dead = Dead(object)  # type: ignore[arg-type]
        return preparation.prepare(load_settings(), nodes, dead, "p", Assignment(1, "j-1", task, 0), tmp_path)

    assert prepared("drop") == ("taken", None)
    with pytest.raises(RunnerLost):
        prepared("work")
    assert asked == [None, None]
