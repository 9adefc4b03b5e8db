"""One task between two links on a real broker, with readers and writers that a test drives."""

from __future__ import annotations

import uuid
from collections import Counter

from confluent_kafka import Producer, TopicPartition

from peer.sinks import sentinel_message
from queues import admin, topic_log
from queues.batch import Batch
from queues.messages import ROWS_HEADER, Outgoing
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from sardonyx.core.events import Counts
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.positions import Partition, Position, add
from sardonyx.core.spec import JobSpec, OnError, TaskSpec
from sardonyx.runtime.settings import Settings
from sentinel import rules
from tests.waiting import until

JOB = "q-1"
PARTITIONS = 3


class Task:
    """One task with a link on each side, its readers and writers, closed at the end."""

    def __init__(self, settings: Settings, link_input: dict | None = None, *, letters: bool = False) -> None:
        options = {"topic": f"{settings.deployment}-in", **(link_input or {})}
        source = (
            TaskSpec(name="a", type="input", connector="kafka", options=options)
            if link_input
            else TaskSpec(name="a", type="input", connector="files")
        )
        self.spec = JobSpec(
            name="q",
            workflow=[("a", "b"), ("b", "c")],
            catalog=[
                source,
                TaskSpec(
                    name="b", type="function", fn="m:f", on_error=OnError(then="dead_letter" if letters else "fail")
                ),
                TaskSpec(name="c", type="output", connector="blackhole"),
            ],
            partitions=PARTITIONS,
        )
        self.settings = settings
        self.graph: Graph = graph_of(self.spec, settings.deployment, JOB)
        self.stage = self.graph.stage("b")
        self.facts: dict = {}
        self.votes: dict[str, str] = {}
        self.open_readers: list[Reader] = []

    def create(self) -> None:
        self.facts = admin.create_links(self.settings, self.graph, self.spec)

    @property
    def topic(self) -> str:
        return self.stage.ingress[0].topic

    def reader(self, size: int = 1000, slot: int | None = None) -> Reader:
        """Of the next slot, or of that one."""
        ingress = {link.name: (link, self.facts[link.name]) for link in self.stage.ingress}
        group = self.stage.group(self.settings.deployment, JOB)
        member = self.stage.member(len(self.open_readers) if slot is None else slot)
        reader = Reader(self.settings, group, member, ingress, self.votes.setdefault, size)
        self.open_readers.append(reader)
        return reader

    def writer(self, slot: int = 0, task: str = "b") -> TransactionalWriter:
        stage = self.graph.stage(task)
        writer = TransactionalWriter(self.settings, stage.transactional_id(self.settings.deployment, JOB, slot))
        writer.open()
        return writer

    def feed(self, rows: int, *, sentinel: str | None = None, partition: int | None = None) -> None:
        """Put ``rows`` messages of one row each onto b's ingress, and a sentinel on each partition if wanted; one transaction.

        When this is through, all that can be read: a commit is answered before its markers stand, which take an offset each.
        """
        places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        ends = topic_log.stable_ends(self.settings, places)
        producer = Producer(
            {**self.settings.kafka.client(), "transactional.id": f"{self.settings.deployment}/feed/{uuid.uuid4()}"}
        )
        producer.init_transactions(120)
        producer.begin_transaction()
        sent = Counter({number: 1 for number in range(PARTITIONS) if sentinel})
        for number in range(rows):
            to = number % PARTITIONS if partition is None else partition
            sent[to] += 1
            producer.produce(self.topic, value=str(number), partition=to, headers=[(ROWS_HEADER, b"1")])
        for number in range(PARTITIONS) if sentinel else ():
            message = sentinel_message(self.stage.ingress[0], number, sentinel or "", "feed")
            producer.produce(self.topic, partition=number, headers=message.headers)
        producer.commit_transaction(120)
        wanted = {place: end + sent[place.number] + (sent[place.number] > 0) for place, end in ends.items()}
        until(lambda: topic_log.stable_ends(self.settings, places) == wanted, what="the commit to be seen everywhere")

    def close(self) -> None:
        for reader in self.open_readers:
            reader.close()


def counted(batch: Batch) -> dict[Partition, Position]:
    return {
        partition: position._replace(
            counts=add(position.counts, Counts(batch.rows.get(partition, 0), batch.rows.get(partition, 0)))
        )
        for partition, position in batch.positions.items()
    }


def batch_of(reader: Reader, rows: int) -> Batch:
    """A batch of that many rows. The first of a reader's own choice may lack what comes with the broker's next answer."""
    return _cut_batch(reader, rows, interval=60)


def next_batch(reader: Reader, size: int = 1000) -> Batch:
    """Whatever a peer would take for its next batch, if it waited for hardly anything."""
    return _cut_batch(reader, size, interval=0.05)


def _cut_batch(reader: Reader, size: int, interval: float) -> Batch:
    """The first batch that has positions. One of a sentinel about which there is no vote yet has none."""

    def cut() -> Batch | None:
        reader.poll(0.05)
        if reader.batch_due_in(size, interval) > 0:
            return None
        batch = reader.cut(size)
        return batch if batch.positions else None

    return until(cut, what="a batch")


def commit(writer: TransactionalWriter, reader: Reader, batch: Batch, out: list[Outgoing]) -> None:
    positions = counted(batch)
    writer.write(out, positions, reader.group_metadata)
    reader.committed(positions)


def work_off(task: Task, reader: Reader, writer: TransactionalWriter, size: int = 1000) -> list[bytes]:
    """Batches until everything that the reader holds is drained; returns the values in the order of their commits."""
    values: list[bytes] = []
    until(lambda: reader.poll(0.05) or reader.held, what="partitions")
    while not (rules.exhausted([p.drained if p else None for p in reader.held.values()], None)):
        batch = next_batch(reader, size)
        got = [message.value() for messages in batch.messages.values() for message in messages]
        link = task.stage.ingress[0]
        moved = [sentinel_message(link, p.number, uuid, "b") for p, uuid in batch.displaced.items()]
        out = [Outgoing(task.stage.egress[0].topic, value, 0) for value in got]
        commit(writer, reader, batch, [*out, *moved])
        values += got
    return values
