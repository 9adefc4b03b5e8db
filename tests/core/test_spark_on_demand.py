"""Spark starts once, when the first task needs it, and a start that fails is tried again by the next one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sardonyx.core.errors import SetupError
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
    """What was missing may have come. Nobody gets the error of a start before."""
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
