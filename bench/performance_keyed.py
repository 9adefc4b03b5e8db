"""A function with a state for each key beside that of Structured Streaming: running totals of a thousand keys."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
from performance_track import Track
from performance_watch import daemons
from performance_windows import committed, explain, generated
from races import Row, race_all
from topic_to_topic import PARTITIONS, SCHEMA
from window_figures import key_number, running_rate

from sardonyx import Job, State, kafka
from sardonyx.client.views import JobView
from sardonyx.job.load import load_job

TITLE = "function with a state for each key"
TASKS = 3
"""Of the job, and its virtual peers: what reads, what adds up, what writes."""


def keyed(track: Track, runs: int) -> list[Row]:
    """A function of tables, beside both ways that Structured Streaming has, and beside our own of records."""
    rows = pa.concat_tables(generated(track.records)).select(["key"])
    counts = rows.group_by("key").aggregate([("key", "count")]).to_pylist()
    wanted = {key_number(row["key"]): row["key_count"] for row in counts}

    def ours(function: str) -> float:
        _, target, since = run(track, function)
        return running_rate(results(track, target), wanted, since)

    def theirs(way: str) -> float:
        given = track.given("keyed", bounded=True, way=way)
        return running_rate(results(track, track.finished("structured_keyed", given)), wanted)

    beside = [
        (Row(TITLE, "Structured Streaming, applyInPandasWithState", 1.5), functools.partial(theirs, "apply")),
        (Row(TITLE, "Structured Streaming, transformWithStateInPandas", 1.5), functools.partial(theirs, "transform")),
        (Row(TITLE, "our own, of records in place of tables", None), functools.partial(ours, "records")),
    ]
    found = race_all(runs, functools.partial(ours, "tables"), beside)
    explain(track, found, "keyed", lambda where: run(where, "tables")[0])
    return found


def add_tables(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """A result for each key and batch."""
    names = ["key", "hits", "total"]
    ones = pa.array(np.ones(rows.num_rows, np.int64))
    new = pa.table([rows["key"], ones, rows["value"]], names)
    both = pa.concat_tables([state, new], promote_options="permissive").group_by("key")
    found = both.aggregate([("hits", "sum"), ("total", "sum")]).rename_columns(names)
    return found, found


def add_record(row: dict, hits: State[int], total: State[float]) -> dict:
    """A result for each record."""
    hits.value += 1
    total.value += row["value"]
    return {"key": row["key"], "hits": hits.value, "total": total.value}


def keyed_job(source: str, target: str, function: str) -> Job:
    """JSON to JSON."""
    job = Job("bench-keyed", partitions=PARTITIONS)
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"))
    if function == "tables":
        work = job.keyed("work", add_tables, after=read, group_by="key", state="hits long, total double")
    else:
        work = job.keyed("work", add_record, after=read, group_by="key")
    job.output("write", kafka(target), after=work)
    return job


def run(track: Track, function: str) -> tuple[JobView, str, float]:
    """Run the job to its end; the topic with its results, and when it had read its first batch (seconds since 1970)."""
    target = track.target()
    with daemons(track, TASKS) as found:
        view = found.client.submit(load_job(keyed_job(track.source, target, function))).await_completion(900)
        assert view.status == "completed", view
        return view, target, found.begun("read")


def results(track: Track, topic: str) -> list[tuple[int, int, float]]:
    """All that is committed in a topic of running counts, of each key in the order of its results."""
    found = [(key_number(row["key"]), row["hits"], written / 1000) for row, written in committed(track, topic)]
    # A writer that takes turns over the partitions of its topic spreads the results of a key: what counts rises.
    return sorted(found, key=lambda result: result[:2])
