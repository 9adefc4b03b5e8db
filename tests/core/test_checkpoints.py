"""Checkpoints at a time: the state of a shard as rows before that time have made it, whatever the disorder and the deaths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from log_world import Partition

from peer.operators import Answer, Asked, Read, Stores
from peer.shard_checkpoints import CheckpointPlans, PlannedCheckpoints, ShardCheckpoints
from queues.block import MAX_BYTES
from sardonyx.core.checkpoints import (
    KEPT,
    REACH,
    Bookmark,
    Checkpoints,
    Given,
    complete,
    due,
    keep,
    multiples,
)
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.positions import Position
from sardonyx.state.base import GONE, KEY
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.planned import Piece
from sardonyx.state.restore import Restore
from sardonyx.state.undo import ShadowStore, UndoChange
from tests.core.test_shards import COUNTED, task
from tests.sizes import as_asked, histories

HISTORIES = as_asked(4, whole=20)
CONTROLS = 200
EVERY = 60
LENGTH = 90
"""Of the toy's windows. No multiple of the interval, so checkpoints lie within windows."""
SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
CHANGES = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))
LINKS = task(COUNTED).ingress

Row = tuple[str, int, int]
"""A key, a time, and a number that no other row has."""
Blocks = list[tuple[int, list[Row]]]
"""The clock in force before each block, and its rows."""


class Wrong(AssertionError):
    """A history has broken a promise."""


# --- What the shards compute: of each key a value that depends on the order of its rows, and windows that the clock closes


def stepped(state: dict[bytes, int], blocks: Blocks, clock: int) -> None:
    """The twin: what rows and a clock make of the state of a shard."""
    for in_force, rows in blocks:
        for key, at, number in rows:
            name = b"key " + key.encode()
            state[name] = hash((state.get(name), number))
            start = at - at % LENGTH
            if start + LENGTH > in_force:
                window = b"window %09d " % start + key.encode()
                state[window] = state.get(window, 0) + number
    for window in [each for each in state if each.startswith(b"window") and int(each[7:16]) + LENGTH <= clock]:
        del state[window]


class Toy:
    """An operator that does the same with stores, and closes few windows at a time."""

    store = "memory"
    by_rows = ("toy",)

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        return [self._plan(each) for each in asked]

    def _plan(self, asked: Asked) -> Answer:
        store = asked.stores.open("toy", SCHEMA)
        found = store.scan()
        before = dict(zip(found[KEY].to_pylist(), found["v"].to_pylist(), strict=True))
        state = dict(before)
        blocks = [(read.piece.in_force, rows_of(read.piece.rows)) for read in asked.reads]
        stepped(state, blocks, NEVER)
        closing = sorted(
            each for each in state if each.startswith(b"window") and int(each[7:16]) + LENGTH <= asked.clock
        )
        for window in closing[:2]:
            del state[window]
        changes: dict[bytes, int | None] = {key: value for key, value in state.items() if before.get(key) != value}
        changes |= dict.fromkeys(before.keys() - state.keys())
        return Answer(pa.table({}), {"toy": table(changes)}, more=len(closing) > 2)


def table(changes: dict[bytes, int | None]) -> pa.Table:
    columns = [list(changes), list(changes.values()), [value is None for value in changes.values()]]
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, CHANGES.types, strict=True)], schema=CHANGES)


def rows_of(rows: pa.Table) -> list[Row]:
    return [(row["user"], row["at"], row["n"]) for row in rows.to_pylist()]


def block_of(rows: list[Row]) -> pa.Table:
    return pa.table({"user": [r[0] for r in rows], "at": [r[1] for r in rows], "n": [r[2] for r in rows]})


# --- A shard, its log and its position


class Shard:
    """One shard: the peer that holds it may die before or after a commit, and the log is trimmed as it may be.

    Args:
        rng: of all choices.
        plans: what plans its checkpoints. Controls lack a safeguard.
    """

    def __init__(self, rng: random.Random, plans: CheckpointPlans, log: Callable[..., ShardLog] = ShardLog) -> None:
        self.rng, self.plans, self.make = rng, plans, log
        self.partition = Partition()
        self.position = Position(0)
        self.clock = NEVER
        self.given: list[tuple[Blocks, int]] = []
        """What is committed."""
        self.steps: list[int] = []
        self.max_bytes = rng.choice([300, *[MAX_BYTES] * 9])
        """With the least, each entry takes several messages of the log."""
        self.restored()

    def restored(self) -> None:
        self.stores = Stores(lambda _, schema: MemoryStore(schema))
        mark = None if self.position.state is None else Mark(*self.position.state)
        restore = Restore(mark or Mark(), {}, topic="t", partition=0, others=("toy",), make=self.stores.open)
        restore.read(self.partition.committed(restore.start))
        state = restore.finish()
        self.log = self.make(self.partition.end, state, spare=20, piece=3, max_bytes=self.max_bytes, undo=restore.undo)
        self.checkpoints = ShardCheckpoints(undo=dict(restore.undo))
        self.checkpoints = self.checkpoints.as_committed(self.position.checkpoints or Checkpoints())

    def batch(self, blocks: Blocks, clock: int, *, dies: bool = False) -> None:
        """These blocks, and a clock after them; then further batches until nothing is due."""
        while True:
            more, done = self._commit(blocks, clock, fate=self.rng.random() if dies else 1.0)
            if done:
                blocks = []
                if not more:
                    return

    def _commit(self, blocks: Blocks, clock: int, fate: float) -> tuple[bool, bool]:
        reads = [Read(0, Piece(block_of(rows), in_force), None, in_force) for in_force, rows in blocks]
        asked = Asked(0, self.stores, reads, clock, clock, 0, [clock])
        (answer,) = Toy().plan([asked])
        planned = self.plans.plan(self.checkpoints, asked, answer, self.clock)
        messages = self.log.messages(answer.changes, self.stores.all, planned.undo)
        mark = self.log.planned
        after = planned.after(mark)
        position = Position(
            self.position.offset + 1,
            clock=SourceClock(value=clock),
            state=tuple(mark) if mark.seq else None,  # type: ignore[arg-type]
            checkpoints=after.known,
        )
        if fate < 0.1:  # the holder dies, and the transaction is aborted
            self.partition.write(messages, commit=False)
            self.restored()
            return True, False
        if messages:
            self.partition.write(messages, commit=True)
        self.position = Position.read(position.offset, position.metadata())
        self.clock = clock
        self.given.append((blocks, clock))
        self.steps.append(planned.due.step)
        if fate < 0.2:  # it dies after the commit
            self.restored()
        else:
            for name, changes in answer.changes.items():
                self.stores.all[name].apply(changes)
            self.log.committed()
            self.checkpoints = after
        if self.rng.random() < 0.2:
            lows = [mark.low, after.known.low]
            self.partition.delete_before(min(low for low in lows if low is not None))
        return answer.more, True

    def at(self, time: int, mark: Bookmark) -> dict[bytes, int]:
        """The state at a checkpoint, as the log has it."""
        stores = Stores(lambda _, schema: MemoryStore(schema))
        restore = Restore(
            Mark(mark.seq, mark.low, mark.base), {}, topic="t", partition=0, others=("toy",), make=stores.open
        )
        restore.read(m for m in self.partition.committed(restore.start) if about(m, {}).seq <= mark.seq)
        restore.finish()
        for name, changes in restore.undo.get(time, {}).items():
            stores.all[name].apply(changes)
        found = stores.open("toy", SCHEMA).scan()
        return dict(zip(found[KEY].to_pylist(), found["v"].to_pylist(), strict=True))

    def truth(self, time: int) -> dict[bytes, int]:
        """The state of a run that was given only rows before a time."""
        state: dict[bytes, int] = {}
        for blocks, clock in self.given:
            mine = [(force, [row for row in rows if row[1] < time]) for force, rows in blocks if force < time]
            stepped(state, mine, min(clock, time))
        return state

    @property
    def taken(self) -> Sequence[Bookmark]:
        return (self.position.checkpoints or Checkpoints()).kept


class Cluster:
    """Several shards of a task, whose rows are out of order and come at different times."""

    def __init__(self, seed: int, plans: type[CheckpointPlans] = CheckpointPlans, log: Any = ShardLog) -> None:
        self.rng = rng = random.Random(seed)
        self.spread, self.lazy = rng.choice([5, 40, 100, 500]), rng.choice([1, 1, 2, 4])
        self.shards = [Shard(rng, plans(Toy(), LINKS, EVERY), log) for _ in range(rng.randint(1, 4))]  # type: ignore[arg-type]
        self.ahead = rng.choice([0, 1000])
        self.number = 0

    def run(self, batches: int = 40) -> None:
        rng = self.rng
        seen: set[tuple[int, int]] = set()
        for _ in range(batches):
            self.ahead += rng.choice([1, 10, 30, 150])
            shard = rng.choice(self.shards)
            if rng.random() > 1 / self.lazy:
                continue
            blocks: Blocks = []
            force = shard.clock
            for _ in range(rng.randint(0, 3)):
                blocks.append((force, [self._row() for _ in range(rng.randint(1, 4))]))
                force = max(force, self.ahead - self.spread - rng.randint(0, 30))
            shard.batch(blocks, force, dies=rng.random() < 0.5)
            self._check(shard, seen)
        for shard in self.shards:  # all come to one clock
            shard.batch([], max(self.ahead - self.spread, shard.clock))
            self._check(shard, seen)

    def _row(self) -> Row:
        self.number += 1
        late = self.rng.random() < 0.05
        return self.rng.choice("abcd"), self.ahead - self.rng.randint(0, self.spread * (3 if late else 1)), self.number

    def _check(self, shard: Shard, seen: set[tuple[int, int]]) -> None:
        """Each checkpoint that is kept is right: when it is new, and in the end."""
        for mark in shard.taken:
            for time in {mark.first, mark.last} - {multiples(EVERY, NEVER, 0)[0]}:
                known = (id(shard), time)
                if known in seen and self.rng.random() > 0.1:
                    continue
                seen.add(known)
                if shard.at(time, mark) != shard.truth(time):
                    raise Wrong(f"at {time}: {shard.at(time, mark)} is not {shard.truth(time)}")


@pytest.mark.timeout(300 + HISTORIES)
@pytest.mark.parametrize("part", range(5))
def test_a_checkpoint_is_a_run_that_was_given_only_the_rows_before_it(part: int) -> None:
    """Also when rows are far out of order, batches are cut anywhere, holders die around commits, and the log is trimmed.

    In 5,000 histories with ``SARDONYX_HISTORIES=1000``.
    """
    count = 0
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        cluster = Cluster(seed)
        cluster.run()
        count += sum(len(shard.taken) for shard in cluster.shards)
    assert count > HISTORIES


# --- Controls: without a safeguard, histories fail


class OncePlanned(CheckpointPlans):
    """Keeps what differs first, and forgets rows before the time that come after it."""

    def _differs(self, time: int, undo: Any, asked: Asked, answer: Answer, reads: Any) -> Any:
        return super()._differs(time, undo, asked, answer, [] if undo else reads)


class RunningClock(CheckpointPlans):
    """Does not stop the clock of the checkpoint at its time."""

    def _differs(self, time: int, undo: Any, asked: Asked, answer: Answer, reads: Any) -> Any:
        found = super()._differs(time, undo, asked, answer, reads)
        if asked.clock <= time:
            return found
        stores = Stores(lambda name, schema: ShadowStore(asked.stores.open(name, schema), undo.get(name)))
        for name, changes in {**undo, **found}.items():
            stores.open(name, SCHEMA).apply(changes)
        while (answered := Toy().plan([asked._replace(stores=stores, reads=())])[0]).changes["toy"].num_rows:
            stores.all["toy"].apply(answered.changes["toy"])
        return {"toy": stores.all["toy"].differs(answer.changes["toy"])}  # type: ignore[attr-defined]


class Forgetful(CheckpointPlans):
    """Does not know the greatest time of the rows before the batch."""

    def plan(self, shard: ShardCheckpoints, asked: Asked, answer: Answer, before: int) -> Any:
        known = shard.known._replace(top=max(before, shard.known.start))
        return super().plan(ShardCheckpoints(known, shard.undo), asked, answer, before)


class SaidOnce(ShardLog):
    """Does not say the undo again when the log begins anew."""

    def messages(self, changes: Any, stores: Any, undo: UndoChange | None = None) -> Any:
        return super().messages(changes, stores, undo and UndoChange(undo.changed, undo.changed))


@pytest.mark.parametrize(
    ("plans", "log"),
    [(OncePlanned, ShardLog), (RunningClock, ShardLog), (Forgetful, ShardLog), (CheckpointPlans, SaidOnce)],
)
def test_histories_fail_without_a_safeguard(plans: type[CheckpointPlans], log: Any) -> None:
    """Each of them is there for a reason."""
    with pytest.raises(Wrong):  # noqa: PT012 - any of them
        for seed in range(CONTROLS):
            Cluster(seed, plans, log).run()


# --- Which times all shards have


class Times:
    """Which times a shard takes, in event time alone."""

    def __init__(self) -> None:
        self.known, self.clock, self.top = Checkpoints(), NEVER, NEVER
        self.taken: set[int] = set()
        self.steps = {EVERY}

    def batch(self, times: list[int], clock: int) -> None:
        found = due(self.known, EVERY, Given(min(times), max(times), self.clock, clock))
        passed = [time for time in found.times if time <= clock]
        self.taken |= set(passed)
        self.steps.add(found.step)
        new = [Bookmark(time, time, len(self.taken), 0, 0) for time in passed]
        self.known = found.after._replace(kept=keep(found.after.kept, new, EVERY, found.step))
        self.clock = clock


class Plain(Times):
    """Gearpump's rule: one time at once; the next one is the first multiple of the step behind the greatest time seen."""

    def __init__(self, spread: int) -> None:
        super().__init__()
        self.step = EVERY
        while self.step <= spread + 9:
            self.step *= 2
        self.due = self.step

    def batch(self, times: list[int], clock: int) -> None:
        if clock >= self.due:
            self.taken.add(self.due)
            self.due = (1 + max(self.top, *times) // self.step) * self.step
        self.top = max(self.top, *times)
        self.steps.add(self.step)
        self.clock = clock


def together(seed: int, *, plain: bool = False) -> tuple[int, list[Times]]:
    """Shards of one task, whose rows are out of order, and which are given rows more or less often."""
    rng = random.Random(seed)
    spread, lazy = rng.choice([10, 100, 700]), rng.choice([1, 1, 5, 30])
    shards = [Plain(spread) if plain else Times() for _ in range(rng.randint(2, 8))]
    ahead = 10_000
    for n in range(3_000):
        ahead += rng.randint(0, 20)
        shard = shards[n % len(shards)] if n < len(shards) else rng.choice(shards)
        if n < len(shards) or rng.random() <= 1 / lazy:
            times = [ahead - rng.randint(0, spread) for _ in range(3)]
            shard.batch(times, max(shard.clock, ahead - spread - rng.randint(0, 9)))
    for shard in shards:
        shard.batch([ahead], max(shard.clock, ahead - spread))
    return ahead - spread, shards


def test_every_shard_takes_the_multiples_of_the_greatest_step_of_any() -> None:
    """So shards that agree on nothing have times in common, and keep the last of them. By the plain rule many have none."""
    without, many = 0, histories(15, whole=100)
    for seed in range(many):
        clock, shards = together(seed)
        step = max(step for shard in shards for step in shard.steps)
        start = max(shard.known.start for shard in shards)
        assert set(multiples(step, start, clock)) <= set.intersection(*(shard.taken for shard in shards)), seed
        assert complete([shard.known for shard in shards], EVERY)[-1] >= clock - 2 * step, seed
        clock, shards = together(seed, plain=True)
        step = max(step for shard in shards for step in shard.steps)
        missing = set(multiples(step, 10_000 + step, clock)) - set.intersection(*(shard.taken for shard in shards))
        without += bool(missing)
    assert without > many / 4


def test_a_shard_without_rows_has_all_times_that_its_clock_passes() -> None:
    """One bookmark says so, however many there are, and shards that have rows find their times there."""
    rng = random.Random(1)
    quiet, busy = Shard(rng, CheckpointPlans(Toy(), LINKS, EVERY)), Shard(rng, CheckpointPlans(Toy(), LINKS, EVERY))
    for clock in range(1_000, 20_000, 50):
        quiet.batch([], clock)
        busy.batch([(clock - 50, [("a", clock + 5, clock)])], clock)
    assert len(quiet.taken) == 1
    assert len(busy.taken) <= KEPT
    both = [shard.position.checkpoints or Checkpoints() for shard in (quiet, busy)]
    assert complete(both, EVERY)[-1] == 19_920


def test_a_checkpoint_is_pending_while_results_are_to_be_given() -> None:
    """Those that are due by its time. Else a job that goes back to it would never give them. Rows that come meanwhile are not in
    it.
    """
    shard = Shard(random.Random(1), CheckpointPlans(Toy(), LINKS, EVERY))
    shard.batch([(NEVER, [(key, 10, 1) for key in "abcdef"])], 20)
    for rows in ([], [("a", 100, 7), ("b", 140, 8)]):
        more, _ = shard._commit([(130, rows)] if rows else [], 130, fate=1.0)
        known = shard.position.checkpoints or Checkpoints()
        assert (more, known.pending, known.kept) == (True, (60, 120), ())
        shard.restored()  # also by the next holder
    more, _ = shard._commit([], 130, fate=1.0)
    known = shard.position.checkpoints or Checkpoints()
    assert (more, known.pending, [mark.first for mark in known.kept]) == (False, (), [60, 120])
    assert all(shard.at(mark.first, mark) == shard.truth(mark.first) for mark in known.kept)


def test_of_the_times_whose_results_are_to_be_given_the_last_two_stay_pending() -> None:
    """Each costs as much as the batch itself. The others have no checkpoint."""
    known = Checkpoints(0, 300, (60, 120, 180, 240, 300))
    found = due(known, EVERY, Given(None, None, 250, 250))
    assert (found.times, found.after.pending) == ((180, 240, 300), (300,))
    waits = {time: dict[str, Any]() for time in found.times}
    planned = PlannedCheckpoints(found, EVERY, waits, {}, range(0), frozenset(), 250, more=True)
    assert planned.after(Mark(1, 0, 0)).known == Checkpoints(0, 300, (180, 240, 300))
    given = planned._replace(more=False).after(Mark(1, 0, 0)).known
    assert given.pending == (300,)
    assert [given.at(time) is not None for time in (120, 180, 240)] == [False, True, True]
    lost = planned._replace(given_up=frozenset({180})).after(Mark(1, 0, 0)).known
    assert (lost.pending, lost.kept) == ((240, 300), ())


def test_what_is_kept_is_bounded_in_number_and_in_time() -> None:
    """The newest of all, the newer ones, and of the older ones those that shards with greater steps keep too."""
    kept: tuple[Bookmark, ...] = ()
    for n in range(1, 1_000):
        kept = keep(kept, [Bookmark(n * EVERY, n * EVERY, n, 0, 0)], EVERY, EVERY)
        assert len(kept) <= KEPT
        assert kept[-1].last == n * EVERY
        assert kept[0].last >= (n - REACH) * EVERY
    assert {960, 992} <= {mark.last // EVERY for mark in kept}


def test_the_position_says_what_is_kept() -> None:
    """As few bytes as may be, and none without checkpoints."""
    kept = tuple(Bookmark(n * EVERY, n * EVERY, n, n, n, undo=bool(n % 2)) for n in range(3))
    position = Position(7, clock=SourceClock(1, 2), state=(3, 4, 5), checkpoints=Checkpoints(1, 2, (60, 120), kept))
    assert Position.read(7, position.metadata()) == position
    assert '"format":3' in position.metadata()
    without = position._replace(checkpoints=None)
    assert '"format":2' in without.metadata()
    assert "ckpt" not in without.metadata()
