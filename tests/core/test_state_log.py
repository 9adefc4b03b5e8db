"""The log of a shard, one thing at a time: what a commit writes, and what a restore refuses."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pytest
from log_world import CHANGES, SCHEMA, Entries, Partition, entries_of, table

from peer.operators import Stores
from queues.messages import Logged
from sardonyx.core.errors import InputError, InternalError, OutputError, SetupError
from sardonyx.core.going_back import FIRST_COMMIT
from sardonyx.core.state_points import Adopted
from sardonyx.state import log as state_log
from sardonyx.state import messages
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.base import GONE
from sardonyx.state.log import LogState, Round, ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, Message, Place
from sardonyx.state.restore import Restore
from sardonyx.state.shape import refuse_other_shape


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


def test_an_entry_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned, so the batch can be dropped."""
    monkeypatch.setattr(messages, "LARGEST", 999_000)
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


def test_a_log_goes_on_from_what_another_one_left() -> None:
    """The stores hold it already, and only what came later is read. Without it they are cleared."""
    shard, begun = Shard(spare=100), LogState(Mark(1, 0, 0), 11)
    shard.log.state = begun
    shard.stores["values"].apply(table({b"a": 1, b"b": 2}))
    shard.commit({b"b": 3})
    for left, found in ((begun, {b"a": 1, b"b": 3}), (None, None)):
        store = MemoryStore(SCHEMA)
        store.apply(table({b"a": 1, b"b": 2}))
        restore = Restore(shard.log.mark, {"values": store}, topic="t", partition=0, begun=left)
        assert len(store) == (2 if left else 0)
        if left is None:
            with pytest.raises(InputError, match="SX-STATE-TORN"):
                restore.read(shard.partition.committed(restore.start))
            continue
        restore.read(shard.partition.committed(restore.start))
        assert restore.finish() == shard.log.state
        assert entries_of(store) == found


@pytest.mark.parametrize("entries", range(1, 6))
def test_the_state_of_an_earlier_job_comes_into_the_log(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many entries it has: also if the last one fills a commit. What ends the round then writes nothing, so it has no
    number that a restore would miss.
    """
    monkeypatch.setattr(state_log, "MOVED", 2)
    shard = Shard(spare=100, adopted=True, state=LogState(Mark(*FIRST_COMMIT), 1_000))
    had = {bytes([65 + number]): number for number in range(entries)}
    shard.stores["values"].apply(table(had))
    while shard.log.moves:
        shard.commit({})
    assert shard.restored(shard.log.mark) == (had, shard.log.state)
    shard.commit({b"A": 7})
    assert shard.restored(shard.log.mark)[0] == had | {b"A": 7}


def test_an_earlier_log_is_read_on_if_a_broker_told_an_old_end() -> None:
    """One that had been replaced, and did not know it yet: what the commit needs is there."""
    shard = Shard(spare=100)
    for number in range(4):
        shard.commit({bytes([65 + number]): number})

    class Told:
        def end(self, _partition: int) -> int:
            return shard.partition.end() // 2

        def end_beyond(self, _partition: int, end: int) -> int:
            return max(end, shard.partition.end())

        def read(self, _partition: int, start: int, end: int) -> list[Logged]:
            return [each for each in shard.partition.committed(start) if each.offset < end]

    stores = Stores(lambda _name, schema: MemoryStore(schema))
    stores.open("values", SCHEMA)
    adopted = Adopted("t.state", [tuple(shard.log.mark)], None, 0)
    AdoptedState(adopted, Told()).fill(0, stores, ())
    assert entries_of(stores.all["values"]) == entries_of(shard.stores["values"])
