"""The log of a shard: from any of its commits on, after any crash, it gives the state, and it stays short."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from queues.messages import Logged
from sardonyx.core.errors import InputError, InternalError, OutputError, SetupError
from sardonyx.state import messages
from sardonyx.state.base import GONE, KEY
from sardonyx.state.log import LogState, Round, Saved, ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, Message, Place
from sardonyx.state.restore import Restore
from sardonyx.state.shape import refuse_other_shape

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

    compares_logs = True

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
        if self.keeps:
            for name in self.names:
                if self.chance.random() < 0.2:
                    self.disk[name] = (self.stores[name].scan(), self.log.saved(self.partition.end()))
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


@pytest.mark.parametrize("part", range(10))
def test_a_restore_after_any_crash_gives_the_state(part: int) -> None:
    """Random histories of commits, aborts and deaths at every point of a round, also with stores that were saved some time
    before.
    """
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        run(seed)


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


def test_the_log_is_at_most_four_times_the_state() -> None:
    """It has at most four rows for each entry that there was at once since it begins, 10,000 more, and four times the rows of
    the largest commit. So a job without end restores as quickly as a young one.
    """
    for seed in range(20):
        assert longest(seed) == 0, f"seed {seed}"


# --- One thing at a time ----------------------------------------------------------------------------------------------


class Shard:
    """One shard with one store, written without faults."""

    def __init__(self, **options) -> None:
        self.partition = Partition()
        self.stores = {"values": MemoryStore(SCHEMA)}
        self.log = ShardLog(self.partition.end, **options)

    def commit(self, changes: dict[bytes, int | None]) -> list[Message]:
        tables = {"values": table(changes)}
        made = self.log.messages(tables, self.stores)
        self.partition.write(made, commit=True)
        self.log.committed()
        self.stores["values"].apply(tables["values"])
        return made

    def restored(self, mark: Mark | None, **changed) -> tuple[Entries, LogState]:
        store = MemoryStore(changed.pop("schema", SCHEMA))
        restore = Restore(mark, {changed.pop("name", "values"): store}, topic="t.state", partition=3, **changed)
        restore.read(self.partition.committed(restore.start))
        state = restore.finish()
        return entries_of(store), state


def kinds(made: list[Message]) -> list[tuple[str, str]]:
    return [tuple(dict(message.headers)[name].decode() for name in (messages.STATE, messages.SEQ)) for message in made]


@pytest.fixture
def shard() -> Shard:
    """Of five commits. In the fourth a round begins that is not through in the fifth."""
    made = Shard(spare=0, piece=2)
    for _ in range(2):
        made.commit({b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5})
    made.commit({b"a": 6})
    made.commit({b"a": None})
    made.commit({b"b": 7})
    return made


STATE = {b"b": 7, b"c": 3, b"d": 4, b"e": 5}
"""What it holds."""


def test_what_is_restated_comes_before_what_changed(shard: Shard) -> None:
    """A commit that restates an entry and removes it, removes it: the store is restated as it was before the commit."""
    made = Shard(spare=0, piece=1)
    made.commit({b"a": 1})
    made.commit({b"a": 2})
    made.commit({b"a": 3})
    last = made.commit({b"a": None})
    assert kinds(last) == [("again", "4 1/2"), ("delta", "4 2/2")]
    assert made.restored(made.log.mark)[0] == {}
    assert shard.restored(shard.log.mark)[0] == STATE


def test_a_round_goes_on_with_the_next_peer(shard: Shard) -> None:
    """It knows from the log which entries are restated, and where the log will begin."""
    state = shard.restored(shard.log.mark)[1]
    assert state == shard.log.state
    assert state == LogState(Mark(5, 0, 0), 11 + 3 + 3, Round(Place(6, 3), 3 + 3, "values", b"d"))


def test_a_round_ends_in_the_commit_of_its_last_entry(shard: Shard) -> None:
    """What stands before it is not needed any more."""
    shard.commit({b"x": 1})
    assert shard.log.mark == Mark(6, 6, 3)
    shard.partition.delete_before(6)
    assert shard.restored(shard.log.mark) == (STATE | {b"x": 1}, shard.log.state)


def test_the_log_of_an_empty_shard_begins_at_its_end() -> None:
    """There is nothing to restate."""
    made = Shard(spare=3)
    made.commit({b"a": 1, b"b": 2})
    made.commit({b"a": None, b"b": None})
    made.commit({b"c": None})
    assert made.log.mark == Mark(3, 4, 2)
    made.partition.delete_before(4)
    assert made.restored(made.log.mark) == ({}, made.log.state)


def test_the_log_may_begin_in_the_middle_of_what_is_not_needed() -> None:
    """A broker that has not caught up names an end before the last commit. The old records from there on are left out."""
    made = Shard(spare=0, piece=100, max_bytes=700)
    made.log._end = lambda: made.partition.end() - 3
    for number in range(1, 9):
        made.commit({b"%d" % n: number for n in range(40)})
    mark = made.log.mark
    assert mark.low > 0
    first = next(made.partition.committed(mark.low))
    assert re.fullmatch(rb"%d (\d+)/\d+" % mark.base, dict(first.headers)[messages.SEQ])[1] != b"1", "in the middle"
    assert made.restored(mark) == ({b"%d" % n: 8 for n in range(40)}, made.log.state)


def test_a_large_commit_takes_several_messages() -> None:
    """All of them are needed."""
    made = Shard(max_bytes=1_000)
    found = kinds(made.commit({b"%d" % number: number for number in range(500)}))
    assert len(found) > 3
    assert found[-1] == ("delta", f"1 {len(found)}/{len(found)}")
    assert made.restored(made.log.mark)[0] == {b"%d" % number: number for number in range(500)}


def test_nothing_changed_is_no_commit(shard: Shard) -> None:
    """The mark stays."""
    before = shard.log.mark
    assert shard.commit({}) == []
    assert shard.log.mark == before


def test_two_commits_at_once_are_refused(shard: Shard) -> None:
    """The first one must be decided before the second one is planned."""
    shard.log.messages({"values": table({b"x": 1})}, shard.stores)
    with pytest.raises(InternalError, match="decided"):
        shard.log.messages({"values": table({b"x": 2})}, shard.stores)
    shard.log.dropped()
    assert shard.log.messages({"values": table({b"x": 2})}, shard.stores)


def test_an_entry_larger_than_a_message_is_refused() -> None:
    """Nothing is planned, so the batch can be dropped."""
    schema = pa.schema([SCHEMA.field(0), ("v", pa.binary()), CHANGES.field(GONE)])
    log = ShardLog(lambda: 0)
    big = pa.table([[b"a"], [random.Random(1).randbytes(1_000_000)], [False]], schema=schema)
    with pytest.raises(OutputError) as caught:
        log.messages({"seen": big}, {})
    assert caught.value.code == "SX-STATE-ENTRY-LARGE"
    assert "'seen'" in str(caught.value)
    assert log.planned == Mark()


def test_any_record_that_is_missing_is_found(shard: Shard) -> None:
    """Of those that the state needs: at the beginning, in the middle of a commit or between two, and at the end."""
    mark = shard.log.mark
    needed = [record.offset for record in shard.partition.committed(mark.low)]
    assert len(needed) == 7
    whole = list(shard.partition.records)
    for offset in needed:
        shard.partition.records = [None if n == offset else record for n, record in enumerate(whole)]
        with pytest.raises(InputError) as caught:
            shard.restored(mark)
        assert caught.value.code == "SX-STATE-TORN"
        assert caught.value.where["topic"] == "t.state"
        assert caught.value.where["partition"] == "3"
        assert int(caught.value.where["offset"]) >= mark.low


def test_a_log_that_is_gone_is_found(shard: Shard) -> None:
    """Also by a caller that does not know the stores before it has seen the log."""
    mark = shard.log.mark
    for stores in ({}, {"values": MemoryStore(SCHEMA)}):
        restore = Restore(mark, stores, topic="t", partition=0)
        restore.read([])
        with pytest.raises(InputError) as caught:
            restore.finish()
        assert caught.value.code == "SX-STATE-TORN"
        assert Restore(Mark(), stores, topic="t", partition=0).finish() == LogState()


def test_a_log_that_goes_beyond_the_position_is_refused(shard: Shard) -> None:
    """A position was set back, or lost."""
    before = shard.log.mark
    shard.commit({b"z": 1})
    for mark in (before, Mark()):
        with pytest.raises(InputError) as caught:
            shard.restored(mark)
        assert caught.value.code == "SX-STATE-AHEAD"


def test_without_a_position_a_log_must_be_empty(shard: Shard) -> None:
    """An empty store is never made of a log that holds something."""
    with pytest.raises(InputError) as caught:
        shard.restored(None)
    assert caught.value.code == "SX-STATE-POSITIONS-LOST"
    empty = Shard()
    empty.partition.write(shard.log.messages({"values": table({b"x": 1})}, shard.stores), commit=False)
    assert empty.restored(None) == ({}, LogState()), "what was aborted does not count"


def test_other_columns_are_refused_with_the_difference(shard: Shard) -> None:
    """It names the columns that came, went, or have another type."""
    other = pa.schema([SCHEMA.field(0), ("v", pa.float64()), ("w", pa.string())])
    with pytest.raises(InputError) as caught:
        shard.restored(shard.log.mark, schema=other)
    assert caught.value.code == "SX-STATE-SHAPE"
    assert caught.value.cause == "it has lost v int64; it has got v double, w string"
    assert caught.value.where["offset"] == "0"
    with pytest.raises(InputError, match="'values'") as caught:
        shard.restored(shard.log.mark, name="seen")
    assert caught.value.code == "SX-STATE-SHAPE"


def test_columns_in_another_order_are_refused() -> None:
    """The store takes them by place."""
    schema = pa.schema([("k", pa.binary()), ("a", pa.int8()), ("b", pa.int8())])
    with pytest.raises(InputError) as caught:
        refuse_other_shape("s", schema, pa.schema([schema.field(name) for name in "kba"]), {})
    assert caught.value.cause == "the order was k binary, a int8, b int8 and is k binary, b int8, a int8"


def test_a_fingerprint_that_another_arrow_made_is_no_difference(shard: Shard) -> None:
    """What counts are the columns of the block."""
    whole = shard.partition.records
    shard.partition.records = [
        record and record._replace(headers=[*record.headers, (messages.SHAPE, b"00000000")]) for record in whole
    ]
    assert shard.restored(shard.log.mark)[0] == STATE


@pytest.mark.parametrize(
    "headers", [[], [("sx-state", b"delta"), ("sx-seq", b"1"), ("sx-store", b"s"), ("sx-shape", b"")]]
)
def test_a_foreign_message_is_refused(headers: list[tuple[str, bytes]]) -> None:
    """Another program wrote to the topic."""
    with pytest.raises(InputError) as caught:
        Restore(Mark(1), {}, topic="t", partition=0).read([Logged(7, headers, b"")])
    assert caught.value.code == "SX-STATE-FOREIGN"
    assert caught.value.where["offset"] == "7"


def test_what_a_newer_release_writes_is_refused(shard: Shard) -> None:
    """Undo blocks, which a later release writes for checkpoints, are left out: the state does not need them."""
    whole = list(shard.partition.committed(0))
    for kind in (b"undo", b"merge"):
        shard.partition.records = [whole[0]._replace(headers=[*whole[0].headers, (messages.STATE, kind)])]
        if kind == b"undo":
            assert shard.restored(Mark(1))[0] == {}
        else:
            with pytest.raises(SetupError) as caught:
                shard.restored(Mark(1))
            assert caught.value.code == "SX-BLOCK-FORMAT"


def test_a_store_on_disk_reads_only_what_it_lacks(shard: Shard) -> None:
    """It keeps how the log stood when it was saved. If that cannot be read, or the log begins later, it is made again."""
    saved, end = shard.log.saved(shard.partition.end()), shard.partition.end()
    kept = shard.stores["values"].scan()
    shard.commit({b"x": 1})
    for data, start in ((saved, end), (b"?", 6), (None, 6)):
        store = MemoryStore(SCHEMA)
        store.apply(kept.append_column(GONE, pa.repeat(False, len(kept))))
        restore = Restore(shard.log.mark, {"values": store}, topic="t", partition=0, saved={"values": data})
        assert restore.start == start
        restore.read(shard.partition.committed(restore.start))
        assert restore.finish() == shard.log.state
        assert entries_of(store) == STATE | {b"x": 1}


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

    def _to_restate(self, changed):
        return 1


class AppliesTooSoon(World):
    """Applies changes before their transaction is decided."""

    def planned(self, tables):
        for name, changed in tables.items():
            self.stores[name].apply(changed)


class ForgetsTheRound(World):
    """A peer that takes over goes on at the key that its predecessor came to, as if the round had begun now."""

    compares_logs = False

    def recover(self):
        super().recover()
        state = self.log.state
        if state.round is not None:
            place = Place(self.partition.end(), state.mark.seq)
            self.log.state = state._replace(round=state.round._replace(place=place, rows=0))


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


@pytest.mark.parametrize("lacking", [AgainLast, LowAtTheEnd, LowInAdvance, OnePhase])
def test_without_a_safeguard_of_the_log_a_history_fails(lacking: type[ShardLog]) -> None:
    """The histories would find it."""
    assert first_failure(log=lacking) is not None


@pytest.mark.parametrize("lacking", [AppliesTooSoon, ForgetsTheRound, EndsBeforeOpenTransactions, TrustsOldStores])
def test_without_a_safeguard_of_the_peer_a_history_fails(lacking: type[World]) -> None:
    """The histories would find it."""
    assert first_failure(world=lacking) is not None


@pytest.mark.parametrize("lacking", [Never, Slow])
def test_without_restatement_in_proportion_the_log_grows(lacking: type[ShardLog]) -> None:
    """The histories would find it."""
    assert any(longest(seed, lacking) > 0 for seed in range(20))


def first_failure(**lacking) -> str | None:
    for seed in range(CONTROLS):
        try:
            run(seed, **lacking)
        except Wrong as error:
            return str(error)
    return None
