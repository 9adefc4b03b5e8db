"""An archive of the classes that Spark loads as it starts. A JVM that has one starts in half of the time.

Each daemon of a test starts a JVM. This is Java's class data sharing, see
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html.

``python -m tests.class_archive FILE`` makes the archive. It fits only this Java and these jars. A JVM to which it does not fit
loads its classes from the jars, as without an archive.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""``make`` puts it beside the packages of which it holds classes."""
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""Spark lives for seconds here: what the JVM's second compiler would save later it costs now, half of the processor's time."""


def java_options() -> str:
    """Options of a JVM of Spark that lives for seconds."""
    return f"{FIRST_COMPILER} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else FIRST_COMPILER


def make(archive: Path) -> None:
    """Write the archive, from a Spark that has run each kind of batch once."""
    from sardonyx.runtime.settings_sections import SparkSettings
    from spark_tasks import session

    session._STOP_SECONDS = 300.0
    written = archive.with_suffix(".new")
    options = {"spark.driver.extraJavaOptions": f"{FIRST_COMPILER} -XX:ArchiveClassesAtExit={written} -Xlog:cds=off"}
    with tempfile.TemporaryDirectory() as folder:
        spark = session.start_session(SparkSettings(master="local[2]", conf=options), Path(folder))
        spark.sparkContext.parallelize([1, 2], 2).mapPartitions(list).collect()
        rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, word string")
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("word").count().collect()
        session.stop_session(spark)
    written.replace(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
