"""What a process runs with: settings, logging, clock, failpoints, threads, child processes, temporary directories, user code.

Imports :mod:`sardonyx.core`. Knows neither ZooKeeper, Kafka nor Spark.
"""
