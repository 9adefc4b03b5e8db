"""A topic of one partition gives the same rows however it is cut into batches: one by one as they come, or at once later."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from peer import preparation
from queues import block
from sardonyx import Collect, Count, Job, State, Timer, Timers, calendar, event_time, hopping, kafka, session, tumbling
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.clocks import NEVER
from sardonyx.core.graph import Stage
from sardonyx.core.spec import TaskSpec
from sardonyx.runtime.functions import import_function
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import Done, Work
from sardonyx.state.signature import signature_of
from sardonyx.testing import ClockedRun
from spark_tasks.applied import Applied, Function, NoFunction
from tests.sizes import histories

Begin = Callable[..., ClockedRun]
Rows = list[dict[str, Any]]

WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (tumbling("10 s"), {}),
    "grace": (tumbling("10 s"), {"grace": "3 s"}),
    "corrected": (tumbling("10 s"), {"allowed_lateness": "12 s"}),
    "hopping": (hopping("20 s", "5 s"), {}),
    "calendar": (calendar("hour", zone="Europe/Berlin"), {}),
    "session": (session("4 s"), {}),
    "session-grace": (session("4 s"), {"grace": "3 s"}),
}


def job_of(kind: str, *, edge: bool) -> Job:
    job = Job("cut", partitions=2)
    read = job.input(
        "read",
        kafka("in", schema="k string, at timestamp, n bigint", start="earliest"),
        time=event_time("at", delay="2 s"),
    )
    if kind in WINDOWS:
        windows, more = WINDOWS[kind]
        aggregate = {"n": Count(), "of": Collect("n")}
        task = job.window("task", windows, after=read, group_by="k", aggregate=aggregate, **more)
    elif kind == "distinct":
        task = job.distinct("task", after=read, by="k", within="5 s")
    else:
        task = job.latest("task", after=read, group_by="k", within="5 s")
    job.output("out", kafka("out"), after=task)
    if edge:
        job.output("late", kafka("late"), after=task.late)
    return job


def disordered(chance: random.Random, count: int) -> Rows:
    """Rows of which some come after much later ones, and in the middle one of the beginning."""
    seconds, now, step = list[float](), 0.0, chance.choice([0.3, 1.0, 300.0])
    for number in range(count):
        now += chance.random() * step * (10 if chance.random() < 0.1 else 1) + (10_000 if number == count // 3 else 0)
        back = chance.choice([0, 0, 0, 1, 5, 20]) * chance.random() * max(step, 1)
        seconds.append(0.0 if number == count // 2 else max(now - back, 0.0))
    return [{"k": chance.choice("abc"), "at": _moment(second), "n": n} for n, second in enumerate(seconds)]


def _moment(second: float) -> str:
    second = round(second, 3)  # before it is divided: 59.9996 is a minute
    return f"2026-11-{23 + int(second) // 86400}T{int(second) // 3600 % 24:02}:{int(second) // 60 % 60:02}:{second % 60:06.3f}"


def outcome(run: ClockedRun, *, edge: bool) -> tuple[Counter[str], int, Counter[str]]:
    """The rows that come out at last, how many are late, and which those are, if they go over an edge."""
    rows = [row | {"pane": 0} for row in run.rows("out") if row.get("final", True)]
    rows = [row | {"of": sorted(row["of"])} if "of" in row else row for row in rows]
    return Counter(map(repr, rows)), run.counts("task").late, Counter(map(repr, run.rows("late") if edge else []))


@pytest.mark.parametrize("kind", [*WINDOWS, "distinct", "latest"])
def test_the_same_rows_come_out_and_are_late_however_a_topic_is_cut(
    kind: str, sardonyx_clocked: Begin, seed: int
) -> None:
    chance = random.Random(f"{seed}/{kind}")
    edge, rows = chance.random() < 0.5, disordered(chance, 60)
    one_by_one = sardonyx_clocked(job_of(kind, edge=edge), batch_size=1)
    for row in rows:
        one_by_one.give("read", [row])
    one_by_one.end()
    wanted = outcome(one_by_one, edge=edge)
    assert wanted[1] + wanted[2].total() > 0, "a row is late"
    for most in (len(rows), 20):
        run, left = sardonyx_clocked(job_of(kind, edge=edge), batch_size=chance.choice([3, 10, 100])), list(rows)
        while left:
            size = most if most == len(rows) else chance.randint(1, most)
            run.give("read", left[:size])
            left = left[size:]
            if chance.random() < 0.3:
                run.crash(chance.choice(["read", "task"]), chance.choice(["settled", "applied", "committed"]))
        run.end()
        assert outcome(run, edge=edge) == wanted


def test_a_graph_has_the_same_versions_however_a_topic_is_cut(sardonyx_clocked: Begin, seed: int) -> None:
    """A late row is in the first version that had not ended when it came."""
    job = Job("cut", partitions=2)
    schema = "a bigint, b bigint, at timestamp"
    read = job.input("read", kafka("in", schema=schema, start="earliest"), time=event_time("at", delay="2 s"))
    graph = job.graph("web", edges=read, source="a", target="b", window=tumbling("10 s"))
    job.output("out", kafka("out"), after=graph.degrees("task"))
    rows = [
        {"a": row["n"] % 7, "b": row["n"] % 5, "at": row["at"]}
        for row in disordered(random.Random(f"{seed}/graph"), 40)
    ]
    found = []
    for cuts in ([[row] for row in rows], [rows]):
        run = sardonyx_clocked(job)
        for cut in cuts:
            run.give("read", cut)
        run.end()
        found.append(sorted(map(repr, run.rows("out"))))
    assert found[0] == found[1]


def joined(kind: str) -> Job:
    job = Job("cut", partitions=2)
    left, right = (
        job.input(
            name,
            kafka(name, schema="k string, at timestamp, n bigint", start="earliest"),
            time=event_time("at", delay="2 s"),
        )
        for name in ("left", "right")
    )
    if kind == "lookup":
        task = job.lookup("task", left, right, on="k", grace="1 s")
    else:
        task = job.join("task", left, right, on="k", within="5 s", how="left" if kind == "left" else "inner")
    job.output("out", kafka("out"), after=task)
    job.output("late", kafka("late"), after=task.late)
    return job


@pytest.mark.parametrize("kind", ["inner", "left", "lookup"])
def test_joins_and_lookups_meet_the_same_rows_however_both_topics_are_cut(
    kind: str, sardonyx_clocked: Begin, seed: int
) -> None:
    """The rows of each side are judged by its own clock, and which side is read first makes no difference."""
    chance = random.Random(f"{seed}/{kind}")
    sides = {name: disordered(chance, 30) for name in ("left", "right")}
    found = []
    for most, batch in ((1, 1), (30, None), (12, chance.choice([3, 100]))):
        run, left = sardonyx_clocked(joined(kind), batch_size=batch), dict(sides)
        while any(left.values()):
            side = chance.choice([name for name, rows in left.items() if rows])
            size = most if most != 12 else chance.randint(1, most)
            run.give(side, left[side][:size])
            left[side] = left[side][size:]
            if most == 12 and chance.random() < 0.3:
                run.crash(chance.choice(["left", "right", "task"]), chance.choice(["settled", "applied", "committed"]))
        run.end()
        found.append([Counter(map(repr, run.rows(name))) for name in ("out", "late")])
    assert found[0][1], "a row is late"
    assert found[1] == found[0]
    assert found[2] == found[0]


def confirm(row: dict, waiting: State[int], timers: Timers, within: int = 3600) -> None:
    """Of docs/state.md: what no user confirms within an hour is looked at."""
    if row["n"] < 0:
        timers.delete("review")
        waiting.clear()
    else:
        waiting.value = row["n"]
        timers.set(row["at"] + timedelta(seconds=within), "review")


def review(timer: Timer, waiting: State[int]) -> dict:
    return {"k": timer.key, "at": timer.at, "n": waiting.value}


def first_of_the_day(row: dict, seen: State[bool]) -> dict | None:
    """Of docs/state.md."""
    if seen.exists:
        return None
    seen.value = True
    return row


def tables(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the first row of each key that has no state yet, and the state with these keys."""
    known, first = {row["k"] for row in state.to_pylist() if row["seen"]}, []
    for key in rows["k"].to_pylist():
        first.append(key not in known)
        known.add(key)
    new = state.set_column(state.column_names.index("seen"), "seen", pa.array([True] * state.num_rows))
    return rows.filter(pa.array(first)), new


class Here:
    """The functions of a task with keyed state. They run here, where on a cluster Spark's workers run them."""

    worked = waited = 0.0

    def __init__(self, _spark: object, task: TaskSpec, _retried: object, *, isolate: bool) -> None:
        assert task.keyed is not None
        assert not isolate
        fn = import_function(str(task.fn))
        on_timer = None if task.keyed.on_timer is None else import_function(task.keyed.on_timer)
        declared = None if task.keyed.state is None else arrow_schema(task.keyed.state)
        self.signature = signature_of(task.keyed, fn, on_timer, declared)
        self._function = KeyedFunction(self.signature, fn, on_timer, task.params)

    def __call__(self, works: Sequence[Work]) -> list[Done]:
        dones = map(self._function.run, works)
        return [
            done if isinstance(done.results, pa.Table) else done._replace(results=pa.Table.from_pylist(done.results))
            for done in dones
        ]


@pytest.fixture
def begin(sardonyx_clocked: Begin, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """As ``sardonyx_clocked``, without Spark."""
    monkeypatch.setattr(Stage, "functions", [])
    monkeypatch.setattr(preparation, "_within", lambda *given, **more: Here(*given, **more) if given[1].keyed else None)
    return sardonyx_clocked


def keyed_job(fn: Any, **keyed: Any) -> Job:
    job = Job("keyed", partitions=2)
    read = job.input(
        "read",
        kafka("in", schema="k string, at timestamp, n bigint", start="earliest"),
        time=event_time("at", delay="5 s"),
    )
    job.output("out", kafka("out"), after=job.keyed("task", fn, after=read, group_by="k", **keyed))
    return job


def given_in(run: ClockedRun, cuts: list[Rows]) -> list[str]:
    for rows in cuts:
        run.give("read", rows)
    run.end()
    return sorted(map(repr, run.rows("out")))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_timer_fires_before_a_row_that_would_cancel_it(at_once: bool, begin: Begin) -> None:
    """Set by a row of 12:00 for 13:00. By the row of 15:00, the clock has passed it: with a row of 14:00 of another key."""
    times = [("ada", 12, 1), ("bob", 14, 1), ("ada", 15, -1), ("bob", 14.5, -1)]
    rows = [{"k": user, "at": _moment(hour * 3600), "n": n} for user, hour, n in times]
    run = begin(keyed_job(confirm, on_timer=review))
    assert [eval(each)["k"] for each in given_in(run, [rows] if at_once else [[row] for row in rows])] == ["ada"]  # noqa: S307


@pytest.mark.parametrize("at_once", [False, True])
def test_the_table_of_the_page_on_state(at_once: bool, begin: Begin) -> None:
    """It is what a topic gives, however its rows come: three results."""
    hours = [("ada", 12), ("ada", 15), ("bob", 36.5), ("ada", 36 + 2 / 3)]
    rows = [{"k": user, "at": _moment(hour * 3600), "n": n} for n, (user, hour) in enumerate(hours)]
    run = begin(keyed_job(first_of_the_day, ttl="24 h"))
    found = given_in(run, [rows] if at_once else [[row] for row in rows])
    assert sorted(eval(each)["n"] for each in found) == [0, 2, 3]  # noqa: S307


@pytest.mark.parametrize("kind", ["timers", "ttl", "tables"])
def test_timers_and_what_is_forgotten_do_not_depend_on_cuts(kind: str, begin: Begin, seed: int) -> None:
    chance = random.Random(f"{seed}/{kind}")
    rows = [row | {"n": row["n"] * chance.choice([1, 1, -1])} for row in disordered(chance, 60)]
    job: Callable[[], Job] = {
        "timers": lambda: keyed_job(confirm, on_timer=review, params={"within": 5}),
        "ttl": lambda: keyed_job(first_of_the_day, ttl="20 s"),
        "tables": lambda: keyed_job(tables, ttl="20 s", state="seen boolean"),
    }[kind]
    wanted = given_in(begin(job(), batch_size=1), [[row] for row in rows])
    for _ in range(histories(1, whole=2)):
        cuts = sorted(chance.sample(range(1, 60), chance.randint(0, 6)))
        parts = [rows[start:stop] for start, stop in zip([0, *cuts], [*cuts, 60], strict=True)]
        assert given_in(begin(job(), batch_size=chance.choice([10, 100])), parts) == wanted


class Twice(NoFunction):
    """A function of records that leaves out one in three, and gives the others twice; or one of tables that adds a column."""

    def __init__(self, *, records: bool) -> None:
        self.records = records

    def apply(self, table: pa.Table, *, traced: bool = False) -> Applied:
        assert traced
        if not self.records:
            return Applied(table.append_column("more", table["n"]))
        origins = [row for row, n in enumerate(table["n"].to_pylist()) if n % 3 != 1 for _ in range(2)]
        return Applied(table.take(pa.array(origins, pa.int64())), origins=origins)


@pytest.mark.parametrize("records", [True, False])
def test_rows_that_a_function_has_made_are_judged_by_the_clock_before_their_records(
    records: bool, begin: Begin, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{seed}/{records}")
    rows = disordered(chance, 60)
    function = preparation._function

    def made(spark: Any, stage: Stage, *more: Any, **given: Any) -> Function:
        return Twice(records=records) if stage.name == "read" else function(spark, stage, *more, **given)

    monkeypatch.setattr(preparation, "_function", made)
    one_by_one = begin(job_of("tumbling", edge=False), batch_size=1)
    given_in(one_by_one, [[row] for row in rows])
    wanted = outcome(one_by_one, edge=False)
    assert wanted[1] > 0, "a row is late"
    at_once = begin(job_of("tumbling", edge=False))
    given_in(at_once, [rows])
    assert outcome(at_once, edge=False) == wanted


def test_blocks_say_the_clocks_of_their_rows(rng: random.Random) -> None:
    """However a table is cut into blocks. A reader that does not ask for clocks reads the same rows, with no further column."""
    clocks = np.sort(np.array([NEVER, NEVER, *(rng.randrange(-(2**62), 2**62) for _ in range(998))]))
    table = pa.table({"n": range(1000)})
    blocks = block.encode(table, max_bytes=3000, clocks=clocks)
    assert len(blocks) > 3
    assert block.decode([each.value for each in blocks]).equals(table)
    read = [block.decode_clocked(each.value) for each in blocks]
    assert pa.concat_tables([rows for rows, _ in read]).equals(table)
    assert np.concatenate([said for _, said in read]).tolist() == clocks.tolist()
    assert block.decode_clocked(block.encode(table)[0].value)[1] is None
