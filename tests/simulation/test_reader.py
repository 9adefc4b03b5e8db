"""When a reader calls a partition quiet, and how it names its assignments. Its client and the clock are simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition

import queues.group_clocks
import queues.reader
from peer.preparation import assemble
from peer.slot_clients import SlotClients
from peer.step_timer import StepTimer
from peer.timekeeper import Timekeeper
from queues.group_clocks import GroupClocks
from queues.lost import ReaderLost
from queues.quiet_times import QuietTimes
from queues.reader import Reader
from sardonyx.core.clocks import SourceClock
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.settings import Settings
from sentinel.rules import BOUND_END
from tests.simulation.messages import Record, end_of_partition
from tests.simulation.metadata import Topics, at_once

TOPIC = "t"
ONE, OTHER = Partition(TOPIC, 0), Partition(TOPIC, 1)
LIMIT = {TOPIC: 5.0}


class Clock(Runtime):
    """Simulated time."""

    def __init__(self) -> None:
        self.passed = 1000.0

    def now(self) -> float:
        return self.passed

    def wall(self) -> float:
        return self.passed


class Client(Topics):
    """A consumer whose broker is a list of messages."""

    def __init__(self) -> None:
        self.partitions = {TOPIC: 2}
        super().__init__(self.partitions)
        self.waiting: list[Any] = []
        self.paused: set[int] = set()

    def subscribe(self, _topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.came, self.went = on_assign, on_revoke

    def give(self, *numbers: int) -> None:
        self.came(self, [TopicPartition(TOPIC, number) for number in numbers])

    def take(self, *numbers: int) -> None:
        self.went(self, [TopicPartition(TOPIC, number) for number in numbers])

    def poll(self, _timeout: float) -> Any:
        found = next((m for m in self.waiting if m.partition() not in self.paused), None)
        if found is not None:
            self.waiting.remove(found)
        return found

    def consume(self, count: int, timeout: float) -> list[Any]:
        del timeout
        return [found for _ in range(count) if (found := self.poll(0)) is not None]

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        return places

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        pass

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        pass

    def assignment(self) -> list[int]:
        return [0]

    asked = 0
    member: str | None = "member"

    def memberid(self) -> str | None:
        self.asked += 1
        return self.member

    def consumer_group_metadata(self) -> bytes:
        return b"metadata"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    client = Client()
    monkeypatch.setattr(queues.reader, "open_consumer", lambda *_, **_settings: client)
    monkeypatch.setattr(queues.reader.GroupWatch, "assigned", lambda self: None)
    return client


def opened(clock: Clock, quiet_times: QuietTimes | None = None) -> Reader:
    link = Link("in", TOPIC, "input", "in", "count")
    settings = Settings.model_construct()
    links = {"in": (link, LinkFacts(2))}
    return Reader(
        settings, "g", "slot-0", links, lambda *_: BOUND_END, 2, timed=True, quiet_times=quiet_times, runtime=clock
    )


@pytest.fixture
def reader(clock: Clock, client: Client) -> Reader:
    """It holds two partitions, and has read both to their ends."""
    reader = opened(clock)
    client.give(0, 1)
    client.waiting += [end_of_partition(TOPIC, 0, 0), end_of_partition(TOPIC, 1, 0)]
    reader.poll(0)
    reader.cut(10)
    return reader


def passes(reader: Reader, clock: Clock, seconds: float) -> set[Partition]:
    """Time passes in which the reader works, and looks now and then. What is quiet then."""
    until = clock.passed + seconds
    while clock.passed < until:
        clock.passed += 0.25
        reader.poll(0)
        found = reader.quiet(LIMIT)
    return found


def come(reader: Reader, client: Client, clock: Clock, number: int, offset: int) -> None:
    """A row comes, is processed at once, and nothing follows it."""
    client.waiting += [Record(TOPIC, number, offset, b"x"), end_of_partition(TOPIC, number, offset + 1)]
    reader.poll(0)
    batch = reader.cut(10)
    reader.committed(batch.positions)


def test_a_partition_is_quiet_when_nothing_has_come_for_long(reader: Reader, clock: Clock) -> None:
    """The time counts from the first look on; a partition that never had a row is no exception."""
    assert passes(reader, clock, 4.0) == set()
    assert passes(reader, clock, 1.5) == {ONE, OTHER}


def test_a_partition_is_not_quiet_right_after_a_row(reader: Reader, client: Client, clock: Clock) -> None:
    """The row may come and be committed between two looks: the time counts anew from it."""
    assert passes(reader, clock, 4.5) == set()
    come(reader, client, clock, 0, 0)
    assert passes(reader, clock, 1.0) == {OTHER}
    assert passes(reader, clock, 4.0) == {OTHER}
    assert passes(reader, clock, 0.5) == {ONE, OTHER}


def test_the_time_in_which_a_process_was_stopped_does_not_count(reader: Reader, clock: Clock) -> None:
    """Rows may wait at the broker that it has not asked for."""
    passes(reader, clock, 1.0)
    clock.passed += 60.0
    reader.poll(0)
    assert reader.quiet(LIMIT) == set()
    assert passes(reader, clock, 4.5) == set()
    assert passes(reader, clock, 1.0) == {ONE, OTHER}


def test_a_process_that_was_stopped_while_it_polled_calls_no_partition_quiet(
    reader: Reader, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll comes back without a row, for the client has not asked for any yet."""

    def stopped(_timeout: float) -> None:
        clock.passed += 60.0

    passes(reader, clock, 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(client, "poll", stopped)
        reader.poll(0.05)
    assert reader.quiet(LIMIT) == set()
    assert passes(reader, clock, 4.5) == set()
    assert passes(reader, clock, 1.0) == {ONE, OTHER}


def test_a_partition_is_not_quiet_while_it_is_not_fetched(reader: Reader, client: Client, clock: Clock) -> None:
    """The buffer is full of another partition's rows: what waits at the broker is not known."""
    passes(reader, clock, 1.0)
    client.waiting += [Record(TOPIC, 0, offset, b"x") for offset in range(8)]
    reader.poll(0)
    passes(reader, clock, 10.0)
    assert client.paused == {0, 1}
    while reader.batch_due_in(2, 0) == 0:
        reader.committed(reader.cut(2).positions)
    reader.poll(0)
    assert reader.quiet(LIMIT) == set()
    assert OTHER in passes(reader, clock, 5.5)


class Turns:
    """Peers of one process that have the partitions for a second each, and then let other tasks have their turn."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client, self.clock, self.quiet_times = client, clock, QuietTimes()
        self.committed: dict[int, int] = {0: 0, 1: 0}
        client.committed = lambda places, timeout: [  # type: ignore[method-assign]
            TopicPartition(TOPIC, place.partition, self.committed[place.partition] or -1001) for place in places
        ]

    def begin(self, *rows: int) -> Reader:
        """A peer has its turn; these partitions have a row each that is still to be read."""
        reader = opened(self.clock, self.quiet_times)
        self.client.give(0, 1)
        for number, offset in self.committed.items():
            if number in rows:
                self.client.waiting.append(Record(TOPIC, number, offset, b"x"))
            self.client.waiting.append(end_of_partition(TOPIC, number, offset + (number in rows)))
        while self.client.waiting:
            reader.poll(0)
        return reader

    def commit(self, reader: Reader) -> None:
        positions = reader.cut(10).positions
        reader.committed(positions)
        self.committed |= {partition.number: position.offset for partition, position in positions.items()}

    def run(self, *rows: int) -> set[Partition]:
        """A whole turn, and two seconds until the next. What was quiet at its end."""
        reader = self.begin(*rows)
        self.commit(reader)
        found = passes(reader, self.clock, 1.0)
        self.client.take(0, 1)
        self.clock.passed += 2.0
        return found


def test_a_partition_without_rows_is_quiet_although_peers_take_turns(client: Client, clock: Clock) -> None:
    """Each peer has it for a shorter time than after which it is to be quiet."""
    turns = Turns(client, clock)
    assert [turns.run(), turns.run(), turns.run()] == [set(), set(), {ONE, OTHER}]


def test_a_row_that_came_between_two_turns_makes_its_partition_busy_again(client: Client, clock: Clock) -> None:
    turns = Turns(client, clock)
    turns.run()
    turns.run(0)
    assert turns.run() == {OTHER}
    assert turns.run() == {ONE, OTHER}


def test_a_row_that_another_process_has_read_makes_its_partition_busy_again(client: Client, clock: Clock) -> None:
    """It has moved the committed position, and nothing else is seen of it here."""
    turns = Turns(client, clock)
    turns.run()
    turns.committed[0] = 1
    turns.run()
    assert turns.run() == {OTHER}


def test_a_turn_in_a_process_that_was_stopped_does_not_count_what_was_before(client: Client, clock: Clock) -> None:
    """After its stop rows may wait at the broker that the peer has not asked for."""
    turns = Turns(client, clock)
    turns.run()
    reader = turns.begin()
    clock.passed += 60.0
    reader.poll(0)
    assert reader.quiet(LIMIT) == set()


def test_assignments_of_two_readers_have_different_numbers(reader: Reader, client: Client) -> None:
    """The state of a partition outlives a reader, and another peer may have had the partition in between."""
    before = reader.incarnations
    client.take(0, 1)
    client.give(0, 1)
    again = reader.incarnations
    after = opened(Clock())
    client.give(0, 1)
    numbers = [*before.values(), *again.values(), *after.incarnations.values()]
    assert len(set(numbers)) == 6


def test_the_client_is_not_asked_at_each_look_whether_the_group_has_the_reader(
    reader: Reader, client: Client, clock: Clock
) -> None:
    """It is after a rebalance, after a second, and always before a commit; and as long as it says no."""
    assert reader.member
    client.asked, client.member = 0, None
    assert all(reader.member for _ in range(100))
    assert client.asked == 0
    batch = reader.cut(10)
    assert not reader.holds(batch)
    assert not reader.member
    client.member = "again"
    assert reader.member, "asked at once"
    client.member = None
    with pytest.raises(ReaderLost):
        reader.group_metadata()
    assert not reader.member
    client.member = "again"
    assert reader.member
    client.member = None
    clock.passed += 1.5
    assert not reader.member
    client.member = "again"
    assert reader.member
    client.member = None
    client.take(0)
    assert not reader.member


def test_the_clock_of_a_task_goes_by_partitions_that_were_added(
    reader: Reader, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user adds one to a topic while the job runs. Its rows would be late by the clock of a peer that does not know it. So the
    peer that gets it goes by it at once, and all others begin anew, and know it.
    """
    added = Partition(TOPIC, 2)
    monkeypatch.setattr(queues.group_clocks, "Consumer", lambda *_, **_more: client)
    monkeypatch.setattr(BackgroundThread, "submit", at_once)
    monkeypatch.setattr(time, "monotonic", clock.now)
    clocks = GroupClocks(Settings.model_construct(), "g", reader.everything, [TOPIC])
    task = TaskSpec(name="a", type="function", fn="m:f")
    given = TaskSpec(name="in", type="input", connector="kafka", options={"topic": TOPIC}, time=TimeSpec(column="at"))
    out = TaskSpec(name="out", type="output", connector="blackhole")
    spec = JobSpec(name="j", workflow=[("in", "a"), ("a", "out")], catalog=[given, task, out])
    graph = graph_of(spec, "d", "j")
    facts = {link.name: LinkFacts(2) for link in graph.links}
    times = Timekeeper(
        graph.stages[0], facts, cast("SlotClients", SimpleNamespace(reader=reader, clocks=clocks)), "p", runtime=clock
    )

    def stated(**at: int) -> list[int]:
        of = dict(zip((ONE, OTHER, added), at.values(), strict=False))
        found = times.after_batch(
            {partition: Position(9, clock=SourceClock(value=value)) for partition, value in of.items()}
        )
        times.committed()
        clock.passed += 1.0
        return [] if not found else [times._stating.last]

    assert stated(one=50, other=40) == [40]
    client.partitions[TOPIC] = 3
    client.give(2)
    assert stated(one=90, other=95, added=60) == [60]
    clock.passed += 10.0
    with pytest.raises(ReaderLost, match="partitions were added to topic t"):
        [stated(one=95, other=95, added=70) for _ in range(3)]
    assert opened(clock).everything == [ONE, OTHER, added]


def test_rows_are_not_judged_by_their_partition_alone_when_another_one_was_added(client: Client, clock: Clock) -> None:
    """What windows take for late goes by the least clock of all partitions of a topic: by one of them alone only as long as there
    is no other, whatever the topic had when the job was planned.
    """
    options, time = {"topic": TOPIC, "schema": "at long"}, TimeSpec(column="at", unit="ms")
    given = TaskSpec(name="in", type="input", connector="kafka", options=options, time=time)
    window = WindowSpec(kind="tumbling", size="1 min", aggregate={"n": AggregateSpec(of="count")})
    count = TaskSpec(name="count", type="function", window=window)
    out = TaskSpec(name="out", type="output", connector="blackhole")
    edges = [("in", "count"), ("count", "out")]
    graph = graph_of(JobSpec(name="j", workflow=edges, catalog=[given, count, out]), "d", "j")
    facts = {link.name: LinkFacts(1) for link in graph.links}
    settings = Settings.model_construct()
    work = assemble(settings, None, "p", Assignment(1, "j", "in", 0), graph, facts, None)
    (link,) = work.stage.ingress

    def judged(partitions: int, *held: int) -> bool:
        client.partitions[TOPIC] = partitions
        found = Reader(
            settings,
            "g",
            "slot-0",
            {link.name: (link, LinkFacts(1))},
            lambda *_: BOUND_END,
            2,
            timed=True,
            runtime=clock,
        )
        client.give(*held)
        client.waiting += [Record(TOPIC, 0, offset, b'{"at": 1}') for offset in range(3)]
        found.poll(0)
        return work.apply(found.cut(10), StepTimer()).in_force.of_rows is not None

    assert judged(1, 0)
    assert not judged(2, 0)
    assert not judged(1, 0, 1), "the group tells it first"
