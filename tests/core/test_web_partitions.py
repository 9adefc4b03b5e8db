"""Partitions on the pages: how seldom Kafka is asked, however many look."""

from __future__ import annotations

import pytest

from sardonyx.client.views import PartitionLag
from sardonyx.core.errors import SetupError
from sardonyx.core.spec import JobSpec
from sardonyx.web.partitions import KEPT, PERIOD, SHARE, LivePartitions

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


def test_an_error_is_no_answer(kafka: Kafka, pages: LivePartitions) -> None:
    """The next one asks again. Of many tasks the last answers are kept."""
    kafka.away = True
    for _ in range(2):
        with pytest.raises(SetupError):
            pages.of("j-1", SPEC, "t")
    kafka.away = False
    for number in range(KEPT + 5):
        pages.of("j-1", SPEC, f"t{number}")
    assert len(kafka.asked) == 2 + KEPT + 5
    assert len(pages._known) == KEPT
