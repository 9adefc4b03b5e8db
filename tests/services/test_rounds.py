"""Rounds over tables on Spark's workers, through ``run_job`` and on a cluster: what comes out, who fails, and who dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from structlog.testing import capture_logs

from sardonyx import Job, JobFailed, SetupError, blackhole, files, kafka
from sardonyx.testing import ClockedRun, Cluster, kill_at, run_job
from tests.core.round_functions import moving, nearest, plain_centres

POINTS = np.rint(np.random.default_rng(7).normal(scale=4.0, size=(900, 2)) * 1024) / 1024  # of which sums are exact
ROWS = [{"number": number, "x": x, "y": y} for number, (x, y) in enumerate(POINTS.tolist())]
SCHEMA = "number long, x double, y double"
START = [{"cluster": n, "x": ROWS[n]["x"], "y": ROWS[n]["y"]} for n in range(4)]
KMEANS: dict[str, Any] = {"state": "cluster bigint", "group_by": "cluster", "aggregate": {"x": "mean", "y": "mean"}}


def raising(rows: pa.Table) -> pa.Table:
    raise ValueError("no more")


def short(rows: pa.Table) -> pa.Table:
    return pa.table({"n": rows["number"].slice(1)})


def deadly(rows: pa.Table, aggregates: pa.Table, mark: str) -> pa.Table:
    if len(aggregates) and not Path(mark).exists():
        Path(mark).touch()
        os._exit(3)
    return pa.table({"n": pc.coalesce(rows["n"], rows["number"])})


def a_job(fn: Callable[..., Any], **given: Any) -> Job:
    job = Job("points", partitions=2)
    points = job.input("points", files("points.csv", format="csv", schema=SCHEMA))
    job.output("out", blackhole(), after=job.iterate("x", fn, rows=points, **given))
    return job


def results(job: Job) -> list[dict[str, Any]]:
    return run_job(job, {"points": ROWS}).rows("out")


def test_kmeans_in_a_job() -> None:
    """The clusters and the centres are those of a plain loop in numpy, to the last bit; the log says how it ended."""
    centres, clusters, number = plain_centres(POINTS, POINTS[:4])
    given = {**KMEANS, "start": START}
    with capture_logs() as logs:
        rows = results(a_job(nearest, **given))
        assert [row["cluster"] for row in sorted(rows, key=lambda row: row["number"])] == clusters.tolist()
        rows = results(a_job(nearest, results="aggregates", **given))
        results(a_job(nearest, max_rounds=2, **given))
        given["aggregate"] = {**KMEANS["aggregate"], "moved": "sum"}
        results(a_job(moving, until="moved == 0", **given))
    assert rows == [{"cluster": n, "x": x, "y": y} for n, (x, y) in enumerate(centres.tolist())]
    told = [line for line in logs if line["event"].startswith("rounds_")]
    found = [(line["event"], line["log_level"], line["reason"], line["rows"], line["rounds"]) for line in told]
    assert found == [
        ("rounds_computed", "info", "quiescent", 900, number),
        ("rounds_computed", "info", "quiescent", 900, number),
        ("rounds_not_converged", "warning", "limit", 900, 2),
        ("rounds_computed", "info", "converged", 900, number),
    ]


def test_what_a_function_raises_fails_the_job() -> None:
    """With the user's traceback and nothing of ours; so does a result that is short."""
    with pytest.raises(JobFailed) as failure:
        results(a_job(raising, state="n bigint"))
    assert failure.value.code == "SX-FN-RAISED"
    assert "raising of task x raised ValueError: no more" in failure.value.message
    assert failure.value.traceback.count("File ") == 1
    with pytest.raises(JobFailed) as failure:
        results(a_job(short, state="n bigint"))
    assert (failure.value.code, failure.value.where["task"]) == ("SX-ITERATE-RESULT", "x")
    assert failure.value.message == "short returned 899 rows for 900"


def test_a_function_that_ends_its_process_ends_no_other(tmp_path: Path) -> None:
    """The peer says that the worker died, and the next attempt makes all rounds again."""
    given = {"aggregate": {"n": "max"}, "params": {"mark": str(tmp_path / "died")}}
    job = a_job(deadly, state="n bigint", **given)
    with pytest.raises(SetupError) as failure:
        results(job)
    assert failure.value.code == "SX-SPARK-LOST"
    assert sorted(row["n"] for row in results(job)) == [*range(900)]


def test_a_crash_at_any_point_changes_nothing() -> None:
    """While rows come, when rounds are done, and between the parts of the results."""
    job = Job("points", partitions=2)
    source = kafka("points", schema=SCHEMA, start="earliest", end="latest")
    rounds = job.iterate("x", nearest, rows=job.input("points", source), start=START, batch_size=200, **KMEANS)
    job.output("out", blackhole(), after=rounds)
    wanted = sorted(results(a_job(nearest, start=START, **KMEANS)), key=lambda row: row["number"])
    for moment in ("settled", "applied", "committed"):
        run = ClockedRun(job, topics={"points": 2})
        for part in range(9):
            run.give("points", ROWS[part * 100 : part * 100 + 100], part % 2)
            if part % 4 == 1:
                run.crash("x", moment)
        run.crash("x", moment)
        run.end()
        found = sorted(run.rows("out"), key=lambda row: row["number"])
        run.close()
        assert found == wanted


def test_rounds_on_a_cluster_whatever_dies(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers are killed while rows come, when the rounds are done, and between parts of the results: what comes out are the
    results of a run in which nothing dies, to the last bit, each once.
    """

    def job(read: Any, rows: Any, centres: Any) -> Job:
        found = Job("points", partitions=2)
        points = found.input("points", read)
        given = {**KMEANS, "start": START, "batch_size": 200}
        found.output("rows-out", rows, after=found.iterate("rows", nearest, rows=points, **given))
        given |= {"aggregate": {**KMEANS["aggregate"], "moved": "sum"}, "until": "moved == 0", "results": "aggregates"}
        found.output("centres-out", centres, after=found.iterate("centres", moving, rows=points, **given))
        return found

    quiet = run_job(job(files("points.csv", format="csv", schema=SCHEMA), blackhole(), blackhole()), {"points": ROWS})
    faults = [kill_at("graph-rows", 2), kill_at("graph-computed"), kill_at("graph-given", 3)]
    with sardonyx_clusters(**{"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}) as cluster:
        points, rows, centres = cluster.topic("points", ROWS), cluster.topic("rows"), cluster.topic("centres")
        source = kafka(points, schema=SCHEMA, start="earliest", end="latest")
        cluster.peers(4, faults=faults)
        cluster.run(job(source, kafka(rows, key="number"), kafka(centres, key="cluster")), timeout="6 min")
        found = {"rows-out": cluster.records(rows), "centres-out": cluster.records(centres)}
    for task, key in (("rows-out", "number"), ("centres-out", "cluster")):
        assert sorted(found[task], key=lambda row: row[key]) == sorted(quiet.rows(task), key=lambda row: row[key])
