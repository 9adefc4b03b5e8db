"""Versions of a job follow each other that wait longer or shorter for late rows, over one state: no window gives two results."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from peer.window_split import WindowSplit
from sardonyx import Count, Job, blackhole, event_time, hopping, kafka, session, tumbling
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.graph import graph_of
from sardonyx.core.joining import RelationSpec
from sardonyx.core.spec import JobSpec
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.state.columns import SLICE
from sardonyx.state.memory import MemoryStore
from sardonyx.state.sides import LEFT, RIGHT
from sardonyx.state.times import InForce, times_of
from sardonyx.state.windows import Piece, WindowShard, entry_schema
from tests.core import test_distinct, test_joins, test_lookups
from tests.core.relation_histories import Block, Run, chance_of, counted, log
from tests.core.test_going_back import job_run, resumed
from tests.sizes import as_asked, histories

SEED = int(os.environ.get("SARDONYX_SEED", "20261130"))
HISTORIES = as_asked(25, whole=30)
COUNT = {"hits": AggregateSpec(of="count"), "ids": AggregateSpec(of="collect", column="id")}
KINDS: dict[str, WindowSpec] = {
    "tumbling": WindowSpec(kind="tumbling", size=10, aggregate=COUNT),
    "hopping": WindowSpec(kind="hopping", size=20, every=5, aggregate=COUNT),
    "corrected": WindowSpec(kind="hopping", size=20, every=5, aggregate=COUNT, emit="changes"),
    "session": WindowSpec(kind="session", gap=5, aggregate=COUNT),
    "divided": WindowSpec(kind="session", gap=5, most=12, aggregate=COUNT),
    "rows": WindowSpec(kind="tumbling", size=10),
    "counted": WindowSpec(kind="counted", size=3, aggregate=COUNT),
}
ROWS = pa.schema([("key", pa.string()), ("at", pa.int64()), ("id", pa.int64())])
Row = dict[str, Any]


class History:
    """A shard of windows that one version after another goes on with: what came, what was late, and what it gave."""

    def __init__(self, kind: str, seed: str) -> None:
        self.kind, self.chance = kind, random.Random(seed)
        self.window = KINDS[kind]
        self.store = MemoryStore(entry_schema(self.window, ["key"], ROWS))
        self.came: dict[int, Row] = {}
        self.late: set[int] = set()
        self.given: list[Row] = []
        self.by_row = self.chance.random() < 0.4
        """Whether it is known which clock is in force before each row: it may be ahead of what is stated."""
        self.reached = NEVER
        self.plans = 0
        self._version()

    def _version(self) -> None:
        """Another version of the job goes on."""
        kept = self.chance.choice([0, 0, 8, 40]) if self.kind == "corrected" else 0
        self.window = replace(KINDS[self.kind], grace=self.chance.choice([0, 3, 12, 40]), allowed_lateness=kept)
        self.shard = WindowShard(self.window, ["key"], self.store, lambda rows: times_of(rows["at"], ordinal=True)[0])
        self.kept = kept

    def play(self) -> None:
        now, clock = 100, NEVER
        for _ in range(self.chance.randint(3, 15)):
            pieces, ids = [], []
            for _ in range(self.chance.randint(0, 2)):
                rows = []
                for _ in range(self.chance.choice([1, 3, 6])):
                    now += self.chance.choice([0, 1, 4])
                    at = now - self.chance.choice([0, 2, 10, 40])
                    rows.append({"key": self.chance.choice("ab"), "at": at, "id": len(self.came)})
                    self.came[len(self.came)] = rows[-1]
                own = [self._reach(clock, now) for _ in rows] if self.by_row else None
                table = pa.Table.from_pylist(rows, ROWS)
                pieces.append(Piece(table, clock, None if own is None else pa.array(own).to_numpy()))
                ids.append([row["id"] for row in rows])
                if self.chance.random() < 0.6:
                    clock = max(clock, now - self.chance.choice([0, 5]))
            self._plan(pieces, ids, clock)
            if self.chance.random() < 0.3:
                self._version()
        self._plan([], [], END)

    def _reach(self, clock: int, now: int) -> int:
        self.reached = max(self.reached, clock, now - self.chance.choice([2, 9, 30]))
        return self.reached

    def _plan(self, pieces: list[Piece], ids: list[list[int]], clock: int) -> None:
        more = True
        while more:
            limit = self.chance.choice([None, 1, 3])
            planned = self.shard.plan(pieces, clock, limit)
            again = self.shard.plan(pieces, clock, limit)
            assert planned.results.equals(again.results), "a plan changes nothing"
            self.store.apply(planned.changes)
            self.late |= {ids[row["piece"]][row["row"]] for row in planned.late.to_pylist()}
            self.plans += 1
            self.given += [row | {"plan": self.plans} for row in planned.results.to_pylist()]
            pieces, ids, more = [], [], planned.more
            if self.chance.random() < 0.1:
                self._version()

    def ids(self) -> Counter[int]:
        """How often each row has counted in a final result, or came out."""
        if not self.window.aggregate:
            return Counter(row["id"] for row in self.given)
        return Counter(one for row in self.given if row["final"] for one in row["ids"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_gives_one_result_whatever_the_versions_of_its_job_wait(kind: str) -> None:
    """Each row counts once in each window, or is late: also rows of windows that had closed for a version that waited less."""
    for number in range(HISTORIES):
        seed = f"{SEED}-{kind}-{number}"
        history = History(kind, seed)
        history.play()
        rows = set(history.came)
        if kind in ("tumbling", "session", "divided", "rows", "counted"):
            assert history.ids() == Counter(rows - history.late), seed
        if kind == "hopping":
            assert set(history.ids()) == rows - history.late, (seed, "a row that is not late counts in some window")
        if kind == "rows":
            plans = {(row["window_start"], row["plan"]) for row in history.given}
            assert len(plans) == len({row["window_start"] for row in history.given}), (seed, "all rows come at once")
        if kind in ("tumbling", "hopping", "session", "divided"):
            for key in "ab":
                ends = [row["window_end"] for row in history.given if row["key"] == key]
                assert ends == sorted(set(ends)), (
                    seed,
                    key,
                    "what ends before a window that has closed has closed, too",
                )
        if kind in ("session", "divided", "rows", "counted"):
            continue
        of: dict[Any, list[Row]] = defaultdict(list)
        for row in history.given:
            of[row["key"], row["window_start"]].append(row)
        for window, results in of.items():
            finals = sum(row["final"] for row in results)  # none, if all rows came to correct a window that had none
            assert finals == 1 or (kind == "corrected" and not finals), (seed, window, results)
            assert [row["pane"] for row in results] == list(range(len(results))), (seed, window)
            for before, after in pairwise(results):
                assert set(before["ids"]) <= set(after["ids"]), (seed, window, "a later result counts what was counted")
        if kind == "corrected":
            counting = {one for results in of.values() for one in results[-1]["ids"]}
            assert counting == rows - history.late, seed


def test_a_shorter_grace_closes_what_has_ended_and_a_longer_one_waits_for_what_has_not() -> None:
    """The clock stands at 30 when the version comes, and at 44 when the next one does."""
    store = MemoryStore(entry_schema(KINDS["tumbling"], ["key"], ROWS))

    def plan(grace: int, clock: int, *at: int, in_force: int = NEVER) -> tuple[list[Row], list[Row]]:
        window = replace(KINDS["tumbling"], grace=grace)
        shard = WindowShard(window, ["key"], store, lambda rows: times_of(rows["at"], ordinal=True)[0])
        rows = pa.Table.from_pylist([{"key": "a", "at": each, "id": each} for each in at], ROWS)
        planned = shard.plan([Piece(rows, in_force)] if at else [], clock)
        store.apply(planned.changes)
        return planned.results.select(["ids"]).to_pylist(), planned.late.to_pylist()

    assert plan(40, 30, 5, 15, 25, 35) == ([], [])
    assert plan(2, 30) == ([{"ids": [5]}, {"ids": [15]}], [])
    assert plan(2, 44) == ([{"ids": [25]}, {"ids": [35]}], [])
    # 40 has closed for the version that waited 2; 41 to 50 has not, and is waited for
    results, late = plan(40, 60, 39, 43, in_force=44)
    assert results == []
    assert [(row["window_end"], row["late_by"]) for row in late] == [(40, 2)]
    assert plan(40, 89) == ([], [])
    assert plan(40, 90) == ([{"ids": [43]}], [])


def test_a_version_that_corrects_no_more_forgets_what_was_kept_for_that() -> None:
    """Else it would be in the state for all time."""
    shorter = replace(KINDS["corrected"], allowed_lateness=0)
    store = MemoryStore(entry_schema(shorter, ["key"], ROWS))
    rows = Piece(pa.Table.from_pylist([{"key": "a", "at": 5, "id": 1}], ROWS), NEVER)
    for window, pieces in ((replace(shorter, allowed_lateness=100), [rows]), (shorter, []), (shorter, [])):
        shard = WindowShard(window, ["key"], store, lambda rows: times_of(rows["at"], ordinal=True)[0])
        store.apply(shard.plan(pieces, 50).changes)
    assert len(store) == 2, "how long it waits, and up to when windows have closed"


# --- Joins and the like ---

GRACES = [0, 4, 15]


def versions(chance: random.Random, spec: RelationSpec, shard_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a shard with a grace of its own each time that another peer goes on."""

    def make(store: Any) -> Any:
        return shard_of(replace(spec, grace=chance.choice(GRACES)))(store)

    return make


def numbered(blocks: list[Block]) -> list[Block]:
    """No two rows are equal."""
    for number, row in enumerate(row for block in blocks for row in block.rows):
        row["v"] = number
    return blocks


def on_time(run: Run, logs: tuple[list[Block], list[Block]]) -> tuple[list[Row], list[Row]]:
    late = set(run.late)
    return tuple(  # type: ignore[return-value]
        [row for block in each for row in block.rows if (side, tuple(row.items())) not in late]
        for side, each in enumerate(logs)
    )


@pytest.mark.parametrize("kind", [test_joins, test_lookups])
def test_rows_that_are_not_late_find_their_partners_whatever_the_versions_wait(kind: Any) -> None:
    """A row that comes when its partners were forgotten, by the grace of an earlier version, is late."""
    for number in range(HISTORIES):
        chance = chance_of(f"{SEED}/{number}")
        spec = kind.spec_of(chance)
        logs = numbered(log(chance, LEFT)), numbered(log(chance, RIGHT))
        for each in logs:  # the names of columns depend on which the left side has
            each[0].rows.insert(0, {"k": "z", "t": 10**6, "v": -1, "extra": "x"})
        first = [logs[LEFT][0], logs[RIGHT][0]]
        rest = [*logs[LEFT][1:], *logs[RIGHT][1:]]
        order = sorted(rest, key=lambda block: block.in_force)  # each log stays in its order
        run = Run(versions(chance, spec, kind.shard_of), [*first, *order], chance, 2)
        assert counted(run.results) == counted(kind.twin(spec, on_time(run, logs))), (number, spec)


def test_of_near_rows_one_passes_whatever_the_versions_wait() -> None:
    """A row whose twin was forgotten is late."""
    for number in range(HISTORIES):
        chance = chance_of(f"{SEED}/{number}")
        spec = RelationSpec(kind="distinct", within=chance.choice([0, 4, 30]), grace=0)
        blocks = numbered(log(chance, 0))
        run = Run(versions(chance, spec, test_distinct.shard_of), blocks, chance, 1)
        rows, _ = on_time(run, (blocks, []))
        wanted, _ = test_distinct.twin(spec, [Block(0, rows, NEVER, END)])
        assert counted(run.results) == counted(wanted), (number, spec)


# --- Jobs ---

START = datetime(2026, 11, 26, 10, tzinfo=UTC)
WINDOWS = ("minutes", "hops", "visits", "fixed")


def a_job(name: str, partitions: int, grace: str) -> JobSpec:
    job = Job(name, partitions=partitions)
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka("given", schema=schema, start="earliest"), time=event_time("at"))
    by: dict[str, Any] = {"after": read, "group_by": "user", "aggregate": {"hits": Count()}}
    tasks = [
        job.window("minutes", tumbling("1 min"), **by, grace=grace),
        job.window("hops", hopping("2 min", "1 min"), **by, grace=grace),
        job.window("visits", session("20 s"), **by, grace=grace),
        job.window("fixed", tumbling("1 min"), **by, emit="changes", allowed_lateness=grace),
        job.distinct("seen", after=read, by="n", within="1 min", grace=grace),
    ]
    for number, task in enumerate(tasks):
        job.output(f"out{number}", blackhole(), after=task)
    return job.spec()


@pytest.mark.parametrize("seed", range(histories(1, whole=6)))
def test_the_next_job_waits_longer_and_opens_no_window_again(seed: int) -> None:
    """With any number of partitions. Each row of the two jobs counts, or is late, and no record passes ``distinct`` twice."""
    rng = random.Random(seed)

    def rows(first: int, count: int) -> list[Row]:
        found = []
        for second in range(first, first + 2 * count, 2):
            late = rng.choice([0, 0, 0, 30, 100])
            at = (START + timedelta(seconds=second - late)).isoformat()
            found.append({"user": rng.randint(0, 3), "n": (second - late) // 2, "at": at})
        return found

    runs: list[Any] = []
    given = [rows(120 * number, 60) for number in range(3)]
    with ExitStack() as stack:
        for number, (waits, partitions) in enumerate(
            zip(("1 s", "90 s", "10 min"), rng.sample([1, 2, 3], 3), strict=True)
        ):
            spec = a_job(f"part{number}", partitions, waits)
            runs.append(
                stack.enter_context(
                    closing(resumed(runs[-1], spec, inputs={"read": 1}) if runs else job_run(spec, {"read": 1}))
                )
            )
            for place in range(0, 60, 15):
                runs[-1].give("read", given[number][place : place + 15])
            runs[-1].crash(rng.choice(WINDOWS))
        runs[-1].end()
        late = {name: sum(run.counts(name).late for run in runs) for name in (*WINDOWS, "seen")}
        results = {name: [row for run in runs for row in run.rows(name)] for name in (*WINDOWS, "seen")}
    assert all(late.values())
    for name in ("minutes", "visits"):
        assert sum(row["hits"] for row in results[name]) + late[name] == 180, name
    for name in ("minutes", "hops", "visits", "fixed"):
        finals = Counter((row["user"], row["window_start"]) for row in results[name] if row["final"])
        assert set(finals.values()) == {1}, name
    panes = Counter((row["user"], row["window_start"], row["pane"]) for row in results["fixed"])
    assert set(panes.values()) == {1}
    latest = {(row["user"], row["window_start"]): row["hits"] for row in results["fixed"]}
    assert sum(latest.values()) + late["fixed"] == 180
    passed = Counter(row["n"] for row in results["seen"])
    assert set(passed.values()) == {1}


def test_rows_that_only_an_earlier_version_calls_late_are_kept_as_late_rows() -> None:
    """Where the clock before each row is known: they are not combined with others, which could only be counted."""
    job = Job("j", partitions=1)
    read = job.input("read", kafka("given", schema="user long, at timestamp"), time=event_time("at"))
    given: dict[str, Any] = {"group_by": "user", "aggregate": {"hits": Count()}}
    job.window("w", tumbling("1 min"), after=read, **given, grace="1 h", late="dead_letter")
    job.output("out", blackhole(), after="w")
    (link,) = graph_of(job.spec(), "", "").stage("w").ingress
    times = pa.array([10_000_000, 200_000_000])
    rows = pa.table({"user": [1, 1], "at": times.cast(pa.timestamp("us", "UTC"))})
    clocks = pa.array([100_000_000, 100_000_000]).to_numpy()
    parts = list(WindowSplit(link, 1).split(rows, InForce(100_000_000, clocks)))
    assert [(SLICE in part.rows.column_names, part.rows.num_rows) for part in parts] == [(True, 1), (False, 1)]
