"""Errors of tasks in `run_job`: each fails the job, as on a cluster."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Literal

import pytest

from sardonyx import Count, Job, Max, blackhole, event_time, everything, files, generator, kafka, session, tumbling
from sardonyx.core.errors import JobFailed
from sardonyx.testing import JobResult, run_job

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def job_of(path: Path, *, counted: bool) -> Job:
    job = Job("j")
    rows = job.input("in", files(str(path), format="parquet"))
    after = job.window("w", everything(), after=rows, aggregate={"n": Count()}) if counted else rows
    job.output("out", blackhole(), after=after)
    return job


def test_a_row_too_large_for_a_message_fails_the_job(tmp_path: Path) -> None:
    """At the link that would carry it, and not where an input reads it: its window may count it."""
    rows = [{"text": random.Random(1).randbytes(1_000_000).hex()}] * 2
    with pytest.raises(JobFailed) as raised:
        run_job(job_of(tmp_path, counted=False), {"in": rows})
    assert (raised.value.code, raised.value.where["task"]) == ("SX-RECORD-TOO-LARGE", "in")
    assert [row["n"] for row in run_job(job_of(tmp_path, counted=True), {"in": rows}).rows()] == [2]


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_a_row_too_large_for_its_queue_is_a_bad_record_of_an_independent_output(then: str) -> None:
    """It goes by the output's `on_error`, and the rows around it are written. Its letter says how it begins."""
    job = Job("j")
    rows = job.input("in", generator(1))
    job.output("out", kafka("out", key="n"), after=rows, on_error=then)
    large = {"n": "2", "text": random.Random(1).randbytes(1_000_000).hex()}
    result = run_job(job, {"in": [{"n": "1", "text": ""}, large, {"n": "3", "text": ""}]})
    assert [key for key, _ in result.messages("out")] == [b"1", b"3"]
    counts, letters = result.counts("out"), result.dead_letters("out")
    assert (counts.rows_in, counts.rows_out, counts.skipped + counts.dead) == (3, 2, 1)
    assert len(letters) == (then == "dead_letter") == counts.dead
    for letter in letters:
        assert (letter.error, letter.failure.code, letter.record) == ("OutputError", "SX-RECORD-TOO-LARGE", None)
        assert "{'n': '2'" in letter.failure.cause


@pytest.mark.parametrize("kind", ["latest", "distinct", "session"])
def test_a_row_too_large_for_its_queue_is_a_bad_record_of_a_task_with_state(kind: str) -> None:
    """To the state it is as if it had not come. Where the task leaves nothing out, it fails the job."""

    def run(then: Literal["dead_letter", "fail"]) -> JobResult:
        job = Job("j")
        rows = job.input("in", generator(1), time=event_time("at", delay="0 s"))
        if kind == "latest":
            kept = job.latest("kept", after=rows, group_by="n", on_error=then)
        elif kind == "distinct":
            kept = job.distinct("kept", after=rows, by="n", on_error=then)
        else:
            kept = job.window("kept", session("1 h"), after=rows, aggregate={"n": Max("n")}, on_error=then)
        job.output("out", blackhole(), after=kept)
        texts = ["", random.Random(1).randbytes(1_000_000).hex(), ""]
        return run_job(
            job, {"in": [{"n": n, "at": AT + dt.timedelta(days=n), "text": each} for n, each in enumerate(texts)]}
        )

    result = run("dead_letter")
    assert [row["n"] for row in result.rows("kept")] == [0, 2]
    assert (result.counts("kept").rows_in, result.counts("kept").dead) == (3, 1)
    (letter,) = result.dead_letters("kept")
    assert letter.failure.code == "SX-RECORD-TOO-LARGE"
    assert "{'n': 1" in letter.failure.cause
    with pytest.raises(JobFailed) as raised:
        run("fail")
    assert (raised.value.code, raised.value.where["task"]) == ("SX-RECORD-TOO-LARGE", "in")


def test_of_rows_that_are_combined_those_are_bad_that_would_not_fit_alone() -> None:
    """The others are in the results of their windows, whatever they were to be combined with."""
    job, rng = Job("j"), random.Random(1)
    rows = job.input("in", generator(1), time=event_time("at", delay="0 s"))
    aggregates = {"rows": Count(), "text": Max("text")}
    job.output(
        "out",
        blackhole(),
        after=job.window("w", tumbling("1 h"), after=rows, aggregate=aggregates, on_error="dead_letter"),
    )
    texts = [f"z{rng.randbytes(1_000_000).hex()}" if n in (2, 3, 9) else str(n) for n in range(11)]
    result = run_job(job, {"in": [{"n": n, "at": AT, "text": text} for n, text in enumerate(texts)]})
    assert [(row["rows"], row["text"]) for row in result.rows("w")] == [(8, "8")]
    assert (result.counts("w").rows_in, result.counts("w").dead) == (11, 3)
    causes = sorted(letter.failure.cause[:25] for letter in result.dead_letters("w"))
    assert causes == [f"the record begins {{'n': {n}" for n in (2, 3, 9)]


def test_a_file_that_cannot_be_read_fails_the_job(tmp_path: Path) -> None:
    """The error of the input is that of the job, with the task. Only without any rows given is the place checked before."""
    (tmp_path / "in.parquet").write_bytes(b"PAR1 is not enough")
    job = job_of(tmp_path, counted=True)
    job.output("out2", blackhole(), after=job.input("given", generator(1)))
    with pytest.raises(JobFailed) as raised:
        run_job(job, {"given": [{"n": 1}]})
    assert (raised.value.code, raised.value.where["task"]) == ("SX-INPUT-UNREADABLE", "in")


def test_records_of_format_raw_keep_their_keys() -> None:
    """On their way through a job; one without a key has none afterwards, and an empty key is not none."""
    job = Job("j")
    read = job.input("in", kafka("a", format="raw", start="earliest"))
    job.output("out", kafka("b", format="raw"), after=read)
    records = [{"value": b"1", "key": b"k"}, {"value": None, "key": b""}, {"value": b"3", "key": None}]
    result = run_job(job, {"in": records})
    assert result.messages() == [(b"k", b"1"), (b"", None), (None, b"3")]
    assert result.rows() == records
