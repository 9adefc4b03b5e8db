"""A job goes on from another one with another number of partitions: each key finds its state, and each result comes once."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from peer import preparation
from queues.keys import canonical
from sardonyx import (
    Collect,
    Count,
    Job,
    ListState,
    MapState,
    State,
    Sum,
    Timer,
    Timers,
    blackhole,
    calendar,
    counted,
    event_time,
    everything,
    hopping,
    kafka,
    session,
    tumbling,
)
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.graph import Stage
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec, TaskSpec, stateful
from sardonyx.runtime.functions import import_function
from sardonyx.state.base import GONE, KEY
from sardonyx.state.keyed_entries import SHAPE, VALUE, keyed_schema
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import Done, Work
from sardonyx.state.memory import MemoryStore
from sardonyx.state.planned import Piece
from sardonyx.state.resharding import share_of
from sardonyx.state.signature import signature_of
from sardonyx.state.windows import WindowShard, entry_schema
from sardonyx.testing.clocked import ClockedRun
from tests.core.going_back_jobs import job_run, results, resumed
from tests.sizes import histories

START = datetime(2026, 11, 26, 10, tzinfo=UTC)
INPUTS = {"read": 1, "told": 1}
DEDUPED = "corrected"
"""The task that corrects its results: which of them come depends on the batches, and the last one of each window does not."""


def spend(
    row: dict, total: State[int], last: ListState[int], by_n: MapState[int, int], timers: Timers
) -> dict[str, Any]:
    total.value += 1
    last.append(row["n"])
    if len(last) > 3:
        last.remove_first()
    by_n[row["n"] % 3] = by_n.get(row["n"] % 3, 0) + 1
    timers.set(row["at"] + timedelta(seconds=40), "quiet")
    return {
        "user": row["user"],
        "total": total.value,
        "last": str(list(last)),
        "by_n": str(dict(by_n)),
        "at": row["at"],
    }


def quiet(timer: Timer, total: State[int]) -> dict[str, Any]:
    return {"user": timer.key, "total": total.value, "last": "timer", "by_n": timer.name, "at": timer.at}


def recent(row: dict, total: State[int]) -> dict[str, Any]:
    total.value += 1
    return {"user": row["user"], "total": total.value, "at": row["at"]}


def of_the_rows(rows: pa.Table) -> pa.Table:
    return rows


def a_job(name: str, partitions: int) -> JobSpec:
    """A task of each kind that keeps a state."""
    job = Job(name, partitions=partitions)
    at = event_time("at", delay="10 s")
    read, told = (
        job.input(source, kafka(source, schema="user long, n long, at timestamp", start="earliest"), time=at)
        for source in INPUTS
    )
    by: dict[str, Any] = {"after": read, "group_by": "user"}
    given = {"rows": Count(), "n": Sum("n")}
    made = [
        job.window("hits", tumbling("90 s"), **by, aggregate=given),
        job.window("slow", tumbling("1 min"), **by, aggregate=given, grace="100 s"),
        job.window("hops", hopping("2 min", "20 s"), **by, aggregate=given),
        job.window(DEDUPED, hopping("1 min", "30 s"), **by, aggregate=given, emit="changes", allowed_lateness="2 min"),
        job.window("visits", session("15 s", most="2 min"), **by, aggregate=given),
        job.window("fives", counted(5), **by, aggregate={"ns": Collect("n")}),
        job.window("often", counted(7, every=3), **by, aggregate={"ns": Collect("n")}),
        job.window("hours", calendar("hour"), **by, aggregate=given),
        job.window("total", tumbling("2 min"), after=read, aggregate=given),
        job.window("ever", everything(), **by, aggregate=given),
        job.window("lists", tumbling("1 min"), **by, fn=of_the_rows),
        job.distinct("seen", after=read, by="n", within="1 min"),
        job.latest("newest", **by),
        job.latest("at-last", **by, emit="final"),
        job.latest("forgotten", **by, within="1 min"),
        job.join("meet", read, told, on="user", within=("-5 s", "20 s"), how="left"),
        job.lookup("looked", read, told, on="user", within="1 min"),
        job.keyed("spend", spend, **by, on_timer=quiet, ttl={"total": "90 s"}),
        job.keyed("recent", recent, **by, ttl="90 s"),
    ]
    for number, task in enumerate(made):
        job.output(f"out{number}", blackhole(), after=task)
    return job.spec()


def rows_of(rng: random.Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Rows of two inputs, in some disorder. Some come far too late; after a pause nothing is left open but what never closes."""
    found = []
    now = 0
    for _ in range(count):
        now += 60 if rng.random() < 0.01 else rng.randint(0, 2)
        late = rng.choice([30, 90, 600]) if rng.random() < 0.05 else rng.randint(0, 10)
        row = {
            "user": rng.randint(0, 11),
            "n": rng.randint(0, 60),
            "at": (START + timedelta(seconds=now - late)).isoformat(),
        }
        found.append((rng.choice(["read", "read", "told"]), row))
    return found


def feed(run: ClockedRun, rows: Sequence[tuple[str, dict[str, Any]]], rng: random.Random, *, crashes: bool) -> None:
    at = 0
    while at < len(rows):
        part = rows[at : at + rng.randint(5, 80)]
        at += len(part)
        for source in INPUTS:
            if own := [row for to, row in part if to == source]:
                run.give(source, own)
        if crashes and rng.random() < 0.3:
            run.crash(rng.choice(["hops", "visits", "lists", "meet", "looked", "spend", "forgotten"]))


def found(runs: Sequence[ClockedRun], spec: JobSpec) -> dict[str, Counter[Any]]:
    """What all runs together gave, by task with state."""
    tasks = [task.name for task in spec.catalog if task.type == "function"]
    given = {name: sum((results(run, name) for run in runs), Counter()) for name in tasks}
    last: dict[Any, Any] = {}
    for row in given[DEDUPED]:
        said = dict(row)
        window = said["user"], said["window_start"]
        last[window] = max(last.get(window, (-1, "", "")), (int(said["pane"]), said["rows"], said["n"]))
    given[DEDUPED] = Counter({(window, *said[1:]): 1 for window, said in last.items()})
    return given


class _Here:
    """Functions with keyed state, called in this process."""

    def __init__(self, task: TaskSpec) -> None:
        assert task.keyed is not None
        names = task.fn, task.keyed.on_timer
        functions = [None if name is None else import_function(str(name)) for name in names]
        self.signature = signature_of(task.keyed, *functions)
        self._function = KeyedFunction(self.signature, *functions, {})

    def __call__(self, works: Sequence[Work]) -> list[Done]:
        dones = [self._function.run(work) for work in works]
        return [done._replace(results=pa.Table.from_pylist(done.results)) for done in dones]


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "functions", [])
    monkeypatch.setattr(preparation, "_within", lambda _, task, *__, **___: None if task.keyed is None else _Here(task))


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("seed", range(histories(1, whole=3)))
def test_jobs_with_other_numbers_of_partitions_give_what_one_job_gives(seed: int) -> None:
    """Three jobs follow each other, and each has another number of partitions. Together they give what one gives that was never
    stopped. Peers crash.
    """
    rng = random.Random(seed)
    rows = rows_of(rng, 300)
    cuts = [0, *sorted(rng.sample(range(20, 280), 2)), len(rows)]
    numbers = rng.sample([1, 2, 3, 4, 7], 3)
    spec = a_job("whole", 2)
    runs: list[ClockedRun] = []
    with ExitStack() as stack:
        whole = stack.enter_context(closing(job_run(spec, INPUTS)))
        feed(whole, rows, random.Random(0), crashes=False)
        whole.end()
        for number, first, last in zip(numbers, cuts, cuts[1:], strict=False):
            spec = a_job(f"part{number}", number)
            run = resumed(runs[-1], spec, inputs=INPUTS) if runs else job_run(spec, INPUTS)
            runs.append(stack.enter_context(closing(run)))
            feed(run, rows[first:last], rng, crashes=True)
        runs[-1].end()
        expected, given = found([whole], spec), found(runs, spec)
        for task, counter in expected.items():
            assert given[task] == counter, (seed, numbers, task)


# Windows that overlap: a shard remembers which of them have given their results

HOPS = a_job("hops", 1).task("hops").window
SECOND = 1_000_000


class Hops:
    """A shard of overlapping windows, and its log."""

    def __init__(self) -> None:
        assert HOPS is not None
        rows = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("t", pa.int64())])
        self.store = MemoryStore(entry_schema(HOPS, ["user"], rows))
        self.log: list[pa.Table] = []
        self.schema = rows

    def plan(
        self, rows: list[dict[str, int]], clock: int, in_force: int = NEVER, limit: int | None = None
    ) -> Counter[Any]:
        assert HOPS is not None
        shard = WindowShard(HOPS, ["user"], self.store, lambda rows: rows["t"].to_numpy())
        pieces = [Piece(pa.Table.from_pylist(rows, self.schema), in_force)] if rows else []
        planned = shard.plan(pieces, clock, limit)
        self.store.apply(planned.changes)
        self.log.append(planned.changes)
        return Counter(tuple((name, str(value)) for name, value in row.items()) for row in planned.results.to_pylist())


def parted(old: Sequence[Hops], count: int) -> list[Hops]:
    """The shards of a job with so many partitions that goes on from these."""
    found = [Hops() for _ in range(count)]
    for number, new in enumerate(found):
        share = share_of(a_job("hops", 1).task("hops"), count)(number)
        for shard in old:
            share.begin(0)
            for changes in shard.log:
                taken = share.takes(changes)
                new.store.apply(taken)
                new.log.append(taken)
        share.finish({"windows": new.store})
        new.log.append(new.store.scan().append_column(GONE, pa.array([False] * len(new.store), pa.bool_())))
    return found


def owner(user: int, count: int) -> int:
    return zlib.crc32(canonical(user)) % count


def test_windows_that_overlap_give_one_result_though_shards_had_come_more_or_less_far(seed: int) -> None:
    """Also if one had given only some results of a window, and if the number of partitions changes twice: always the results that
    the first shards would have given if they had gone on.
    """
    rng = random.Random(seed)

    def rows_at(clock: int, users: Sequence[int]) -> list[dict[str, int]]:
        return [
            {"user": rng.choice(users), "n": 1, "t": clock + rng.randint(-100, 150) * SECOND}
            for _ in range(rng.randint(0, 8) if users else 0)
        ]

    for _ in range(10):
        first, *numbers = (rng.randint(1, 4) for _ in range(3))
        old = [Hops() for _ in range(first)]
        reached = [0] * first
        for place, shard in enumerate(old):
            for _ in range(rng.randint(0, 4)):
                before = reached[place]
                reached[place] += rng.choice([0, 15, 90, 200]) * SECOND
                shard.plan(rows_at(before, [u for u in range(8) if owner(u, first) == place]), reached[place], before)
        clock, shards, given, expected = min(reached), old, Counter[Any](), Counter[Any]()
        in_part = rng.random() < 0.5
        if in_part:  # what is left to give comes before any other row
            clock = max(reached) + 60 * SECOND
            for shard in old:
                shard.plan([], clock, limit=rng.choice([1, 2, None]))
        for number in numbers:
            shards = parted(shards, number)
            if in_part:
                given += sum((shard.plan([], clock) for shard in shards), Counter())
                expected += sum((shard.plan([], clock) for shard in old), Counter())
            for _ in range(rng.randint(0, 3)):
                before = clock
                clock += rng.choice([0, 15, 90]) * SECOND
                rows = rows_at(before, range(8))
                for found, count in ((shards, number), (old, first)):
                    for place, shard in enumerate(found):
                        mine = [row for row in rows if owner(row["user"], count) == place]
                        results = shard.plan(mine, clock, before)
                        given, expected = (
                            (given + results, expected) if found is shards else (given, expected + results)
                        )
        given += sum((shard.plan([], END) for shard in shards), Counter())
        expected += sum((shard.plan([], END) for shard in old), Counter())
        assert given == expected, (seed, first, numbers)


# What else is put together, and what is refused


def test_the_types_of_states_are_those_of_all_shards() -> None:
    """A change has added a state, and one shard has written since. What is not known of a shard makes nothing."""
    task = a_job("typed", 2).task("spend")
    shapes = [{"total:": "int"}, {"total:": "int", "last:": "list"}, {}]
    share, store = share_of(task, 1)(0), MemoryStore(keyed_schema())
    for shape in shapes:
        share.begin(0)
        if shape:
            row = {KEY: SHAPE, VALUE: msgspec.msgpack.encode(shape), GONE: False}
            store.apply(share.takes(pa.Table.from_pylist([row], store.schema.append(pa.field(GONE, pa.bool_())))))
    share.finish({"keyed": store})
    (value,) = store.scan()[VALUE].to_pylist()
    assert msgspec.msgpack.decode(value) == shapes[1]


def a_graph() -> JobSpec:
    job = Job("walk", partitions=2)
    edges = kafka("edges", schema="a string, b string, at timestamp", start="earliest")
    read = job.input("read", edges, time=event_time("at"))
    graph = job.graph("net", edges=read, source="a", target="b", window=tumbling("1 h"))
    job.output("out", blackhole(), after=graph.pagerank("ranks"))
    return job.spec()


def test_states_that_are_not_kept_by_key_do_not_move() -> None:
    """And no state does by the rules of the release before, so that its logs are decided as they were."""
    spec = a_job("old", 2)
    before = Predecessor(spec, "running").once_ended()
    other = replace(spec, partitions=3)
    assert list(resume_problems("old-1", before, other)) == []
    problems = list(resume_problems("old-1", before, other, reshards=False))
    assert {each.task for each in problems} == {task.name for task in spec.catalog if stateful(task)}
    assert all("some coordinators are of a release" in each.cause for each in problems)
    graph = a_graph()
    (problem,) = resume_problems("old-1", Predecessor(graph, "running").once_ended(), replace(graph, partitions=3))
    assert "its graph cannot be divided" in problem.cause
    assert problem.failure("old-1").code == "SX-JOB-RESUME"
