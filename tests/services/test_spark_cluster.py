"""Daemons on a Spark cluster instead of local Spark: code gets to the workers, and a worker's death costs no record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sardonyx.testing import Cluster
from tests import class_archive
from tests.services.spark_cluster import SparkCluster
from tests.waiting import until

ROWS = 2_000
JOB = """
import os
import threading
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from sardonyx import Job, kafka

def held(row: dict, folder: str) -> dict:
    # One row holds its worker until that is killed; in the next attempt it goes on.
    told = Path(folder) / "held"
    if row["n"] == 1234 and not told.exists():
        writing = Path(folder) / "writing"
        writing.write_text(str(os.getpid()))
        writing.rename(told)
        threading.Event().wait()
    return {**row, "row": True}

def as_table(rows: pa.Table) -> pa.Table:
    return rows.append_column("arrow", pa.array([True] * rows.num_rows))

def as_pandas(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(pandas=True)

def as_dataframe(rows: DataFrame) -> DataFrame:
    return rows.withColumn("spark", col("n") >= 0)

job = Job("kinds", partitions=2)
read = job.input("read", kafka("IN", start="earliest", end="latest", schema="n long"))
first = job.task("rows", held, after=read, params={"folder": "FOLDER"}, batch_size=500)
third = job.task("frames", as_pandas, after=job.task("tables", as_table, after=first))
job.output("sent", kafka("OUT"), after=job.task("spark", as_dataframe, after=third))
"""


@pytest.mark.gate
def test_a_job_on_a_spark_cluster_outlives_the_death_of_a_worker(
    sardonyx_clusters: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Functions of every kind run on a standalone cluster with two workers. One worker is killed in the middle of a batch: Spark
    does that part again, and every record arrives once.
    """
    with SparkCluster(tmp_path) as spark:
        workers = [spark.add_worker(), spark.add_worker()]
        soon = class_archive.java_options()
        conf = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": soon,
            "spark.driver.extraJavaOptions": soon,
        }
        with sardonyx_clusters(**{"spark.master": spark.master, "spark.conf": conf}) as cluster:
            topic = cluster.topic("in", ({"n": n} for n in range(ROWS)))
            sent = cluster.topic("sent")
            spec = tmp_path / "kinds.py"
            spec.write_text(JOB.replace("IN", topic).replace("OUT", sent).replace("FOLDER", str(tmp_path)))
            cluster.peers("auto")
            handle = cluster.client.submit(str(spec))
            told = tmp_path / "held"
            until(lambda: told.exists() or handle.status().ended, what="a worker to hold a row")
            assert told.exists(), handle.status().error
            above = {process.pid for process in psutil.Process(int(told.read_text())).parents()}
            (victim,) = [worker for worker in workers if worker.pid in above]
            victim.kill()
            view = handle.await_completion(300)
            found = cluster.records(sent)
    assert view.status == "completed", view.error
    assert sorted(row["n"] for row in found) == list(range(ROWS))
    assert all(row["row"] and row["arrow"] and row["pandas"] and row["spark"] for row in found)
