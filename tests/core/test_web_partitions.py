"""Partitions and rows on the pages: how seldom Kafka is asked, however many look."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from sardonyx.client.lags import PartitionLag
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.spec import JobSpec
from sardonyx.web import rows, turns
from sardonyx.web.partitions import LivePartitions
from sardonyx.web.rows import PeekQuery, Rows
from sardonyx.web.turns import KEPT, PERIOD, SHARE, Turns

SPEC = JobSpec(name="j", workflow=[], catalog=[])


class Kafka:
    """What is asked, and how long it takes."""

    def __init__(self) -> None:
        self.now, self.takes = 100.0, 0.0
        self.asked: list[str] = []
        self.away = False

    def ask(self, _job: str, _spec: JobSpec, task: str) -> list[PartitionLag]:
        self.asked.append(task)
        self.now += self.takes
        if self.away:
            raise SetupError("SX-KAFKA-UNREACHABLE", "Kafka does not answer")
        return [PartitionLag(link="read.t", topic="t", partition=3, committed=5, end=7, records=2)]


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def pages(kafka: Kafka) -> LivePartitions:
    return LivePartitions(kafka.ask, lambda: kafka.now)


def test_all_who_look_at_a_time_get_one_answer(kafka: Kafka, pages: LivePartitions) -> None:
    """Another task is asked about by itself."""
    for _ in range(200):
        assert [item.end for item in pages.of("j-1", SPEC, "t").items] == [7]
    pages.of("j-1", SPEC, "u")
    assert kafka.asked == ["t", "u"]
    kafka.now += PERIOD
    pages.of("j-1", SPEC, "t")
    assert kafka.asked == ["t", "u", "t"]


def test_kafka_is_asked_for_a_part_of_the_time(kafka: Kafka, pages: LivePartitions) -> None:
    """An answer that took long is given for longer."""
    kafka.takes = 4.0
    pages.of("j-1", SPEC, "t")
    kafka.now += 4.0 * (SHARE - 1) - 0.1
    pages.of("j-1", SPEC, "t")
    assert len(kafka.asked) == 1
    kafka.now += 0.1
    pages.of("j-1", SPEC, "t")
    assert len(kafka.asked) == 2


def test_an_error_is_not_kept_as_an_answer(kafka: Kafka, pages: LivePartitions) -> None:
    """The next one asks again. Of many tasks the last answers are kept."""
    kafka.away = True
    for _ in range(2):
        with pytest.raises(SetupError):
            pages.of("j-1", SPEC, "t")
    kafka.away = False
    for number in range(KEPT + 5):
        pages.of("j-1", SPEC, f"t{number}")
    assert len(kafka.asked) == 2 + KEPT + 5
    assert len(pages._turns._known) == KEPT


def test_rows_of_a_link_are_read_once_for_all_who_look_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants others of them is not among these."""
    handle: Any = Mock()
    monkeypatch.setattr(rows, "JobHandle", handle)
    pages = Rows(Mock())
    for _ in range(20):
        pages.peek("j-1", SPEC, "read.t", PeekQuery(limit=5))
    pages.peek("j-1", SPEC, "read.t", PeekQuery(limit=5, begin="end"))
    assert [call.args for call in handle.return_value.peek.call_args_list] == [
        ("read.t", 5, None, "position"),
        ("read.t", 5, None, "end"),
    ]


def test_who_waits_for_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they look at. An error of one who looks gives the place free."""
    monkeypatch.setattr(turns, "PATIENCE", 0.01)
    few = Turns("rows", 1)
    with pytest.raises(ValueError, match="broken"), few.turn():
        raise ValueError("broken")
    with few.turn(), pytest.raises(SardonyxError, match="too many look at rows") as error, few.turn():
        pass
    assert error.value.code == "SX-WEB-BUSY"
