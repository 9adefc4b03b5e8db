"""The Spark session of a daemon: quiet, mortal, and cleaned up after."""

from __future__ import annotations

import contextlib
import gc
import operator
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.spec import TaskSpec
from sardonyx.job.bundle import build
from sardonyx.runtime.settings_sections import SparkSettings
from sardonyx.runtime.temp_dirs import temp_dir
from spark_tasks import code, shared_memory, worker_pool
from spark_tasks.apply import TaskFunction
from spark_tasks.code import CodeBundle
from spark_tasks.workarounds import forget_sockets
from spark_tasks.worker_pool import on_workers
from tests.services.functions import on
from tests.waiting import until

_LIFE = """
import sys, pathlib
from sardonyx.runtime.settings_sections import SparkSettings
from sardonyx.runtime.logging import configure_logging
from spark_tasks.session import jvm_pid, start_session, stop_session

directory = pathlib.Path(sys.argv[1])
{body}
"""


def script(body: str, directory: Path) -> subprocess.Popen[str]:
    """A program with a Spark session of its own: two JVMs cannot be had in one process."""
    return subprocess.Popen(
        [sys.executable, "-c", _LIFE.format(body=body), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_spark_dies_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    """After SIGKILL of the daemon neither its JVM nor a Python worker of Spark is left; nor are, once the next one has started,
    its sockets, which are in a folder of their own where the daemon's has a name too long for them.
    """
    body = """
spark = start_session(SparkSettings(master="local[2]"), directory)
import os
workers = spark.sparkContext.parallelize([1, 2], 2).map(lambda _: os.getpid()).collect()
print("sockets", spark.conf.get("spark.python.unix.domain.socket.dir"))
print("pids", jvm_pid(spark), *workers, flush=True)
input()
"""
    deep = tmp_path / ("deep" * 20)
    with script(body, deep) as program:
        assert program.stdout is not None
        sockets = Path(next(line for line in program.stdout if line.startswith("sockets ")).split()[1])
        assert sockets.exists()
        line = next(line for line in program.stdout if line.startswith("pids "))
        pids = [int(pid) for pid in line.split()[1:]]
        assert len(pids) == 3
        family = [psutil.Process(pid) for pid in pids]
        assert all(process.is_running() for process in family)
        program.kill()
    until(lambda: not any(process.is_running() for process in family), what="the end of Spark's JVM and its workers")

    def swept() -> bool:
        with temp_dir(
            "sardonyx-sockets-", sockets.parent
        ):  # as the next session does whose own folder has too long a name
            return not sockets.exists()

    until(swept, what="its sockets to go, unless another thread was sweeping just then")


def test_a_session_is_quiet_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A whole life, with a failing query, an ended JVM and a second session in it: only log events are
    printed, and the directory is empty again.
    """
    body = """
import os, signal
from spark_tasks.session import is_alive
spark = start_session(SparkSettings(master="local[2]"), directory)
try:
    spark.sql("select 1/id from range(3)").collect()
except Exception as error:
    print("failed", type(error).__name__)
try:
    spark.range(3).select("nope")
except Exception as error:
    print("failed", type(error).__name__)
spark.sparkContext.parallelize([1]).map(print).collect()
os.kill(jvm_pid(spark), signal.SIGKILL)
while is_alive(spark):
    pass
stop_session(spark)
stop_session(spark)
spark = start_session(SparkSettings(master="local[1]", conf={"spark.sql.shuffle.partitions": "7"}), directory)
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone"))
stop_session(spark)
print(sorted(p.name for p in directory.iterdir()))
"""
    with script(body, tmp_path) as program:
        out, err = program.communicate()
    assert program.returncode == 0, err
    plain = [line for line in out.splitlines() if "[info" not in line]
    assert plain == ["failed ArithmeticException", "failed AnalysisException", "7 UTC", "[]"]
    assert "spark_worker_output            line=1" in out
    assert err == ""


def test_secrets_are_on_no_command_line_and_the_ports_ask_for_one(tmp_path: Path) -> None:
    """Every user of the machine can list the arguments of processes, and reach Spark's ports. Spark has the values all the same,
    and a secret of its own for those who come by a port.
    """
    body = """
spark = start_session(SparkSettings(master="local[1]", conf={"spark.hadoop.fs.s3a.secret.key": "planted-7391"}), directory)
arguments = open(f"/proc/{jvm_pid(spark)}/cmdline").read()
print("planted-7391" in arguments, "local[1]" in arguments)
print(spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"))
print(spark.conf.get("spark.authenticate"), "spark.authenticate.secret" in arguments)
stop_session(spark)
"""
    with script(body, tmp_path) as program:
        out, err = program.communicate()
    assert program.returncode == 0, err
    assert [line for line in out.splitlines() if "[info" not in line] == [
        "False True",
        "planted-7391",
        "true False",
    ]


def test_a_session_that_does_not_start_says_why(tmp_path: Path) -> None:
    """A master that Spark does not know is one clear error with Spark's own words, and nothing is left."""
    body = """
from sardonyx.core.errors import SetupError
try:
    start_session(SparkSettings(master="nonsense"), directory)
except SetupError as error:
    print(error)
spark = start_session(SparkSettings(master="local[1]"), directory)
print(spark.range(3).count())
stop_session(spark)
print(sorted(p.name for p in directory.iterdir()))
"""
    with script(body, tmp_path) as program:
        out, err = program.communicate()
    assert program.returncode == 0, err
    assert "SX-SPARK-START: Spark did not start with master 'nonsense'" in out
    assert "Master must" in out.partition("cause:")[2].partition("fix:")[0]
    assert out.splitlines()[-1] == "[]"
    assert "3" in out.splitlines()


def test_without_java_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing Java comes before Spark's own."""
    from spark_tasks.session import start_session

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    with pytest.raises(SetupError) as raised, capture_logs():
        start_session(SparkSettings(), tmp_path)
    assert raised.value.code == "SX-JAVA-MISSING"
    assert list(tmp_path.iterdir()) == []


def test_sockets_of_jobs_that_are_over_are_forgotten(spark: SparkSession) -> None:
    """Java would keep the path of every job's socket until its end, and a daemon's heap would grow for as long as it lives."""
    hook = spark.sparkContext._jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    hook.setAccessible(True)
    forget_sockets(spark)
    before = hook.get(None).size()
    assert on_workers(spark, "lengths", len, ["a", "bc"]) == [1, 2]
    assert hook.get(None).size() > before, "Spark does so no more: then nothing needs to be forgotten"
    forget_sockets(spark)
    assert hook.get(None).size() == 0


LARGE = pa.py_buffer(bytes(range(256)) * 4_096)


def memories() -> set[str]:
    """Descriptors of this process that hold shared memory."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # others open and close theirs meanwhile
            found |= {link.name} if "memfd:sardonyx" in str(link.readlink()) else set()
    return found


def test_large_buffers_go_past_spark_and_leave_nothing_open(spark: SparkSession) -> None:
    """There and back, many times, from several threads; each memory is closed with its call, however that ends."""
    held = memories()
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: on_workers(spark, "echo", operator.itemgetter(0), [[LARGE], [LARGE]]), range(20)):
            assert got == [LARGE, LARGE]
    del got
    for _ in range(3):
        with pytest.raises(InternalError, match="IndexError"):
            on_workers(spark, "fails", operator.itemgetter(1), [[LARGE]])
    gc.collect()
    assert memories() <= held


def test_where_memory_cannot_be_shared_batches_go_through_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that forbids it loses speed, and nothing else; one log line says so."""
    monkeypatch.setattr(worker_pool, "_unshared", weakref.WeakSet())
    init = shared_memory.Memory.__init__

    def hidden(self: shared_memory.Memory) -> None:
        init(self)
        self.ref = shared_memory.MemfdRef("/proc/0/fd/0", 0, 0)

    monkeypatch.setattr(shared_memory.Memory, "__init__", hidden)
    with capture_logs() as logged:
        for _ in range(2):
            assert on_workers(spark, "echo", operator.itemgetter(0), [[LARGE]]) == [LARGE]
    assert len([line for line in logged if line["event"].startswith("shared_memory_unavailable")]) == 1


def test_many_items_take_no_memory_of_their_own(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of hundreds of small files must not use up the daemon's file descriptors."""

    def none() -> None:
        raise AssertionError("made")

    monkeypatch.setattr(shared_memory, "Memory", none)
    items = [[bytes([n])] for n in range(100)]
    assert on_workers(spark, "echo", operator.itemgetter(0), items) == [item[0] for item in items]


def test_a_daemon_does_not_grow_with_the_jobs_that_it_has_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of code that no task uses, nothing stays: no module here or in a worker, no file, and nothing that Spark names to each of
    its tasks.
    """
    others = object.__new__(type("Others", (), {}))
    for known in code._bundles.values():  # other tests go on with theirs
        known.users.add(others)
    before = len(code._bundles), spark.sparkContext._jsc.sc().allAddedFiles().size()
    monkeypatch.setattr(code, "UNUSED", 0.0)
    counts = []
    for number in range(12):
        (tmp_path / "job.py").write_text(_OPEN_BUNDLES.format(number=number))
        built = build(tmp_path)
        code.free_unused(spark)
        bundle = CodeBundle.open(built.data, built.sha256, tmp_path / "cache")
        task = TaskFunction(on(spark, bundle), TaskSpec(name="t", type="function", fn="job:fn"))
        (row,) = task.apply(pa.table({"n": [number]})).table.to_pylist()
        assert row["n"] == 2 * number
        counts.append(row["bundles"])
        folder = Path(SparkFiles.getRootDirectory())
        files = [*folder.glob(f"{bundle.package}.py"), *(tmp_path / "cache").iterdir()]
        assert len(files) == 3, "its zip and its opener, and the opener for the workers"
        assert before[1] + 2 == spark.sparkContext._jsc.sc().allAddedFiles().size()
        assert len(code._bundles) == before[0] + 1
        del task, bundle
        gc.collect()
    assert max(counts[2:]) <= 2, counts


_OPEN_BUNDLES = """
from spark_tasks import code

code.UNUSED = 0.0

def fn(row: dict) -> dict:
    return {{"n": row["n"] + {number}, "bundles": len(code._bundles)}}
"""
