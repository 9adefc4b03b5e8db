"""The windows of a peer, from rows that a task writes to results, with a state log that outlives the peer."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from peer import shard_stores
from peer.operators import WindowOperator
from peer.shard_plans import Planned
from peer.shards import Shards
from peer.state_keeper import StateTopic, TopicKeeper
from peer.store_setup import StoreSetup
from peer.window_split import WindowSplit
from queues import block
from queues.batch import Batch
from queues.block import MAX_BYTES
from queues.messages import Logged
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError, OutputError, SardonyxError
from sardonyx.core.graph import Link, Stage, graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.state_points import Adopted
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec, length
from sardonyx.runtime.functions import import_function
from sardonyx.state import log as state_log
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.rocks import RocksStore
from sardonyx.state.times import InForce
from tests.plain_store import plain_store
from tests.sizes import histories

MINUTE = 60_000_000
PARTITIONS = 3
PlainStore: Any = plain_store()


def in_topic(stage: Stage, topic: StateTopic, adopts: AdoptedState | None = None) -> TopicKeeper:
    """Keeps the state of a task in its log."""
    return TopicKeeper(next(link for link in stage.egress if link.kind == "state"), topic, adopts)


class Message(NamedTuple):
    """A message as the reader gives it."""

    body: bytes
    place: Partition
    number: int

    def value(self) -> bytes:
        return self.body

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.number

    def offset(self) -> int:
        return self.number

    def headers(self) -> None:
        return None


class Topic:
    """The log of the state, as Kafka would keep it."""

    def __init__(self) -> None:
        self.logs: dict[int, list[Logged]] = {}
        self.reads = 0
        self.replaced: int | None = None
        """The end that a replaced leader tells, once."""

    def end(self, partition: int) -> int:
        told, self.replaced = self.replaced, None
        return len(self.logs.get(partition, ())) if told is None else told

    def end_beyond(self, partition: int, end: int) -> int:
        return max(end, self.end(partition))

    def read(self, partition: int, start: int, end: int) -> Sequence[Logged]:
        self.reads += 1
        return [message for message in self.logs.get(partition, ()) if start <= message.offset < end]

    def write(self, planned: Planned) -> None:
        for message in planned.messages:
            log = self.logs.setdefault(message.partition, [])
            log.append(Logged(len(log), message.headers or (), message.value or b""))


def task(window: WindowSpec, every: str | None = None) -> Stage:
    spec = JobSpec(
        name="j",
        workflow=[("read", "count"), ("count", "out")],
        catalog=[
            TaskSpec(
                name="read",
                type="input",
                connector="kafka",
                options={"topic": "t"},
                time=TimeSpec(column="at", unit="us"),
            ),
            TaskSpec(name="count", type="function", group_by=["user"], window=window),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
        partitions=PARTITIONS,
        checkpoint_every=every,
    )
    return graph_of(spec, "d", "j-1").stage("count")


COUNTED = WindowSpec(
    kind="tumbling",
    size="1 min",
    aggregate={"hits": AggregateSpec(of="count"), "most": AggregateSpec(of="max", column="ms")},
    late="dead_letter",
)


class Peer:
    """One peer after the other, on the same link and the same log.

    Args:
        window: of the task.
        most: results of a batch.
    """

    every: str | None = None
    """How far its checkpoints are apart."""
    adopts: AdoptedState | None = None
    """What it begins with."""

    def __init__(self, window: WindowSpec = COUNTED, most: int = 1000) -> None:
        self.stage = task(window, self.every)
        self.link: Link = self.stage.ingress[0]
        self.topic = Topic()
        self.most = most
        self.positions: dict[Partition, Position] = {}
        self.results: list[dict] = []
        self.late = 0
        self.offset = 0
        self.incarnation = 0
        self.shards: Shards | None = None
        self.folder: Path | None = None
        """Of stores on disk."""
        self.load: Callable[[str], Any] = import_function
        self.take_over()

    def take_over(self) -> None:
        """A peer that knows nothing holds all partitions from now on."""
        if self.shards is not None:
            self.shards.close()
        operator = WindowOperator(self.stage, self.most)
        keeper, every = in_topic(self.stage, self.topic, self.adopts), length(self.every) or None
        self.shards = Shards(self.stage, operator, keeper, StoreSetup(self.folder, self.load), every=every)
        self.incarnation += 1

    def batch(self, rows: list[dict], clock: int = NEVER, *, split: int = NEVER) -> Batch:
        """These rows, as the task before writes them, and after them a statement of the clock in each partition."""
        batch = Batch()
        table = pa.Table.from_pylist(rows) if rows else pa.table({})
        for number, part, _ in WindowSplit(self.link, PARTITIONS).split(table, InForce(split)):
            place = Partition(self.link.topic, number)
            for item in block.encode(part):
                self.offset += 1
                batch.messages.setdefault(self.link.name, []).append(Message(item.value, place, self.offset))
                batch.spans.setdefault(self.link.name, []).append((place, 1))
                before = self.positions.get(place, Position(0)).clock.value
                batch.in_force.setdefault(self.link.name, []).append(before)
                batch.rows[place] = batch.rows.get(place, 0) + item.rows
        for number in range(PARTITIONS):
            place = Partition(self.link.topic, number)
            before = self.positions.get(place)
            at = before or Position(0)
            batch.positions[place] = at._replace(offset=self.offset, clock=at.clock.stated(clock))
            batch.clocks[place] = at.clock
            batch.started[place] = None if before is None else before.offset
            batch.incarnations[place] = self.incarnation
        return batch

    def commit(self, batch: Batch, planned: Planned) -> None:
        for place, position in batch.positions.items():
            self.positions[place] = position
        for shard in planned.shards:
            position = self.positions[shard.partition]
            self.positions[shard.partition] = position._replace(
                state=tuple(shard.mark) if shard.mark.seq else None,
                clock=position.clock._replace(seen=shard.closed),
                checkpoints=shard.checkpoints,
            )
        self.topic.write(planned)
        self.shards.committed()
        self.results += planned.results.to_pylist()
        self.late += planned.late_rows

    def give(self, rows: list[dict], clock: int = NEVER, *, split: int = NEVER) -> Planned:
        batch = self.batch(rows, clock, split=split)
        planned = self.shards.plan(batch)
        self.commit(batch, planned)
        while self.shards.due(dict.fromkeys(self.positions, self.incarnation)):
            batch = self.batch([], NEVER)
            self.commit(batch, self.shards.plan(batch))
        return planned


def rows(*given: tuple[str, int, float]) -> list[dict]:
    return [{"user": user, "at": at, "ms": ms} for user, at, ms in given]


def test_a_batch_larger_than_a_message_goes_into_a_window_of_rows() -> None:
    """A function over whole windows is given all rows in their order, however large the batches were; also by the next peer."""
    peer = Peer(WindowSpec(kind="tumbling", size="1 min"))
    chance = random.Random(7)
    texts = [chance.randbytes(40).hex() for _ in range(30_000)]
    half = len(texts) // 2
    for first in (0, half):
        peer.give([{"user": "a", "at": 10, "text": text} for text in texts[first : first + half]])
        peer.take_over()
    assert max(len(message.value) for message in peer.topic.logs[_partition_of(peer)]) <= MAX_BYTES
    peer.give([], clock=END)
    assert [row["text"] for row in peer.results] == texts


def _partition_of(peer: Peer) -> int:
    """The only one with a state."""
    (number,) = (number for number, log in peer.topic.logs.items() if log)
    return number


def test_a_late_row_is_a_dead_letter_and_changes_no_window() -> None:
    """It is kept as it was given, with its window."""
    peer = Peer()
    peer.give(rows(("a", 10, 5.0)), clock=MINUTE)
    planned = peer.give(rows(("a", 11, 9.0), ("a", MINUTE + 1, 2.0)), split=MINUTE)
    assert planned.late is not None
    (letter,) = planned.late.to_pylist()
    assert (letter["user"], letter["ms"], letter["sx_late:window_end"].timestamp()) == ("a", 9.0, 60)
    assert planned.late_from.message(0)[0].offset() > 0
    peer.give([], clock=END)
    assert [(row["hits"], row["most"]) for row in peer.results] == [(1, 5.0), (1, 2.0)]
    assert peer.late == 1


def test_many_windows_close_over_several_batches() -> None:
    """At most so many results at once. Until all are out the shard is not done, also for a peer that takes over in between."""
    peer = Peer(most=2)
    peer.give(rows(*((f"u{n}", 10, 1.0) for n in range(20))))
    batch = peer.batch([], clock=END)
    planned = peer.shards.plan(batch)
    assert any(not shard.done for shard in planned.shards)
    peer.commit(batch, planned)
    peer.take_over()
    peer.give([])
    assert sorted(row["user"] for row in peer.results) == sorted(f"u{n}" for n in range(20))


def test_a_shard_is_not_done_before_its_log_holds_the_state_of_the_earlier_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its task could be sealed by then, and a third job would begin with a part of the state, without a word."""
    monkeypatch.setattr(state_log, "MOVED", 2)
    earlier = Peer()
    earlier.give(rows(*((f"u{n}", 10, 1.0) for n in range(20))))
    at = [Partition(earlier.link.topic, number) for number in range(PARTITIONS)]
    marks = [tuple(earlier.positions[each].state or (0, 0, 0)) for each in at]
    peer = Peer()
    peer.adopts = AdoptedState(Adopted("earlier", marks, None, 0), earlier.topic)
    peer.take_over()
    seen: set[bool] = set()
    while not seen or peer.shards.due(dict.fromkeys(at, peer.incarnation)):
        batch = peer.batch([])
        planned = peer.shards.plan(batch)
        assert [each.done for each in planned.shards] == [each.mark.base > 0 for each in planned.shards]
        seen.update(each.done for each in planned.shards)
        peer.commit(batch, planned)
    assert seen == {False, True}
    third = Peer()
    marks = [tuple(peer.positions[each].state or (0, 0, 0)) for each in at]
    third.adopts = AdoptedState(Adopted("second", marks, None, 0), peer.topic)
    third.take_over()
    third.give([], clock=END)
    assert sorted(row["user"] for row in third.results) == sorted(f"u{n}" for n in range(20))


def test_a_peer_that_still_has_a_shard_reads_nothing() -> None:
    """After a rebalance that gave it back, the mark in the position is that of the shard."""
    peer = Peer()
    peer.give(rows(("a", 10, 5.0), ("b", 20, 1.0), ("c", 1, 1.0)))
    reads = peer.topic.reads
    peer.incarnation += 1
    peer.give([], clock=END)
    assert peer.topic.reads == reads
    assert len(peer.results) == 3


def test_a_restore_is_not_misled_by_a_leader_that_was_replaced() -> None:
    """Such a broker tells an end of long ago, for a moment. The restore reads on until it comes to the commit of the position."""
    for told in range(4):
        peer = Peer()
        for _ in range(4):
            peer.give(rows(("a", 10, 5.0)))
        peer.take_over()
        peer.topic.replaced = told
        peer.give([], clock=END)
        assert [row["hits"] for row in peer.results] == [4], f"an end of {told}"


def test_a_state_that_grows_beyond_its_limit_is_an_error() -> None:
    """Entries that change count once, and entries that go make room."""
    peer = Peer(msgspec.structs.replace(COUNTED, state_limit=3))  # one says how long windows wait
    peer.give(rows(("a", 10, 1.0)))
    peer.give(rows(("a", 20, 1.0)), clock=MINUTE)
    peer.give(rows(("a", MINUTE, 1.0), ("a", 2 * MINUTE, 1.0)))
    peer.give(rows(("a", MINUTE, 1.0), ("a", 2 * MINUTE, 1.0)))
    with pytest.raises(FunctionError) as caught:
        peer.give(rows(("a", 3 * MINUTE, 1.0)))
    assert caught.value.code == "SX-STATE-LIMIT"


def test_a_folder_that_is_deleted_under_a_running_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit stands and the task fails with a code; the peer that goes on makes the state again from the log."""

    class Flushed(RocksStore):
        """Writes to its folder at once, as it does later anyway."""

        def apply(self, changes: pa.Table) -> None:
            super().apply(changes)
            self._write()
            with self._folder._errors():
                self._folder._db.flush()

    monkeypatch.setattr("sardonyx.state.rocks.RocksStore", Flushed)
    peer = Peer(msgspec.structs.replace(COUNTED, store="rocksdb"))
    peer.folder = tmp_path
    peer.take_over()
    peer.give(rows(("a", 10, 5.0)))
    for state in tmp_path.iterdir():
        shutil.rmtree(state)
    with pytest.raises(SardonyxError) as caught:
        peer.give(rows(("a", 20, 1.0)))
    assert caught.value.code == "SX-STATE-CORRUPT"
    peer.take_over()
    peer.give(rows(("a", 30, 1.0)), clock=END)
    assert [row["hits"] for row in peer.results] == [3]
    peer.shards.close()
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_store_whose_disk_is_full_for_a_while(tmp_path: Path) -> None:
    """The task pauses (`SX-STATE-FULL` counts as no failure), its folder goes, and new stores are made from the log."""
    full = True

    class Disk(PlainStore):
        def __init__(self, schema: pa.Schema, folder: Path) -> None:
            super().__init__(schema, folder)
            self.file = folder / "entries"

        def apply(self, changes: pa.Table) -> None:
            if full and len(self):
                raise OSError(errno.ENOSPC, "no space")
            super().apply(changes)
            self.file.write_text(str(len(self)))

        def close(self) -> None:
            if full:
                raise OSError(errno.ENOSPC, "no space")

    peer = Peer(msgspec.structs.replace(COUNTED, store="stores:Disk"))
    peer.folder, peer.load = tmp_path, lambda _: Disk
    peer.take_over()
    peer.give(rows(("a", 10, 5.0)))
    with pytest.raises(OutputError) as caught:
        peer.give(rows(("a", 20, 1.0)))
    assert caught.value.code == "SX-STATE-FULL"
    before = set(tmp_path.iterdir())
    peer.take_over()
    assert not before & set(tmp_path.iterdir()), "a store that cannot be closed keeps its folder"
    full = False
    peer.give(rows(("a", 30, 1.0)), clock=END)
    assert [row["hits"] for row in peer.results] == [3]


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "SX-STATE-FULL"), (errno.EDQUOT, "SX-STATE-FULL"), (errno.EACCES, "SX-STATE-DISK")],
)
def test_a_disk_without_room_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, number: int, code: str
) -> None:
    """That of the shard, or that of its store: by its code the task knows whether to wait for room; no folder is left."""
    made, asked = shard_stores.tempfile.mkdtemp, itertools.count(1)

    def mkdtemp(**given: Any) -> str:
        if next(asked) == refused:
            raise OSError(number, "no")
        return made(**given)

    monkeypatch.setattr(shard_stores.tempfile, "mkdtemp", mkdtemp)
    peer = Peer(msgspec.structs.replace(COUNTED, store="rocksdb"))
    peer.folder = tmp_path
    peer.take_over()
    with pytest.raises(SardonyxError) as caught:
        peer.give(rows(("a", 10, 5.0)))
    assert caught.value.code == code
    peer.take_over()
    assert list(tmp_path.iterdir()) == []
    peer.give(rows(("a", 10, 5.0), ("a", 30, 1.0)), clock=END)
    assert [row["hits"] for row in peer.results] == [2]
    peer.shards.close()


@pytest.mark.parametrize("history", range(histories(10, whole=60)))
def test_random_histories_count_each_row_once(seed: int, history: int) -> None:
    """Whatever is cut where, dropped, or taken over: each window counts the rows that were on time."""
    rng = random.Random(f"{seed}/shards/{history}")
    window = msgspec.structs.replace(COUNTED, store=rng.choice(["memory", "rocksdb"]))
    peer, clock, expected = Peer(window, most=rng.choice([1, 3, 1000])), NEVER, Counter[tuple[str, int]]()
    time = 0
    for _ in range(rng.randint(3, 15)):
        given = []
        for _ in range(rng.randint(0, 12)):
            time += rng.randint(0, MINUTE // 4)
            at = max(time - rng.randint(0, MINUTE), 0 if clock == NEVER else clock)
            given.append((rng.choice("abcde"), at, float(rng.randint(0, 9))))
            expected[given[-1][0], at // MINUTE] += 1
        step = max(clock, time - MINUTE) if rng.random() < 0.6 else NEVER
        if rng.random() < 0.3:
            peer.shards.plan(peer.batch(rows(*given), step))
            peer.shards.dropped() if rng.random() < 0.5 else peer.take_over()
        peer.give(rows(*given), step)
        clock = max(clock, step)
        if rng.random() < 0.3:
            peer.take_over()
    peer.give([], clock=END)
    found = Counter({(r["user"], int(r["window_start"].timestamp()) // 60): r["hits"] for r in peer.results})
    assert len(peer.results) == len(found), "a window gave two results"
    assert found == expected, f"seed {seed}, history {history}"
