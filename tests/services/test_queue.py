"""Links, readers and transactions on a real broker: what a task's way in and way out promise."""

from __future__ import annotations

import gc
import math
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.kafka.job_links import KafkaLinks
from queues import admin, topic_log
from queues.guarded_producer import CALL, GuardedProducer
from queues.lost import ReaderLost
from queues.messages import Outgoing, Records
from queues.transaction_errors import ProducerLost, TransactionAborted
from queues.trim import trim_links
from sardonyx.core.errors import InputError, OutputError, SardonyxError, SetupError
from sardonyx.core.events import Counts, LastCommits
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.settings import Settings
from tests.services.one_task import JOB, PARTITIONS, Task, batch_of, commit, counted, next_batch, work_off
from tests.waiting import until


@pytest.fixture
def make(settings: Settings) -> Iterator[Callable[..., Task]]:
    made: list[Task] = []

    def one(link_input: dict | None = None, *, letters: bool = False) -> Task:
        made.append(Task(settings, link_input, letters=letters))
        return made[-1]

    yield one
    for task in made:
        task.close()


@pytest.fixture
def task(make: Callable[..., Task]) -> Task:
    task = make()
    task.create()
    return task


def test_every_record_once_and_counted(task: Task):
    """All records of a link come once, the positions end at its sentinels, and the group's metadata counts every row."""
    task.feed(100, sentinel="s")
    reader, writer = task.reader(), task.writer()
    values = work_off(task, reader, writer, size=7)
    assert sorted(map(int, values)) == list(range(100))
    assert {p.drained for p in reader.all_committed().values() if p} == {"s"}
    assert admin.counts(task.settings, task.graph, JOB)["b"] == Counts(100, 100)
    assert topic_log.read_all(task.settings, task.stage.egress[0].topic) == values


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
    """Whoever takes over reads from the last commit, finds the sentinel again where it was drained, and goes on counting."""
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


def test_the_next_holder_of_a_slot_fences_the_last(task: Task):
    """A writer whose slot was given to another cannot commit: its producer is lost, and nothing of it is visible."""
    task.feed(10, sentinel="s")
    reader, zombie = task.reader(), task.writer(slot=0)
    batch = next_batch(reader)
    rival = task.writer(slot=0)
    out = task.stage.egress[0].topic
    with pytest.raises(ProducerLost):
        commit(zombie, reader, batch, [Outgoing(out, b"zombie", 0)])
    reader.rewind()
    commit(rival, reader, next_batch(reader), [Outgoing(out, b"rival", 0)])
    assert topic_log.read_all(task.settings, out) == [b"rival"]


@pytest.mark.parametrize("many", [False, True], ids=["one message", "many records"])
def test_a_closed_writer_gives_its_client_back(task: Task, many: bool):
    """Its threads end, after an error too, and while that error is still held: a task that begins afresh as long as a broker is
    away would else fill its process with clients.
    """
    task.feed(10, sentinel="s")
    reader = task.reader()
    batch = next_batch(reader)
    gc.collect()
    before = psutil.Process().num_threads()
    zombie, rival = task.writer(slot=0), task.writer(slot=0)
    topic = task.stage.egress[0].topic
    with pytest.raises((ProducerLost, OutputError)) as lost:
        commit(
            zombie, reader, batch, [Records(topic, [(None, bytes(2_000_000))]) if many else Outgoing(topic, b"z", 0)]
        )
    assert psutil.Process().num_threads() > before
    zombie.close()
    rival.close()
    until(lambda: psutil.Process().num_threads() <= before, what="the clients' threads to end")
    assert lost.value.__traceback__


def test_a_producer_that_ends_hears_of_all_its_messages(task: Task):
    """A producer that is closed with messages that are still to be sent keeps neither them nor its callbacks in memory."""
    topic = task.stage.egress[0].topic
    config = {**task.settings.kafka.client(), "transactional.id": uuid.uuid4().hex, "linger.ms": 10_000}
    producer = GuardedProducer(config, timeout=120)
    producer.call("init_transactions", CALL)
    producer.call("begin_transaction")
    for _ in range(100):
        producer.client.produce(topic, b"a record")
    events = weakref.ref(producer.events)
    producer.close()
    del producer
    until(lambda: gc.collect() >= 0 and events() is None, what="the callbacks to be given back")


def test_a_member_of_an_older_generation_cannot_commit(task: Task):
    """A reader that the group has left behind is refused by the broker: the transaction aborts, nothing is visible."""
    task.feed(10)
    reader, writer = task.reader(), task.writer(slot=0)
    batch = next_batch(reader)
    stale = reader.group_metadata()
    other = task.reader()
    until(lambda: (reader.poll(0.05), other.poll(0.05)) and len(other.held) > 0, what="the second reader's share")
    out = task.stage.egress[0].topic
    with pytest.raises(TransactionAborted, match="ILLEGAL_GENERATION"):
        writer.write([Outgoing(out, b"stale", 0)], counted(batch), lambda: stale)
    assert topic_log.read_all(task.settings, out) == []


def test_what_failed_is_given_back(task: Task) -> None:
    """A transaction that failed leaves nothing in memory, also if it cannot even be aborted: neither the error, nor the batch."""

    class Messages(list[Outgoing]):
        """A list that one can watch."""

    class Failed(Exception):
        """An error that one can watch."""

    topic = task.stage.egress[0].topic

    def failed(writer: Any, batch: Any) -> list[weakref.ref[Any]]:
        messages = Messages([Outgoing(topic, b"lost", 0)])
        error = Failed("of the messages")

        def made() -> Iterator[Outgoing]:
            yield from messages
            task.writer(slot=0)  # a rival: now the abort fails too
            raise error

        with pytest.raises(ProducerLost):
            writer.write(made(), counted(batch), reader.group_metadata)
        return [weakref.ref(messages), weakref.ref(error)]

    task.feed(10)
    reader, writer = task.reader(), task.writer(slot=0)
    held = failed(writer, next_batch(reader))
    gc.collect()
    assert [what() for what in held] == [None, None]


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


def test_a_bound_partition_that_went_behind_its_end_is_read_when_it_comes_back(make: Callable[..., Task]):
    """A partition of which nothing more was asked for, since its end was reached, is read again if it comes back uncommitted."""
    task = make({"start": "earliest", "end": "latest", "format": "raw"})
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


def test_leader_sentinel_in_the_middle_moves_behind_late_records(task: Task):
    """Records behind the leader's sentinel are worked on, and the partition ends drained behind them."""
    task.feed(3, sentinel="s")
    task.feed(5, partition=1)
    task.feed(0, sentinel="another")
    reader = task.reader()
    task.votes["a.b"] = "s"
    assert len(work_off(task, reader, task.writer())) == 8
    assert {p.drained for p in reader.all_committed().values() if p} == {"s"}


def test_a_record_that_kafka_refuses_is_a_clear_error_and_nothing_is_written(task: Task):
    """One record over the limit fails its whole transaction with SX-RECORD-TOO-LARGE; the writer goes on afterwards."""
    task.feed(3)
    reader, writer = task.reader(), task.writer()
    batch = next_batch(reader)
    out = task.stage.egress[0].topic
    with pytest.raises(OutputError) as caught:
        commit(writer, reader, batch, [Outgoing(out, b"small", 0), Outgoing(out, b"x" * 2_000_000, 0)])
    assert caught.value.code == "SX-RECORD-TOO-LARGE"
    assert topic_log.read_all(task.settings, out) == []
    commit(writer, reader, batch, [Outgoing(out, b"small", 0)])
    assert topic_log.read_all(task.settings, out) == [b"small"]


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
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(out, b"never", partition=0)
    hanging.flush(10)
    task.feed(1)
    reader, writer = task.reader(), task.writer()
    commit(writer, reader, next_batch(reader), [Outgoing(out, b"committed", 0)])
    assert topic_log.read_all(task.settings, out) == [b"committed"]


def test_a_bound_input_ends_where_it_ended_when_it_was_planned(make: Callable[..., Task]):
    """Records that come behind the end are not read, an empty partition is drained at once, nothing before the start is read."""
    task = make({"start": "earliest", "end": "latest", "format": "raw"})
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


def test_a_missing_input_topic_is_a_clear_error(make: Callable[..., Task]):
    """An input topic that is not there is named, and nothing else is left behind as a puzzle."""
    task = make({"start": "earliest"})
    with pytest.raises(InputError) as caught:
        task.create()
    assert caught.value.code == "SX-KAFKA-TOPIC-MISSING"
    assert task.topic in caught.value.message


def test_a_mistyped_input_topic_gets_the_nearest_one(make: Callable[..., Task]):
    """Of the topics that there are, the error names the one that was probably meant."""
    task = make({"start": "earliest"})
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
    assert topic_log.read_all(task.settings, task.topic) == []
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
    topics = AdminClient({**task.settings.kafka.client(), "log_level": 0}).list_topics(timeout=10).topics
    assert not [name for name in topics if name.startswith(task.settings.deployment)]


def test_dead_letters_are_counted_when_the_counts_are_lost(make: Callable[..., Task], monkeypatch: pytest.MonkeyPatch):
    """A coordinator may delete a job's groups and die before its event is logged. The next one counts the dead letters that are
    still there, so the job keeps them.
    """
    task = make(letters=True)
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


def test_without_positions_there_is_no_transaction(task: Task):
    """Writing without a position is refused: nothing would fence the writer."""
    with pytest.raises(SardonyxError) as caught:
        task.writer().write([], {}, lambda: None)
    assert caught.value.code == "SX-TRANSACTION-EMPTY"


def test_a_record_that_only_the_broker_refuses_is_the_same_clear_error(task: Task):
    """Whichever call it is that first hears of it, also if more is still to be written; the slot's next writer goes on."""
    topic = f"{task.settings.deployment}-small"
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "2000"})]).values()
    made.result()
    task.feed(3)
    reader, first, second = task.reader(), task.writer(0), task.writer(1)
    batch = next_batch(reader)
    large = Outgoing(topic, b"".join(uuid.uuid4().bytes for _ in range(400)), 0)
    with pytest.raises(OutputError) as at_the_end:
        commit(first, reader, batch, [large])
    assert at_the_end.value.code == "SX-RECORD-TOO-LARGE"

    def heard_of_in_between() -> Iterator[Outgoing | Records]:
        yield large
        until(lambda: second._producer.client.flush(0.1) == 0, what="the broker's answer")
        yield Records(topic, [(None, b"small")])
        yield Outgoing(topic, b"small", 0)

    with pytest.raises(OutputError) as in_between:
        second.write(heard_of_in_between(), counted(batch), reader.group_metadata)
    assert in_between.value.code == "SX-RECORD-TOO-LARGE"
    commit(task.writer(0), reader, batch, [Records(topic, [(None, b"small"), (b"key", None)])])
    assert topic_log.read_all(task.settings, topic) == [b"small", None]


def test_what_a_broker_refuses_for_good_does_not_look_like_passing_trouble(task: Task):
    """The reason is the broker's own for the record, not what the client made of it, and says that waiting does not help."""
    topic = f"{task.settings.deployment}-compact"
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]).values()
    made.result()
    task.feed(3)
    reader, writer = task.reader(), task.writer()
    batch = next_batch(reader)
    with pytest.raises(TransactionAborted) as refused:
        commit(writer, reader, batch, [Outgoing(topic, b"without a key", 0)])
    assert not refused.value.passing
    assert refused.value.error.code() == KafkaError.INVALID_RECORD
    assert topic_log.read_all(task.settings, topic) == []


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
    monkeypatch.setattr("coordinator.kafka.job_links.delete_links", lambda *_: answer(deletions))
    monkeypatch.setattr("coordinator.kafka.job_links.letters_left", lambda *_: answer(countings))
    spec = JobSpec(name="j", workflow=[], catalog=[])
    links = KafkaLinks(Settings())
    for _ in ("the deletion", "the counting"):
        with pytest.raises(SetupError):
            links.delete_links("j-1", spec)
    assert links.delete_links("j-1", spec) == LastCommits(
        {"a": Counts(1, 1), "b": Counts(3, 3)}, {"a": {"in": [1]}, "b": {"in": [3]}}
    )


def test_records_that_were_deleted_before_they_were_read_are_a_clear_error(make: Callable[..., Task]):
    """The retention of a topic may pass a position from which a job goes on. No other reader would find the records either, so
    the error says so. A partition of which nothing is left to read ends as it would have.
    """
    task = make({"start": "earliest", "format": "raw"})
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
    assert trim_links(task.settings, task.graph, JOB, task.spec)
    reader.close()
    admin.delete_groups(task.settings, [task.stage.group(task.settings.deployment, JOB)])
    with pytest.raises(InputError) as lost:
        work_off(task, task.reader(), task.writer())
    assert lost.value.code == "SX-INPUT-POSITIONS-LOST"
