"""Keyed state on Spark's workers, through ``run_job``: what functions are given, what they give, and what becomes of errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from peer.peer_metrics import RETRIES
from sardonyx import (
    Count,
    Job,
    JobFailed,
    Key,
    ListState,
    MapState,
    OnError,
    State,
    Timer,
    Timers,
    blackhole,
    kafka,
    tumbling,
)
from sardonyx.testing import run_job

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SCHEMA = "user string, at timestamp, amount bigint"


def rows(*given: tuple[str, int]) -> list[dict[str, Any]]:
    """Rows a minute apart."""
    return [
        {"user": user, "at": NOON + timedelta(minutes=minute), "amount": amount}
        for minute, (user, amount) in enumerate(given)
    ]


def remember(row: dict, total: State[int], seen: ListState[int], most: MapState[str, int], key: Key) -> dict:
    total.value += row["amount"]
    seen.append(row["amount"])
    most["most"] = max(row["amount"], most.get("most", 0))
    if row["amount"] < 0:
        raise ValueError(f"{row['amount']} is negative")
    return {"user": key, "total": total.value, "seen": list(seen), "most": most["most"]}


def later(row: dict, total: State[int], timers: Timers, *, minutes: int) -> dict:
    total.value += row["amount"]
    timers.set(row["at"] + timedelta(minutes=minutes), "sum")
    return {"user": row["user"], "at": row["at"], "total": None}


def tell(timer: Timer, total: State[int]) -> dict:
    if total.value == 13:
        raise ValueError("unlucky")
    return {"user": timer.key, "at": timer.at, "total": total.value}


def running(given: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    if any(amount < 0 for amount in given["amount"].to_pylist()):
        raise ValueError("negative")
    new = given.select(["user", "amount"]).rename_columns(["user", "total"])
    both = pa.concat_tables([state, new]).group_by("user").aggregate([("total", "sum")])
    return given, both.rename_columns(["user", "total"])


def negated(row: dict) -> dict:
    return {**row, "total": -row["total"]}


class Minutes:
    def start(self, context: Any) -> dict[str, int]:
        return {"minutes": 5}


def a_job(fn: Any, **given: Any) -> Job:
    job = Job("keyed", partitions=3)
    read = job.input("read", kafka("t", schema=SCHEMA, start="earliest", end="latest"), time="at")
    spent = job.keyed("spend", fn, after=read, **{"group_by": "user", **given})
    job.output("out", blackhole(), after=spent)
    return job


def test_every_handle_on_a_worker(spark: SparkSession) -> None:
    """In each of several batches a key meets what it has left."""
    given = rows(("a", 1), ("b", 5), ("a", 3), ("a", 2))
    result = run_job(a_job(remember), {"read": given}, batch_size=1, spark=spark)
    assert [row for row in result.rows("spend") if row["user"] == "a"] == [
        {"user": "a", "total": 1, "seen": [1], "most": 1},
        {"user": "a", "total": 4, "seen": [1, 3], "most": 3},
        {"user": "a", "total": 6, "seen": [1, 3, 2], "most": 3},
    ]


def retried(task: str) -> float:
    """How often the metrics say that the function of a task was run again."""
    return sum(each.value for each in RETRIES.taken().series if each.labels["task"] == task)


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_a_record_that_raises_changes_no_state(spark: SparkSession, then: Any) -> None:
    """It is counted or kept, also after it was tried again; the rows after it meet the state as it was."""
    given = rows(("a", 1), ("a", -5), ("a", 3))
    on_error = OnError(retries=1, backoff="1 ms", then=then)
    before = retried("spend")
    result = run_job(a_job(remember, on_error=on_error), {"read": given}, spark=spark)
    assert [row["seen"] for row in result.rows("spend")] == [[1], [1, 3]]
    letters = result.dead_letters("spend") if then == "dead_letter" else []
    assert [(each.record["amount"], each.error, each.attempts) for each in letters] == [(-5, "ValueError", 2)] * len(
        letters
    )
    assert (result.counts("spend").skipped, len(letters)) == ((1, 0) if then == "skip" else (0, 1))
    assert retried("spend") == before + 1


def test_a_record_that_raises_fails_the_job(spark: SparkSession) -> None:
    """With the user's own traceback."""
    with pytest.raises(JobFailed) as caught:
        run_job(a_job(remember), {"read": rows(("a", 1), ("a", -5))}, spark=spark)
    assert caught.value.code == "SX-FN-RAISED"
    assert "-5 is negative" in caught.value.traceback


def test_timers_fire_at_the_end_and_windows_take_their_results(spark: SparkSession) -> None:
    """A result of a timer has the time that it gives itself. What a lifecycle gives is a parameter."""
    job = a_job(later, on_timer=tell, lifecycle=Minutes)
    job.output(
        "days", blackhole(), after=job.window("hour", tumbling("1 h"), after="spend", aggregate={"n": Count("total")})
    )
    result = run_job(job, {"read": rows(("a", 1), ("b", 5), ("a", 3))}, spark=spark)
    told = [row for row in result.rows("spend") if row["total"] is not None]
    assert sorted((row["user"], row["at"].replace(tzinfo=UTC), row["total"]) for row in told) == [
        ("a", NOON + timedelta(minutes=7), 4),
        ("b", NOON + timedelta(minutes=6), 5),
    ]
    assert [row["n"] for row in result.rows("days")] == [2]


def test_a_timer_that_raises_is_a_dead_letter_with_its_key(spark: SparkSession) -> None:
    """It has fired: the others go on."""
    job = a_job(later, on_timer=tell, params={"minutes": 5}, on_error="dead_letter")
    result = run_job(job, {"read": rows(("a", 13), ("b", 5))}, spark=spark)
    (letter,) = result.dead_letters("spend")
    assert (letter.record["user"], letter.record["timer"], letter.error) == ("a", "sum", "ValueError")
    assert [row["total"] for row in result.rows("spend") if row["total"] is not None] == [5]


def test_a_function_of_two_tables(spark: SparkSession) -> None:
    """The state of the keys goes in and comes back; of rows that raise only these are left out."""
    given = rows(("a", 1), ("b", 5), ("a", -1), ("a", 3), ("b", 2))
    job = Job("tables", partitions=3)
    read = job.input("read", kafka("t", schema=SCHEMA, start="earliest", end="latest"), time="at")
    spent = job.keyed("spend", running, after=read, group_by="user", state="total bigint", ttl="1 day", on_error="skip")
    job.output("out", blackhole(), after=spent)
    result = run_job(job, {"read": given}, batch_size=2, spark=spark)
    assert sorted(row["amount"] for row in result.rows("spend")) == [1, 2, 3, 5]
    assert result.counts("spend").skipped == 1


def test_a_task_is_fused_to_one_with_keyed_state(spark: SparkSession) -> None:
    """It works on the results of the batch."""
    job = Job("fused")
    read = job.input("read", kafka("t", schema=SCHEMA, start="earliest", end="latest"), time="at")
    spent = job.keyed("spend", remember, after=read)
    job.output("out", blackhole(), after=job.task("negate", negated, after=spent, fuse=True))
    result = run_job(job, {"read": rows(("a", 1), ("b", 5))}, spark=spark)
    assert [row["total"] for row in result.rows("out")] == [-1, -6]
