"""A job that a test leads step by step behaves as on a cluster: results come with the clock, and crashes change nothing."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sardonyx import (
    Collect,
    Count,
    Job,
    Max,
    Sum,
    counted,
    event_time,
    every,
    everything,
    hopping,
    kafka,
    session,
    tumbling,
    wall,
)
from sardonyx.core.errors import SardonyxError
from sardonyx.job.windowing import Windows
from sardonyx.testing import ClockedRun, JobResult, run_job

Begin = Callable[..., ClockedRun]
SCHEMA = "user string, at timestamp, ms double"


def traffic(late_to: str | None = None, **window: Any) -> Job:
    job = Job("traffic", partitions=2)
    hits = job.input(
        "hits", kafka("hits", schema=SCHEMA, start="earliest"), time=event_time("at", delay="5 s", idle="1 min")
    )
    per_user = job.window(
        "per-user",
        tumbling("1 min"),
        after=hits,
        group_by="user",
        aggregate={"hits": Count(), "slowest": Max("ms")},
        **({"late": "dead_letter"} | window),
    )
    job.output("out", kafka("out", key="user"), after=per_user)
    if late_to is not None:
        job.output("late", kafka(late_to), after=per_user.late)
    return job


def hit(user: str, at: str, ms: float = 1.0) -> dict[str, Any]:
    return {"user": user, "at": f"2026-11-23T{at}", "ms": ms}


def test_a_minute_closes_when_the_clock_passes_its_end(sardonyx_clocked: Begin) -> None:
    """No result comes before; a crash of the task in between loses nothing; a row after it is late."""
    run = sardonyx_clocked(traffic())
    run.give("hits", [hit("a", "10:00:01", 5.0), hit("a", "10:00:59", 7.0)])
    run.crash("per-user")
    run.clock("hits", "2026-11-23T10:00:59")
    assert run.rows() == []
    run.clock("hits", "2026-11-23T10:01:00")
    (row,) = run.rows()
    assert (row["user"], row["hits"], row["slowest"], row["final"]) == ("a", 2, 7.0, True)
    run.give("hits", [hit("a", "10:00:30")])
    assert [letter.failure.code for letter in run.dead_letters("per-user")] == ["SX-TIME-LATE"]
    assert len(run.rows()) == 1


def test_a_partition_without_rows_holds_the_clock_until_it_is_idle(sardonyx_clocked: Begin) -> None:
    """With `idle="1 min"`, the other partition of the topic counts no more after a minute of the machine's clock."""
    run = sardonyx_clocked(traffic(), topics={"hits": 2})
    run.give("hits", [hit("a", "10:00:30"), hit("a", "10:02:00")])
    run.advance("59 s")
    run.give("hits", [hit("a", "10:02:01")])
    assert run.rows() == []
    run.advance("2 s")
    run.give("hits", [hit("a", "10:02:02")])
    assert [row["hits"] for row in run.rows()] == [1]


def test_a_topic_that_falls_silent_as_a_whole_gives_what_its_rows_have_closed(sardonyx_clocked: Begin) -> None:
    """A partition that never had a row falls silent in the same moment as the others, and holds back no window of theirs."""
    run = sardonyx_clocked(traffic(), topics={"hits": 3})
    for partition in (0, 1):
        run.give("hits", [hit("a", "10:00:30"), hit("a", "10:02:00")], partition)
    assert run.rows() == []
    run.advance("61 s")
    assert [row["hits"] for row in run.rows()] == [2]


@pytest.mark.parametrize("late_to", [None, "late"])
def test_late_rows_are_counted_or_go_over_their_edge(late_to: str | None, sardonyx_clocked: Begin) -> None:
    """A row that comes when its window has closed is dropped and counted, or goes where the job sends late rows."""
    run = sardonyx_clocked(traffic(late_to, late="drop", grace="10 s", allowed_lateness="20 s"))
    run.give("hits", [hit("a", "10:00:30"), hit("a", "10:03:00")])
    run.give("hits", [hit("a", "10:00:40")])
    run.end()
    assert [row["hits"] for row in run.rows("out")] == [1, 1]
    if late_to is None:
        assert run.counts("per-user").late == 1
    else:
        assert [row["at"] for row in run.rows("late")] == ["2026-11-23T10:00:40.000000Z"]
        (late,) = run.late("per-user")
        assert late["window_end"].isoformat() == "2026-11-23T10:01:00+00:00"
        assert late["late_by"] == 105_000_000, "from 10:01:10, the end and `grace`, to the clock, 10:02:55"


def test_the_machine_clock_of_rows_is_the_run_s(sardonyx_clocked: Begin) -> None:
    """`wall` times are those that the test sets."""
    job = Job("wall")
    read = job.input("read", kafka("in", schema="n long", start="earliest"), time=wall("at"))
    counted = job.window("count", tumbling("1 min"), after=read, aggregate={"n": Sum("n")})
    job.output("out", kafka("out"), after=counted)
    run = sardonyx_clocked(job, now=datetime(2026, 11, 23, 10, tzinfo=UTC))
    run.give("read", [{"n": 1}, {"n": 2}])
    run.advance(61)
    assert run.rows() == []
    run.give("read", [{"n": 4}])
    assert [(row["window_start"], row["n"]) for row in run.rows()] == [("2026-11-23T10:00:00.000000Z", 3)]


ENDLESS: dict[str, tuple[Windows, bool]] = {
    "everything": (everything(), False),
    "tumbling": (tumbling("1 h"), True),
    "session": (session("1 h"), True),
    "counted": (counted(100), False),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_results_come_by_the_machine_s_clock(kind: str, seed: int, sardonyx_clocked: Begin) -> None:
    """Every ten seconds of it, of keys that have had rows since: each row once, wherever peers crash."""
    rng = random.Random(f"{seed}/{kind}")
    windows, timed = ENDLESS[kind]
    job = Job("endless", partitions=2)
    time = event_time("at") if timed else None
    read = job.input("read", kafka("in", schema="user string, at timestamp, n long", start="earliest"), time=time)
    sums = job.window(
        "sums",
        windows,
        after=read,
        group_by="user",
        aggregate={"n": Sum("n")},
        emit=every("10 s", by="wall"),
        accumulate=False,
    )
    job.output("out", kafka("out"), after=sums)
    run = sardonyx_clocked(job, now=datetime(2026, 11, 23, 10, tzinfo=UTC))
    given: Counter[str] = Counter()
    for second in range(3, 63, 3):
        run.advance(3)
        crash = rng.choice([None, "settled", "applied", "committed"])
        if crash is not None:
            run.crash("sums", crash)
        before = len(run.rows())
        if second % 10 < 6 and second < 50:
            user, n = rng.choice("ab"), rng.randint(1, 9)
            given[user] += n
            run.give("read", [{"user": user, "at": f"2026-11-23T10:00:{second:02}", "n": n}])
            if second // 10 == (second - 3) // 10:
                assert len(run.rows()) == before, "between two multiples of ten seconds"
    rows = run.rows()
    assert not any(row["final"] for row in rows)
    assert sum((Counter({row["user"]: row["n"]}) for row in rows), Counter()) == given
    for user in given:
        assert [row["pane"] for row in rows if row["user"] == user] == list(
            range(sum(row["user"] == user for row in rows))
        )


def test_state_needs_no_store_outside_of_the_process(sardonyx_clocked: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ``store`` the job names: a test needs neither its packages nor its place."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    run = sardonyx_clocked(traffic(store="rocksdb"))
    run.give("hits", [hit("a", "10:00:30")])
    run.crash("per-user")
    run.end()
    assert [row["hits"] for row in run.rows()] == [1]


@pytest.mark.parametrize("at", ["settled", "applied", "committed"])
@pytest.mark.parametrize("task", ["hits", "per-user"])
def test_a_crash_changes_no_result(at: str, task: str, seed: int, sardonyx_clocked: Begin) -> None:
    """Wherever a peer crashes: each row counts once."""
    rng = random.Random(f"{seed}/{at}/{task}")
    rows = [hit(rng.choice("abc"), f"10:{n // 20:02}:{n % 20 * 3:02}", float(n)) for n in range(200)]
    calm = run_job(traffic(), {"hits": rows})
    run = sardonyx_clocked(traffic(), partitions=3, batch_size=7)
    for begin in range(0, len(rows), 20):
        run.crash(task, at)
        run.give("hits", rows[begin : begin + 20])
    run.end()
    assert run.counts("hits").rows_in == 200
    assert _counted(run.rows()) == _counted(calm.rows())
    assert not run.dead_letters("per-user")


@pytest.mark.parametrize("kind", ["hopping", "session", "changes", "join"])
def test_crashes_change_no_result_of_any_operator(kind: str, seed: int, sardonyx_clocked: Begin) -> None:
    """Random histories, crashes and batches: the final rows are those of a run without crashes, with one partition."""
    rng = random.Random(f"{seed}/{kind}")
    given = {
        name: [
            {"user": rng.choice("abc"), "at": _moment(number + rng.uniform(0, 2)), "n": number} for number in range(60)
        ]
        for name in ("left", "right")
    }
    calm = run_job(operator(kind), given)
    run = sardonyx_clocked(operator(kind), partitions=3, batch_size=rng.choice([3, 10, 100]))
    for begin in range(0, 60, 6):
        if rng.random() < 0.7:
            run.crash(rng.choice(["left", "right", "task"]), rng.choice(["settled", "applied", "committed"]))
        for name in ("left", "right"):
            run.give(name, given[name][begin : begin + 6])
    run.end()
    assert _final(run) == _final(calm)


def operator(kind: str) -> Job:
    job = Job("any", partitions=2)
    left, right = (
        job.input(
            name,
            kafka(name, schema="user string, at timestamp, n long", start="earliest"),
            time=event_time("at", delay="5 s"),
        )
        for name in ("left", "right")
    )
    aggregate = {"rows": Count(), "values": Collect("n")}
    if kind == "join":
        task = job.join("task", left, right, on="user", within=("0 s", "9 s"), how="left")
    else:
        windows = {"hopping": hopping("20 s", "10 s"), "session": session("4 s"), "changes": tumbling("20 s")}[kind]
        emit = "changes" if kind == "changes" else "final"
        task = job.window("task", windows, after=[left, right], group_by="user", aggregate=aggregate, emit=emit)
    job.output("out", kafka("out"), after=task)
    return job


def _moment(second: float) -> str:
    second = round(second, 3)  # before it is divided: 59.9996 is a minute
    return f"2026-11-23T10:{int(second) // 60:02}:{second % 60:06.3f}"


def _final(result: JobResult) -> list[str]:
    rows = [{**row, "pane": None} for row in result.rows() if row.get("final", True)]
    return sorted(repr({**row, "values": sorted(row.get("values", []))}) for row in rows)


def _counted(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["user"], row["window_start"], row["hits"], row["slowest"]) for row in rows)


def test_what_a_test_asks_wrongly_is_told(sardonyx_clocked: Begin) -> None:
    run = sardonyx_clocked(traffic())
    with pytest.raises(SardonyxError, match="no input task 'hit'"):
        run.give("hit", [])
    with pytest.raises(SardonyxError, match="no task 'per_user'"):
        run.crash("per_user")
    job = Job("plain")
    job.output("out", kafka("out"), after=job.input("read", kafka("in", schema="n long", start="earliest")))
    with pytest.raises(SardonyxError, match="no clock") as told:
        sardonyx_clocked(job).clock("read", 5)
    assert told.value.code == "SX-TEST-INPUT"
