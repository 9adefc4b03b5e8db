"""Errors of tasks in `run_job`: each fails the job, as on a cluster."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sardonyx import Count, Job, blackhole, everything, files, generator, kafka
from sardonyx.core.errors import JobFailed
from sardonyx.testing import run_job


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
