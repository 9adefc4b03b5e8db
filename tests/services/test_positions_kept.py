"""What a job had read of a user's topic outlives its consumer groups, so that one can go on from there by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from queues import admin
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, LinksNote, TaskNote
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.house import House
from tests.waiting import until

JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("copy")
read = job.input("read", kafka("{topic}", schema="n long", start={start}, end={end}))
job.output("out", kafka("{topic}-out"), after=job.task("same", same, after=read, batch_size=50))
"""
RECORDS = 4_000


def test_positions_of_a_killed_job_are_kept_and_the_next_one_goes_on_from_there(house: House, tmp_path: Path) -> None:
    """While the job runs, Kafka tells its positions; after its end its task note does, exactly: what lies before them is in the
    output, and nothing else is. A job that starts there makes the rest, so every record is copied once.
    """
    topic = house.make_topic("kept")
    house.fill(topic, *(b'{"n": %d}' % n for n in range(RECORDS)))
    handle = house.submit(tmp_path / "first", JOB.format(topic=topic, start="'earliest'", end=None))
    with contextlib.closing(ZooKeeperSession.connect(house.settings)) as zk:
        until(lambda: sum(positions_now(house, zk, handle, topic)) > 100, what="the first commits")
        before = positions_now(house, zk, handle, topic)
        handle.kill()
        until(lambda: links_are_gone(zk, handle), what="the removal of the job's links")
        (kept,) = note(zk, handle, "same").positions.values()
    assert all(earlier <= last for earlier, last in zip(before, kept, strict=True))
    copied = [record["n"] for record in house.records(f"{topic}-out")]
    assert sorted(copied) == [n for n in range(RECORDS) if n // 2 < kept[n % 2]]

    rest = house.submit(tmp_path / "rest", JOB.format(topic=topic, start=dict(enumerate(kept)), end="'latest'"))
    house.completed(rest)
    copied = [record["n"] for record in house.records(f"{topic}-out")]
    assert sorted(copied) == list(range(RECORDS))


def positions_now(house: House, zk: ZooKeeperSession, handle: JobHandle, topic: str) -> list[int]:
    data = zk.read(node_paths.job_links(handle.id))
    if data is None:
        return [0]
    facts = msgspec.json.decode(data, type=LinksNote).links
    graph = graph_of(handle.spec(), house.settings.deployment, handle.id)
    return admin.input_positions(house.settings, graph, handle.id, facts)["same"][topic]


def note(zk: ZooKeeperSession, handle: JobHandle, task: str) -> TaskNote:
    return msgspec.json.decode(zk.read(node_paths.job_task(handle.id, task)) or b"", type=TaskNote)


def links_are_gone(zk: ZooKeeperSession, handle: JobHandle) -> bool:
    return msgspec.json.decode(zk.read(node_paths.job_status(handle.id)) or b"", type=JobNote).links == "gone"
