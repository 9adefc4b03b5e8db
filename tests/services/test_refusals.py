"""Records that Kafka never takes: found exactly, left out by the ``on_error`` of their output, and nothing else is."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

import peer.task_loop
import queues.bulk_producer
import queues.transaction
from peer.assignment import AssignmentHandle
from peer.preparation import assemble
from peer.prepared_task import PreparedTask
from peer.slot_clients import SlotClients
from peer.task_loop import TaskLoop
from queues import dead_letters
from queues.bulk_producer import Codes
from queues.guarded_producer import ProducerEvents
from queues.messages import Outgoing, Records, digest_of
from queues.record_columns import RecordColumns
from queues.transaction import TransactionalWriter
from queues.transaction_errors import RecordsRefused, Refusal, RefusedTogether, TransactionAborted
from sardonyx import Job, kafka
from sardonyx.core.errors import OutputError, SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment, ServiceAway
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL
from sardonyx.runtime.settings import load_settings
from sardonyx.testing.memory import MemoryReader, SetTime, Topics

Record = tuple[bytes | None, bytes | None]
Form = Callable[[list[Record]], RecordColumns | list[Record]]
"""How records come to a writer."""

# --- Which records are refused ----------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A message of the client's."""

    name: str
    stored_key: bytes | None
    stored_value: bytes | None
    is_reported: bool
    """Whether its writer hears what becomes of it."""

    def topic(self) -> str:
        return self.name

    def key(self) -> bytes | None:
        return self.stored_key

    def value(self) -> bytes | None:
        return self.stored_value


class Broker:
    """Takes requests of many records. It refuses a whole one, and does not say for which of its records.

    Args:
        takes: why it never takes a record; None: it does.
        most: the most bytes of a request.
    """

    def __init__(self, refuses: Callable[[Record], int | None], most: int = 10**9) -> None:
        self.refuses, self.most = refuses, most
        self.committed: list[Record] = []
        self.attempts = 0

    def answer(self, request: list[Sent]) -> int | None:
        codes = [self.refuses((sent.stored_key, sent.stored_value)) for sent in request]
        if sum(len(sent.stored_value or b"") for sent in request) > self.most:
            codes.append(KafkaError.MSG_SIZE_TOO_LARGE)
        return next((code for code in codes if code is not None), None)


class Producer:
    """Stands in for :class:`queues.guarded_producer.GuardedProducer`, and for the client within it."""

    broker: Broker
    takes_columns = True

    def __init__(self, config: Mapping[str, Any], _timeout: float) -> None:
        self.events = ProducerEvents()
        self.alone = config.get("batch.num.messages") == 1
        self._open: list[Sent] = []

    @property
    def client(self) -> Producer:
        return self

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, _partition: int, headers: object = None
    ) -> None:
        del headers
        if len(value or b"") > 1_000_000:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self._open.append(Sent(topic, key, value, is_reported=True))

    def produce_columns(self, topic: str, keys: pa.Array | None, values: pa.Array) -> Codes:
        """Stands in for :func:`queues.bulk_producer.produce`."""
        codes = np.zeros(len(values), np.int32)
        for index, value in enumerate(values.to_pylist()):
            if len(value or b"") > 1_000_000:
                codes[index] = KafkaError.MSG_SIZE_TOO_LARGE
            else:
                self._open.append(Sent(topic, keys and keys[index].as_py(), value, is_reported=False))
        return codes

    def flush(self, _timeout: float) -> int:
        return 0

    def send_positions(self, _positions: object, _metadata: object) -> None:
        pass

    def call(self, name: str, *_: object) -> None:
        if name == "begin_transaction":
            self._open = []
        if name != "commit_transaction":
            return
        self.broker.attempts += 1
        failed = False
        for request in [[sent] for sent in self._open] if self.alone else [self._open]:
            code = self.broker.answer(request)
            failed |= code is not None
            for sent in request if code is not None else ():
                if sent.is_reported:
                    self.events.delivered(KafkaError(code), cast("Any", sent))
        if failed:
            raise TransactionAborted(KafkaError(KafkaError._STATE))
        self.broker.committed += [(sent.stored_key, sent.stored_value) for sent in self._open]

    def close(self) -> None:
        pass


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Broker], TransactionalWriter]:
    def make(broker: Broker) -> TransactionalWriter:
        monkeypatch.setattr(Producer, "broker", broker, raising=False)
        monkeypatch.setattr(queues.transaction, "GuardedProducer", Producer)
        monkeypatch.setattr(queues.bulk_producer, "produce", Producer.produce_columns)
        made = TransactionalWriter(load_settings(), "slot")
        made.open()
        return made

    return make


def written(writer: TransactionalWriter, records: list[Record], form: Form) -> list[Refusal]:
    """Write records as a task does that leaves out those that are refused. Return these."""
    refused: list[Refusal] = []
    while True:
        left = [record for record in records if digest_of(*record) not in {each.digest for each in refused}]
        try:
            writer.write([Records("out", form(left))], {Partition("in", 0): Position(1)}, lambda: None)
            return refused
        except RefusedTogether:  # of which a task does not count how often it comes
            pass
        except RecordsRefused as error:
            refused += error.refusals


FORMS, NAMES = [list, RecordColumns.of], ["one by one", "in columns"]


def without_key(record: Record) -> int | None:
    return KafkaError.INVALID_RECORD if record[0] is None else None


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_records_that_kafka_never_takes_are_refused(
    seed: int, form: Form, writer: Callable[[Broker], TransactionalWriter]
) -> None:
    """Also where it refuses a whole request for one of them. All good ones are written, in their order; it takes few attempts:
    one more for records in columns, of which the first one says nothing.
    """
    rng = random.Random(seed)
    broker = Broker(without_key)
    slot = writer(broker)
    for _ in range(3):
        records: list[Record] = [
            (
                rng.choice([b"k", b"", None]) if rng.random() < 0.3 else b"key",
                b"x" * rng.choice([0, 10, 1_000_001 if rng.random() < 0.1 else 1]) + b"%d" % number,
            )
            for number in range(rng.randrange(40))
        ]
        good = [(key, value) for key, value in records if key is not None and len(value or b"") <= 1_000_000]
        broker.committed, broker.attempts = [], 0
        refused = written(slot, records, form)
        assert broker.committed == good, f"seed {seed}"
        assert sorted(each.digest for each in refused) == sorted(
            {digest_of(*r) for r in records} - {digest_of(*r) for r in good}
        )
        assert broker.attempts <= (3 if form is list else 4)


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_small_records_are_not_called_too_large(form: Form, writer: Callable[[Broker], TransactionalWriter]) -> None:
    """A request of many may be larger than the topic's ``max.message.bytes``. Each record of it is not."""
    broker = Broker(lambda record: KafkaError.MSG_SIZE_TOO_LARGE if len(record[1] or b"") > 100 else None, most=100)
    slot = writer(broker)
    small: list[Record] = [(None, b"x" * 30)] * 10
    assert RefusedTogether(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "out").passing
    assert written(slot, small, form) == []
    attempts = 2 if form is list else 3
    assert (broker.committed, broker.attempts) == (small, attempts)
    assert written(slot, small, form) == []
    assert broker.attempts == attempts + 1  # it has learned that requests must be small
    (refusal,) = written(slot, [(None, b"y" * 101), *small], form)
    error = refusal.explained()
    assert (error.code, error.where) == ("SX-RECORD-TOO-LARGE", {"topic": "out"})
    assert "101 bytes" in error.cause


# --- What becomes of them ---------------------------------------------------------------------------------------------


class Slot:
    """One slot of an output that reads topic ``in``, with a broker that takes no record without a key."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.topics = Topics(SetTime(1e9))
        for record in records:
            self.topics.append(Partition("in", 0), json.dumps(record).encode())
        self.positions: dict[Partition, Position] = {}
        self.refused = 0

    def open(self, work: PreparedTask, elect: Callable[[str, str], str], _store: object) -> SlotClients:
        return SlotClients(Reader(self, work, elect), Writer(self))  # type: ignore[arg-type]


class Reader(MemoryReader):
    def __init__(self, slot: Slot, work: PreparedTask, elect: Callable[[str, str], str]) -> None:
        links = {link.name: (link, work.facts[link.name]) for link in work.stage.ingress}
        size = work.stage.task.rows_per_batch
        super().__init__(slot.topics, slot.positions, links, elect, size, timed=False, runtime=REAL)
        self._made = slot, work, elect

    def recover(self) -> None:
        self.__init__(*self._made)  # type: ignore[misc]

    def group_metadata(self) -> None:
        pass

    def close(self) -> None:
        pass


class Writer:
    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def write(
        self, messages: list[Outgoing | Records], positions: dict[Partition, Position], _group: object, _clock: object
    ) -> None:
        bad = [
            Refusal.of(KafkaError(KafkaError.INVALID_RECORD), message.topic, key, value)
            for message in messages
            if isinstance(message, Records)
            for key, value in message.records
            if key is None
        ]
        if bad:
            self._slot.refused += 1
            raise RecordsRefused(bad[:2])  # of a request, and there are others
        for message in messages:
            self._slot.topics.write(message)
        self._slot.positions |= positions

    def close(self) -> None:
        pass


def a_spec(**options: Any) -> JobSpec:
    job = Job("copies")
    read = job.input("read", kafka("in", start="earliest", schema="id bigint, k string"))
    job.output("write", kafka("out", key="k"), after=read, batch_timeout="1 ms", **options)
    return job.spec()


def run(slot: Slot, spec: JobSpec) -> PreparedTask:
    graph = graph_of(spec, "d", "copies-1")
    assignment = Assignment(id=1, job="copies-1", task="write", slot=0)
    facts = {link.name: LinkFacts(1) for link in graph.links}
    work = assemble(load_settings(deployment="d"), None, "p", assignment, graph, facts, None)
    loop = TaskLoop(work, AssignmentHandle(assignment, lambda: True), cast("Any", None), slot.open)
    loop.session.open()
    try:
        whole = slot.topics.end(Partition("in", 0))
        while (found := slot.positions.get(Partition("in", 0))) is None or found.offset < whole:
            loop.step()
    finally:
        loop.session.background.close()
    return work


RECORDS = [{"id": n, "k": None if n in (1, 4, 5, 7) else f"k{n}"} for n in range(9)]


def out(slot: Slot) -> list[int]:
    return [json.loads(message.stored_value or b"")["id"] for message in slot.topics.all_of("out")]


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_a_record_that_kafka_refuses_goes_where_on_error_of_its_output_says(then: str) -> None:
    """With the row and Kafka's reason. All others are written once, in their order, and counted."""
    slot = Slot(RECORDS)
    run(slot, a_spec(on_error=then, batch_size=4))
    assert out(slot) == [0, 2, 3, 6, 8]
    counts = slot.positions[Partition("in", 0)].counts
    assert (counts.rows_in, counts.rows_out) == (9, 5)
    letters = slot.topics.all_of("d.copies-1.write.dead")
    if then == "skip":
        assert (counts.skipped, counts.dead, letters) == (4, 0, [])
        return
    assert (counts.skipped, counts.dead) == (0, 4)
    told = [dead_letters.told(cast("Any", letter)) for letter in letters]
    assert [each and (each.kind, each.origin.topic, each.origin.offset) for each in told] == [
        ("row", "in", n) for n in (1, 4, 5, 7)
    ]
    assert [dead_letters.row_of(letter.stored_value or b"").to_pylist() for letter in letters] == [
        [{"id": n, "k": None}] for n in (1, 4, 5, 7)
    ]
    first = told[0]
    assert first is not None
    assert (first.error, first.attempts, first.failure.code) == ("OutputError", 1, "SX-KAFKA-REJECTED")
    assert "topic out" in first.failure.message
    assert first.failure.cause.startswith("no key, value")


@pytest.mark.parametrize("then", ["fail", "retry_task"])
def test_otherwise_the_error_names_the_record(then: str) -> None:
    """And nothing of its batch is written."""
    slot = Slot(RECORDS)
    with pytest.raises(OutputError) as refused:
        run(slot, a_spec(on_error=then, batch_size=1_000))
    assert (refused.value.code, slot.refused, out(slot)) == ("SX-KAFKA-REJECTED", 1, [])


def test_a_peer_keeps_in_mind_which_service_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since when, and the first text of each code; until a batch is committed."""
    monkeypatch.setattr(peer.task_loop, "_PAUSE", 0.0)
    slot, seen = Slot([{"id": n, "k": f"k{n}"} for n in range(4)]), list[ServiceAway | None]()
    write, attempts = Writer.write, iter(range(100))

    def away(writer: Writer, *what: Any) -> None:
        number = next(attempts)
        if 1 <= number <= 3:
            raise SetupError("SX-REGISTRY-UNREACHABLE", f"no answer, attempt {number}")
        seen.append(handle.away)
        write(writer, *what)

    monkeypatch.setattr(Writer, "write", away)
    graph = graph_of(a_spec(batch_size=1), "d", "copies-1")
    assignment = Assignment(id=1, job="copies-1", task="write", slot=0)
    handle = AssignmentHandle(assignment, lambda: True)
    facts = {link.name: LinkFacts(1) for link in graph.links}
    work = assemble(load_settings(deployment="d"), None, "p", assignment, graph, facts, None)
    loop = TaskLoop(work, handle, cast("Any", None), slot.open)
    loop.session.open()
    began = time.time()
    try:
        while len(out(slot)) < 4:
            loop.step()
    finally:
        loop.session.background.close()
    assert out(slot) == [0, 1, 2, 3]
    assert seen[0] is None
    assert seen[1] is not None
    assert (seen[1].assignment, seen[1].code, seen[1].message) == (1, "SX-REGISTRY-UNREACHABLE", "no answer, attempt 1")
    assert began <= seen[1].since <= time.time()
    assert (seen[2:], handle.away) == ([None] * len(seen[2:]), None)
