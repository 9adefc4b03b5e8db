"""A user's topic is made anew, or gets more partitions, while a task reads it or writes its end markers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from queues import admin, marked_topics, topic_log
from queues.batch import StartingPoint
from queues.lost import ReaderLost
from queues.reader import Reader
from sardonyx.core.errors import InputError, SetupError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings
from tests.services.one_task import PARTITIONS, Task
from tests.waiting import until


class Changing(Task):
    """A task that reads a user's topic up to its end markers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {"start": "earliest", "format": "raw", "end": "marker"})
        self.client = AdminClient({**settings.kafka.client(), "log_level": 0})

    def make_topic(self) -> None:
        self.client.create_topics([NewTopic(self.topic, num_partitions=PARTITIONS)])[self.topic].result(30)
        until(lambda: len(admin.topics(self.settings).get(self.topic, ())) == PARTITIONS, what="the topic")

    def remove_topic(self) -> None:
        self.client.delete_topics([self.topic])[self.topic].result(30)
        until(lambda: self.topic not in admin.topics(self.settings), what="the topic to be gone")


@pytest.fixture
def task(settings: Settings) -> Iterator[Changing]:
    task = Changing(settings)
    task.make_topic()
    task.feed(30)
    task.create()
    yield task
    task.close()


def test_a_topic_that_was_made_anew_is_a_clear_error(task: Changing):
    """A job was planned to begin at the end of the former topic. No reader could begin there: the error says so."""
    known = task.facts["a.b"]
    ends = topic_log.stable_ends(task.settings, [TopicPartition(task.topic, number) for number in range(PARTITIONS)])
    task.facts["a.b"] = msgspec.structs.replace(
        known, start=[ends[Partition(task.topic, n)] for n in range(PARTITIONS)]
    )
    task.remove_topic()
    task.make_topic()
    task.feed(3)
    reader = task.reader()
    with pytest.raises(InputError) as caught:
        until(lambda: reader.poll(0.05), what="the reader to notice")
    assert caught.value.code == "SX-INPUT-RECREATED"
    assert task.topic in caught.value.message


def test_a_partition_that_was_added_is_read_before_the_seal(task: Changing):
    """The reader of a topic that ends at markers was made before. A seal would leave out the records of the new partition."""
    reader = task.reader()
    reader.check_partitions()
    task.client.create_partitions([NewPartitions(task.topic, PARTITIONS + 1)])[task.topic].result(30)

    def found() -> bool:
        try:
            reader.check_partitions()
        except ReaderLost:
            return True
        return False

    until(found, what="the new partition to be found")
    reader.close()
    other = task.reader()
    until(lambda: other.poll(0.05) or other.member, what="the reader to be let in")
    assert Partition(task.topic, PARTITIONS) in other.all_committed()


def test_markers_are_not_left_out_in_silence(task: Changing):
    """A topic whose partitions the broker does not tell is not one without partitions, to which no marker would be written."""
    assert marked_topics.partitions(task.settings, task.topic) == PARTITIONS
    task.remove_topic()
    with pytest.raises(SetupError) as caught:
        marked_topics.partitions(task.settings, task.topic)
    assert caught.value.code == "SX-KAFKA-REFUSED"
    with pytest.raises(ReaderLost):
        task.reader()


def test_what_another_peer_has_read_and_the_leader_has_trimmed_is_not_lost(
    task: Changing, monkeypatch: pytest.MonkeyPatch
):
    """A reader that the group has put out, and not told yet, returns to a position that others have left behind."""
    for future in task.client.delete_records([TopicPartition(task.topic, 1, 3)]).values():
        future.result(30)
    reader, ask = task.reader(), Reader._asked

    def committed_meanwhile(its: Reader, wanted: list[TopicPartition]) -> dict[Partition, StartingPoint]:
        found = ask(its, wanted)
        return found if len(wanted) > 1 else {partition: StartingPoint(Position(5)) for partition in found}

    monkeypatch.setattr(Reader, "_asked", committed_meanwhile)
    with pytest.raises(ReaderLost, match="another peer"):
        until(lambda: reader.poll(0.05), what="the reader to notice")
