"""Spark Structured Streaming counting by key and minute, its state in RocksDB, at least once. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``records``, ``by`` (the column of the key), ``folder`` and ``ivy``. Says
``ready`` when its session stands and ``done`` at its end, a line each.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

given = json.loads(sys.argv[1])
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
STATE = "spark.sql.streaming.stateStore"
BATCHES = 5
"""Micro-batches that take all there is: fewer and larger ones are faster, and one alone would show no speed."""

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
    .select(F.from_json(F.col("value").cast("string"), "id long, key string, at timestamp").alias("row"))
    .select("row.*")
)
counts = (
    rows.withWatermark("at", "1 minute")
    .groupBy(F.window("at", "1 minute"), given["by"])
    .agg(F.count("*").alias("hits"))
)
start = (F.col("window.start").cast("long") * 1000).alias("window_start")
query = (
    counts.select(F.to_json(F.struct(given["by"], start, "hits")).alias("value"))
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
