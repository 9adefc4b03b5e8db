"""Links and readers on a real broker: what a task's way in promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.kafka.job_links import KafkaLinks
from queues import admin, confirmed_end, topics
from queues.lost import ReaderLost
from queues.messages import Outgoing
from queues.trim import trim_links
from sardonyx.core.errors import InputError, SetupError
from sardonyx.core.events import Counts, LastCommits
from sardonyx.core.graph import Link
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.settings import Settings
from tests.services.one_task import JOB, PARTITIONS, Task, batch_of, commit, next_batch, work_off
from tests.waiting import until


@pytest.mark.gate
def test_every_record_once_and_counted(task: Task):
    """All records of a link come once, the positions end at its sentinels, and the group's metadata counts every row."""
    task.feed(100, sentinel="s")
    reader, writer = task.reader(), task.writer()
    values = work_off(task, reader, writer, size=7)
    assert sorted(map(int, values)) == list(range(100))
    assert {p.drained for p in reader.all_committed().values() if p} == {"s"}
    assert admin.counts(task.settings, task.graph, JOB)["b"] == Counts(100, 100)
    assert confirmed_end.read_all(task.settings, task.stage.egress[0].topic) == values


def test_a_row_that_comes_alone_waits_for_no_other(task: Task):
    """A batch that is not full is due an interval after the last one began: at once, if that was longer ago. A full one is due at
    once in any case.
    """
    task.feed(5)
    reader = task.reader()
    assert reader.batch_due_in(100, 0) == math.inf
    until(lambda: reader.poll(0.05) or reader.batch_due_in(5, 3600) == 0, what="all rows")
    assert reader.batch_due_in(100, 0) == 0
    assert 0 < reader.batch_due_in(100, 3600) < 3600
    reader.cut(3)
    assert 3500 < reader.batch_due_in(100, 3600) <= 3600
    assert reader.batch_due_in(100, 0) == reader.batch_due_in(2, 3600) == 0
    reader.cut(100)
    assert reader.batch_due_in(100, 0) == math.inf


def test_a_successor_goes_on_where_the_commits_ended(task: Task):
    """A reader that takes over reads from the last commit, finds the sentinel again where it was drained, and counts on."""
    task.feed(30, sentinel="s")
    first = task.reader(10)
    writer = task.writer()
    batch = next_batch(first, 10)
    commit(writer, first, batch, [])
    taken = sum(batch.rows.values())
    next_batch(first, 10)  # read, never committed
    first.close()
    second = task.reader(10)
    values = work_off(task, second, task.writer(), 10)
    assert len(values) == 30 - taken
    second.close()
    third = task.reader(10)
    assert work_off(task, third, task.writer(), 10) == []
    assert admin.counts(task.settings, task.graph, JOB)["b"].rows_in == 30


def test_rewind_reads_the_same_again(task: Task):
    """After a rewind the same records come again in the same order within each partition."""
    task.feed(60)
    reader = task.reader(20)
    once = {m.value() for _ in range(2) for ms in next_batch(reader, 20).messages.values() for m in ms}
    reader.rewind()
    again: set[bytes] = set()
    while len(again) < 60:
        again |= {m.value() for ms in next_batch(reader, 20).messages.values() for m in ms}
    assert once <= again


@pytest.mark.gate
def test_a_batch_whose_partition_went_is_not_held_any_more(task: Task):
    """When partitions are taken away, batches with records of them are no longer held; the others' records stay."""
    task.feed(30)
    reader = task.reader(30)
    batch = batch_of(reader, 30)
    assert reader.holds(batch)
    other = task.reader(30)
    until(lambda: (reader.poll(0.05), other.poll(0.05)) and len(other.held) > 0, what="the second reader's share")
    assert not reader.holds(batch)
    assert set(reader.held).isdisjoint(other.held)


def test_a_reader_held_back_by_a_full_buffer_goes_on_after_a_rebalance(task: Task):
    """What is kept over a rebalance is read to its end, also if reading was suspended when the other reader came."""
    task.feed(90, sentinel="s")
    reader = task.reader(5)
    until(lambda: reader.poll(0.05) or reader.batch_due_in(10, 60) == 0, what="a full buffer")
    reader.poll(0)  # suspends
    other = task.reader(5)
    until(lambda: (reader.poll(0.05), other.poll(0.05)) and len(other.held) > 0, what="the second reader's share")
    reader.rewind()
    values = work_off(task, reader, task.writer(0), 5) + work_off(task, other, task.writer(1), 5)
    assert sorted(map(int, values)) == list(range(90))


def test_a_partition_that_went_while_held_back_is_read_when_it_comes_back(task: Task):
    """The client keeps a partition suspended beyond its loss; one that comes back is read all the same, to its end."""
    task.feed(90, sentinel="s")
    reader = task.reader(5)
    until(lambda: reader.poll(0.05) or reader.batch_due_in(10, 60) == 0, what="a full buffer")
    reader.poll(0)  # suspends
    other = task.reader(5)
    until(lambda: (reader.poll(0.05), other.poll(0.05)) and len(other.held) > 0, what="the second reader's share")
    reader.rewind()
    writer = task.writer()
    values = work_off(task, reader, writer, 5)
    other.close()
    until(lambda: reader.poll(0.05) or len(reader.held) == PARTITIONS, what="all partitions to be back")
    values += work_off(task, reader, writer, 5)
    assert sorted(map(int, values)) == list(range(90))


def test_a_bound_partition_that_went_behind_its_end_is_read_when_it_comes_back(make_task: Callable[..., Task]):
    """A partition of which nothing more was asked for, since its end was reached, is read again if it comes back uncommitted."""
    task = make_task({"start": "earliest", "end": "latest", "format": "raw"})
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(task.topic, num_partitions=PARTITIONS)]).values()
    made.result()
    task.feed(30)
    task.create()
    task.feed(30)
    reader = task.reader()
    until(lambda: reader.poll(0.05) or reader.batch_due_in(30, 60) == 0, what="everything up to the ends")
    other = task.reader()
    until(lambda: (reader.poll(0.05), other.poll(0.05)) and len(other.held) > 0, what="the second reader's share")
    other.close()
    until(lambda: reader.poll(0.05) or len(reader.held) == PARTITIONS, what="all partitions to be back")
    assert sorted(map(int, work_off(task, reader, task.writer()))) == list(range(30))


def test_an_error_of_the_client_while_partitions_come_can_be_caught(task: Task, monkeypatch: pytest.MonkeyPatch):
    """It ends the reader as every loss of the consumer does; as the client hands it on, no ``except`` would see it."""
    reader = task.reader()

    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    monkeypatch.setattr(reader, "_asked", refuse)
    with pytest.raises(ReaderLost, match="_DESTROY"):
        until(lambda: reader.poll(0.05), what="the end of the reader")


@pytest.mark.gate
def test_leader_sentinel_in_the_middle_moves_behind_late_records(task: Task):
    """Records behind the leader's sentinel are worked on, and the partition ends drained behind them."""
    task.feed(3, sentinel="s")
    task.feed(5, partition=1)
    task.feed(0, sentinel="another")
    reader = task.reader()
    task.votes["a.b"] = "s"
    assert len(work_off(task, reader, task.writer())) == 8
    assert {p.drained for p in reader.all_committed().values() if p} == {"s"}


@pytest.mark.gate
def test_reading_all_waits_for_what_hangs(task: Task):
    """A list that is read whole waits behind an open transaction until that is decided: nothing committed is missed."""
    out = task.stage.egress[0].topic
    hanging = Producer(
        {
            **task.settings.kafka.client(),
            "log_level": 0,  # it outlives the broker
            "transactional.id": f"{task.settings.deployment}/hang",
            "transaction.timeout.ms": 3000,
        }
    )
    hanging.init_transactions(120)
    hanging.begin_transaction()
    hanging.produce(out, b"never", partition=0)
    hanging.flush(60)
    task.feed(1)
    reader, writer = task.reader(), task.writer()
    commit(writer, reader, next_batch(reader), [Outgoing(out, b"committed", 0)])
    assert confirmed_end.read_all(task.settings, out) == [b"committed"]


def test_a_bound_input_ends_where_it_ended_when_it_was_planned(make_task: Callable[..., Task]):
    """Records that come behind the end are not read, an empty partition is drained at once, nothing before the start is read."""
    task = make_task({"start": "earliest", "end": "latest", "format": "raw"})
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(task.topic, num_partitions=PARTITIONS)]).values()
    made.result()
    task.feed(20, partition=0)
    task.feed(5, partition=1)
    task.create()
    task.feed(50)
    assert task.facts["a.b"].start == [0, 0, 0]
    assert task.facts["a.b"].end == [21, 6, 0]  # each transaction's marker takes an offset
    reader = task.reader()
    assert len(work_off(task, reader, task.writer())) == 25
    assert {p.drained for p in reader.all_committed().values() if p} == {"end"}


def test_a_missing_input_topic_is_a_clear_error(make_task: Callable[..., Task]):
    """An input topic that is not there is named before any topic is made. One that the job writes was not meant."""
    task = make_task({"start": "earliest"})
    own = f"{task.topic}2"
    task.stage.egress.append(Link("b.out", own, "output", "b", "out"))
    for _ in range(2):  # then with the output topic there
        with pytest.raises(InputError) as caught:
            task.create()
        assert caught.value.code == "SX-KAFKA-TOPIC-MISSING"
        assert task.topic in caught.value.message
        assert own not in caught.value.message
        if own not in admin.topics(task.settings):
            assert not {link.topic for link in task.graph.links} & set(admin.topics(task.settings))
            topics.create(task.settings, own, 1)


def test_a_mistyped_input_topic_gets_the_nearest_one(make_task: Callable[..., Task]):
    """Of the topics that there are, the error names the one that was probably meant."""
    task = make_task({"start": "earliest"})
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    meant = f"{task.topic}s"
    client.create_topics([NewTopic(meant, num_partitions=1)])[meant].result()
    until(lambda: meant in admin.topics(task.settings), what="the new topic to be listed")
    with pytest.raises(InputError) as caught:
        task.create()
    assert caught.value.message == f"the input topic {task.topic!r} does not exist; did you mean {meant!r}?"


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_a_partition_whose_leader_does_not_know_it_yet_is_asked_again(
    task: Task, monkeypatch: pytest.MonkeyPatch, code: int
):
    """A broker may refuse to say a new topic's end just after it was made: that is no failure of the task."""
    ask = AdminClient.list_offsets
    asked: list[int] = []

    def refuse_twice(self: AdminClient, *given: Any, **named: Any) -> Any:
        asked.append(1)
        if len(asked) > 2:
            return ask(self, *given, **named)
        refused: Future[Any] = Future()
        refused.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(given[0], refused)

    monkeypatch.setattr(AdminClient, "list_offsets", refuse_twice)
    assert confirmed_end.read_all(task.settings, task.topic) == []
    assert len(asked) > 2


def test_links_are_made_and_removed_any_number_of_times(task: Task, monkeypatch: pytest.MonkeyPatch):
    """Making what stands and removing what is gone are no errors. The last counts come with the removal, also if it breaks off
    when the positions are gone; a coordinator that comes only then reports nothing rather than zero.
    """
    task.feed(4, sentinel="s")
    reader = task.reader()
    work_off(task, reader, task.writer())
    assert admin.create_links(task.settings, task.graph, task.spec) == task.facts
    reader.close()
    outer = KafkaLinks(task.settings)
    with monkeypatch.context() as broken:
        broken.setattr(admin, "failpoint", lambda point: 1 // 0)  # between groups and topics
        with pytest.raises(ZeroDivisionError):
            outer.delete_links(JOB, task.spec)
    assert KafkaLinks(task.settings).delete_links(JOB, task.spec) == LastCommits()
    assert outer.delete_links(JOB, task.spec).counts["b"] == Counts(4, 4)
    assert outer.delete_links(JOB, task.spec) == LastCommits()
    topics = AdminClient({**task.settings.kafka.client(), "log_level": 0}).list_topics(timeout=60).topics
    assert not [name for name in topics if name.startswith(task.settings.deployment)]


def test_dead_letters_are_counted_when_the_counts_are_lost(
    make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
):
    """A coordinator may delete a job's groups and die before its event is logged. The next one counts the dead letters that are
    still there, so the job keeps them.
    """
    task = make_task(letters=True)
    task.create()
    task.feed(2, sentinel="s")
    reader, writer = task.reader(), task.writer()
    (dead,) = (link.topic for link in task.graph.links if link.kind == "dead")
    commit(writer, reader, batch_of(reader, 2), [Outgoing(dead, b"one", 0), Outgoing(dead, b"two", 0)])
    reader.close()
    with monkeypatch.context() as broken:
        broken.setattr(admin, "failpoint", lambda point: 1 // 0)  # between groups and topics
        with pytest.raises(ZeroDivisionError):
            KafkaLinks(task.settings).delete_links(JOB, task.spec)
    assert KafkaLinks(task.settings).delete_links(JOB, task.spec) == LastCommits(letters={"b": 2})
    assert KafkaLinks(task.settings).delete_links(JOB, task.spec) == LastCommits(letters={"b": 2})


def test_the_last_count_of_a_task_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers may commit between two attempts to remove a job's links; what is gone by the second is known from the first. The
    same holds if all is removed, and only the dead letters cannot be counted yet.
    """
    away = SetupError("SX-KAFKA-UNREACHABLE", "away")
    found = [
        LastCommits({"a": Counts(1, 1), "b": Counts(2, 2)}, {"a": {"in": [1]}, "b": {"in": [2]}}),
        LastCommits({"b": Counts(3, 3)}, {"b": {"in": [3]}}),
        LastCommits(),
    ]
    deletions, countings = iter([away, None, None]), iter([away, None])

    def answer(answers: Iterator[SetupError | None]) -> dict[str, int]:
        if (error := next(answers)) is not None:
            raise error
        return {}

    monkeypatch.setattr("coordinator.kafka.job_links.last_commits", lambda *_: found.pop(0))
    monkeypatch.setattr("coordinator.kafka.job_links.delete_links", lambda *_, **_named: answer(deletions))
    monkeypatch.setattr("coordinator.kafka.job_links.letters_left", lambda *_: answer(countings))
    spec = JobSpec(name="j", workflow=[], catalog=[])
    links = KafkaLinks(Settings())
    for _ in ("the deletion", "the counting"):
        with pytest.raises(SetupError):
            links.delete_links("j-1", spec)
    assert links.delete_links("j-1", spec) == LastCommits(
        {"a": Counts(1, 1), "b": Counts(3, 3)}, {"a": {"in": [1]}, "b": {"in": [3]}}
    )


@pytest.mark.gate
def test_records_that_were_deleted_before_they_were_read_are_a_clear_error(make_task: Callable[..., Task]):
    """The retention of a topic may pass a position from which a job goes on. No other reader would find the records either, so
    the error says so. A partition of which nothing is left to read ends as it would have.
    """
    task = make_task({"start": "earliest", "format": "raw"})
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(task.topic, num_partitions=PARTITIONS)]).values()
    made.result()
    task.feed(30)
    task.create()
    for future in client.delete_records([TopicPartition(task.topic, 1, 3)]).values():
        future.result(30)
    reader = task.reader()
    with pytest.raises(InputError) as deleted:
        until(lambda: reader.poll(0.05), what="the reader to notice")
    assert deleted.value.code == "SX-INPUT-DELETED"
    assert f"offset 0 of {task.topic}[1], but the topic begins at 3" in deleted.value.message
    reader.close()
    known = task.facts["a.b"]
    task.facts["a.b"] = msgspec.structs.replace(known, stops=True)
    stopping = task.reader()
    assert work_off(task, stopping, task.writer()) == []
    assert [p.offset for p in stopping.all_committed().values() if p] == [0, 0, 0]


def test_a_queue_that_was_trimmed_is_not_read_again_from_its_beginning(task: Task):
    """If the broker has forgotten the positions of a queue's readers, the task fails: what is left there is not all of it."""
    task.feed(30, sentinel="s")
    reader, writer = task.reader(), task.writer()
    commit(writer, reader, batch_of(reader, 12), [])
    assert trim_links(task.settings, task.graph, JOB, task.spec, list)[0]
    reader.close()
    admin.delete_groups(task.settings, [task.stage.group(task.settings.deployment, JOB)])
    with pytest.raises(InputError) as lost:
        work_off(task, task.reader(), task.writer())
    assert lost.value.code == "SX-INPUT-POSITIONS-LOST"
