"""For how much of the time, and in which order, Kafka is asked about jobs for the pages."""

from __future__ import annotations

import itertools
from collections import Counter

from sardonyx.web.watching import ASK_EVERY, GLANCE_EVERY, LOOKED_AT, SHARE, Watching


class Kafka:
    """Is asked about whatever is due, and takes its time for each answer."""

    def __init__(self, watching: Watching, took: float) -> None:
        self.watching, self.took = watching, took
        self.now = 0.0
        self.asked: list[tuple[float, str]] = []

    def run(self, seconds: float, *, glances: list[str] | None = None, looks: str | None = None) -> None:
        """The pages stay open for so long: that of the deployment with these running jobs, and that of one job."""
        end = self.now + seconds
        while self.now < end:
            if glances is not None:
                self.watching.glance(glances, self.now)
            if looks is not None:
                self.watching.look(looks, self.now)
            due = self.watching.due(self.now)
            if due is None:
                self.now += 0.2
                continue
            began, self.now = self.now, self.now + self.took
            self.asked.append((began, due.job))
            self.watching.told(due, began, self.now)

    def times(self) -> Counter[str]:
        return Counter(job for _, job in self.asked)


def test_a_job_whose_page_is_open_is_asked_about_often_and_all_others_now_and_then() -> None:
    watching = Watching()
    kafka = Kafka(watching, 0.1)
    kafka.run(100.0, glances=["a", "b", "c"], looks="b")
    times = kafka.times()
    assert 45 <= times["b"] <= 51
    assert times["a"] == times["c"] == 100 / GLANCE_EVERY
    assert [watching.period(job, kafka.now) for job in ("a", "b", "d")] == [GLANCE_EVERY, ASK_EVERY, None]


def test_however_many_jobs_run_kafka_is_asked_for_a_part_of_the_time_and_each_gets_its_turn() -> None:
    """The page of a job is as fresh as without them."""
    kafka = Kafka(Watching(), 0.5)
    jobs = [f"job{number}" for number in range(200)]
    kafka.run(1000.0, glances=jobs)
    times = kafka.times()
    assert 0.95 < len(kafka.asked) * 0.5 * SHARE / 1000.0 <= 1.01
    assert set(times) == set(jobs)
    assert max(times.values()) - min(times.values()) <= 1
    kafka.asked.clear()
    kafka.run(100.0, glances=jobs, looks="job7")
    of_it = [at for at, job in kafka.asked if job == "job7"]
    assert max(after - before for before, after in itertools.pairwise(of_it)) <= ASK_EVERY + 0.5 + 0.2


def test_nobody_is_asked_about_when_nobody_looks() -> None:
    watching = Watching()
    kafka = Kafka(watching, 0.1)
    kafka.run(1.0, glances=["a"], looks="b")
    kafka.run(2 * LOOKED_AT)
    last = max(at for at, _ in kafka.asked)
    assert last <= 1.0 + LOOKED_AT + 0.2
    assert not watching


def test_what_was_known_of_a_job_is_known_when_its_page_is_opened() -> None:
    """And the other way round: they are the same samples."""
    watching = Watching()
    glanced = watching.glance(["a"], 0.0)["a"]
    assert watching.look("a", 1.0) is glanced
