"""Spark Structured Streaming doing what our jobs do, at least once. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (the first is read, the last written; a query between each two),
``work`` (``filter``, ``chain``, ``pass``), ``folder``, ``bounded``, ``linger`` (ms) and ``ivy``. Says ``ready`` when its
session stands and ``done`` at its end, a line each.
"""

import itertools

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from spark_opponent import given, session

SCHEMA = "id long, key string, value double, at timestamp"

spark = session(state=False)


def worked(rows: DataFrame, number: int) -> DataFrame:
    """What query ``number`` makes of JSON records: nine of ten and a column more, or in a chain just a column more."""
    if given["work"] == "pass":
        return rows.select("value")
    before = [f"step{step} double" for step in range(number)]
    parsed = rows.select(F.from_json(F.col("value").cast("string"), ", ".join([SCHEMA, *before])).alias("row"))
    found = parsed.select("row.*")
    if given["work"] == "chain":
        made = found.withColumn(f"step{number}", F.col("value") * (number + 2))
    else:
        made = found.where(F.col("id") % 10 != 0).withColumn("doubled", F.col("value") * 2)
    return made.select(F.to_json(F.struct("*")).alias("value"))


def follow(number: int, source: str, target: str) -> object:
    """One query from a topic to the next."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        worked(rows, number)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", str(given["linger"]))
        .option("topic", target)
        .option("checkpointLocation", f"{given['folder']}/checkpoint-{number}")
    )
    return (writer.trigger(availableNow=True) if given["bounded"] else writer).start()


topics = given["topics"]
queries = [follow(number, *pair) for number, pair in enumerate(itertools.pairwise(topics))]
for query in queries:
    query.awaitTermination()
print("done", flush=True)
spark.stop()
