"""Jobs of every shape, for tests/services/test_shapes.py: small, and exact by id."""

from __future__ import annotations

import fcntl
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from sardonyx import Job, blackhole, files, generator, kafka

NUMBERS = 3_000
MORE = 1_000
SOME = {"batch_size": 500}


def tag(rows: pa.Table, via: str) -> pa.Table:
    before = rows.drop_columns(["via"]) if "via" in rows.column_names else rows
    return before.append_column("via", pa.array([via] * rows.num_rows))


def tag_record(row: dict, via: str) -> dict:
    return {**row, "via": via}


def twice(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(twice=rows["id"] * 2)


def only(rows: pa.Table, rest: int) -> pa.Table:
    return rows.filter(pc.equal(_modulo(rows, 10), rest))


def hop(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("hops"), "hops", pc.add(rows["hops"], 1))


def nothing(row: dict) -> None:
    """Drops everything."""


def strict(row: dict) -> dict:
    if row["id"] % 250 == 0:
        raise ValueError(f"{row['id']} is too round")
    return row


def mend(failed: dict) -> dict:
    return {**json.loads(failed["record"]), "via": f"{failed['task']}: {failed['error']}: {failed['message']}"}


def _modulo(rows: pa.Table, by: int) -> pa.ChunkedArray:
    ids = rows["id"]
    return pc.subtract(ids, pc.multiply(pc.divide(ids, by), by))


# --- Conditions -------------------------------------------------------------------------------------------------------


def is_third(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(_modulo(rows, 3), 0)


def is_fifth(row: dict) -> bool:
    return row["id"] % 5 == 0


def never(rows: pa.Table) -> pa.Array:
    return pa.nulls(rows.num_rows)


def from_left(failed: pa.Table) -> pa.Array:
    return pc.match_substring(failed["record"], '"via":"left"')


# --- Shapes -----------------------------------------------------------------------------------------------------------


def chain(out: str, length: int) -> Job:
    """One task behind the other."""
    job = Job("chain", partitions=4)
    columns = {"id": "sequence", "hops": {"kind": "integer", "min": 0, "max": 0}}
    last = job.input("read", generator(NUMBERS, columns=columns))
    for number in range(length):
        last = job.task(f"hop-{number}", hop, after=last, batch_size=1_000)
    job.output("out", kafka(out), after=last)
    return job


def fan(out: str, branches: int) -> Job:
    """From one task to many, and together again in one topic."""
    job = Job("fan", partitions=4)
    read = job.input("read", generator(NUMBERS, columns={"id": "sequence"}))
    parts = [job.task(f"part-{rest}", only, after=read, params={"rest": rest}) for rest in range(branches)]
    job.output("out", kafka(out), after=parts)
    return job


def diamond(prefix: str, folder: Path) -> Job:
    """Two ways to one task that has a third input; from there to branches with conditions, some of them without a row."""
    job = Job("diamond", partitions=4)
    numbers = job.input("numbers", generator(NUMBERS, columns={"id": "sequence"}))
    more = job.input(
        "more", generator(MORE, columns={"id": {"kind": "sequence", "start": NUMBERS}}), tag, params={"via": "more"}
    )
    left = job.task("left", tag, after=numbers, params={"via": "left"}, **SOME)
    right = job.task("right", tag_record, after=numbers, params={"via": "right"}, **SOME)
    both = job.task("both", twice, after=[left, right, more], **SOME)
    job.output("all", files(folder / "all", format="parquet"), after=both)
    job.output("hole", blackhole(), after=both)
    job.output("thirds", kafka(f"{prefix}-thirds"), after=both.where(is_third))  # bound in place
    one = job.task("one-at-a-time", tag, after=both.where(is_third), params={"via": "one"}, sequential=True, **SOME)
    fifth = job.task("fifths", tag_record, after=both.where(is_fifth), params={"via": "fifth"}, **SOME)
    job.output("thirds-and-fifths", files(folder / "selected", format="parquet"), after=[one, fifth])
    picky = job.task("picky", strict, after=both, on_error="skip", **SOME)
    mended = job.task("mended", mend, after=picky.failed.where(from_left))
    job.output("mended-out", files(folder / "mended", format="parquet"), after=mended)
    job.output("picked", blackhole(), after=picky)
    nobody = job.task("nobody", tag, after=both.where(never), params={"via": "nobody"})
    dropped = job.task("dropped", nothing, after=both)
    job.output("none", files(folder / "none", format="parquet"), after=[nobody, dropped])
    return job


def reader(name: str, topic: str, folder: Path) -> Job:
    """One of several jobs that read one topic."""
    job = Job(name, partitions=4)
    read = job.input("read", kafka(topic, schema="id bigint", start="earliest", end="latest"))
    job.output("out", files(folder, format="parquet"), after=job.task("tag", tag, after=read, params={"via": name}))
    return job


def writer(out: str, start: int) -> Job:
    """A job to be run several times, each time with the same topic as its output."""
    job = Job("writer", partitions=2)
    columns = {"id": {"kind": "sequence", "start": start}}
    job.output("out", kafka(out), after=job.input("read", generator(100, columns=columns)))
    return job


# --- Keys -------------------------------------------------------------------------------------------------------------


def who() -> str:
    """The virtual peer on whose behalf this runs."""
    context = TaskContext.get()
    assert context is not None
    return str(context.getLocalProperty("spark.jobGroup.id")).partition("/")[0]


def owned(rows: pa.Table) -> pa.Table:
    """Says who worked on each row, in which call, and when."""
    started = time.time_ns()
    made = {"peer": who(), "batch": started, "keys": len(pc.unique(rows["key"]))}
    return pa.table({**{n: rows[n] for n in rows.column_names}, **{n: [v] * rows.num_rows for n, v in made.items()}})


def owned_record(row: dict) -> Iterator[dict]:
    yield {**row, "peer": who()}


class Held:
    """One batch at once, and each further one only when the test says so: every peer of the task has its part by then."""

    def __init__(self) -> None:
        self._committed = False

    def before_batch(self, rows: int) -> None:
        if self._committed:
            with Path(tempfile.gettempdir(), HOLD).open() as held:
                fcntl.flock(held, fcntl.LOCK_SH)

    def after_batch(self, rows: int) -> None:
        self._committed = True


HOLD = "hold"
"""A file among the daemons' temporary ones: as long as the test has it locked, held tasks wait."""


def key_of(row: dict) -> str:
    return row["key"]


def grouped(first: str, second: str, by_table: str, by_record: str) -> Job:
    """What two topics hold, grouped by one column, from a table function and from one that takes records."""
    job = Job("grouped", partitions=4)
    shape = {"schema": "key string, number bigint, source string", "start": "earliest", "end": "latest"}
    inputs = [job.input(f"read-{n}", kafka(topic, **shape)) for n, topic in enumerate((first, second))]
    table = job.task("by-table", owned, after=inputs, group_by="key", batch_size=100, lifecycle=Held)
    record = job.task("by-record", owned_record, after=inputs, group_by=key_of, batch_size=100, lifecycle=Held)
    job.output("table-out", kafka(by_table, key="key"), after=table)
    job.output("record-out", kafka(by_record, key="key"), after=record)
    return job
