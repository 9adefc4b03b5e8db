"""The queues of a running job are trimmed behind their readers, and no record is lost by that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from queues.kept import Kept, kept
from queues.messages import Outgoing
from queues.trim import trim_links
from sardonyx import Job, kafka
from sardonyx.runtime.settings import Settings
from sardonyx.testing import Cluster, kill_at
from tests.services.one_task import JOB, PARTITIONS, Task, batch_of, commit, work_off
from tests.waiting import until

ROWS = 3_000


@pytest.fixture
def task(settings: Settings) -> Iterator[Task]:
    made = Task(settings, letters=True)
    made.create()
    yield made
    made.close()


def first_offsets(settings: Settings, topic: str, partitions: int) -> list[int]:
    admin = AdminClient({**settings.kafka.client(), "log_level": 0})
    asked = admin.list_offsets({TopicPartition(topic, number): OffsetSpec.earliest() for number in range(partitions)})
    return [future.result(30).offset for _, future in sorted(asked.items(), key=lambda each: each[0].partition)]


def trim(task: Task, **changes: str) -> int:
    spec = task.spec if not changes else type(task.spec)(**{**_fields(task), **changes})
    return len(trim_links(task.settings, task.graph, JOB, spec, list)[0])


def _fields(task: Task) -> dict:
    return {name: getattr(task.spec, name) for name in task.spec.__struct_fields__}


@pytest.mark.gate
def test_only_what_every_reader_has_committed_is_trimmed(task: Task) -> None:
    """Before the first commit nothing goes; then what lies before the committed positions. The next reader misses nothing."""
    task.feed(30)
    assert trim(task) == 0
    reader, writer = task.reader(), task.writer()
    first = batch_of(reader, 12)
    commit(writer, reader, first, [])
    task.feed(30, sentinel="s")
    reached = sorted((partition.number, position.offset) for partition, position in first.positions.items())
    assert trim(task) == len(reached)
    assert first_offsets(task.settings, task.topic, PARTITIONS) == [dict(reached).get(n, 0) for n in range(PARTITIONS)]
    assert trim(task) == 0, "there is nothing more to trim"
    reader.close()
    rest = work_off(task, task.reader(), writer)
    assert len(rest) == 60 - 12


def test_a_drained_queue_keeps_its_sentinels(task: Task) -> None:
    """A drained partition's position is that of its sentinel, which a next reader needs to find the partition drained again."""
    task.feed(9, sentinel="s")
    reader, writer = task.reader(), task.writer()
    assert len(work_off(task, reader, writer)) == 9
    assert trim(task) == PARTITIONS
    reader.close()
    assert work_off(task, task.reader(), writer) == []


def test_young_records_are_kept(task: Task) -> None:
    """With ``keep`` a record that was read stays until it is so old."""
    task.feed(9, sentinel="s")
    work_off(task, task.reader(), task.writer())
    assert trim(task, keep="1 h") == 0
    assert trim(task, keep="0 s") == PARTITIONS


def test_what_a_queue_holds_is_told(task: Task) -> None:
    """About its bytes, and how old its oldest record is: before a trim, and after it only what the readers still need."""
    partitions = {task.topic: range(PARTITIONS)}
    assert kept(task.settings, partitions) == {task.topic: Kept(0, 0.0)}
    task.feed(300)
    full = kept(task.settings, partitions)[task.topic]
    assert full.bytes is not None
    assert 300 <= full.bytes <= 2 * 690 + 1, (
        "300 messages of one to three bytes; ends of transactions count as messages"
    )
    assert full.seconds is not None
    until(
        lambda: kept(task.settings, partitions)[task.topic].seconds > full.seconds, what="the oldest record to be older"
    )
    reader = task.reader()
    commit(task.writer(), reader, batch_of(reader, 300), [])
    assert trim(task) == PARTITIONS
    rest = kept(task.settings, partitions)[task.topic]
    assert rest.bytes is not None
    assert rest.bytes < full.bytes / 10


def test_dead_letters_and_users_topics_are_never_trimmed(task: Task) -> None:
    """Only internal queues are trimmed, whatever the groups have committed elsewhere."""
    (dead,) = (link.topic for link in task.graph.links if link.kind == "dead")
    task.feed(2, sentinel="s")
    reader, writer = task.reader(), task.writer()
    commit(writer, reader, batch_of(reader, 2), [Outgoing(dead, b"one", 0)])
    trim(task)
    assert first_offsets(task.settings, dead, 1) == [0]


def same(row: dict) -> dict:
    return row


def test_an_unbounded_job_under_kills_loses_nothing(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers and the leading coordinator die by SIGKILL while the queues are trimmed all the time. Every record arrives once,
    and when all have arrived, the queues are empty.
    """
    often = {
        "coordinator.trim_every": "100 ms",
        "zookeeper.session_timeout": "2 s",
        "peer.session_timeout": "3 s",
    }
    with sardonyx_clusters(**often) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(ROWS)))
        sent = cluster.topic("sent")
        (leader,) = cluster.daemons
        cluster.coordinator()
        job = Job("copied", partitions=2)
        read = job.input("read", kafka(topic, start="earliest"))
        passed = job.task("pass", same, after=read, batch_size=100)
        job.output("sent", kafka(sent), after=job.task("again", same, after=passed, batch_size=100), batch_size=100)
        peer = cluster.peers(4, faults=[kill_at("written", 9)])
        handle = cluster.submit(job)
        until(lambda: peer.happened, what="the peers' death")
        leader.process.kill()
        cluster.fill(topic, ({"n": n} for n in range(ROWS, 2 * ROWS)))

        def arrived() -> bool:
            return len(cluster.records(sent)) >= 2 * ROWS

        until(arrived, what="all records")
        queues = [f"{cluster.settings.deployment}.{handle.id}.{name}" for name in ("pass.again", "again.sent")]
        until(lambda: not any(cluster.records(queue) for queue in queues), what="the queues to be empty")
        assert sorted(row["n"] for row in cluster.records(sent)) == list(range(2 * ROWS))
        handle.kill()
