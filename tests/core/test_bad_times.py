"""Rows whose time is null, out of bounds or too far ahead: the input's `on_error` decides about them, whatever it reads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer.failed_records import Failed, Sorted, sort_out
from peer.window_split import WindowSplit
from sardonyx import Count, Job, Max, blackhole, event_time, files, kafka, kafka_time, sql, tumbling
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import FunctionError, JobFailed
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.positions import Partition
from sardonyx.core.quoting import HIDDEN
from sardonyx.core.spec import TaskSpec
from sardonyx.core.timing import TimeSpec
from sardonyx.runtime.secret_values import QUOTING
from sardonyx.testing import run_job
from sardonyx.testing.result import JobResult
from spark_tasks.worker import Plan, Share, read_and_run

SCHEMA = "id bigint, at timestamp"
MOMENT = datetime(2026, 11, 23, 10, 0, 30, tzinfo=UTC)
ROWS = [{"id": n, "at": MOMENT} for n in range(7)]
FAR = datetime(2099, 1, 1, tzinfo=UTC)
BEYOND = pa.scalar(2**62, pa.timestamp("us", "UTC"))
"""A time that no clock can hold, nor Python."""


def job_of(source: Any, time: Any = "at", *, failed: bool = False, **more: Any) -> Job:
    job = Job("j")
    rows = job.input("in", source, time=time, **more)
    counted = job.window("counted", tumbling("1 min"), after=rows, aggregate={"n": Count(), "last": Max("id")})
    job.output("out", kafka("out"), after=counted)
    if failed:
        job.output("bad", blackhole(), after=rows.failed)
    return job


def source_of(kind: str, tmp_path: Path) -> Any:
    if kind == "kafka":
        return kafka("in", schema=SCHEMA, start="earliest", end="latest")
    if kind == "sql":
        return sql(f"sqlite:///{tmp_path}/db", table="t")
    return files(str(tmp_path / "in.json"), format="json", schema=SCHEMA)


def with_bad(*bad: int, at: Any = None) -> list[dict[str, Any]]:
    return [{**row, "at": at} if row["id"] in bad else row for row in ROWS]


def counts_of(result: JobResult) -> tuple[int, int, int, int]:
    counts = result.counts("in")
    return counts.rows_in, counts.rows_out, counts.skipped, counts.dead


@pytest.mark.parametrize("kind", ["kafka", "files", "sql"])
def test_a_row_without_a_time_goes_where_on_error_says(kind: str, tmp_path: Path) -> None:
    """The other rows count; with `fail` the error names the column and the way out."""
    rows = {"in": with_bad(2)}
    skipped = run_job(job_of(source_of(kind, tmp_path), on_error="skip"), rows)
    assert counts_of(skipped) == (7, 6, 1, 0)
    assert [(row["n"], row["last"]) for row in skipped.rows("counted")] == [(6, 6)]
    with pytest.raises(JobFailed) as raised:
        run_job(job_of(source_of(kind, tmp_path)), rows)
    assert raised.value.code == "SX-TIME-VALUE"
    assert "column 'at'" in raised.value.message
    assert 'on_error="skip"' in raised.value.fix
    assert kind == "kafka" or "'id': 2" in raised.value.cause


def test_the_error_of_a_letter_quotes_no_record_if_the_peer_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter itself holds the record, for it is there to be redone."""
    monkeypatch.setattr(QUOTING, "records", False)
    job = job_of(source_of("files", tmp_path), on_error="dead_letter")
    (letter,) = run_job(job, {"in": with_bad(2)}).dead_letters("in")
    assert letter.record == {"id": 2, "at": None}
    assert (letter.failure.code, letter.failure.cause) == ("SX-TIME-VALUE", HIDDEN)


def test_letters_of_rows_from_splits_hold_the_row_and_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a row, by its number in its split: also behind other bad rows, and in any split of a batch."""
    places: list[tuple[int, int | None]] = []

    def seen(stage: Stage, sinks: Any, records: Sequence[Failed]) -> Sorted:
        places.extend((each.origin.offset, each.origin.row) for each in records)
        return sort_out(stage, sinks, records)

    monkeypatch.setattr("peer.prepared_task.sort_out", seen)
    table = pa.Table.from_pylist(with_bad(1, 2, 5))
    result = run_job(job_of(source_of("files", tmp_path), on_error="dead_letter"), {"in": table}, batch_size=4)
    letters = result.dead_letters("in")
    assert counts_of(result) == (7, 4, 0, 3)
    assert [each.failure.code for each in letters] == ["SX-TIME-VALUE"] * 3
    assert [each.record for each in letters] == [{"id": n, "at": None} for n in (1, 2, 5)]
    assert places == [(0, 1), (0, 2), (1, 1)]


def test_a_failed_edge_takes_rows_from_splits_without_a_time(tmp_path: Path) -> None:
    """As it takes records of a topic."""
    result = run_job(job_of(source_of("files", tmp_path), failed=True), {"in": with_bad(3)})
    (row,) = result.rows("bad")
    assert (row["task"], row["code"], row["record"]) == ("in", "SX-TIME-VALUE", '{"id":3,"at":null}')
    assert counts_of(result)[1] == 6


def test_a_column_that_an_input_adds_must_not_be_there() -> None:
    """Without a schema this shows when the first record comes."""
    job = job_of(kafka("in", start="earliest", end="latest"), kafka_time("at"))
    with pytest.raises(JobFailed, match="have a column 'at' already") as raised:
        run_job(job, {"in": [{"id": 1, "at": "2026-11-23T10:00:30Z"}]})
    assert raised.value.code == "SX-TIME-COLUMN"


def test_a_function_before_a_window_must_give_the_time_on() -> None:
    """The error names the function's task, whatever its `on_error` says: none of the rows has the column."""
    job = Job("j")
    rows = job.input("in", source_of("kafka", Path()), time="at")
    ids = job.task("ids", "functions:without_the_time", after=rows, on_error="skip")
    counted = job.window("counted", tumbling("1 min"), after=ids, aggregate={"n": Count()})
    job.output("out", kafka("out"), after=counted)
    (link,) = graph_of(job.spec(), "d", "j").stage("counted").ingress
    with pytest.raises(FunctionError, match="rows of task ids have no column 'at'") as raised:
        list(WindowSplit(link, 2).split(pa.table({"id": [1]}), NEVER))
    assert (raised.value.code, raised.value.cause) == ("SX-TIME-COLUMN", "they have id")


@pytest.mark.parametrize("kind", ["kafka", "files"])
def test_a_row_too_far_ahead_is_bad(kind: str, tmp_path: Path) -> None:
    """Else it would close all windows. `ahead` says how far is too far; of a topic it is a day."""
    source = source_of(kind, tmp_path)
    job = job_of(source, event_time("at", ahead="1 d"), on_error="dead_letter")
    result = run_job(job, {"in": with_bad(4, at=FAR)})
    assert [each.failure.code for each in result.dead_letters("in")] == ["SX-TIME-AHEAD"]
    assert counts_of(result) == (7, 6, 0, 1)
    dropped = 1 if kind == "kafka" else 0  # rows of files move no clock
    found = counts_of(run_job(job_of(source, on_error="skip"), {"in": with_bad(4, at=FAR)}))
    assert found == (7, 7 - dropped, dropped, 0)


@pytest.mark.parametrize("ahead", [None, "1 d"])
def test_a_time_out_of_bounds_is_bad(ahead: str | None, tmp_path: Path) -> None:
    """Also one that Python has no date for: the error shows its number."""
    stamps = pa.array([BEYOND, pa.scalar(MOMENT, BEYOND.type)])
    table = pa.table({"id": [0, 1], "at": stamps})
    result = run_job(
        job_of(source_of("files", tmp_path), event_time("at", ahead=ahead), on_error="skip"), {"in": table}
    )
    assert counts_of(result) == (2, 1, 1, 0)
    error = result.error("in")
    assert error is not None
    assert (error.code, str(2**62) in error.message) == ("SX-TIME-VALUE", True)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_least_and_the_greatest_whole_number_are_no_times(unit: str) -> None:
    """Neither becomes a moment that is another one."""
    source = kafka("in", schema="id bigint, at bigint", start="earliest", end="latest")
    rows = [{"id": number, "at": at} for number, at in enumerate([-(2**63), 2**63 - 1, -(2**62), 1 - 2**63, 1])]
    result = run_job(job_of(source, event_time("at", unit=unit), on_error="skip"), {"in": rows})
    assert counts_of(result) == (5, 1, 4, 0)
    assert [row["last"] for row in result.rows("counted")] == [4]
    error = result.error("in")
    assert error is not None
    assert (error.code, str(-(2**63)) in error.message) == ("SX-TIME-VALUE", True)


@pytest.mark.parametrize("kind", ["kafka", "files"])
def test_whole_numbers_need_a_unit(kind: str) -> None:
    """Without a schema `check` does not see them, so the run must not guess what they count."""
    source = kafka("in", start="earliest", end="latest") if kind == "kafka" else files("in.parquet", format="parquet")
    with pytest.raises(JobFailed, match=r"column 'at' of (topic|input) in holds whole numbers") as raised:
        run_job(job_of(source), {"in": [{"id": 1, "at": 1_795_000_000}]})
    assert raised.value.code == "SX-TIME-TYPE"
    assert "`unit=`" in raised.value.fix
    result = run_job(job_of(source, event_time("at", unit="s")), {"in": [{"id": 1, "at": 1_795_000_000}]})
    assert [row["window_start"].date() for row in result.rows("counted")] == [date(2026, 11, 18)]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "fail"])
def test_a_time_that_cannot_be_read_goes_where_on_error_says(on_error: Any, sardonyx_clocked: Any) -> None:
    """It moves no clock, so no window closes by it; with `fail` the error names the column."""
    source = kafka("in", schema=SCHEMA, start="earliest")
    run = sardonyx_clocked(job_of(source, on_error=on_error), now=MOMENT)
    run.give("in", ROWS[:3])
    clock = run._engine.run_of("in").positions[Partition("in", 0)].clock
    bad = b'{"id": 3, "at": "half past ten"}'
    run.advance("2 min")
    if on_error == "fail":
        with pytest.raises(JobFailed, match="'at'") as raised:
            run.give("in", [bad])
        assert raised.value.code == "SX-RECORD-UNDECODABLE"
        return
    run.give("in", [bad])
    assert run._engine.run_of("in").positions[Partition("in", 0)].clock == clock
    assert run.rows("counted") == []
    assert [each.failure.code for each in run.dead_letters("in")] == ["SX-RECORD-UNDECODABLE"] * counts_of(run)[3]
    assert counts_of(run) == ((4, 3, 1, 0) if on_error == "skip" else (4, 3, 0, 1))
    run.give("in", [{"id": 4, "at": MOMENT + timedelta(minutes=1)}])
    assert [(row["n"], row["last"]) for row in run.rows("counted")] == [(3, 2)]


@pytest.mark.parametrize("kind", ["kafka", "files"])
def test_texts_are_no_times(kind: str) -> None:
    """Without a schema `check` does not see them, and the error says what to declare."""
    source = kafka("in", start="earliest", end="latest") if kind == "kafka" else files("in.parquet", format="parquet")
    with pytest.raises(
        JobFailed, match=r"column 'at' of (topic|input) in holds values of type (large_)?string"
    ) as raised:
        run_job(job_of(source, on_error="skip"), {"in": [{"id": 1, "at": "half past ten"}]})
    assert raised.value.code == "SX-TIME-TYPE"
    assert "schema" in raised.value.fix


def test_a_window_by_a_column_of_whole_numbers_is_refused(tmp_path: Path) -> None:
    """The window cannot say what they count."""
    job = Job("j")
    rows = job.input("in", source_of("files", tmp_path), time="at")
    job.output(
        "out", kafka("out"), after=job.window("w", tumbling("1 min"), after=rows, time="id", aggregate={"n": Count()})
    )
    with pytest.raises(JobFailed) as raised:
        run_job(job, {"in": ROWS})
    assert raised.value.code == "SX-TIME-TYPE"


def test_workers_call_no_function_for_rows_with_a_bad_time() -> None:
    """The peer then reads the splits first, and judges; without a bad time the functions run where the rows are read."""

    class Numbers:
        def splits(self) -> Any: ...

        def read(self, data: dict[str, Any]) -> pa.Table:
            return pa.table({"at": pa.array(data["at"], BEYOND.type)})

    task = TaskSpec(name="in", type="input", fn=f"{__name__}:never", time=TimeSpec(column="at", ahead="1 d"))
    plan = Plan(task.name, f"{__name__}:never", None, "arrow", {})
    now = MOMENT.timestamp()
    for bad in (None, MOMENT + timedelta(days=3)):
        share = Share([{"at": [MOMENT]}, {"at": [MOMENT, bad]}], False, False, task.time, now)
        found = read_and_run(Numbers(), [plan], share)
        assert (found.bad_times, found.rows, found.done.fault) == (True, [1, 2], None)
    good = read_and_run(Numbers(), [plan], Share([{"at": [MOMENT]}], False, False, task.time, now))
    assert good.done.fault is not None


def never(rows: pa.Table) -> pa.Table:
    raise AssertionError(f"called with {rows.num_rows} rows")
