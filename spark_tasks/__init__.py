"""Runs user functions on Spark: session, worker processes, shared memory, isolation of failing records. The only package that
imports pyspark.

Imports :mod:`sardonyx.connectors` and below.
"""
