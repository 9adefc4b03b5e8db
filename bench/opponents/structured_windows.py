"""Spark Structured Streaming counting by key and minute, its state in RocksDB, at least once: see ``spark_opponent``.

It is given ``by``, the column of the key.
"""

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from spark_opponent import given, rows_of, session, write

rows = rows_of(session(state=True), "id long, key string, at timestamp")
counts = (
    rows.withWatermark("at", "1 minute")
    .groupBy(F.window("at", "1 minute"), given["by"])
    .agg(F.count("*").alias("hits"))
)
start = (F.col("window.start").cast("long") * 1000).alias("window_start")
write(counts.select(given["by"], start, "hits"), "update")
