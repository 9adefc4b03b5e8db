"""A row whose time no calendar has is a bad record: `on_error` of its input, or of the windows, says what becomes of it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sardonyx import Count, Job, blackhole, calendar, files, kafka, sql, tumbling
from sardonyx.core.errors import JobFailed
from sardonyx.core.graph import graph_of
from sardonyx.core.timing import TimeSpec
from sardonyx.job.parse import read
from sardonyx.testing import run_job
from sardonyx.testing.result import JobResult
from spark_tasks.worker import Plan, Share, read_and_run

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
FIRST, LAST = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
ROWS = [{"n": 0, "at": NOON}, {"n": 1, "at": FIRST}, {"n": 2, "at": NOON}, {"n": 3, "at": LAST}]


def source_of(kind: str, tmp_path: Path) -> Any:
    if kind == "kafka":
        return kafka("in", schema="n bigint, at timestamp", start="earliest", end="latest")
    return sql(f"sqlite:///{tmp_path}/db", table="t") if kind == "sql" else files(str(tmp_path), format="parquet")


def job_of(source: Any, *, of_input: Any = "fail", of_window: Any = "fail", failed: bool = False, **window: Any) -> Job:
    job = Job("j")
    rows = job.input("in", source, time="at", on_error=of_input)
    more = {"aggregate": {"rows": Count()}, **window}
    days = job.window("days", calendar("day", zone="Europe/Berlin"), after=rows, on_error=of_window, **more)
    job.output("out", blackhole(), after=days)
    if failed:
        job.output("bad", blackhole(), after=rows.failed)
    return job


def days_of(result: JobResult) -> list[tuple[dt.date, int]]:
    return [(row["window_end"].date(), row["rows"]) for row in result.rows("days")]


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
@pytest.mark.parametrize("kind", ["kafka", "files", "sql"])
def test_it_goes_where_on_error_of_the_input_says(kind: str, then: str, tmp_path: Path) -> None:
    """Whatever the input reads. The other rows count."""
    rows = ROWS[:3] if kind == "kafka" else ROWS  # the last one would be too far ahead
    result = run_job(job_of(source_of(kind, tmp_path), of_input=then), {"in": rows})
    assert days_of(result) == [(NOON.date(), 2)]
    counts = result.counts("in")
    assert (counts.rows_in, counts.rows_out, counts.skipped + counts.dead) == (len(rows), 2, len(rows) - 2)
    error = result.error("in")
    assert error is not None
    assert (error.code, "'n': 1" in error.cause) == ("SX-WINDOW-TIME", True)
    assert [letter.failure.code for letter in result.dead_letters("in")] == ["SX-WINDOW-TIME"] * counts.dead


@pytest.mark.parametrize("kind", ["kafka", "files"])
def test_it_goes_where_on_error_of_the_windows_says(kind: str, tmp_path: Path) -> None:
    """If that of the input is to fail. The letter holds the row."""
    rows = ROWS[:3] if kind == "kafka" else ROWS
    result = run_job(job_of(source_of(kind, tmp_path), of_window="dead_letter"), {"in": rows})
    assert days_of(result) == [(NOON.date(), 2)]
    counts = result.counts("days")
    assert (counts.rows_in, counts.dead, result.counts("in").rows_out) == (len(rows), len(rows) - 2, len(rows))
    letters = result.dead_letters("days")
    assert [(letter.failure.code, letter.record["n"]) for letter in letters] == [
        ("SX-WINDOW-TIME", row["n"]) for row in rows if row["at"] != NOON
    ]


def test_a_failed_edge_takes_it(tmp_path: Path) -> None:
    """That of the input."""
    result = run_job(job_of(source_of("files", tmp_path), failed=True), {"in": ROWS})
    assert days_of(result) == [(NOON.date(), 2)]
    bad = [(row["task"], row["code"], row["record"][:6]) for row in result.rows("bad")]
    assert bad == [("in", "SX-WINDOW-TIME", '{"n":1'), ("in", "SX-WINDOW-TIME", '{"n":3')]


def test_a_job_that_leaves_nothing_out_fails(tmp_path: Path) -> None:
    """The error shows the row, and says where `on_error` can stand."""
    with pytest.raises(JobFailed) as raised:
        run_job(job_of(source_of("files", tmp_path)), {"in": ROWS})
    assert raised.value.code == "SX-WINDOW-TIME"
    assert "'n': 1" in raised.value.cause
    assert "let days leave such rows out" in raised.value.fix
    assert "or its input" in raised.value.fix


@pytest.mark.parametrize(
    "window", [{"grace": "1 day"}, {"emit": "changes"}, {"late": "dead_letter"}, {"group_by": "n"}]
)
def test_it_is_bad_for_windows_of_all_ways(window: dict[str, Any], tmp_path: Path) -> None:
    """Combined before the queue or not, and whether or not it would be late."""
    result = run_job(job_of(source_of("files", tmp_path), of_window="skip", **window), {"in": ROWS})
    assert (result.counts("days").rows_in, result.counts("days").skipped, result.counts("days").late) == (4, 2, 0)


def test_other_tasks_take_the_row(tmp_path: Path) -> None:
    """It is a bad record of the windows alone; windows that are not of a calendar hold all times."""
    job = job_of(source_of("files", tmp_path), of_window="skip")
    hours = job.window("hours", tumbling("1 h"), after="in", aggregate={"n": Count()})
    job.output("all", blackhole(), after=hours)
    result = run_job(job, {"in": ROWS})
    assert [row["n"] for row in result.rows("hours")] == [1, 2, 1]
    assert days_of(result) == [(NOON.date(), 2)]


def test_results_of_windows_are_judged_too(tmp_path: Path) -> None:
    """Their time is not that of the input's rows, so the windows behind them leave them out."""
    job = Job("j")
    rows = job.input("in", source_of("files", tmp_path), time="at", on_error="skip")
    hours = job.window("hours", tumbling("1 h"), after=rows, aggregate={"n": Count()})
    job.output(
        "out",
        blackhole(),
        after=job.window("days", calendar("day"), after=hours, aggregate={"n": Count()}, on_error="skip"),
    )
    result = run_job(job, {"in": pa.Table.from_pylist(ROWS)})
    assert (result.counts("in").skipped, result.counts("days").rows_in, result.counts("days").skipped) == (0, 3, 2)


def test_only_inputs_whose_times_a_calendar_needs_are_judged(tmp_path: Path) -> None:
    """By the spec: through functions, which keep the column, and not through windows, whose results have times of their own."""
    for change, wanted in (
        ({}, True),
        ({"kind": tumbling("1 d")}, False),
        ({"time": "seen"}, False),
        ({"inner": True}, False),
    ):
        job = Job("j")
        rows: Any = job.input("in", source_of("files", tmp_path), time="at")
        if change.get("inner"):
            rows = job.window("hours", tumbling("1 h"), after=rows, aggregate={"n": Count()})
        kept = job.task("kept", passed_on, after=rows)
        time = {"time": change["time"]} if "time" in change else {}
        window = job.window("w", change.get("kind", calendar("day")), after=kept, aggregate={"n": Count()}, **time)
        job.output("out", blackhole(), after=window)
        spec, problems = read(job.data())
        assert problems == []
        assert [link.of_calendar for link in graph_of(spec, "d", "j").stage("in").ingress] == [wanted], change


def passed_on(row: dict) -> dict:  # type: ignore[type-arg]
    return row


def test_workers_that_read_splits_judge_so_too() -> None:
    """A function is called for none of a share's rows then: the peer reads them first, and leaves the bad ones out."""

    class Rows:
        def splits(self) -> Any: ...

        def read(self, data: dict[str, Any]) -> pa.Table:
            return pa.Table.from_pylist(data["rows"])

    plan = Plan("in", f"{__name__}:never", None, "arrow", {})
    for of_calendar in (True, False):
        share = Share([{"rows": ROWS}], False, False, TimeSpec(column="at"), NOON.timestamp(), of_calendar)
        found = read_and_run(Rows(), [plan], share)
        assert (found.bad_times, found.done.fault is None) == (of_calendar, of_calendar)


def never(rows: pa.Table) -> pa.Table:
    raise AssertionError(f"called with {rows.num_rows} rows")
