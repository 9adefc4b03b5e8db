"""Starts and stops Spark. Each daemon has one session, which the threads of all its virtual peers share.

Spark's JVM is our child process and ends when its standard input closes. So it also ends if something kills us.
The output of the JVM and its Python workers does not go to the terminal. Spark's errors and the lines that users'
functions print become log events. We drop everything else.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import IO

import structlog
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from sardonyx.core.errors import SetupError
from sardonyx.core.secrets import is_secret
from sardonyx.runtime.java import find_java
from sardonyx.runtime.settings_sections import SparkSettings
from sardonyx.runtime.temp_dirs import temp_dir
from spark_tasks import spark_metrics, workarounds

_MARK = "@spark "
_QUIET_LOG4J = f"""
rootLogger.level = error
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.alwaysWriteExceptions = false
appender.out.layout.pattern = {_MARK}%c{{1}} %replace{{%m}}{{[\\r\\n]+}}{{ }}%n
# A failing task reaches us as an exception; there is no need to hear of it three times more.
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = off
# Otherwise PySpark's gateway takes itself for a shell and raises the level again.
logger.repl.name = org.apache.spark.repl.Main
logger.repl.level = error
logger.submit.name = org.apache.spark.deploy.SparkSubmit
logger.submit.level = error
"""
_FAIR_WITHIN_ONE_POOL = """<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""
_CHATTER = re.compile(
    r"WARNING: |NOTE: Picked up |Using Spark's default log4j|Setting default log level|To adjust logging"
    r"|\s+at |\s*\.\.\. \d+ more"  # frames of Java
)
_STOP_SECONDS = 10.0

log = structlog.get_logger()

# ruff: noqa: SLF001 (PySpark's public interface does not show its JVM)


class _Started:
    """The resources of a running session."""

    def __init__(self, process: subprocess.Popen[bytes], kept: contextlib.ExitStack, output: _Output) -> None:
        self.process = process
        self.kept = kept
        """Its temporary files. Closing this removes them."""
        self.output = output


_started: weakref.WeakKeyDictionary[SparkSession, _Started] = weakref.WeakKeyDictionary()


def pids() -> list[int]:
    """Return the process ids of the JVMs that run. Any thread may ask."""
    return [started.process.pid for started in list(_started.values())]


spark_metrics.follow(pids)


def start_session(settings: SparkSettings, directory: Path | None = None) -> SparkSession:
    """Start Spark's JVM and a session in it. A process may have only one session at a time.

    Args:
        settings: master and configuration. The configuration overrides what this module sets.
        directory: the parent of the new directory for Spark's temporary files; None: the system's default.
            :func:`stop_session` removes the new directory.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD`` or ``SX-SPARK-START``.
    """
    find_java()
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    kept = contextlib.ExitStack()
    own = Path(tempfile.mkdtemp(prefix="sardonyx-spark-", dir=directory))
    kept.callback(shutil.rmtree, own, ignore_errors=True)
    try:
        conf = _configuration(settings, own, _socket_folder(own, kept))
    except BaseException:  # such as a disk without room, on which each attempt would leave a folder
        kept.close()
        raise
    python = conf.get("spark.pyspark.python", sys.executable)
    # Without this, Spark starts the first "python3" on the path, which lacks the packages of this Python.
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYSPARK_DRIVER_PYTHON"] = conf.get("spark.pyspark.driver.python", python)
    workarounds.silence()
    began = time.monotonic()
    output = _Output()
    gateway = None
    try:
        gateway = launch_gateway(
            # Every user of the machine sees the command line of the JVM: the context brings the secrets later.
            SparkConf(loadDefaults=False).setAll([each for each in conf.items() if not is_secret(each[0])]),
            popen_kwargs=output.popen_arguments(),
        )
        output.follow()
        spark = SparkSession(
            SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway)
        )
    except Exception as error:
        output.follow()
        process = getattr(gateway, "proc", None)
        workarounds.forget_gateway()
        if process is not None:
            _end(process)
        output.close()
        kept.close()
        raise SetupError(
            "SX-SPARK-START",
            f"Spark did not start with master {settings.master!r}",
            cause=output.reason() or _first_line(error),
            fix="check spark.master and spark.conf in the settings, and run `sardonyx doctor`",
            where={"master": settings.master},
        ) from error
    if "spark.sql.shuffle.partitions" not in conf:
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    workarounds.silence_accumulators(spark.sparkContext)
    _started[spark] = _Started(gateway.proc, kept, output)
    log.info(
        "spark_started",
        master=settings.master,
        cores=spark.sparkContext.defaultParallelism,
        pid=gateway.proc.pid,
        seconds=round(time.monotonic() - began, 2),
    )
    return spark


def stop_session(spark: SparkSession) -> None:
    """Stop the session and its JVM, and remove its temporary files.

    Callers may repeat the call, and may also call it after the JVM has died.
    """
    started = _started.pop(spark, None)
    if started is None:
        return
    if started.process.poll() is None:
        workarounds.stop_context(spark.sparkContext)
    workarounds.forget_gateway()
    _end(started.process)
    started.output.close()
    started.kept.close()
    log.info("spark_stopped")


def is_alive(spark: SparkSession) -> bool:
    """Whether the session's JVM still runs. True for a session that this module did not start."""
    started = _started.get(spark)
    return started is None or started.process.poll() is None


def enter_group(spark: SparkSession, group: str) -> None:
    """Put all Spark jobs that the calling thread begins from now on into ``group``.

    :func:`cancel_group` ends them together. This function raises nothing: if Spark is lost, the next call to Spark
    raises an error.
    """
    with contextlib.suppress(Exception):
        spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)


def cancel_group(spark: SparkSession, group: str) -> None:
    """Cancel all present and future Spark jobs of a group. Spark cancels a later job of this group at once.

    Spark kills a Python worker that does not stop by itself (``spark.python.task.killTimeout``, 2 s). This frees the
    cores for others. This function raises nothing: if Spark is lost, there is nothing to end.
    """
    with contextlib.suppress(Exception):
        spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the session's JVM. Raises ``KeyError`` if this module did not start the session."""
    return _started[spark].process.pid


_SOCKET_FOLDER = 60
"""The most characters in the path of the folder of Unix sockets. A socket's whole path may have at most 103 characters
(macOS) or 107 (Linux), and Spark uses 43 of them for the socket's name."""


def _socket_folder(own: Path, kept: contextlib.ExitStack) -> Path | None:
    """Return the folder for the sockets between Spark's JVM and Python; None: no folder is possible.

    It is ``own`` if that path is short enough, else a new folder with a short name.
    """
    if len(os.fsencode(own)) <= _SOCKET_FOLDER:
        return own
    try:
        return kept.enter_context(temp_dir("sardonyx-sockets-", Path("/tmp")))  # noqa: S108 (it makes a folder that is ours alone)
    except OSError:
        return None


def _configuration(settings: SparkSettings, own: Path, sockets: Path | None) -> dict[str, str]:
    log4j = own / "log4j2.properties"
    log4j.write_text(_QUIET_LOG4J, "utf-8")
    pools = own / "pools.xml"
    pools.write_text(_FAIR_WITHIN_ONE_POOL, "utf-8")
    conf = {
        "spark.app.name": "sardonyx",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(own),
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        # Micro-batches of several virtual peers take turns task by task. So none waits until another one ends.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": pools.as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # We cut each batch ourselves. Spark must not cut it smaller (its default is 10,000 rows).
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.executorEnv.PYTHONWARNINGS": f"ignore:{workarounds.PANDAS_WARNING}",
        "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    }
    if settings.master.startswith("local"):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if sockets is not None:
            # Over TCP each Spark job paused for 40 ms: one side sent small pieces and waited until the other side
            # acknowledged them.
            conf |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": str(sockets),
            }
    if re.fullmatch(r"local(\[.*\])?", settings.master):
        # The ports of the driver take only those who know its secret, which Spark makes by itself. The other users of this
        # machine reach them, too. Of a cluster the secret is the user's: its workers must have it.
        conf["spark.authenticate"] = "true"
    conf |= settings.conf
    conf["spark.master"] = settings.master
    options = f'-Dlog4j2.configurationFile="{log4j.as_uri()}" -Djava.io.tmpdir="{own}" {workarounds.LATE_OPTIMISER}'
    conf["spark.driver.extraJavaOptions"] = f"{options} {conf.get('spark.driver.extraJavaOptions', '')}".strip()
    return conf


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # the JVM waits for this
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Output:
    """Reads the output of the JVM and its Python workers, and turns it into log events."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._lines: IO[str] = os.fdopen(reading, "r", encoding="utf-8", errors="replace")
        self._last: collections.deque[str] = collections.deque(maxlen=20)
        self._thread = threading.Thread(target=self._read, name="spark-output", daemon=True)

    def popen_arguments(self) -> dict[str, int]:
        return {"stdout": self._writing, "stderr": self._writing}

    def follow(self) -> None:
        """Begin to read. Callers call this after they have started the child, or have failed to start it."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
            self._thread.start()

    def close(self) -> None:
        """Wait until the thread has read everything. Callers call this after the child has ended."""
        self._thread.join(_STOP_SECONDS)

    def reason(self) -> str:
        """Return the last lines of the output. They say why Spark did not start."""
        return " | ".join(self._last)[-1000:]

    def _read(self) -> None:
        with self._lines:
            for raw in self._lines:
                line = raw.rstrip()
                if not line or _CHATTER.match(line):
                    continue
                self._last.append(line)
                if line.startswith(_MARK):
                    log.error("spark_error", error=line.removeprefix(_MARK))
                else:
                    log.info("spark_worker_output", line=line)
