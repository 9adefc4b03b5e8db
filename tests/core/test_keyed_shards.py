"""Keyed state in a peer: rows that a task writes, state that a log holds, peers that take over, batches that are dropped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from test_shards import PARTITIONS, Peer, in_topic

from peer.failed_records import failed_key
from peer.keyed_operator import KeyedOperator
from peer.shard_plans import Planned
from peer.shards import Shards
from queues.batch import Batch
from sardonyx import State, Timer, Timers
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError, InputError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import TimeSpec, length
from sardonyx.job.load import load
from sardonyx.runtime.functions import import_function
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import Done, Work, joined, split
from sardonyx.state.signature import signature_of
from sardonyx.state.timers import EPOCH
from tests import fraud_reference as reference
from tests.sizes import histories

SECOND = 1_000_000


class KeyedPeer(Peer):
    """One peer after the other; their functions run in this process.

    Args:
        stage: the task.
        fn: its function.
        on_timer: its function of timers.
        most: timers of a batch.
        now: the clock of the machine, in microseconds.
    """

    def __init__(
        self,
        stage: Stage,
        fn: Callable[..., Any],
        on_timer: Callable[..., Any] | None = None,
        most: int = 1000,
        now: Callable[[], int] = int,
    ) -> None:
        self.functions = (fn, on_timer)
        self.now = now
        self.keyed_stage = stage
        self.failed: list[dict[str, Any]] = []
        super().__init__(most=most)

    def take_over(self) -> None:
        if self.shards is not None:
            self.shards.close()
        self.stage = self.keyed_stage
        self.link = self.stage.ingress[0]
        assert self.stage.task.keyed is not None
        signature = signature_of(self.stage.task.keyed, *self.functions)
        function = KeyedFunction(signature, *self.functions, self.stage.task.params)

        def run(works: Sequence[Work]) -> list[Done]:
            found = []
            for work in works:
                parts = split(work, 2)
                done = joined(parts, [function.run(part) for part, _ in parts])
                found.append(done._replace(results=pa.Table.from_pylist(done.results)))
            return found

        tell = partial(failed_key, attempts=1)
        self.shards = Shards(
            self.stage,
            KeyedOperator(self.stage, signature, run, tell, self.most),
            in_topic(self.stage, self.topic),
            now=self.now,
            every=length(self.every) or None,
        )
        self.incarnation += 1

    def batch(self, rows: list[dict], clock: int = NEVER, *, split: int = NEVER) -> Batch:
        """As of windows; at the end, the clock that was stated before it is known."""
        batch = super().batch(rows, clock, split=split)
        if clock == END:
            batch.stated |= {place: before.value for place, before in batch.clocks.items()}
        return batch

    def commit(self, batch: Batch, planned: Planned) -> None:
        super().commit(batch, planned)
        self.failed += [each.value.to_pylist()[0] for each in planned.failed]

    def give(
        self, rows: list[dict], clock: int = NEVER, *, split: int = NEVER, lost: Callable[[], bool] = bool
    ) -> Planned:
        """A batch, and those that must follow it. ``lost``: whether a plan is dropped, or its peer dies."""
        first = None
        while first is None or self.shards.due(dict.fromkeys(self.positions, self.incarnation)):
            batch = self.batch([], NEVER) if first else self.batch(rows, clock, split=split)
            planned = self.shards.plan(batch)
            while lost():
                self.shards.dropped() if lost() else self.take_over()
                batch.incarnations = dict.fromkeys(batch.incarnations, self.incarnation)
                planned = self.shards.plan(batch)
            self.commit(batch, planned)
            first = first or planned
        return first


@pytest.fixture
def fraud(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], KeyedPeer]:
    """Peers of the task ``watch`` of the fraud example, by how many timers fire in a batch, and by their store."""
    spec = load(str(reference.EXAMPLE)).spec
    monkeypatch.syspath_prepend(reference.EXAMPLE.parent)

    def peer(most: int, store: str) -> KeyedPeer:
        watch = spec.task("watch")
        assert watch.keyed is not None
        watch = msgspec.structs.replace(watch, keyed=msgspec.structs.replace(watch.keyed, store=store))
        catalog = [watch if task.name == "watch" else task for task in spec.catalog]
        changed = msgspec.structs.replace(spec, catalog=catalog, partitions=PARTITIONS)
        functions = import_function(str(watch.fn)), import_function(str(watch.keyed.on_timer))
        return KeyedPeer(graph_of(changed, "d", "j-1").stage("watch"), *functions, most=most)

    return peer


@pytest.mark.parametrize("history", range(histories(5, whole=12)))
def test_each_row_and_each_timer_counts_once(fraud: Callable[[int, str], KeyedPeer], seed: int, history: int) -> None:
    """Whatever is cut where, dropped, or taken over: the alerts are those that plain loops give."""
    chance = random.Random(f"{seed}/keyed shards/{history}")
    peer, clock = fraud(chance.choice([3, 1000]), chance.choice(["memory", "rocksdb"])), NEVER
    rows = reference.payments(history, 300, cards=8)
    wanted = reference.alerts(rows)
    while rows:
        count = chance.randrange(1, 60)
        taken, rows = rows[:count], rows[count:]
        if chance.random() < 0.7:
            clock = max(clock, _micro(taken[-1]["at"]) - 10 * SECOND)
        peer.give(taken, clock, lost=lambda: chance.random() < 0.2)
    peer.give([], END, lost=lambda: chance.random() < 0.2)
    assert reference.of_results(peer.results) == wanted, f"seed {seed}, history {history}"
    assert not peer.failed


def _micro(at: datetime) -> int:
    return round(at.timestamp() * SECOND)


def spend(row: dict, total: State[int], timers: Timers) -> dict:
    total.value += row["amount"]
    timers.set(row["at"] + timedelta(seconds=5), "t")
    if row["amount"] < 0:
        raise ValueError(row["amount"])
    return {"user": row["user"], "total": total.value}


def fails(timer: Timer, total: State[int]) -> None:
    raise RuntimeError(timer.name)


def stage_of(by: str | None = "user", **keyed: Any) -> Stage:
    """A task that adds up by user, or over all rows."""
    task = TaskSpec(name="spend", type="function", fn="m:f", group_by=by and [by], keyed=KeyedSpec(**keyed))
    time = TimeSpec(column="at")
    catalog = [
        TaskSpec(name="read", type="input", connector="kafka", options={"topic": "t"}, time=time),
        task,
        TaskSpec(name="out", type="output", connector="blackhole"),
    ]
    spec = JobSpec(name="j", workflow=[("read", "spend"), ("spend", "out")], catalog=catalog, partitions=PARTITIONS)
    return graph_of(spec, "d", "j-1").stage("spend")


def row(user: str, second: int, amount: int = 1) -> dict[str, Any]:
    return {"user": user, "at": EPOCH + timedelta(seconds=second), "amount": amount}


def test_the_value_of_a_whole_task_counts_each_row_once(seed: int) -> None:
    """Without ``group_by`` there is one value for all rows, which outlives the peers that die."""
    chance = random.Random(f"{seed}/value")

    def number(row: dict, rows: State[int]) -> dict:
        rows.value += 1
        return {"number": rows.value}

    peer, wanted = KeyedPeer(stage_of(None), number), list(range(1, 61))
    for begin in range(0, 60, 6):
        peer.give([row(chance.choice("abc"), begin + n) for n in range(6)], lost=lambda: chance.random() < 0.3)
    assert [each["number"] for each in peer.results] == wanted, f"seed {seed}"


def test_what_fails_is_known_with_its_record_and_changes_nothing() -> None:
    """A row as it was; of a timer the key, its name and its time. Both say where they came from."""
    peer = KeyedPeer(stage_of(on_timer="m:t"), spend, fails)
    peer.give([row("a", 1, 5), row("a", 2, -1), row("b", 3, 7)], 3 * SECOND)
    peer.give([row("a", 4, 1)], 4 * SECOND)
    assert peer.failed == [row("a", 2, -1)]
    assert [(each["user"], each["total"]) for each in peer.results] == [("a", 5), ("b", 7), ("a", 6)]
    peer.take_over()
    planned = peer.give([], 8 * SECOND)
    assert peer.failed[1:] == [{"user": "b", "timer": "t", "timer_at": EPOCH + timedelta(seconds=8)}]
    (failed,) = planned.failed
    assert (failed.bad.error, failed.origin.topic) == ("RuntimeError", peer.link.topic)


def test_timers_of_the_wall_wake_their_shard() -> None:
    """A batch without rows is due when the clock of the machine has come there; also for a peer that takes over."""
    now = [10 * SECOND]

    def by_wall(row: dict, total: State[int], timers: Timers) -> None:
        timers.set(EPOCH + timedelta(seconds=50), "w", by="wall")

    def tell(timer: Timer) -> dict:
        return {"user": timer.key, "by": timer.by}

    peer = KeyedPeer(stage_of(on_timer="m:t"), by_wall, tell, now=lambda: now[0])
    peer.give([row("a", 1)])
    peer.take_over()
    peer.give([row("b", 1)])
    assert peer.results == []
    now[0] = 50 * SECOND
    peer.give([])
    assert sorted(each["user"] for each in peer.results) == ["a", "b"]


def test_more_entries_than_state_limit_fail_the_job() -> None:
    """Before memory is full; the message says what an entry is."""
    peer = KeyedPeer(stage_of(state_limit=4, on_timer="m:t"), spend, fails)
    with pytest.raises(FunctionError) as caught:
        peer.give([row(f"u{n}", n) for n in range(40)])
    assert caught.value.code == "SX-STATE-LIMIT"
    assert "each value of a state is an entry" in caught.value.cause + caught.value.fix


def test_states_of_other_types_are_refused_when_they_are_read() -> None:
    """A peer that takes over with a changed function finds what the log holds, and says what does not fit."""
    peer = KeyedPeer(stage_of(on_timer="m:t"), spend, fails)
    peer.give([row("a", 1)])

    def other(row: dict, total: State[str]) -> None: ...

    peer.functions = (other, fails_text)
    peer.take_over()
    with pytest.raises(InputError) as caught:
        peer.give([row("a", 2)])
    assert caught.value.code == "SX-STATE-SHAPE"


def fails_text(timer: Timer, total: State[str]) -> None: ...
