"""Job B follows job A: it reads what A writes up to A's end markers, and ends by itself, also under kills."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sardonyx import Job, generator, kafka
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import JobFailed
from sardonyx.runtime.settings import Settings
from sardonyx.testing import Cluster, Fault, kill_at
from tests.waiting import until

QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def same(row: dict) -> dict:
    return row


def writer(topic: str, rows: int, name: str = "a") -> Job:
    """Job A: it writes rows, and then a marker to each partition."""
    job = Job(name, partitions=2)
    made = job.input("made", generator(rows, columns={"n": "sequence"}))
    job.output("out", kafka(topic, end_marker=True), after=job.task("work", same, after=made, batch_size=100))
    return job


def follower(topic: str, out: str, end: str | None = "marker", start: str = "earliest") -> Job:
    """Job B: it reads up to the markers."""
    job = Job("b", partitions=2)
    read = job.input("read", kafka(topic, start=start, end=end, schema="n long"))
    job.output("out", kafka(out), after=job.task("copy", same, after=read, batch_size=100))
    return job


def messages(settings: Settings, topic: str, partitions: int = 2) -> list[list[tuple[bytes | None, list[str]]]]:
    """What any other consumer sees of each partition: values, and the names of headers."""
    consumer = Consumer(
        {
            **settings.kafka.client(),
            "group.id": "another",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[list[tuple[bytes | None, list[str]]]] = [[] for _ in range(partitions)]
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(60)
        assert message is not None, "the topic does not come to its end"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF or error.retriable(), error
            if error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        else:
            headers = [name for name, _ in message.headers() or ()]
            found[message.partition()].append((message.value(), headers))
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        pytest.param(
            [kill_at("committed", 5), kill_at("committed", 30)], 5_000, id="in the middle", marks=pytest.mark.long
        ),
        # Twice: of A's two stages the second one writes the markers; then it seals again, and B seals.
        pytest.param([kill_at("sealed", 2), kill_at("sealed", 2)], 1_000, id="at the ends", marks=pytest.mark.gate),
    ],
)
def test_a_job_that_follows_ends_by_itself(
    script: list[Fault], rows: int, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """B is submitted before A ends. The peers of both are killed, also right after A wrote its markers. B completes with every
    row once, and each partition has one marker: A's next sealer writes no other.
    """
    with sardonyx_clusters(**QUICK) as cluster:
        between, out = cluster.topic("between"), cluster.topic("out")
        cluster.peers(4, faults=script)
        first = cluster.submit(writer(between, rows))
        second = cluster.submit(follower(between, out))
        assert first.await_completion("5 min").status == "completed"
        assert second.await_completion("5 min").status == "completed"
        assert sorted(row["n"] for row in cluster.records(out)) == list(range(rows))
        for partition in messages(cluster.settings, between):
            assert [headers for _, headers in partition].count(["sx-end", "sx-job"]) == 1
            assert partition[-1] == (None, ["sx-end", "sx-job"])


def test_a_topic_is_used_for_the_next_run(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The second run of B resumes the first one, and so begins after its markers. A job with another ``end`` takes no marker for
    a record. A partition without rows has a marker, too.
    """
    with sardonyx_clusters(**QUICK) as cluster:
        between, out, rest = cluster.topic("between"), cluster.topic("out"), cluster.topic("rest")
        cluster.peers(4)

        def ran(handle: JobHandle) -> None:
            assert handle.await_completion("5 min").status == "completed"

        ran(cluster.submit(writer(between, 1)))
        second = cluster.submit(follower(between, out))
        ran(second)
        assert cluster.records(out) == [{"n": 0}]
        third = cluster.client.submit(follower(between, out), resume=second.id)
        ran(cluster.submit(writer(between, 500)))
        ran(third)
        assert sorted(row["n"] for row in cluster.records(out)) == sorted([0, *range(500)])
        ran(cluster.submit(follower(between, rest, end="latest")))
        assert sorted(row["n"] for row in cluster.records(rest)) == sorted([0, *range(500)])


def test_without_a_marker_the_job_waits_and_says_so(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """A is killed, so no marker comes. ``explain`` names what B waits for and the command that ends it: ``job stop``."""
    with sardonyx_clusters(**QUICK) as cluster:
        between, out = cluster.topic("between"), cluster.topic("out")
        cluster.peers(4)
        first = cluster.submit(writer(between, 10_000_000))
        until(lambda: cluster.records(between), what="the first rows")
        first.kill()
        second = cluster.submit(follower(between, out))
        until(lambda: cluster.records(out), what="rows of B")
        reasons = {reason.code: reason.text for reason in second.explain().explanation.reasons}
        assert f"task copy reads topic {between} up to its end markers" in reasons["awaits-end-marker"]
        second.stop()
        assert second.await_completion("5 min").status == "stopped"


def test_a_compacted_topic_is_refused(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """It takes no message without a key. The job is refused when its topics are looked up, not when it ends."""
    with sardonyx_clusters() as cluster:
        topic = f"{cluster.settings.deployment}-compacted"
        admin = AdminClient({**cluster.settings.kafka.client(), "log_level": 0})
        made = admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])
        made[topic].result(30)
        for job in (writer(topic, 1), follower(topic, f"{topic}-out")):
            with pytest.raises(JobFailed) as caught:
                cluster.submit(job).await_completion("5 min")
            assert caught.value.code == "SX-KAFKA-COMPACTED"
