"""A state log on a broker: a restore gives what was committed, also beside open transactions and after a trim."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from queues import topics
from queues.admin_client import admin_client
from queues.messages import Logged
from queues.state_topics import delete_before, end_offset, read_state
from sardonyx.core.errors import InputError
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore

SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])


class Shard:
    """Partition 1 of a state topic of two partitions, and its holder."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.partition = Partition(f"{settings.deployment}.{uuid.uuid4().hex[:8]}.count.state", 1)
        topics.create(settings, self.partition.topic, 2)
        assert end_offset(settings, self.partition) == 0
        self.store = MemoryStore(SCHEMA)
        self.log = ShardLog(lambda: end_offset(settings, self.partition), spare=20, piece=5)
        self.producer = self.writer()

    def writer(self) -> Producer:
        transactional = f"{self.settings.deployment}/state/{uuid.uuid4()}"
        producer = Producer({**self.settings.kafka.client(), "transactional.id": transactional})
        producer.init_transactions(120)
        return producer

    def commit(self, changes: dict[bytes, int | None], *, abort: bool = False) -> None:
        rows = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
        schema = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))
        table = pa.table([pa.array(c, kind) for c, kind in zip(rows, schema.types, strict=True)], schema=schema)
        self.producer.begin_transaction()
        for headers, value in self.log.messages({"values": table}, {"values": self.store}):
            self.producer.produce(self.partition.topic, value, partition=1, headers=headers)
        if abort:
            self.producer.flush(120)
            self.producer.abort_transaction(120)
            self.log.dropped()
        else:
            self.producer.commit_transaction(120)
            self.log.committed()
            self.store.apply(table)

    def read(self, start: int) -> Iterator[Logged]:
        return read_state(self.settings, self.partition, start, end_offset(self.settings, self.partition))

    def restored(self, mark: Mark | None, read: Callable[[int], Iterable[Logged]] | None = None) -> dict[bytes, int]:
        store: Store = MemoryStore(SCHEMA)
        topic, number = self.partition
        restore = Restore(mark, {"values": store}, topic=topic, partition=number)
        restore.read((read or self.read)(restore.start))
        restore.finish()
        return dict(zip(*(column.to_pylist() for column in store.scan().columns), strict=True))


@pytest.fixture
def shard(settings: Settings) -> Iterator[Shard]:
    made = Shard(settings)
    yield made
    admin_client(settings).delete_topics([made.partition.topic])[made.partition.topic].result(30)


@pytest.mark.gate
def test_a_restore_from_a_broker_gives_what_was_committed(shard: Shard) -> None:
    """Aborted commits are not in it. It begins where the log begins, also if what is older is deleted."""
    assert shard.restored(None) == {}
    held: dict[bytes, int] = {}
    for number in range(30):
        changes = {b"%d" % (number % 7): number, b"%d" % (number % 11): None if number % 3 else number}
        shard.commit(changes, abort=number % 5 == 4)
        if number % 5 != 4:
            held = {key: value for key, value in (held | changes).items() if value is not None}
        if number % 10 == 9:
            assert shard.restored(shard.log.mark) == held
    low = shard.log.mark.low
    assert low > 0, "a round is through"
    assert delete_before(shard.settings, {shard.partition: low}) == {shard.partition: low}
    assert delete_before(shard.settings, {shard.partition: low}) == {}
    assert shard.restored(shard.log.mark) == held
    with pytest.raises(InputError) as caught:
        shard.restored(Mark(shard.log.mark.seq))
    assert caught.value.code == "SX-STATE-TORN", "what a restore would need is deleted"


@pytest.mark.gate
def test_a_restore_reads_past_an_open_transaction(shard: Shard) -> None:
    """A commit that stands after the open transaction of a peer that has lost the partition is not missed: the restore waits."""
    shard.commit({b"a": 1})
    lost = shard.writer()
    lost.begin_transaction()
    lost.produce(shard.partition.topic, b"never committed", partition=1)
    lost.flush(120)
    shard.commit({b"b": 2})

    def ends_meanwhile(start: int) -> Iterator[Logged]:
        messages = shard.read(start)
        yield next(messages)
        lost.abort_transaction(120)
        yield from messages

    assert shard.restored(shard.log.mark, ends_meanwhile) == {b"a": 1, b"b": 2}
