"""A record that is lost between two tasks is found: the job fails and says where, and never ends as completed."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sardonyx.client.client import JobHandle
from sardonyx.core.errors import JobFailed
from tests.services.house import House
from tests.waiting import until

JOB = """
import fcntl
from pathlib import Path
from sardonyx import Job, kafka, ordinal

class Loses:
    # Takes one message out between the link's sink and the transaction, as if the broker had lost it after the commit.
    def start(self, context):
        from queues.messages import CHAIN_HEADER, Outgoing
        from queues.transaction import TransactionalWriter

        self._class, self._produce = TransactionalWriter, TransactionalWriter._produce
        whole, lost, topic = self._produce, [], f"{{context.deployment}}.{{context.job}}.first.second"

        def produce(writer, message):
            if isinstance(message, Outgoing) and message.topic == topic and message.value is not None and not lost:
                number = int(dict(message.headers)[CHAIN_HEADER].split()[1])
                if self.is_lost(message, number):
                    lost.append(message)
                    return True
            return whole(writer, message)

        TransactionalWriter._produce = produce

    def stop(self):
        self._class._produce = self._produce

    def is_lost(self, message, number):
        from queues.block import decode

        return {lost}

class Held:
    def before_batch(self, rows):
        with Path("{hold}").open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)

def same(row: dict) -> dict:
    return row

job = Job("loss", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest", end="latest"){time})
first = job.task("first", same, after=read, batch_size=4, max_peers=1, lifecycle=Loses)
second = job.task("second", same, after=first, batch_size=1000, lifecycle=Held)
job.output("out", kafka("{topic}-out"), after=second)
"""
ROWS = 40
NOTHING = "False"
MIDDLE = "number == 1"
"""The second message of the first partition that gets two."""
END = f'{ROWS - 1} in decode([message.value])["n"].to_pylist()'
"""The last message of all: no later one can show that it is missing."""


@contextmanager
def held_job(house: House, folder: Path, lost: str) -> Iterator[JobHandle]:
    """The job above. Its second task waits with its first batch until the block ends."""
    topic = house.make_topic(f"loss-{folder.name}")
    house.put(topic, 0, *(json.dumps({"n": n}).encode() for n in range(ROWS)))
    hold = folder / "hold"
    with hold.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield house.submit(folder, JOB.format(lost=lost, hold=hold, topic=topic, time=', time=ordinal("nr")'))


def audit(house: House, handle: JobHandle, code: int = 0) -> dict[str, Any]:
    """What ``link audit --json`` says of the link in the middle."""
    asked = house.call("link", "audit", handle.id, "--json")
    assert asked.exit_code == code, (asked.stdout, asked.stderr)
    found = {each["link"]: each for each in json.loads(asked.stdout)["links"]}
    return found["first.second"]


def written_all(handle: JobHandle) -> bool:
    return handle.status().task("first").rows_out == ROWS


@pytest.mark.gate
def test_a_message_that_is_lost_in_the_middle_is_named(house: House, tmp_path: Path) -> None:
    """The job fails with the link, its partition, the offsets around the gap, the writer, and how many messages are missing."""
    with held_job(house, tmp_path, MIDDLE) as handle:
        until(lambda: handle.status().status != "submitted", what="the job to be taken in")
    with pytest.raises(JobFailed) as caught:
        handle.await_completion(300)
    error = caught.value
    assert error.code == "SX-LINK-LOSS"
    assert error.where["link"] == "first.second"
    assert error.where["topic"].endswith(f".{handle.id}.first.second")
    assert error.where["partition"] in ("0", "1")
    assert int(error.where["after"]) < int(error.where["offset"])
    assert error.where["count"] == "1"
    assert error.where["writer"] in error.message
    assert handle.status().status == "failed"
    assert "SX-CLOCK-GONE" in house.call("clock", handle.id).stderr, "the clock has stopped with the job"


@pytest.mark.gate
def test_a_message_that_is_lost_at_the_end_is_found_at_the_seal(house: House, tmp_path: Path) -> None:
    """No later message shows the gap, so the totals do: an audit while the job runs, and the seal, which does not come."""
    with held_job(house, tmp_path, END) as handle:
        until(lambda: written_all(handle), what="the first task to be through")
        found = audit(house, handle, code=1)
        lost = found["lost"]
        assert 1 <= lost <= 4
        assert (found["written"], found["read"], found["unread"]) == (ROWS, 0, ROWS - lost)
        table = house.call("link", "audit", handle.id).stdout
        assert [line.split() for line in table.splitlines() if "first.second" in line] == [
            ["first.second", f"{ROWS}", "0", f"{ROWS - lost}", f"{lost}"]
        ]
    with pytest.raises(JobFailed) as caught:
        handle.await_completion(300)
    error = caught.value
    assert error.code == "SX-LINK-LOSS"
    assert (error.where["written"], error.where["read"]) == (str(ROWS), str(ROWS - lost))


def test_an_audit_of_a_job_that_has_lost_nothing(house: House, tmp_path: Path) -> None:
    """What is written and not read is unread while the job runs; in the end the job completes, and its links are gone."""
    with held_job(house, tmp_path, NOTHING) as handle:
        until(lambda: written_all(handle), what="the first task to be through")
        found = audit(house, handle)
        assert [found[name] for name in ("written", "read", "unread", "lost", "twice")] == [ROWS, 0, ROWS, 0, 0]
    assert house.completed(handle).task("out").rows_in == ROWS
    assert audit(house, handle)["written"] is None
    assert "its links are deleted" in house.call("link", "audit", handle.id).stdout


UNBOUNDED = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("runs-on", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
first = job.task("first", same, after=read, batch_size=4, batch_timeout="50 ms")
second = job.task("second", same, after=first, batch_size=4, batch_timeout="50 ms")
job.output("out", kafka("{topic}-out"), after=second)
"""


def test_an_audit_while_rows_move_reports_no_loss(house: House, tmp_path: Path) -> None:
    """Batches that are counted as written and not read yet are unread, whenever the audit asks."""
    topic = house.make_topic(f"moves-{tmp_path.name}")
    handle = house.submit(tmp_path, UNBOUNDED.format(topic=topic))
    until(lambda: handle.status().status == "running", what="the job to be planned")
    for turn in range(10):
        house.fill(topic, *(json.dumps({"n": n}).encode() for n in range(200)))
        found = audit(house, handle)
        assert (found["lost"], found["twice"] or 0) == (0, 0), turn
        assert found["written"] == found["read"] + found["unread"]
    until(lambda: audit(house, handle)["read"] == 2000, what="all rows to be read")
    assert audit(house, handle)["unread"] == 0


def test_rows_that_are_lost_in_a_loop_fail_it(house: House, tmp_path: Path) -> None:
    """A loop that lacks rows would never be found to have ended: they are missed when nothing moves any more."""
    topic = house.make_topic(f"loss-{tmp_path.name}")
    house.put(topic, 0, *(json.dumps({"n": n}).encode() for n in range(ROWS)))
    (tmp_path / "hold").touch()
    job = JOB.format(lost=END, hold=tmp_path / "hold", topic=topic, time="")
    begins = 'def never(row: dict) -> bool:\n    return False\n\nagain = job.cycle("loop", after=read)\nfirst = job.task("first"'
    job = job.replace('first = job.task("first"', begins).replace("same, after=read", "same, after=again")
    handle = house.submit(tmp_path, job + "again.feedback(second.where(never))\n")
    with pytest.raises(JobFailed) as caught:
        handle.await_completion(300)
    error = caught.value
    assert (error.code, error.where["link"]) == ("SX-LINK-LOSS", "first.second")
    assert 1 <= int(error.where["count"]) <= 4
