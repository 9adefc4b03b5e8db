"""The clocks of a running job: what the groups have committed, stated from task to task, never above a row that is on its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.client.batch_times import OfTask
from sardonyx.client.clocks import JobClock
from sardonyx.client.job_handle import JobHandle
from tests.services.house import House
from tests.waiting import until

JOB = """
from sardonyx import Job, event_time, kafka

def same(row: dict) -> dict:
    return row

job = Job("timed", partitions=3)
read = job.input("read", kafka("{topic}", schema="n long, at timestamp", start="earliest"),
                 time=event_time("at", delay="5 s"{idle}))
first = job.task("first", same, after=read, max_peers=2, batch_size=20)
job.output("out", kafka("{topic}-out"), after=job.task("second", same, after=first, batch_size=20))
"""

START = 1_764_000_000
"""Seconds since 1970 of the first row."""


def text(topic: str, idle: str = "") -> str:
    return JOB.format(topic=topic, idle=idle)


def rows(*seconds: int) -> list[bytes]:
    return [json.dumps({"n": second, "at": f"{_iso(second)}"}).encode() for second in seconds]


def _iso(second: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(START + second, UTC).isoformat().replace("+00:00", "Z")


def at(second: int) -> int:
    """A clock, in microseconds."""
    return (START + second) * 1_000_000


def awaited(handle: JobHandle, second: int, *tasks: str) -> JobClock:
    """The clocks, as soon as those of these tasks stand there."""

    def there() -> JobClock | None:
        found = handle.clock()
        wanted = {task.task: task.clock for task in found.tasks}
        return found if all(wanted[task] == at(second) for task in tasks) else None

    return until(there, what=f"the clocks of {', '.join(tasks)} at second {second}")


@pytest.mark.gate
def test_the_clock_of_each_task_is_that_of_the_slowest_partition(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes from task to task, through tasks that several peers share; what holds it is named, beside tasks that are late; the
    commands show it.
    """
    topic = house.make_topic("timed")
    house.put(topic, 0, *rows(10, 40, 20))
    handle = house.submit(tmp_path, text(topic))
    until(lambda: handle.status(live=False).status == "running", what="the job to run")
    house.put(topic, 1, *rows(30))
    found = awaited(handle, 25, "first", "second")
    assert found.clock == at(25)
    first = next(task for task in found.tasks if task.task == "first")
    assert first.held_by == [f"{topic}[1]"]
    house.put(topic, 1, *rows(100))
    awaited(handle, 35, "first", "second")
    shown = house.call("clock", handle.id)
    assert shown.exit_code == 0, shown.output
    assert f"{topic}[0]" in shown.stdout
    as_json = json.loads(house.call("clock", handle.id, "--json").stdout)
    assert as_json["clock"] == at(35)
    wanted = f"its clock is held by {topic}[0], which task first reads: no later row of it was read"
    until(
        lambda: wanted in house.call("job", "explain", handle.id).stdout, what="a look that is soon enough to tell why"
    )
    monkeypatch.setattr("sardonyx.client.why.late_tasks", lambda *_: [OfTask("first", "task first is late")])
    until(
        lambda: {each.code for each in handle.explain().outside} == {"clock-held", "late", "batch-time"},
        what="all reasons",
    )
    house.clear()


def test_an_idle_partition_holds_no_clock_back(house: House, tmp_path: Path) -> None:
    """It is named as idle. When rows come again, it counts again."""
    topic = house.make_topic("idle")
    house.put(topic, 0, *rows(10))
    house.put(topic, 1, *rows(100))
    handle = house.submit(tmp_path, text(topic, idle=', idle="1 s"'))

    def has_idle() -> JobClock | None:
        found = handle.clock()
        return found if found.tasks[0].idle else None

    until(lambda: handle.status(live=False).status == "running", what="the job to run")
    until(has_idle, what="an idle partition")
    house.put(topic, 1, *rows(200))
    awaited(handle, 195, "first", "second")
    house.clear()


def test_watching_a_clock_repeats_until_the_job_has_ended(house: House, tmp_path: Path) -> None:
    """`--watch` shows the clock as it goes on, with `--json` each look as a line, and ends well by itself."""
    topic = house.make_topic("watched")
    house.fill(topic, *rows(10, 10))
    handle = house.submit(tmp_path, text(topic))
    until(lambda: handle.status(live=False).status == "running", what="the job to run")
    awaited(handle, 5, "first", "second")
    command = [sys.executable, "-m", "sardonyx", "clock", handle.id, "--watch", "--json"]
    env = {**os.environ, **house.settings.environment()}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        looks = (json.loads(line) for line in watch.stdout)
        assert next(looks)["clock"] == at(5)
        house.fill(topic, *rows(30, 30))
        assert next(look for look in looks if look["clock"] != at(5))["clock"] == at(25)
        handle.stop()
        assert all(look["clock"] in (at(25), None) for look in looks)
        assert watch.wait(60) == 0
