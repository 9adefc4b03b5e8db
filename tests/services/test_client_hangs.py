"""Calls of the Kafka client that never come back, and what becomes of the task that made them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from queues import confirmed_end
from queues.lost import ReaderLost
from queues.messages import Outgoing
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from queues.transaction_errors import ProducerLost, Verdict, classify
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition, Position
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from tests.proxy import Proxy
from tests.waiting import until

TOPIC, GROUP = "out", "group"


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Settings, Settings, Proxy]]:
    """A Kafka of our own: the way through a proxy, the way past it, and the proxy."""
    with Proxy() as proxy, embedded_services(advertised=[[proxy.address]]) as services:
        proxy.lead_to(services.listeners[0][0])
        through, past = (
            load_settings(
                kafka={"bootstrap_servers": address},
                zookeeper={"hosts": services.zookeeper},
                peer={"session_timeout": 6, "transaction_timeout": 600},
            )
            for address in (proxy.address, services.kafka)
        )
        client = AdminClient(past.kafka.client())
        for made in client.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            made.result(30)
        yield through, past, proxy
        proxy.refuse()


@pytest.fixture
def member(door: tuple[Settings, Settings, Proxy]) -> Iterator[Consumer]:
    """A consumer in the group whose positions are written."""
    _, past, _ = door
    consumer = Consumer({**past.kafka.client(), "group.id": GROUP, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), what="a place in the group")
    yield consumer
    consumer.close()


def test_positions_whose_coordinator_is_out_of_reach(door: tuple[Settings, Settings, Proxy], member: Consumer) -> None:
    """The client never comes back from sending positions, whatever its timeout: the writer gives it up soon, for it knows of
    the connection, and the next holder of the slot writes the batch, once: what the call does when the way is open again counts
    no more. (A transaction may live for ten minutes here, by which alone it would be given up after more than three.)

    The way to the broker ends with the batch's records; the one to the transaction's coordinator, a connection of its own,
    goes on.
    """
    through, past, proxy = door
    proxy.accept_again()

    def write(writer: TransactionalWriter, value: bytes, position: int, *, lost: bool = False) -> None:
        def metadata() -> object:
            until(lambda: proxy.refuses or not lost, what="the end of the connection that the record goes by")
            return member.consumer_group_metadata()

        writer.write([Outgoing(TOPIC, value, 0)], {Partition(TOPIC, 0): Position(position)}, metadata)

    writer = TransactionalWriter(through, "slot")
    writer.open()
    write(writer, b"<first>", 1)
    proxy.end_with(b"<second>")
    with pytest.raises(ProducerLost, match="since a connection has broken"):
        write(writer, b"<second>", 2, lost=True)
    successor = TransactionalWriter(past, "slot")
    successor.open()
    write(successor, b"<second>", 2)
    proxy.accept_again()
    until(lambda: "positions" not in [thread.name for thread in threading.enumerate()], what="the call to come back")
    assert confirmed_end.read_all(past, TOPIC) == [b"<first>", b"<second>"]
    (position,) = member.committed([TopicPartition(TOPIC, 0)], 30)
    assert position.offset == 2
    writer.close()
    successor.close()


@pytest.mark.gate
def test_a_record_of_an_aborted_transaction_takes_no_place_of_a_later_one(
    door: tuple[Settings, Settings, Proxy], member: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker takes a record, its answer is lost with the connection, and the batch is dropped. The next batch is written
    whole. (librdkafka gives the sequence number of the first record to the second, which the broker takes for the first again:
    the transaction commits without it. So the writer goes on with a new producer.)
    """
    through, past, proxy = door
    proxy.accept_again()
    writer = TransactionalWriter(through, "slot-of-drops")
    writer.open()
    before = confirmed_end.read_all(past, TOPIC)
    known = proxy.lost

    def drop() -> object:
        until(lambda: proxy.lost > known, what="the broker's answer, which is lost")
        proxy.refuse()
        raise RuntimeError("the batch is dropped")

    def let_through(error: KafkaError) -> Verdict:
        proxy.accept_again()
        return classify(error)

    monkeypatch.setattr("queues.transaction.CALL", 1.0)
    monkeypatch.setattr("queues.guarded_producer.classify", let_through)  # asked when the first try to abort has ended
    proxy.lose_replies_to(b"<dropped>")
    with pytest.raises(RuntimeError, match="the batch is dropped"):
        writer.write([Outgoing(TOPIC, b"<dropped>", 0)], {Partition(TOPIC, 0): Position(7)}, drop)
    writer.write([Outgoing(TOPIC, b"<kept>", 0)], {Partition(TOPIC, 0): Position(8)}, member.consumer_group_metadata)
    assert confirmed_end.read_all(past, TOPIC) == [*before, b"<kept>"]
    writer.close()


def test_a_group_that_does_not_answer(door: tuple[Settings, Settings, Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that the group never lets in is given up for a new one; there is no end of it otherwise, nor a word."""
    through, _, proxy = door
    monkeypatch.setattr("queues.group_watch.JOIN", 1.0)
    proxy.accept_again()
    proxy.lose_replies_to(GROUP.encode())
    link = Link("a.b", "input", "a", "b", TOPIC, {})
    links = {link.name: (link, LinkFacts(1, [0]))}
    reader = Reader(through, GROUP, "slot-0", links, lambda _, uuid: uuid, 1)
    with pytest.raises(ReaderLost, match="not let the consumer in"):
        until(lambda: reader.poll(0.05), what="the end of the reader")
    proxy.refuse()
    reader.close()
