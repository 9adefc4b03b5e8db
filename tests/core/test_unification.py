"""One job for batch and stream: with an end it is a batch and equals pandas, without one it gives the same rows as they close."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from sardonyx import Count, Job, Max, Mean, Sum, event_time, everything, files, kafka, ordinal, tumbling
from sardonyx.testing import ClockedRun, run_job

Begin = Callable[..., ClockedRun]
COLUMNS = "user string, at timestamp, n long"
KEY = ["user", "window_start"]
FOUND = [*KEY, "hits", "total", "most", "mean"]
START = pd.Timestamp("2026-11-23 10:00", tz="UTC")
DELAY = 10


@pytest.fixture
def hits(seed: int) -> pd.DataFrame:
    """Hits of half an hour, out of order by less than the delay."""
    rng = random.Random(f"{seed}/unification")
    seconds = [number * 1.5 - rng.uniform(0, DELAY - 1) for number in range(1200)]
    return pd.DataFrame(
        {
            "user": [rng.choice("abcde") for _ in seconds],
            "at": START + pd.to_timedelta(seconds, unit="s").round("us"),
            "n": [rng.randrange(1000) for _ in seconds],
        }
    )


def per_minute(bounded: bool, connector: str = "kafka") -> Job:
    """The one job. Only the input differs between batch and stream, and only by whether it ends."""
    if connector == "files":
        source = files("hits.csv", format="csv", header=True, schema=COLUMNS)
    else:
        source = kafka("hits", schema=COLUMNS, start="earliest", end="latest" if bounded else None)
    job = Job("per-minute", partitions=3)
    read = job.input("read", source, time=event_time("at", delay=f"{DELAY} s", idle="1 min"))
    aggregate = {"hits": Count(), "total": Sum("n"), "most": Max("n"), "mean": Mean("n")}
    counted = job.window("count", tumbling("1 min"), after=read, group_by="user", aggregate=aggregate)
    job.output("out", kafka("out"), after=counted)
    return job


def by_pandas(hits: pd.DataFrame) -> pd.DataFrame:
    groups = hits.assign(window_start=hits["at"].dt.floor("1min")).groupby(KEY)["n"]
    found = groups.agg(hits="count", total="sum", most="max", mean="mean").reset_index()
    return found[FOUND].sort_values(KEY, ignore_index=True)


def given(rows: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(rows)[FOUND].assign(window_start=lambda t: pd.to_datetime(t["window_start"], format="ISO8601"))
    return found.sort_values(KEY, ignore_index=True)


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


@pytest.mark.parametrize("connector", ["kafka", "files"])
def test_with_an_end_the_job_is_a_batch_and_equals_pandas(hits: pd.DataFrame, connector: str) -> None:
    result = run_job(per_minute(True, connector), {"read": hits}, batch_size=100)
    same(given(result.rows()), by_pandas(hits))


def test_without_an_end_it_gives_the_same_rows_as_they_close(hits: pd.DataFrame, sardonyx_clocked: Begin) -> None:
    """Each result comes as soon as the clock has passed its window, and none of them changes later."""
    run = sardonyx_clocked(per_minute(False))
    wanted, before = by_pandas(hits), 0
    for begin in range(0, len(hits), 100):
        run.give("read", hits[begin : begin + 100])
        clock = hits["at"][: begin + 100].max() - pd.Timedelta(seconds=DELAY)
        closed = wanted[wanted["window_start"] + pd.Timedelta(minutes=1) <= clock]
        assert len(closed) >= before
        before = len(closed)
        if before:
            same(given(run.rows()), closed.reset_index(drop=True))
    run.end()
    same(given(run.rows()), wanted)


def test_a_tumbling_window_over_an_ordinal_is_a_window_by_size(sardonyx_clocked: Begin) -> None:
    """`tumbling(1000)` holds a thousand rows, each of them in the order of the topic; the rest comes at the end."""
    job = Job("by-size")
    read = job.input("read", kafka("in", schema="n long", start="earliest"), time=ordinal("nr"))
    counted = job.window("count", tumbling(1000), after=read, aggregate={"rows": Count(), "total": Sum("n")})
    job.output("out", kafka("out"), after=counted)
    run = sardonyx_clocked(job, batch_size=300)
    run.give("read", pd.DataFrame({"n": range(2500)}))
    wanted = [(0, 1000, sum(range(1000))), (1000, 1000, sum(range(1000, 2000))), (2000, 500, sum(range(2000, 2500)))]
    assert _sizes(run) == wanted[:2]
    run.end()
    assert _sizes(run) == wanted


def _sizes(run: ClockedRun) -> list[tuple[int, int, int]]:
    return [(row["window_start"], row["rows"], row["total"]) for row in run.rows()]


def test_everything_is_the_window_of_a_batch(hits: pd.DataFrame) -> None:
    """It needs no time, and gives what a GROUP BY gives."""
    job = Job("batch", partitions=2)
    read = job.input("read", files("hits.csv", format="csv", header=True, schema=COLUMNS))
    counted = job.window(
        "count", everything(), after=read, group_by="user", aggregate={"hits": Count(), "total": Sum("n")}
    )
    job.output("out", files("out", format="parquet"), after=counted)
    rows = run_job(job, {"read": hits}, batch_size=70).rows()
    wanted = hits.groupby("user")["n"].agg(hits="count", total="sum").reset_index()
    found = pd.DataFrame(rows)[["user", "hits", "total"]].sort_values("user", ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)
