"""How far jobs are behind, for Prometheus: how seldom Kafka is asked, and what a scrape gets when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sardonyx.client.clocks import JobClock, TaskClock, seconds_behind
from sardonyx.client.lags import LinkLag
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import Runtime
from sardonyx.web.lag_meter import (
    BEHIND,
    EVERY,
    LOSES_ENDS,
    OLDEST,
    RELEASE_EVERY,
    SAMPLED,
    SHARE,
    UNREAD,
    WANTED,
    JobLag,
    LagMeter,
    job_lag,
)

WALL = 1_000_000.0
SPEC: Any = SimpleNamespace()
"""What is asked does not look at it."""


class Clock(Runtime):
    """Time passes only by what is waited for and by what Kafka takes."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> float:
        return self.passed

    def wall(self) -> float:
        return WALL + self.passed

    def signal(self) -> Any:
        return Waits(self)


class Waits:
    """A signal; to wait for it is to let time pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set = False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None or self._set, "it waits without a limit"
        self._clock.passed += timeout or 0.0
        return self._set


class World:
    """Running jobs, and a Kafka that says how far they are behind."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.jobs: dict[str, JobSpec] = {"flights-aaaaaa": SPEC}
        self.asked: list[tuple[float, str]] = []
        self.takes = 0.0
        self.answer = JobLag({"read": 7, "read.label": 3}, {"read": 1.5}, {"label": 60.0})
        self.away = False
        self.release: bool | None = None
        self.releases = 0
        self.meter = LagMeter(lambda: dict(self.jobs), self._ask, self._loses_ends, self.clock)
        self.meter.follow()

    def _ask(self, job: str, spec: JobSpec) -> JobLag:
        assert spec is SPEC
        self.asked.append((self.clock.passed, job))
        self.clock.passed += self.takes
        if self.away:
            raise SardonyxError("SX-KAFKA-UNREACHABLE", "Kafka does not answer")
        return self.answer

    def _loses_ends(self) -> bool | None:
        self.releases += 1
        return self.release

    def scraped(self) -> dict[str, dict[tuple[str, ...], float]]:
        """What Prometheus gets: by metric, the values of the labels and the value."""
        found = {}
        for gauge in (UNREAD, OLDEST, BEHIND, SAMPLED, LOSES_ENDS):
            series = gauge.taken().series
            found[gauge.name] = {tuple(each.labels.values()): each.value for each in series}
        return {name.removeprefix("sardonyx_"): values for name, values in found.items() if values}

    def later(self, seconds: float) -> None:
        self.clock.passed += seconds
        self.meter.step()


@pytest.fixture
def world() -> Iterator[World]:
    yield World()
    for gauge in (UNREAD, OLDEST, BEHIND, SAMPLED, LOSES_ENDS):
        gauge.follow(None)


def test_a_scrape_gets_what_kafka_said_and_when(world: World) -> None:
    """By the name of the job; what is not known is left out."""
    assert world.scraped() == {}
    world.later(5)
    assert world.scraped() == {
        "link_unread_rows": {("flights", "read"): 7, ("flights", "read.label"): 3},
        "link_oldest_unread_seconds": {("flights", "read"): 1.5},
        "task_event_time_behind_seconds": {("flights", "label"): 60},
        "job_lag_timestamp_seconds": {("flights",): WALL + 5},
    }


def test_kafka_is_asked_for_its_release_once_an_hour(world: World) -> None:
    """Brokers are upgraded while the pages run. What Kafka does not tell is no figure."""
    world.later(1)
    assert "kafka_loses_ends" not in world.scraped()
    world.release = True
    world.later(RELEASE_EVERY - 1)
    assert world.releases == 1
    world.later(1)
    assert world.scraped()["kafka_loses_ends"] == {(): 1}
    assert world.releases == 2


def test_kafka_is_asked_as_seldom_however_often_it_is_scraped(world: World) -> None:
    """About a job every 30 seconds; none asks because it is scraped."""
    for _ in range(100):
        world.scraped()
        world.later(1)
        world.scraped()
    times = [at for at, _ in world.asked]
    assert times == [1, 1 + EVERY, 1 + 2 * EVERY, 1 + 3 * EVERY]


def test_kafka_is_asked_for_a_part_of_the_time_over_all_jobs_in_turn(world: World) -> None:
    """A hundred jobs, two seconds for each answer: a quarter of the time, and each job as often as the others."""
    world.takes = 2.0
    world.jobs = {f"job-{number:06}": SPEC for number in range(100)}
    world.scraped()
    ask = world._ask

    def until_enough(job: str, spec: JobSpec) -> JobLag:
        world.scraped()  # so that it goes on
        if len(world.asked) == 199:
            world.meter.close()
        return ask(job, spec)

    world.meter._ask = until_enough
    world.meter.run()
    assert world.clock.passed == pytest.approx(200 * world.takes * SHARE)
    names = [job for _, job in world.asked]
    assert sorted(names[:100]) == sorted(names[100:]) == sorted(world.jobs)


def test_nothing_is_asked_before_a_scrape_or_long_after_one(world: World) -> None:
    """And what was known then is not shown as if it were of now."""
    assert not world.meter._is_wanted
    world.scraped()
    world.later(1)
    assert world.meter._is_wanted
    world.clock.passed += WANTED
    assert not world.meter._is_wanted
    assert world.scraped() == {}
    world.later(1)
    assert world.scraped()["job_lag_timestamp_seconds"] == {("flights",): WALL + 2 + WANTED}


def test_a_kafka_that_does_not_answer_leaves_the_time_of_its_last_answer(world: World) -> None:
    """No figure is shown that is not known; it comes back by itself."""
    world.scraped()
    world.later(1)
    world.away = True
    world.later(EVERY)
    assert world.scraped() == {"job_lag_timestamp_seconds": {("flights",): WALL + 1}}
    world.away = False
    world.later(EVERY)
    assert world.scraped()["link_unread_rows"][("flights", "read")] == 7


def test_a_job_that_was_never_told_of_has_no_time(world: World) -> None:
    """A time of 0 would be an alert at once."""
    world.scraped()
    world.away = True
    world.later(1)
    assert world.scraped() == {}


def test_runs_of_one_job_stand_together_and_an_ended_one_is_gone(world: World) -> None:
    """Rows are added; waits are those of the one that is further behind; the time is the older one."""
    world.jobs["flights-bbbbbb"] = SPEC
    world.scraped()
    world.later(1)
    world.later(1)
    assert world.scraped()["link_unread_rows"] == {("flights", "read"): 14, ("flights", "read.label"): 6}
    assert world.scraped()["link_oldest_unread_seconds"] == {("flights", "read"): 1.5}
    assert world.scraped()["job_lag_timestamp_seconds"] == {("flights",): WALL + 1}
    world.jobs = {"flights-bbbbbb": SPEC}
    world.later(1)
    assert world.scraped()["link_unread_rows"] == {("flights", "read"): 7, ("flights", "read.label"): 3}
    world.jobs = {}
    world.later(1)
    assert world.scraped() == {}


def test_what_is_unexpected_ends_no_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if Kafka had not answered."""

    def broken(_job: str, _spec: JobSpec) -> JobLag:
        raise ZeroDivisionError("nothing there")

    world.scraped()
    monkeypatch.setattr(world.meter, "_ask", broken)
    world.later(1)
    assert world.scraped() == {}


def test_splits_are_no_rows() -> None:
    """They wait since the job began, however fast it reads its files: the oldest one says nothing of how far it is behind."""
    found = [
        LinkLag(link="read.splits", reader="read", kind="splits", topic="s", unit="splits", records=9, seconds=3_600.0),
        LinkLag(link="read.clean", reader="clean", kind="internal", topic="c", records=70, seconds=0.5),
        LinkLag(link="clean.out", reader="out", kind="internal", topic="o"),
    ]
    assert job_lag(found, {"clean": 2.0}) == JobLag({"read.clean": 70}, {"read.clean": 0.5}, {"clean": 2.0})


def test_how_far_the_clocks_of_tasks_are_behind() -> None:
    """Those that have ended, or are not known, are left out."""
    tasks = [
        TaskClock(task="read", clock=90_000_000),
        TaskClock(task="count", clock=None, why="nothing of it was read yet"),
        TaskClock(task="done", clock=None, ended=True),
    ]
    found = JobClock(job="j", clock=None, ended=False, behind_seconds=None, tasks=tasks)
    assert seconds_behind(found, 100.5) == {"read": 10.5}
