"""Spark Structured Streaming joining two streams by key and time, its state in RocksDB, at least once: see ``spark_opponent``."""

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from spark_opponent import rows_of, session, write

spark = session(state=True)
left = rows_of(spark, "id long, value double, at timestamp").withWatermark("at", "1 second").alias("l")
right = (
    rows_of(spark, "id long, key string, at timestamp")
    .withWatermark("at", "1 second")
    .select(F.col("id").alias("other"), "key", F.col("at").alias("then"))
)
near = "id = other AND then >= at - INTERVAL 1 SECOND AND then <= at + INTERVAL 1 SECOND"
write(left.join(right, F.expr(near)).select("id", "value", "key", "at"), "append")
