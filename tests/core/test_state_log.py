"""The log of a shard: from any of its commits on, after any crash, it gives the state, and it stays short."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from sardonyx.core.errors import InputError, InternalError, OutputError, SetupError
from sardonyx.state.base import GONE, KEY
from sardonyx.state.log import LogState, ShardLog
from sardonyx.state.memory import MemoryStore
from queues.messages import Logged
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore

HISTORIES = 10_000
CONTROLS = 1_000
SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
CHANGES = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))

Entries = dict[bytes, int]


class Wrong(AssertionError):
    """A history has broken a promise."""


def table(changes: dict[bytes, int | None]) -> pa.Table:
    columns = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, CHANGES.types, strict=True)], schema=CHANGES)


def entries_of(store: MemoryStore) -> Entries:
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
        for offset, record in enumerate(self.records[start:], start):
            if record is not None and offset not in self._rows:
                self._rows[offset] = pa.ipc.open_stream(record.value).read_all().num_rows
        return sum(self._rows[record.offset] for record in self.committed(start))

    def delete_before(self, low: int) -> None:
        self.records[:low] = [None] * low


class World:
    """A shard, its log and its position; its holder may die at any time.

    Args:
        seed: of all choices.
        log: what writes the log. Controls put something in its place that lacks a safeguard.
    """

    def __init__(self, seed: int, log: type[ShardLog] = ShardLog) -> None:
        self.chance = random.Random(seed)
        self.make_log = log
        self.partition = Partition()
        self.position: Mark | None = None
        self.names = ["values", "timers"][: self.chance.choice([1, 1, 2])]
        self.truth: dict[str, Entries] = {name: {} for name in self.names}
        self.disk: dict[str, tuple[pa.Table, bytes]] = {}
        self.spare, self.piece = self.chance.choice([0, 4, 12]), self.chance.choice([1, 3])
        """Small, so that short histories have rounds."""
        self.keys = self.chance.choice([3, 8, 20])
        self.fills = self.chance.randint(0, 3)
        """The first batches, which change all keys."""
        self.gone = self.chance.choice([0.05, 0.3, 0.5])
        self.keeps = self.chance.random() < 0.3
        """Whether the stores are on disk."""
        self.peak = self.largest = 0
        self.restores = 0
        self.recover()

    def recover(self) -> None:
        """A peer takes the shard over."""
        stores = {name: MemoryStore(SCHEMA) for name in self.names}
        for name, (entries, _) in self.disk.items():
            stores[name].apply(entries.append_column(GONE, pa.repeat(False, len(entries))))
        saved = {name: data for name, (_, data) in self.disk.items()}
        self.stores = stores
        self.log = self.make_log(self.partition.end, self.restore(stores, saved), spare=self.spare, piece=self.piece)

    def restore(self, stores: dict[str, MemoryStore], saved: dict[str, bytes] | None = None) -> LogState:
        self.restores += 1
        restore = Restore(self.position, stores, topic="t.state", partition=0, saved=saved)
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

    def happened(self, changes: dict[str, dict[bytes, int | None]]) -> None:
        for name, found in changes.items():
            for key, value in found.items():
                self.truth[name].pop(key, None)
                if value is not None:
                    self.truth[name][key] = value
        entries = sum(map(len, self.truth.values()))
        self.peak = max(self.peak, entries)
        self.largest = max(self.largest, sum(map(len, changes.values())))

    def after_commit(self) -> None:
        if self.keeps:
            for name in self.names:
                if self.chance.random() < 0.2:
                    self.disk[name] = (self.stores[name].scan(), self.log.saved(self.partition.end()))
        if self.chance.random() < 0.2:
            self.partition.delete_before(self.log.mark.low)

    def check(self) -> None:
        """The stores at hand hold the truth; so does a restore, which finds the log as the holder knows it; the log is short."""
        for name in self.names:
            if entries_of(self.stores[name]) != self.truth[name]:
                raise Wrong(f"store {name} of the holder")
        stores = {name: MemoryStore(SCHEMA) for name in self.names}
        state = self.restore(stores)
        for name in self.names:
            if entries_of(stores[name]) != self.truth[name]:
                raise Wrong(f"store {name}, restored")
        if state != self.log.state:
            raise Wrong(f"restored {state}, and the holder has {self.log.state}")
        rows = self.partition.rows(state.mark.low)
        if rows != state.rows:
            raise Wrong(f"{rows} rows counted, {state.rows} known")
        most = 4 * self.peak + self.spare + 4 * max(self.largest, self.piece)
        if rows > most:
            raise Wrong(f"{rows} rows for {self.peak} entries; {most} may be")

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


@pytest.mark.parametrize("part", range(10))
def test_a_restore_after_any_crash_gives_the_state(part: int) -> None:
    """Random histories of commits, aborts and deaths at every point of a round, also with stores that were saved some time
    before. The log from its mark on has at most four times the entries, and a constant."""
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        run(seed)


# --- Controls: without a safeguard, some history fails ----------------------------------------------------------------


class AgainLast(ShardLog):
    """Restates entries after the changes of the same commit."""

    def messages(self, changes, stores):
        made = super().messages(changes, stores)
        made.sort(key=lambda message: dict(message.headers)[messages.STATE] == b"again")
        return [
            message._replace(headers=[*message.headers, (messages.SEQ, b"%d %d/%d" % (self.planned.seq, n, len(made)))])
            for n, message in enumerate(made, start=1)
        ]


class LowAtTheEnd(ShardLog):
    """Asks for the new beginning of the log when a round ends."""

    def _after(self, seq, rows, begun, under_way):
        after = super()._after(seq, rows, begun, under_way)
        if begun is None or under_way is not None:
            return after
        return after._replace(mark=Mark(seq, self._end(), seq - 1), rows=rows)


class LowInAdvance(ShardLog):
    """Calls the log shorter when a round begins."""

    def _after(self, seq, rows, begun, under_way):
        return super()._after(seq, rows, begun, None)


class OnePhase(ShardLog):
    """Counts a commit when it is planned."""

    def messages(self, changes, stores):
        made = super().messages(changes, stores)
        self.committed()
        return made


class Never(ShardLog):
    """Restates nothing."""

    def _new_round(self, entries):
        return None


class Slow(ShardLog):
    """Restates one entry a commit, however many change."""

    def _next_entries(self, begun, stores, count):
        return super()._next_entries(begun, stores, 1)

    def _after(self, seq, rows, begun, under_way):
        if begun is not None and under_way is None and rows != self._changed:
            under_way = self._came_to
        return super()._after(seq, rows, begun, under_way)

    def messages(self, changes, stores):
        self._changed = sum(each.num_rows for each in changes.values())
        found = [] if self.state.round is None else list(self._next_entries(self.state.round, stores, 1))
        self._came_to = self.state.round
        for name, entries in found:
            self._came_to = self.state.round._replace(store=name, after=messages.last_key(entries))
        return super().messages(changes, stores)


class AppliesTooSoon(World):
    """Applies changes before their transaction is decided."""

    def batch(self):
        changes = super().batch()
        if not self.held:
            self.held = True
        return changes

    held = False

    def step(self):
        batch, planned = self.batch, self.log.messages
        self.log.messages = lambda changes, stores: (
            planned(changes, stores),
            [stores[name].apply(changed) for name, changed in changes.items()],
        )[0]
        del batch
        super().step()


class ForgetsTheRound(World):
    """A peer that takes over goes on at the key that its predecessor came to, as if the round had begun now."""

    def restore(self, stores, saved=None):
        state = super().restore(stores, saved)
        if state.round is None or stores is not self.stores_of_a_peer:
            return state
        return state._replace(round=state.round._replace(place=Place(self.partition.end(), state.mark.seq), rows=0))

    stores_of_a_peer = None


class EndsBeforeOpenTransactions(World):
    """Restores up to the last stable offset: another's open transaction may stand before what is committed."""

    def restore(self, stores, saved=None):
        self.restores += 1
        restore = Restore(self.position, stores, topic="t.state", partition=0, saved=saved)
        restore.read(list(self.partition.committed(restore.start))[: None if self.restores % 2 else -1])
        return restore.finish()


class TrustsOldStores(World):
    """Goes on with a store that was saved before the log begins."""

    def restore(self, stores, saved=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Restore, "_usable", lambda self, data: None if data is None else Saved.decode(data))
            return super().restore(stores, saved)
