"""``sardonyx.testing``: a job on rows in this process gives what a cluster would."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from sardonyx import Job, JobFailed, SardonyxError, files, generator, kafka
from sardonyx.testing import run_job


def doubled(row: dict) -> dict:
    return {**row, "twice": row["n"] * 2}


def odd(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(pc.bit_wise_and(table["n"], 1), 1))


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy().count()


def picky(row: dict) -> dict:
    if row["n"] == 3:
        raise ValueError("three is a bad number")
    return row


def same(table: pa.Table) -> pa.Table:
    return table


def nothing(row: dict) -> None:
    return None


def is_odd(row: dict) -> bool:
    return row["n"] % 2 == 1


def is_even(row: dict) -> bool:
    return row["n"] % 2 == 0


def is_three(row: dict) -> bool:
    return '"n":3' in row["record"].replace(" ", "")


class Names:
    """A lifecycle that gives its function something to work with."""

    log: ClassVar[list[str]] = []

    def start(self, context: object) -> dict:
        self.log.append("start")
        return {"name": "Ada"}

    def stop(self) -> None:
        self.log.append("stop")


def named(row: dict, name: str) -> dict:
    return {**row, "name": name}


def chain() -> Job:
    job = Job("chain")
    read = job.input("read", files("in/*.json", format="json", schema="n bigint, word string"))
    twice = job.task("twice", doubled, after=read)
    job.output("written", files("out", format="json"), after=job.task("odd", odd, after=twice))
    return job


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> None:
    """The session of all tests, which every run finds by itself."""


def test_rows_in_rows_out_in_the_time_of_a_spark_job(spark: SparkSession) -> None:
    """Neither files nor services are touched; every task can be looked at; each function costs one Spark job."""
    rows = [{"n": n, "word": None} for n in range(10)]
    before = _spark_jobs(spark)
    first = run_job(chain(), {"read": rows})
    assert first.rows() == [{"n": n, "word": None, "twice": 2 * n} for n in range(1, 10, 2)]
    assert first.rows("twice") == [{"n": n, "word": None, "twice": 2 * n} for n in range(10)]
    assert first.table("odd").schema.field("word").type == pa.string()  # the schema's, though every value is null
    assert (first.counts("odd").rows_in, first.counts("odd").rows_out) == (10, 5)
    assert _spark_jobs(spark) == before + 2  # an input without a function needs none


def test_batches_can_be_made_small() -> None:
    """A function that takes a batch for the whole shows its mistake; nothing is lost or doubled at the edges."""
    job = Job("edges")
    read = job.input("read", generator(1000))
    job.output("count", files("out", format="json"), counted, after=read)
    job.output("all", files("all", format="json"), same, after=read)
    rows = [{"n": n} for n in range(7)]
    assert run_job(job, {"read": rows}).rows("count") == [{"count": 7}]
    small = run_job(job, {"read": rows}, batch_size=3)
    assert small.rows("count") == [{"count": 3}, {"count": 3}, {"count": 1}]
    assert small.rows("all") == rows
    assert run_job(job, batch_size=400).counts("all").rows_in == 1000  # nothing given: its own rows


def test_types_and_nulls_are_those_of_real_links() -> None:
    """What a function sees, and what comes out, has passed through blocks and formats as on a cluster."""
    moment = dt.datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
    rows = [{"n": 1, "at": moment, "price": Decimal("1.50"), "tags": ["a", None]}, {"n": None, "at": None}]
    job = Job("types")
    read = job.input("read", files("in", format="parquet"))
    job.output("kept", files("out", format="parquet"), same, after=read)
    job.output("sent", kafka("results", key="n"), after=job.task("pass", same, after=read))
    result = run_job(job, {"read": rows})
    assert result.rows("kept") == [rows[0], {"n": None, "at": None, "price": None, "tags": None}]
    assert result.table("kept").schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert result.messages("sent")[0][0] == b"1"
    assert result.rows("sent")[0]["at"] == "2026-02-03T04:05:06.000007Z"  # as a reader of the topic finds it


def test_a_topic_is_given_as_records() -> None:
    """Rows are encoded as the topic's format has them; bytes lie on it as they are, also those that cannot be decoded."""
    job = Job("topic")
    read = job.input("read", kafka("orders", schema="n int, word string", start="earliest", end="latest"))
    job.output("kept", files("out", format="json"), picky, after=read, on_error="skip")
    rows = [{"n": 1, "word": "a"}, b'{"n": 2}', b"not json", {"n": 3}, None]
    result = run_job(job, {"read": rows})
    assert result.rows() == [{"n": 1, "word": "a"}, {"n": 2, "word": None}]
    counts = result.counts()
    assert (counts.rows_in, counts.rows_out, counts.skipped) == (5, 2, 3)
    assert result.error() is not None


def test_a_job_fails_as_on_a_cluster() -> None:
    """With the code, the record and the user's own traceback; and what does not fit the job is an error before anything runs."""
    job = Job("bad")
    read = job.input("read", kafka("orders", start="earliest", end="latest"))
    job.output("kept", files("out", format="json"), picky, after=read)
    with pytest.raises(JobFailed, match="three is a bad number") as failed:
        run_job(job, {"read": [{"n": 3}]})
    assert failed.value.code == "SX-FN-RAISED"
    assert "in picky" in failed.value.traceback
    assert failed.value.where["task"] == "kept"
    for inputs, code in (({}, "SX-TEST-INPUT"), ({"raed": []}, "SX-TEST-INPUT"), ({"read": [{1: 2}]}, "SX-TEST-ROWS")):
        with pytest.raises(SardonyxError) as error:
            run_job(job, inputs)
        assert error.value.code == code
    with pytest.raises(SardonyxError) as error:
        run_job(job, {"read": [{"n": 1}]}).rows("kpet")
    assert error.value.code == "SX-TEST-TASK"


def test_every_shape_is_the_products_own() -> None:
    """Keys, conditions, failed edges, retries, dead letters and lifecycles, all at once and with batches of two."""
    job = Job("shapes")
    read = job.input("read", kafka("orders", schema="n int, word string", start="earliest", end="latest"))
    checked = job.task("check", picky, after=read, on_error={"retries": 1, "backoff": "1 ms", "then": "dead_letter"})
    job.output("counts", files("counts", format="json"), counted, after=checked.where(is_odd), group_by="word")
    job.output("even", files("even", format="json"), named, after=checked.where(is_even), lifecycle=Names)
    job.output("failed", files("failed", format="json"), same, after=checked.failed.where(is_three))
    rows = [{"n": n, "word": "ab"[n % 2]} for n in range(6)]
    result = run_job(job, {"read": [*rows, b"nonsense"]}, batch_size=2)
    assert sum(row["count"] for row in result.rows("counts")) == 2  # 1 and 5; 3 has failed
    assert [(row["n"], row["name"]) for row in result.rows("even")] == [(0, "Ada"), (2, "Ada"), (4, "Ada")]
    (failed,) = result.rows("failed")
    assert (failed["task"], failed["error"], json.loads(failed["record"])["n"]) == ("check", "ValueError", 3)
    (letter,) = result.dead_letters("check")
    assert (letter.record, letter.attempts) == (b"nonsense", 1)
    assert result.counts("check").dead == 1
    assert Names.log == []  # made of the job's own code, as on a peer


def test_nothing_may_come_out() -> None:
    """A function that drops everything, and an input without a row."""
    job = Job("none")
    read = job.input("read", files("in", format="csv"))
    job.output("out", kafka("nothing"), after=job.task("drop", nothing, after=read))
    for rows in ([], [{"n": 1}]):
        result = run_job(job, {"read": rows})
        assert result.rows() == []
        assert result.table().num_rows == 0


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """As a user has it: three files and `pytest`; ``conftest.py`` loads the plugin."""
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def _spark_jobs(spark: SparkSession) -> int:
    """How many jobs the session has run so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
