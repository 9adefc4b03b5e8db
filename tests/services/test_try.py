"""Another version of a task is tried on rows of a running job: the user sees what differs, and the job goes on as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sardonyx.core.errors import SardonyxError
from tests.services.house import House, written
from tests.waiting import until

JOB = """
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from sardonyx import Job, State, kafka

def price(row: dict) -> dict | None:
    {price}

def small(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.less(rows["n"], {most}))

def marked(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("n", "{mark} as mark")

def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return {{**row, "seen": seen.value}}

job = Job("tried", partitions=2, keep="1 h")
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
prices = job.task("price", price, after=read, on_error="skip")
few = job.task("small", small, after=prices)
marks = job.task("marked", marked, after=few, fuse=False)
job.output("out", kafka("{topic}-out"), after=job.keyed("count", add, after=marks))
"""
OLD = 'return {{**row, "tax": row["n"]}}'.format()
NEW = """print("tried")
    if row["n"] == 7:
        raise KeyError("amount")
    return None if row["n"] == 8 else {**row, "tax": row["n"] + (row["n"] == 9)}"""


def test_a_new_version_is_tried_on_rows_of_the_running_job(house: House, tmp_path: Path) -> None:
    """Functions of records, tables and data frames; rows that change, go, come, and raise. The job goes on as it was, and what
    cannot be tried is refused with the reason.
    """
    topic = house.make_topic("tried")

    def version(name: str, price: str = OLD, most: int = 50, mark: str = "n * 2") -> str:
        return written(tmp_path / name, JOB.format(topic=topic, price=price, most=most, mark=mark))

    def tried(task: str, spec: str, *more: str) -> dict[str, Any]:
        done = house.call("job", "try", handle.id, task, spec, "--json", *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def counts(found: dict[str, Any]) -> dict[str, int]:
        names = ("equal", "changed", "new", "gone", "raises", "raised", "both_raise")
        return {name: found[name] for name in names if found[name]}

    old = version("old")
    handle = house.client.submit(old)
    until(lambda: house.client.job(handle.id).status().status == "running", what="the job to run")
    with pytest.raises(SardonyxError, match="SX-TRY-EMPTY"):
        handle.try_task("price", old)
    house.fill(topic, *(b'{"n": %d}' % n for n in range(60)))
    house.put(topic, 0, b"no JSON")
    until(lambda: len(house.records(f"{topic}-out")) == 50, what="all results")

    assert counts(tried("price", old)) == {"equal": 60}
    found = tried("price", version("priced", NEW))
    assert counts(found) == {"equal": 57, "changed": 1, "gone": 1, "raises": 1}
    assert (found["unread"], found["columns"]) == (1, {"tax": 1})
    by_kind = {each["kind"]: each for each in found["differences"]}
    assert by_kind["changed"]["before"] == {"n": 9, "tax": 9}
    assert by_kind["changed"]["after"] == {"n": 9, "tax": 10}
    assert by_kind["gone"]["given"] == {"n": 8}
    assert by_kind["raises"]["error"]["code"] == "SX-FN-RAISED"
    few = tried("price", version("priced", NEW), "--rows", "10", "--show", "0")
    assert (few["rows"], few["unread"], few["differences"]) == (9, 1, [])

    assert counts(tried("small", version("smaller", most=40))) == {"equal": 40, "gone": 10}
    found = tried("marked", version("marks", mark="n / 2"))
    assert counts(found) == {"changed": 50}  # also 0, which becomes 0.0
    assert found["types"] == {"mark": ["int64", "double"]}

    told = house.call("job", "try", handle.id, "small", version("smaller", most=40), "--exit-code")
    assert told.exit_code == 1
    assert "         40  equal\n         10  gone\n- n " in told.stdout
    for task, reason in (("count", "keeps a state"), ("read", "link in place"), ("other", "no such task")):
        with pytest.raises(SardonyxError, match="SX-TRY-TASK") as refused:
            handle.try_task(task, old)
        assert reason in refused.value.cause
    assert len(house.records(f"{topic}-out")) == 50, "a trial writes nothing"
    assert handle.status().error is None
    handle.kill()
    until(lambda: handle.status().ended, what="the job to end")
    with pytest.raises(SardonyxError, match="SX-TRY-GONE"):
        handle.try_task("price", old)
