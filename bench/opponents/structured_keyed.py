"""Spark Structured Streaming with a function that keeps a state for each key, in RocksDB, at least once.

Runs in an environment of its own. One argument: JSON with ``bootstrap``, ``topics`` (two), ``records``, ``way`` (``apply`` for
applyInPandasWithState, ``transform`` for transformWithStateInPandas), ``folder`` and ``ivy``. Says ``ready`` when its session
stands and ``done`` at its end, a line each.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

given = json.loads(sys.argv[1])
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
STATE = "spark.sql.streaming.stateStore"
BATCHES = 5
"""Micro-batches that take all there is: fewer and larger ones are faster, and one alone would show no speed."""
RESULT = "key string, hits long, total double"


def apply(key: tuple, batches: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """A result for each key and micro-batch."""
    hits, total = state.get if state.exists else (0, 0.0)
    for rows in batches:
        hits, total = hits + len(rows), total + float(rows["value"].sum())
    state.update((hits, total))
    yield pd.DataFrame({"key": [key[0]], "hits": [hits], "total": [total]})


class Transform(StatefulProcessor):
    """The same."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("running", "hits long, total double")

    def handleInputRows(  # noqa: N802 - Spark calls it so
        self, key: tuple, rows: Iterator[pd.DataFrame], _timers: Any
    ) -> Iterator[pd.DataFrame]:
        hits, total = self._state.get() if self._state.exists() else (0, 0.0)
        for batch in rows:
            hits, total = hits + len(batch), total + float(batch["value"].sum())
        self._state.update((hits, total))
        yield pd.DataFrame({"key": [key[0]], "hits": [hits], "total": [total]})

    def close(self) -> None:
        pass


spark = (
    SparkSession.builder.master("local[*]")
    .appName("opponent")
    .config("spark.jars.packages", CONNECTOR)
    .config("spark.jars.ivy", given["ivy"])
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "2g")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config(f"{STATE}.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    .config(f"{STATE}.rocksdb.changelogCheckpointing.enabled", "true")  # what changed, in place of whole snapshots
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
print("ready", flush=True)
source, target = given["topics"]
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", given["bootstrap"])
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", given["records"] // BATCHES)
    .load()
    .select(F.from_json(F.col("value").cast("string"), "key string, value double").alias("row"))
    .select("row.*")
)
if given["way"] == "apply":
    found = rows.groupBy("key").applyInPandasWithState(
        apply, RESULT, "hits long, total double", "update", GroupStateTimeout.NoTimeout
    )
else:
    found = rows.groupBy("key").transformWithStateInPandas(Transform(), RESULT, "Update", "None")
query = (
    found.select(F.to_json(F.struct("*")).alias("value"))
    .writeStream.outputMode("update")
    .format("kafka")
    .option("kafka.bootstrap.servers", given["bootstrap"])
    .option("kafka.compression.type", "lz4")
    .option("kafka.linger.ms", "50")
    .option("topic", target)
    .option("checkpointLocation", f"{given['folder']}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print("done", flush=True)
spark.stop()
