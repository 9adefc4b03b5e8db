"""Where a job has read its topics to: told while it runs and after its end, so that another job can go on from there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.services.house import House, written

JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("stream")
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
work = job.task("work", same, after=read)
job.output("write", kafka("{out}"), after=work)
"""


def test_positions_are_told_of_a_running_and_of_an_ended_job(house: House, tmp_path: Path) -> None:
    """Per partition, from Kafka while the job runs and as they were kept after its end. A second submission of the job says
    that it reads the topic again.
    """
    topic, out = house.make_topic("positions"), house.make_topic("positions-out")
    house.fill(topic, *(b'{"n": %d}' % n for n in range(5)))
    file = written(tmp_path, JOB.format(topic=topic, out=out))
    first = json.loads(house.call("job", "submit", file, "--json").stdout)
    assert "reads_again" not in first

    def positions() -> list[int]:
        shown = json.loads(house.call("job", "show", first["id"], "--json").stdout)
        return next((task["positions"][topic] for task in shown["tasks"] if task["positions"]), [])

    house.crew.until(lambda: sum(positions()) == 5, "the running job to have read all records")
    running = positions()
    house.call("job", "kill", first["id"])
    house.crew.until(lambda: positions() == running, "the positions of the ended job to be kept")
    text = house.call("job", "show", first["id"]).stdout
    assert f"task work stopped before offsets {{0: {running[0]}" in text
    assert "running" not in text

    again = house.call("job", "submit", file)
    assert f"job {first['id']} of the same name has read this topic before" in again.stderr
    assert "start='earliest'" in again.stderr
    house.call("job", "kill", "stream")
    assert json.loads(house.call("job", "show", "stream", "--json").stdout)["id"] == again.stdout.strip()
