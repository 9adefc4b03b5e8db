"""Where reading begins: at any place in a user's topic, and where an output's own positions say, on a real broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from peer.positioned_sink import PositionedSink
from queues import admin, confirmed_end
from queues.batch import Batch
from queues.messages import Outgoing
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.sql.output import SqlOutput
from sardonyx.core.errors import InputError, OutputError
from sardonyx.core.events import Counts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position, add
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings
from tests.waiting import until

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = 10
"""In partition 0, one a minute; partition 1 holds none."""


@pytest.fixture
def topic(settings: Settings) -> str:
    name = f"{settings.deployment}-in"
    admin = AdminClient({**settings.kafka.client(), "log_level": 0})
    kept = {"retention.ms": "-1"}  # the records say that they are old
    for future in admin.create_topics([NewTopic(name, num_partitions=2, config=kept)]).values():
        future.result(60)
    producer = Producer({**settings.kafka.client(), "log_level": 0})
    for number in range(RECORDS):
        at = FIRST + timedelta(minutes=number)
        producer.produce(name, str(number), partition=0, timestamp=int(at.timestamp() * 1000))
    assert producer.flush(120) == 0
    return name


class Way:
    """A task that reads the topic and writes into SQLite, and a copy of each record's number into a second topic."""

    def __init__(self, settings: Settings, topic: str, folder: Path, **options) -> None:
        self.settings = settings
        self.folder = folder
        options = {"topic": topic, "format": "raw", **options}
        spec = JobSpec(
            name="w",
            workflow=[("a", "b")],
            catalog=[
                TaskSpec(name="a", type="input", connector="kafka", options=options),
                TaskSpec(name="b", type="output", connector="blackhole"),
            ],
        )
        graph = graph_of(spec, settings.deployment, "w-1")
        self.stage = graph.stage("b")
        self.facts = admin.create_links(settings, graph, spec)
        self.readers: list[Reader] = []

    def peer(self, slot: int = 0) -> Peer:
        return Peer(self, slot)

    def numbers(self) -> list[int]:
        """What stands in the database."""
        with closing(sqlite3.connect(self.folder / "out.db")) as connection:
            return [number for (number,) in connection.execute("select number from numbers order by rowid")]

    def said(self, topic: str) -> list[bytes]:
        """What is committed in a topic's first partition."""
        return confirmed_end.read_all(self.settings, topic)


class Peer:
    """One reader, one producer and one way into the database, driven by the test."""

    def __init__(self, way: Way, slot: int) -> None:
        self.way = way
        options = {"url": f"sqlite:///{way.folder}/out.db", "table": "numbers"}
        self.store = PositionedSink(SqlOutput(options, way.settings.deployment, "w-1", "b"))
        self.writer = TransactionalWriter(
            way.settings, way.stage.transactional_id(way.settings.deployment, "w-1", slot)
        )
        self.writer.open()
        ingress = {link.name: (link, way.facts[link.name]) for link in way.stage.ingress}
        group = way.stage.group(way.settings.deployment, "w-1")
        member = way.stage.member(slot)
        self.reader = Reader(way.settings, group, member, ingress, lambda _, uuid: uuid, 4, self.store.recover)
        way.readers.append(self.reader)

    def batch(self) -> Batch:
        """The next batch that has rows or owes something.

        News of an end alone is left to it: whether the empty partition is in a peer's first batch is the broker's whim, and
        a peer that committed it on its way would refuse the batch of another that holds it as well.
        """

        def told() -> Batch | None:
            batch = self._next()
            return batch if batch.rows or batch.outbox else None

        return until(told, what="a batch with rows")

    def _next(self) -> Batch:
        def come() -> Batch | None:
            self.reader.poll(0.05)
            if self.reader.batch_due_in(4, 0.2) == 0:
                batch = self.reader.cut(4)
                return batch if batch.positions else None
            return None

        return until(come, what="a batch")

    def store_it(self, batch: Batch, *outbox: Outgoing) -> tuple[list[Outgoing], dict[Partition, Position]]:
        """The database's commit; gives what is to go to Kafka."""
        numbers = [int(message.value()) for messages in batch.messages.values() for message in messages]
        outgoing = [*batch.outbox, *outbox]
        positions = {
            partition: position._replace(counts=add(position.counts, Counts(batch.rows.get(partition, 0))))
            for partition, position in batch.positions.items()
        }
        list(self.store.messages(pa.table({"number": numbers})))
        self.store.begin(batch.started, positions, outgoing)
        self.store.commit()
        return outgoing, positions

    def tell(self, outgoing: list[Outgoing], positions: dict[Partition, Position]) -> None:
        """Kafka's commit."""
        self.writer.write(outgoing, positions, self.reader.group_metadata)
        self.reader.committed(positions)

    def to_end(self) -> None:
        """Everything that is left."""
        while not self.done():
            self.tell(*self.store_it(self._next()))

    def done(self) -> bool:
        committed = self.reader.all_committed()
        return all(position and position.drained for position in committed.values())

    def dies(self) -> None:
        self.reader.close()


@pytest.fixture
def way(settings: Settings, topic: str, tmp_path: Path) -> Iterator[Callable[..., Way]]:
    made: list[Way] = []

    def one(**options) -> Way:
        made.append(Way(settings, topic, tmp_path, **{"start": "earliest", "end": "latest", **options}))
        return made[-1]

    yield one
    for each in made:
        for reader in each.readers:
            reader.close()


AFTER_THREE = (FIRST + timedelta(minutes=2, seconds=30)).isoformat()


@pytest.mark.gate
@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        ("earliest", "latest", 0, RECORDS),
        ("latest", "latest", RECORDS, RECORDS),
        (AFTER_THREE, "latest", 3, RECORDS),
        ("earliest", AFTER_THREE, 0, 3),
        ((FIRST - timedelta(days=1)).isoformat(), (FIRST + timedelta(days=1)).isoformat(), 0, RECORDS),
        ({"0": 4, "1": 0}, {"0": 7, "1": 0}, 4, 7),
        (AFTER_THREE, None, 3, None),
    ],
)
def test_a_topic_is_read_from_any_place_to_any_place(way: Callable[..., Way], start, end, first, last):
    """Earliest, latest, a time, offsets: what they mean is fixed when the job is planned. A time is that of the record."""
    facts = way(start=start, **({"end": end} if end else {"end": None})).facts["a.b"]
    assert facts.start == [first, 0]
    assert facts.end == (None if last is None else [last, 0])


def test_what_is_between_is_read_and_nothing_else(way: Callable[..., Way], settings: Settings, topic: str):
    """Records that come later than the job's plan are behind its end, also where a time is the start."""
    bound = way(start=AFTER_THREE)
    producer = Producer({**settings.kafka.client(), "log_level": 0})
    producer.produce(topic, "99", partition=0)
    assert producer.flush(120) == 0
    bound.peer().to_end()
    assert bound.numbers() == list(range(3, RECORDS))


def test_offsets_must_name_every_partition(way: Callable[..., Way]):
    """One that is left out would be read from a place that the job did not choose."""
    with pytest.raises(InputError) as error:
        way(start={"0": 3})
    assert error.value.code == "SX-KAFKA-OFFSETS"


# --- positions of the output's own ------------------------------------------------------------------------------------


@pytest.fixture
def told(settings: Settings) -> str:
    """A topic that stands for dead letters: what a batch says in Kafka."""
    name = f"{settings.deployment}-told"
    admin = AdminClient({**settings.kafka.client(), "log_level": 0})
    for future in admin.create_topics([NewTopic(name, num_partitions=1)]).values():
        future.result(60)
    return name


@pytest.mark.gate
def test_a_death_between_the_commits_costs_nothing(way: Callable[..., Way], told: str):
    """The successor reads on from the database, and says in Kafka what the dead one could not, once; if it dies over
    that as well, the next one does.
    """
    road = way()
    first = road.peer()
    first.tell(*first.store_it(first.batch()))
    first.store_it(first.batch(), Outgoing(told, b"letter of the second batch", 0))
    first.dies()
    second = road.peer()
    second.store_it(second.batch())  # and dies as well: what was owed is owed still
    second.dies()
    assert road.said(told) == []
    third = road.peer()
    third.to_end()
    assert road.numbers() == list(range(RECORDS))
    assert road.said(told) == [b"letter of the second batch"]
    committed = third.reader.all_committed()
    assert sum(position.counts.rows_in for position in committed.values() if position) == RECORDS


def test_a_kafka_transaction_that_fails_behind_the_databases_is_caught_up(way: Callable[..., Way], told: str):
    """The same peer goes on: it asks anew where it stands, and reads no record of the batch again."""
    road = way()
    peer = road.peer()
    peer.store_it(peer.batch(), Outgoing(told, b"letter", 0))  # Kafka says no
    peer.reader.recover()
    batch = peer.batch()
    assert batch.outbox == [Outgoing(told, b"letter", 0)]
    peer.tell(*peer.store_it(batch))
    peer.to_end()
    assert road.numbers() == list(range(RECORDS))
    assert road.said(told) == [b"letter"]


def test_who_is_stopped_before_the_databases_commit_writes_nothing(way: Callable[..., Way]):
    """It wakes up with its batch in hand, and another has done it: refused, in its first batch and in any later one."""
    road = way()
    sleeper = road.peer()
    asleep = sleeper.batch()
    sleeper.dies()
    other = road.peer()
    other.tell(*other.store_it(other.batch()))
    with pytest.raises(PositionsMoved):
        sleeper.store_it(asleep)
    other.dies()
    third = road.peer(slot=1)
    late = third.batch()
    third.dies()
    road.peer(slot=2).to_end()
    with pytest.raises(PositionsMoved):
        third.store_it(late)
    assert road.numbers() == list(range(RECORDS))


def test_who_wakes_up_before_its_successor_is_done_counts(way: Callable[..., Way], told: str):
    """It commits to the database, and Kafka refuses it; the successor, refused by the database, goes on from there."""
    road = way()
    sleeper = road.peer()
    asleep = sleeper.batch()
    sleeper.dies()
    other = road.peer(slot=1)
    mine = other.batch()
    sleeper.store_it(asleep, Outgoing(told, b"of the sleeper", 0))
    with pytest.raises(PositionsMoved):
        other.store_it(mine)
    other.reader.recover()
    other.to_end()
    assert road.numbers() == list(range(RECORDS))
    assert road.said(told) == [b"of the sleeper"]


def test_positions_that_were_removed_are_told(way: Callable[..., Way]):
    """Kafka knows a position that the database does not: going on would doubt what stands there, so it is an error."""
    road = way()
    first = road.peer()
    first.tell(*first.store_it(first.batch()))
    first.dies()
    with closing(sqlite3.connect(road.folder / "out.db")) as connection, connection:
        connection.execute("delete from sardonyx_positions")
    with pytest.raises(OutputError) as error:
        road.peer().batch()
    assert error.value.code == "SX-OUTPUT-POSITIONS-LOST"


def test_a_database_that_was_set_back_is_filled_again(way: Callable[..., Way]):
    """It lost its last transaction: its own position tells, and Kafka's follows it back."""
    road = way()
    first = road.peer()
    first.tell(*first.store_it(first.batch()))
    backup = (road.folder / "out.db").read_bytes()
    first.tell(*first.store_it(first.batch()))
    first.dies()
    (road.folder / "out.db").write_bytes(backup)
    road.peer().to_end()
    assert road.numbers() == list(range(RECORDS))
