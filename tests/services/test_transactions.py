"""Transactions on a real broker: what a task's way out promises, and what is left of a transaction that failed."""

from __future__ import annotations

import gc
import random
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from queues import confirmed_end
from queues.guarded_producer import CALL, GuardedProducer
from queues.messages import Outgoing, Records, digest_of
from queues.record_columns import Pair, RecordColumns
from queues.transaction_errors import ProducerLost, RecordsRefused, RefusedTogether, TransactionAborted
from sardonyx.core.errors import OutputError, SardonyxError
from tests.services.one_task import Task, commit, counted, next_batch
from tests.waiting import until

Form = Callable[[list[Pair]], RecordColumns | list[Pair]]
"""How records come to a writer."""


@pytest.mark.gate
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
    assert confirmed_end.read_all(task.settings, out) == [b"rival"]


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


@pytest.mark.gate
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
    assert confirmed_end.read_all(task.settings, out) == []


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


def test_a_record_that_kafka_refuses_is_a_clear_error_and_nothing_is_written(task: Task):
    """One record over the limit fails its whole transaction with SX-RECORD-TOO-LARGE; the writer goes on afterwards."""
    task.feed(3)
    reader, writer = task.reader(), task.writer()
    batch = next_batch(reader)
    out = task.stage.egress[0].topic
    with pytest.raises(OutputError) as caught:
        commit(writer, reader, batch, [Outgoing(out, b"small", 0), Outgoing(out, b"x" * 2_000_000, 0)])
    assert caught.value.code == "SX-RECORD-TOO-LARGE"
    assert confirmed_end.read_all(task.settings, out) == []
    commit(writer, reader, batch, [Outgoing(out, b"small", 0)])
    assert confirmed_end.read_all(task.settings, out) == [b"small"]


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
    with pytest.raises(RefusedTogether):
        commit(first, reader, batch, [Outgoing(topic, b"small", 0), large])
    with pytest.raises(OutputError) as at_the_end:  # each by itself
        commit(first, reader, batch, [Outgoing(topic, b"small", 0), large])
    assert at_the_end.value.code == "SX-RECORD-TOO-LARGE"
    assert at_the_end.value.where == {"topic": topic}
    assert "6,400 bytes" in at_the_end.value.cause

    def heard_of_in_between() -> Iterator[Outgoing | Records]:
        yield large
        until(lambda: second._producer.client.flush(0.1) == 0, what="the broker's answer")
        yield Records(topic, [(None, b"small")])
        yield Outgoing(topic, b"small", 0)

    with pytest.raises(OutputError) as in_between:
        second.write(heard_of_in_between(), counted(batch), reader.group_metadata)
    assert in_between.value.code == "SX-RECORD-TOO-LARGE"
    commit(task.writer(0), reader, batch, [Records(topic, [(None, b"small"), (b"key", None)])])
    assert confirmed_end.read_all(task.settings, topic) == [b"small", None]


@pytest.mark.parametrize("form", [list, RecordColumns.of], ids=["one by one", "in columns"])
def test_what_a_broker_refuses_for_good_fails_at_once(task: Task, form: Form):
    """With the topic and the record that is the reason, also if others of its request were refused with it. Of records that come
    in columns the first attempt says nothing.
    """
    topic = f"{task.settings.deployment}-compact"
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    (made,) = client.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]).values()
    made.result()
    task.feed(3)
    reader, writer = task.reader(), task.writer()
    batch = next_batch(reader)
    records = [Records(topic, form([(b"k", b"good"), (None, b"without a key"), (b"l", b"good")]))]
    for _ in range(1 if form is list else 2):
        with pytest.raises((RefusedTogether, RecordsRefused)):  # brokers since 2.4 say which it is
            commit(writer, reader, batch, records)
    with pytest.raises(RecordsRefused) as refused:
        commit(writer, reader, batch, records)
    assert len(refused.value.refusals) == 1
    assert refused.value.code == "SX-KAFKA-REJECTED"
    assert topic in refused.value.message
    assert "failed to validate record" in refused.value.message
    assert refused.value.cause.startswith("no key, value b'without a key'. Probably a compacted topic")
    assert "key=" in refused.value.fix
    assert confirmed_end.read_all(task.settings, topic) == []


@pytest.mark.parametrize("form", [list, RecordColumns.of], ids=["one by one", "in columns"])
def test_only_what_a_broker_never_takes_is_refused(task: Task, form: Form):
    """Not what is sent with it in one request, nor small records whose requests are too large for the topic."""
    topic = f"{task.settings.deployment}-tight"
    client = AdminClient({**task.settings.kafka.client(), "log_level": 0})
    config = {"max.message.bytes": "10000", "cleanup.policy": "compact"}
    (made,) = client.create_topics([NewTopic(topic, 1, 1, config=config)]).values()
    made.result()
    task.feed(3)
    reader, writer = task.reader(), task.writer()
    batch = next_batch(reader)
    rng = random.Random(1)
    sizes = {3: 40_000, 4: 20_000, 11: 2_000_000}
    records = [
        (None if number in (7, 12) else b"%d" % number, rng.randbytes(sizes.get(number, 3_000))) for number in range(20)
    ]
    good, refused = list(records), set()

    def is_written() -> bool:
        nonlocal good
        try:
            commit(writer, reader, batch, [Records(topic, form(good))])
        except RefusedTogether:
            return False
        except RecordsRefused as error:
            refused.update(refusal.digest for refusal in error.refusals)
            good = [record for record in records if digest_of(*record) not in refused]
            return False
        return True

    until(is_written, what="the commit")
    assert good == [record for number, record in enumerate(records) if number not in (3, 4, 7, 11, 12)]
    assert confirmed_end.read_all(task.settings, topic) == [value for _, value in good]
