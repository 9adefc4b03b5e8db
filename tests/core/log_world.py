"""The log of a shard in a world where its holder dies at any time, and what must hold there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pyarrow as pa

from queues.block import MAX_BYTES
from queues.messages import Logged
from sardonyx.core.errors import InputError
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.log import LogState, ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.restore import Restore

SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
CHANGES = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))

Entries = dict[bytes, int]


class Wrong(AssertionError):
    """A history has broken a promise."""


def table(changes: dict[bytes, int | None]) -> pa.Table:
    columns = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, CHANGES.types, strict=True)], schema=CHANGES)


def entries_of(store: Store) -> Entries:
    found = store.scan()
    return dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


class Partition:
    """A partition of a topic: the ends of transactions take offsets, and what was aborted keeps its own."""

    def __init__(self) -> None:
        self.records: list[Logged | None] = []
        self._rows: dict[int, int] = {}

    def end(self) -> int:
        return len(self.records)

    def write(self, messages: list, *, commit: bool) -> None:
        for headers, value in messages:
            offset = len(self.records)
            self.records.append(Logged(offset, headers, value) if commit else None)
        self.records.append(None)

    def committed(self, start: int) -> Iterator[Logged]:
        return (record for record in self.records[start:] if record is not None)

    def rows(self, start: int) -> int:
        """The rows from an offset on, counted."""
        begun = b""
        for record in self.committed(start):
            if about(record, {}).kind == "part":
                begun, self._rows[record.offset] = begun + record.value, 0
                continue
            if record.offset not in self._rows:
                self._rows[record.offset] = pa.ipc.open_stream(begun + record.value).read_all().num_rows
            begun = b""
        return sum(self._rows[record.offset] for record in self.committed(start))

    def delete_before(self, low: int) -> None:
        self.records[:low] = [None] * low


class World:
    """A shard, its log and its position; its holder may die at any time.

    Args:
        seed: of all choices.
        log: what writes the log. Controls put something in its place that lacks a safeguard.
    """

    compares_logs = True

    def __init__(self, seed: int, log: type[ShardLog] = ShardLog) -> None:
        self.chance = random.Random(seed)
        self.make_log = log
        self.partition = Partition()
        self.position: Mark | None = None
        self.names = ["values", "timers"][: self.chance.choice([1, 1, 2])]
        self.truth: dict[str, Entries] = {name: {} for name in self.names}
        self.spare, self.piece = self.chance.choice([0, 4, 12]), self.chance.choice([1, 3])
        """Small, so that short histories have rounds."""
        self.keys = self.chance.choice([3, 8, 20])
        self.fills = self.chance.randint(0, 3)
        """The first batches, which change all keys."""
        self.gone = self.chance.choice([0.05, 0.3, 0.5])
        self.max_bytes = self.chance.choice([MAX_BYTES, MAX_BYTES, 700, 150])
        """Small, so that a batch takes several messages, or each entry does."""
        self.restores = 0
        self.recover()

    def recover(self) -> None:
        """A peer takes the shard over."""
        self.stores = {name: self.make_store() for name in self.names}
        self.log = self.make_log(
            self.partition.end,
            self.restore(self.stores),
            spare=self.spare,
            piece=self.piece,
            max_bytes=self.max_bytes,
        )

    def make_store(self) -> Store:
        return MemoryStore(SCHEMA)

    def restore(self, stores: dict[str, Store]) -> LogState:
        self.restores += 1
        restore = Restore(self.position, stores, topic="t.state", partition=0)
        restore.read(self.partition.committed(restore.start))
        return restore.finish()

    def batch(self) -> dict[str, dict[bytes, int | None]]:
        chance = self.chance
        changes: dict[str, dict[bytes, int | None]] = {}
        self.fills -= 1
        for name in self.names:
            if chance.random() < 0.8:
                often = chance.choices([0, 1, 2, self.keys], [1, 3, 3, 1])[0] if self.fills < 0 else self.keys
                keys = chance.sample(range(self.keys), often)
                gone = self.gone if often < 8 or self.fills >= 0 else chance.choice([0.1, 0.95])
                changes[name] = {b"%02d" % k: None if chance.random() < gone else chance.randrange(100) for k in keys}
        return changes

    def step(self) -> None:
        chance, changes = self.chance, self.batch()
        tables = {name: table(found) for name, found in changes.items()}
        messages = self.log.messages(tables, self.stores)
        self.planned(tables)
        fate = chance.choices(["committed", "dropped", "died", "died after the commit"], [14, 1, 1, 2])[0]
        commit = fate.endswith(("committed", "commit"))
        if messages:
            self.partition.write(messages, commit=commit)
        if commit:
            self.position = self.log.planned
            self.happened(changes)
        if fate == "committed":
            self.log.committed()
            for name, changed in tables.items():
                self.stores[name].apply(changed)
            self.after_commit()
        elif fate == "dropped":
            self.log.dropped()
        else:
            self.recover()

    def planned(self, tables: dict[str, pa.Table]) -> None:
        """The messages are made, and nothing is written."""

    def happened(self, changes: dict[str, dict[bytes, int | None]]) -> None:
        for name, found in changes.items():
            for key, value in found.items():
                self.truth[name].pop(key, None)
                if value is not None:
                    self.truth[name][key] = value

    def after_commit(self) -> None:
        if self.chance.random() < 0.2:
            self.partition.delete_before(self.log.mark.low)

    def check(self) -> None:
        """The stores at hand hold the truth; so does a restore, which finds the log as the holder knows it."""
        for name in self.names:
            if entries_of(self.stores[name]) != self.truth[name]:
                raise Wrong(f"store {name} of the holder")
        stores = {name: MemoryStore(SCHEMA) for name in self.names}
        state = self.restore(stores)
        for name in self.names:
            if entries_of(stores[name]) != self.truth[name]:
                raise Wrong(f"store {name}, restored")
        if self.compares_logs and state != self.log.state:
            raise Wrong(f"restored {state}, and the holder has {self.log.state}")
        rows = self.partition.rows(state.mark.low)
        if self.compares_logs and rows != state.rows:
            raise Wrong(f"{rows} rows counted, {state.rows} known")

    def run(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            self.step()
            if self.chance.random() < 0.1:
                self.check()
        self.check()


def run(seed: int, log: type[ShardLog] = ShardLog, world: Callable[..., World] = World) -> None:
    made = world(seed, log)
    try:
        made.run()
    except (Wrong, InputError) as error:
        raise Wrong(f"seed {seed}: {error}") from error


def longest(seed: int, log: type[ShardLog] = ShardLog) -> int:
    """Of a history of many commits: by how many rows the log from its mark on was longer than it may be, at most."""
    chance, store = random.Random(seed), MemoryStore(SCHEMA)
    end = iter(range(10**9)).__next__  # offsets are not looked at
    made = log(end, spare=100, piece=10)
    keys = chance.choice([300, 1_000])
    entries, largest, most = [0], 0, 0
    for _ in range(300):
        if chance.random() < 0.01:
            keys = chance.choice([100, 300, 1_000])
        size = chance.choice([1, 5, 40])
        gone, first = chance.choice([0.05, 0.5, 0.95]), chance.randrange(keys)
        places = range(first, first + size) if chance.random() < 0.5 else chance.choices(range(keys), k=size)
        changes = table({b"%04d" % place: None if chance.random() < gone else 1 for place in places})
        made.messages({"values": changes}, {"values": store})
        made.committed()
        store.apply(changes)
        entries.append(len(store))
        largest = max(largest, changes.num_rows)
        at_most = 4 * max(entries[made.mark.base :]) + 100 + 4 * largest
        most = max(most, made.state.rows - at_most)
    return most
