"""Workarounds for PySpark, py4j and the JVM: each with its reason. Nothing else here uses their internals to change them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path

from pyspark import SparkContext, SparkFiles
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

# ruff: noqa: SLF001 (there is no public way to do what is done here)

PANDAS_WARNING = "PySpark does not yet fully support pandas"
"""PySpark warns of pandas 3 at every ``udf()``. The warning concerns parts of Spark's pandas API that Sardonyx does not use."""

LATE_OPTIMISER = " ".join(
    f"-XX:Tier4{what}Threshold={calls}"
    for what, calls in (("Invocation", 50_000), ("MinInvocation", 6_000), ("Compile", 150_000), ("BackEdge", 400_000))
)
"""Ten times what Java takes: its optimising compiler, which used half of the JVM's time for minutes, works only on what is hot
indeed. Between Python functions Spark moves bytes; a DataFrame's own loops are over these numbers within milliseconds."""


def forget_sockets(spark: SparkSession) -> None:
    """Let the JVM forget the sockets of finished jobs. To be called now and then.

    Spark's Unix sockets came with SPARK-51688, see https://github.com/apache/spark/pull/50466.

    Each result comes over a socket of its own. Java keeps its path until the process ends, to remove the file then, though
    Spark has removed it long before. The set is replaced, not emptied, because another thread may be adding to it. Raises
    nothing.
    """
    with contextlib.suppress(Exception):
        java = spark.sparkContext._jvm.java
        kept = java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
        kept.setAccessible(True)
        kept.set(None, java.util.LinkedHashSet())


def remove_file(context: SparkContext, name: str) -> None:
    """The reverse of ``SparkContext.addFile``, which has none: every task that Spark starts would name the file to its executor.

    ``ArtifactManager`` of Spark forgets the files of its sessions in the same way, see
    https://github.com/apache/spark/pull/42731. Executors of a cluster keep their copy until the application ends. Raises nothing.
    """
    with contextlib.suppress(Exception):
        of_sessions = context._jsc.sc().addedFiles().valuesIterator()
        while of_sessions.hasNext():
            files = of_sessions.next()
            paths = files.keysIterator()
            for path in [paths.next() for _ in range(files.size())]:
                if path.endswith(f"/{name}"):
                    files.remove(path)
    with contextlib.suppress(Exception):
        Path(SparkFiles.get(name)).unlink(missing_ok=True)


def silence() -> None:
    """Silence what PySpark and py4j log, with stack traces, about errors that they raise as well."""
    warnings.filterwarnings("ignore", message=PANDAS_WARNING)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    root = logging.getLogger()
    if _not_from_py4j not in root.filters:
        root.addFilter(_not_from_py4j)


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def silence_accumulators(context: SparkContext) -> None:
    """PySpark's accumulator server would print a traceback when the JVM ends before Python."""
    context._accumulatorServer.handle_error = lambda *_: None


def stop_context(context: SparkContext) -> None:
    """Like ``SparkContext.stop``, which raises half-way when the JVM has died (SPARK-48711).

    See https://github.com/apache/spark/pull/47069.
    """
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # whatever it says, the process is ended next
        warnings.simplefilter("ignore")
        context.stop()


def forget_gateway() -> None:
    """Let PySpark forget its JVM, so that another session can start.

    It keeps the connection to its JVM in class attributes, also when the JVM has ended (SPARK-18523). See
    https://github.com/apache/spark/pull/15961.
    """
    gateway = SparkContext._gateway
    context = SparkContext._active_spark_context
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
