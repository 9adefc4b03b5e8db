"""How much is unread in front of each task, and for how long: as users ask for it, on a running cluster."""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from queues import admin, lag
from sardonyx.client.client import JobHandle
from sardonyx.core.positions import Partition, Position
from tests.services.house import House, called, told
from tests.waiting import until

JOB = """
import fcntl
from pathlib import Path
from sardonyx import Job, kafka

class Held:
    def before_batch(self, rows):
        with Path("{hold}").open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)

def twice(row: dict):
    yield row
    yield row

def same(row: dict) -> dict:
    return row

def is_even(row: dict) -> bool:
    return row["n"] % 2 == 0

job = Job("late", partitions=2)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest", end="latest"))
first = job.task("first", twice, after=read, batch_size=4)
second = job.task("second", same, after=first, lifecycle=Held)
even = job.task("even", same, after=first.where(is_even), lifecycle=Held)
idle = job.task("idle", same, after=read, lifecycle=Held)
for name, task in (("second-out", second), ("even-out", even), ("idle-out", idle)):
    job.output(name, kafka("{topic}-" + name), after=task)
"""
RECORDS = 40
NOWHERE = {"SARDONYX__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:2", "SARDONYX__KAFKA__CONNECT_TIMEOUT": "300 ms"}


class Late:
    """The job above, all of whose tasks but the first wait with their first batch for a lock."""

    def __init__(self, house: House, handle: JobHandle, lock: TextIO) -> None:
        self.house = house
        self.handle = handle
        self._lock = lock

    def release(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def links(self) -> dict[str, dict[str, Any]]:
        return by_link(self.house, self.handle)

    def records(self) -> dict[str, tuple[int | None, str]]:
        return {name: (link["records"], link["precision"]) for name, link in self.links().items()}


def by_link(house: House, handle: JobHandle) -> dict[str, dict[str, Any]]:
    """What ``link lag --json`` says."""
    asked = house.call("link", "lag", handle.id, "--json")
    assert asked.exit_code == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert found["job"] == handle.id
    return {link["link"]: link for link in found["links"]}


@pytest.fixture
def late(house: House, tmp_path: Path) -> Iterator[Late]:
    """That job on a topic in which aborted records stand too, and more records behind the end that it reads to."""
    topic = house.make_topic(f"late-{tmp_path.name}")
    records = [json.dumps({"n": n}).encode() for n in range(RECORDS + 7)]
    house.fill(topic, *records[:20])
    producer = Producer({**house.settings.kafka.client(), "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for end, some in ((producer.abort_transaction, records[:5]), (producer.commit_transaction, records[20:RECORDS])):
        producer.begin_transaction()
        for number, value in enumerate(some):
            producer.produce(topic, value, partition=number % 2)
        producer.flush(30)
        end(30)
    hold = tmp_path / "hold"
    with hold.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        handle = house.submit(tmp_path, JOB.format(hold=hold, topic=topic))
        until(lambda: handle.status().status == "running", what="the job to be planned")
        house.fill(topic, *records[RECORDS:])
        yield Late(house, handle, held)


PACED = """
from sardonyx import Job, blackhole, generator

job = Job("paced")
job.output("drop", blackhole(), after=job.input("read", generator(600, rate=1)))
"""


def test_a_split_that_is_not_due_does_not_wait(house: House, tmp_path: Path) -> None:
    """What a paced input has still to make is counted by the splits that are left, and nothing of it waits before it is due."""
    handle = house.submit(tmp_path, PACED)
    until(lambda: (handle.status().task("read").rows_in or 0) > 0, what="the first rows")
    first = by_link(house, handle)["read.splits"]
    assert (first["unit"], first["precision"], first["reader"]) == ("splits", "exact", "read")
    assert "splits" in house.call("link", "lag", handle.id).stdout

    def further() -> bool:
        splits = by_link(house, handle)["read.splits"]
        return 0 < splits["records"] < first["records"] and splits["seconds"] == 0

    until(further, what="fewer splits, none of them due")


def test_positions_are_told_while_a_transaction_is_open(house: House) -> None:
    """What was committed before it, at once: a peer that died within its transaction does not hide how far behind
    the others are.
    """
    topic = house.make_topic("open")
    client = {**house.settings.kafka.client(), "log_level": 0}
    group, place = f"{topic}-group", TopicPartition(topic, 0, 5)
    consumer = Consumer({**client, "group.id": group})
    producer = Producer({**client, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 30)
    began = time.monotonic()
    assert admin.positions(house.settings, group, [place], stable=False) == {Partition(topic, 0): None}
    assert time.monotonic() - began < 15
    producer.commit_transaction(30)
    assert admin.positions(house.settings, group, [place]) == {Partition(topic, 0): Position(5)}
    consumer.close()


HELD = {
    "read.first": (0, "exact"),
    "first.second": (2 * RECORDS, "exact"),
    "first.even": (RECORDS, "exact"),
    "read.idle": (RECORDS, "exact"),
}
"""What is unread while the others wait, whatever else takes offsets."""


def test_what_waits_is_told_exactly_and_grows_older(late: Late) -> None:
    """Records of a user's topic, without those that were aborted or stand behind the end; rows, not messages, between tasks.
    The oldest gets older while no peer reads it. ``job show`` tells the same by task. In the end nothing is unread.
    """
    until(lambda: late.records() == HELD, what="the first task to be through, and the others to wait")
    before = late.links()
    assert {link["reader"]: link["kind"] for link in before.values()} == {
        "first": "input",
        "second": "internal",
        "even": "internal",
        "idle": "input",
    }
    assert before["read.first"]["seconds"] == 0
    behind = [name for name, (records, _) in HELD.items() if records]
    until(
        lambda: all(late.links()[name]["seconds"] > before[name]["seconds"] + 0.5 > 0.5 for name in behind),
        what="everything unread to be half a second older",
    )

    assert before["first.second"]["kept_bytes"] > 0
    assert before["first.second"]["kept_seconds"] >= before["first.second"]["seconds"] - 0.5
    assert before["read.idle"]["kept_bytes"] is None, "a topic of the user's"
    table = late.house.call("link", "lag", "late").stdout
    assert [line.split()[:4] for line in table.splitlines() if "second" in line] == [
        ["first.second", "second", "internal", "80"]
    ]
    shown = json.loads(late.house.call("job", "show", late.handle.id, "--json").stdout)
    tasks = {task["name"]: task["lag"] for task in shown["tasks"]}
    assert tasks["read"] is None
    assert {name: lag["records"] for name, lag in tasks.items() if lag} == {
        "first": 0,
        "second": 2 * RECORDS,
        "even": RECORDS,
        "idle": RECORDS,
    }
    assert tasks["idle"]["seconds"] > before["read.idle"]["seconds"]
    assert "oldest waits" in late.house.call("job", "show", late.handle.id).stdout

    parts = {task: late.handle.partitions(task) for task in ("first", "second", "idle")}
    assert {(each.link, each.partition, each.records, each.precision) for each in parts["idle"]} == {
        ("read.idle", 0, RECORDS // 2, "exact"),
        ("read.idle", 1, RECORDS // 2, "exact"),
    }
    assert all((each.committed or 0) < (each.end or 0) and each.seconds for each in parts["idle"])
    assert sum(each.records or 0 for each in parts["second"]) == 2 * RECORDS
    assert parts["first"] == [], "it is complete"

    late.release()
    assert late.house.completed(late.handle).task("second-out").rows_in == 2 * RECORDS
    assert late.handle.partitions("second") == []
    assert set(late.records().values()) == {(0, "exact")}
    assert {link["seconds"] for link in late.links().values()} == {0}


def test_a_batch_that_takes_long_is_told_with_its_rows(late: Late) -> None:
    """`job explain` names each task that sits on one, as long as it does."""
    sits = re.compile(r"task (second|even|idle) sits on one batch of [1-9]\d* rows?, for \d.*, at peer \S+")

    def told() -> bool:
        return any(sits.fullmatch(each.text) for each in late.handle.explain().outside if each.code == "long-batch")

    until(told, what="a task that sits on its batch")
    assert "sits on one batch of" in late.house.call("job", "explain", late.handle.id).stdout
    late.release()
    late.house.completed(late.handle)


def test_much_that_waits_is_told_by_a_short_look(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be looked at whole is given as at most so much; what counts tell stays exact, also behind a condition.
    Kafka that does not answer is an error to ``link lag``, and leaves ``job show`` without these figures.
    """
    until(lambda: late.records() == HELD, what="the first task to be through, and the others to wait")
    monkeypatch.setattr(lag, "_MOST", 2)
    found = late.links()
    assert found["first.second"]["records"] == 2 * RECORDS
    idle, even = found["read.idle"], found["first.even"]
    assert idle["precision"] == "at-most"
    assert RECORDS <= idle["records"] <= RECORDS + 5 + 2 * 2  # aborted ones, and the ends of two transactions
    assert (even["records"], even["precision"]) == (RECORDS, "exact")
    assert idle["seconds"] > 0
    told_by_table = late.house.call("link", "lag", late.handle.id).stdout
    assert "<=" in told_by_table

    for code, job in (("SX-KAFKA-UNREACHABLE", late.handle.id), ("SX-JOB-UNKNOWN", "nobody")):
        environment = late.house.settings.environment() | (NOWHERE if job == late.handle.id else {})
        told(called("link", "lag", job, env=environment), code)
    shown = called("job", "show", late.handle.id, env=late.house.settings.environment() | NOWHERE)
    assert shown.exit_code == 0, shown.stderr
    assert "oldest waits" not in shown.stdout
    assert "is unread" in shown.stderr

    late.handle.kill()
    until(lambda: late.handle.status().ended, what="the end of the job")
    assert set(late.records().values()) == {(None, "unknown")}
    assert "its links are deleted" in late.house.call("link", "lag", late.handle.id).stdout
