"""What our opponents in Spark Structured Streaming share: a session, and of those with a state the source and the way out.

They are programs of an environment of their own. One argument: JSON with ``bootstrap``, ``topics``, ``records``, ``folder``
and ``ivy``, and what each of them says. They say ``ready`` when the session stands and ``done`` at the end, a line each.
"""

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
STATE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BATCHES = 5
"""Micro-batches that take all there is: fewer and larger ones are faster, and one alone would show no speed."""

given: dict[str, Any] = json.loads(sys.argv[1])


def session(*, state: bool) -> SparkSession:
    """Says ``ready``. A state is in RocksDB, which keeps what changed in place of whole snapshots."""
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("opponent")
        .config("spark.jars.packages", CONNECTOR)
        .config("spark.jars.ivy", given["ivy"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if state:
        builder = builder.config(f"{STATE}.providerClass", ROCKSDB)
        builder = builder.config(f"{STATE}.rocksdb.changelogCheckpointing.enabled", "true")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    return spark


def rows_of(spark: SparkSession, schema: str) -> DataFrame:
    """The rows of the source, in batches of a part of it."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", given["topics"][0])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given["records"] // BATCHES)
        .load()
        .select(F.from_json(F.col("value").cast("string"), schema).alias("row"))
        .select("row.*")
    )


def write(found: DataFrame, mode: str) -> None:
    """Write all rows as JSON to the target, until the source is at its end. Says ``done``."""
    query = (
        found.select(F.to_json(F.struct("*")).alias("value"))
        .writeStream.outputMode(mode)
        .format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", "50")
        .option("topic", given["topics"][-1])
        .option("checkpointLocation", f"{given['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)
    found.sparkSession.stop()
