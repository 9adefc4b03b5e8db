"""A slot's place in its task's group: it goes over without a rebalance, is left at once, and is taken from the dead."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException
from structlog.testing import capture_logs

from queues.lost import ReaderLost
from queues.membership import described, leave, open_consumer, remove_static_member
from queues.messages import Outgoing
from queues.reader import Reader
from queues.transaction_errors import ProducerLost, TransactionAborted
from sardonyx.runtime.settings import Settings
from tests.services.one_task import JOB, PARTITIONS, Task, batch_of, commit, counted, next_batch, work_off
from tests.waiting import until


@pytest.fixture
def task(settings: Settings) -> Iterator[Task]:
    """In a group that gives up no member by itself for as long as a test may take."""
    patient = settings.peer.model_copy(update={"session_timeout": 600.0})
    made = Task(settings.model_copy(update={"peer": patient}))
    made.create()
    yield made
    made.close()


def both(task: Task) -> tuple[Reader, Reader]:
    """The holders of two slots, each with its share of the partitions."""
    one, two = task.reader(), task.reader()
    until(lambda: (one.poll(0.05), two.poll(0.05)) and one.held and two.held, what="a share for each")
    until(
        lambda: (one.poll(0.05), two.poll(0.05)) and len(one.held) + len(two.held) == PARTITIONS, what="all partitions"
    )
    return one, two


def all_of(reader: Reader) -> bool:
    reader.poll(0.05)
    return len(reader.held) == PARTITIONS


@pytest.mark.gate
def test_a_slot_goes_over_with_its_partitions_and_the_others_notice_nothing(task: Task) -> None:
    """Its next holder gets them while no other member polls; a batch that another one has in hand stays its own."""
    task.feed(90, sentinel="s")
    dead, other = both(task)
    share, batch = set(dead.held), next_batch(other)
    successor = task.reader(slot=0)
    until(lambda: successor.poll(0.05) or set(successor.held) == share, what="the slot's partitions")
    other.poll(0.5)
    assert other.holds(batch)
    other.rewind()
    values = work_off(task, successor, task.writer(0)) + work_off(task, other, task.writer(1))
    assert sorted(map(int, values)) == list(range(90))


@pytest.mark.gate
def test_who_held_the_slot_before_can_do_nothing_any_more(task: Task) -> None:
    """His reader hears of it and is lost; what he knew of his place in the group commits nothing."""
    task.feed(30)
    before = task.reader()
    batch, place = batch_of(before, 30), before.group_metadata()
    writer = task.writer()
    successor = task.reader(slot=0)
    until(lambda: all_of(successor), what="the slot's partitions")
    with pytest.raises(TransactionAborted, match="FENCED_INSTANCE_ID"):
        writer.write([Outgoing(task.stage.egress[0].topic, b"late", 0)], counted(batch), lambda: place)
    with pytest.raises(ReaderLost, match="fenced"):
        until(lambda: before.poll(0.05), what="the news")
    before.close()
    assert batch_of(successor, 30).rows == batch.rows


@pytest.mark.parametrize("ends", ["committed", "left open"])
def test_who_is_let_in_while_the_last_transaction_is_open_begins_where_it_ended(
    task: Task, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A slot's next holder asks for positions when its writer is open, however long before that the group has let it in."""
    task.feed(30)
    before, writer = task.reader(), task.writer()
    batch = batch_of(before, 30)
    let_in: list[Reader] = []

    def at(point: str) -> None:
        if point == "positions":
            let_in.append(task.reader(slot=0))
            until(lambda: let_in[0].member, what="the group to let the next holder in")
            if ends == "left open":
                raise ProducerLost("as if it had died here")

    monkeypatch.setattr("queues.transaction.failpoint", at)
    with contextlib.suppress(ProducerLost):
        commit(writer, before, batch, [])
    task.writer()
    (successor,) = let_in
    until(lambda: all_of(successor), what="the slot's partitions")
    known = [position.counts.rows_in for position in successor.held.values() if position]
    assert sum(known) == (30 if ends == "committed" else 0)


def test_who_leaves_in_order_is_not_waited_for(task: Task) -> None:
    """Closing a reader gives its partitions to the others, long before its session could time out."""
    one, two = both(task)
    one.close()
    until(lambda: all_of(two), what="all partitions")


def test_who_leaves_before_it_was_let_in_is_not_waited_for(task: Task) -> None:
    """Also in the middle of its joining, when the group has not given it anything yet."""
    one = task.reader()
    until(lambda: all_of(one), what="all partitions")
    two = task.reader()
    group = task.stage.group(task.settings.deployment, JOB)
    until(
        lambda: len(described(task.settings, group).result(10).members) == 2, what="the second one's name in the group"
    )
    two.close()
    one.rewind()
    until(lambda: all_of(one), what="all partitions again")
    task.feed(3)
    assert sum(next_batch(one).rows.values()) > 0


def test_who_is_fenced_before_he_took_his_partitions_can_close(task: Task) -> None:
    """They wait in his client's queue, unread. librdkafka 2.16 would never end then, and would take a core."""
    group, slot = task.stage.group(task.settings.deployment, JOB), task.stage.member(0)
    before = open_consumer(task.settings, group, slot, task.stage.ingress)
    topics = [link.topic for link in task.stage.ingress]
    before.subscribe(topics)

    def assigned() -> bool:
        members = described(task.settings, group).result(10).members
        return any(member.assignment.topic_partitions for member in members)

    def fenced() -> bool:
        try:
            before.subscribe(topics)  # as it is; a client that was fenced refuses
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._FATAL)
        return False

    until(assigned, what="the group to give it partitions")
    successor = task.reader(slot=0)
    until(lambda: all_of(successor), what="the slot's partitions")
    until(fenced, what="the client to hear that it is fenced")
    with capture_logs() as logs:
        leave(before)
    assert "consumer_close_hangs" not in [line["event"] for line in logs]


def test_the_place_of_a_lost_peer_is_given_up_for_it(task: Task) -> None:
    """The others share its partitions then. In a group without it, or without members, there is nothing to do."""
    group = task.stage.group(task.settings.deployment, JOB)
    _lost, other = both(task)
    assert remove_static_member(task.settings, group, task.stage.member(0), task.stage.ingress)
    until(lambda: all_of(other), what="all partitions")
    assert not remove_static_member(task.settings, group, task.stage.member(0), task.stage.ingress)
    assert not remove_static_member(task.settings, f"{group}-none", task.stage.member(0), task.stage.ingress)


def test_partitions_that_nobody_was_given_are_found(task: Task) -> None:
    """A member dies after it has released partitions and before the group assigns them: its successor sees that they have no
    holder.
    """
    one = task.reader()
    until(lambda: all_of(one), what="all partitions")
    two = task.reader()
    group = task.stage.group(task.settings.deployment, JOB)

    def first_round_is_over() -> bool:
        two.poll(0.05)  # the other one, not asked, does not let go; as the group knows, it has
        found = described(task.settings, group).result(10)
        return len(found.members) == 2 and found.state is ConsumerGroupState.STABLE

    until(first_round_is_over, what="the first of two rounds")
    successor = task.reader(slot=0)

    def found_out() -> list[Reader]:
        found = []
        for reader in (two, successor):
            try:
                reader.poll(0.05)
            except ReaderLost as error:
                if "no member holds" not in str(error):
                    raise
                found.append(reader)
        return found

    (lost, *others) = until(found_out, what="a member to notice")
    lost.close()
    stays = others[0] if others else two if lost is successor else successor
    with contextlib.suppress(ReaderLost):  # it may have seen the same
        until(lambda: all_of(stays), what="all partitions")
    until(lambda: all_of(stays), what="all partitions")


def test_a_client_that_does_not_close_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own close may wait for minutes; the peer goes on, and the log says so."""
    monkeypatch.setattr("queues.membership._KNOWN", 0.1)
    monkeypatch.setattr("queues.membership._CLOSE", 0.1)
    let_go, closed = threading.Event(), threading.Event()

    class Hanging(Consumer):
        def close(self) -> None:
            let_go.wait()
            super().close()
            closed.set()

    consumer = Hanging({"group.id": "none", "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with capture_logs() as logs:
        leave(consumer)
    assert [line["event"] for line in logs] == ["consumer_close_hangs"]
    let_go.set()
    assert closed.wait(180)
