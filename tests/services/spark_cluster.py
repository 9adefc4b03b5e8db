"""A standalone Spark cluster for tests, from the jars that come with PySpark: a master and workers, as processes of ours."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pyspark

from sardonyx.dev.servers import free_ports
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import find_java
from tests import class_archive
from tests.waiting import until

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"


class SparkCluster(contextlib.ExitStack):
    """One master; workers of one core each join with :meth:`add_worker`. All end with the ``with`` block.

    Args:
        folder: for logs, and for what workers write.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.port, web = free_ports(2)
        self.master = f"spark://{HOST}:{self.port}"
        self.workers: list[ChildProcess] = []
        self._start("master.Master", "--port", str(self.port), "--webui-port", str(web))
        until(self._listens, what="Spark's master")

    def add_worker(self) -> ChildProcess:
        """Start a worker, and wait until it has registered."""
        port, web = free_ports(2)
        own = self.folder / f"worker{len(self.workers)}"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(own))
        worker = self._start("worker.Worker", *size, "--port", str(port), "--webui-port", str(web), self.master)
        until(lambda: "Successfully registered with master" in worker.log_tail(200), what="the worker")
        self.workers.append(worker)
        return worker

    def _start(self, what: str, *arguments: str) -> ChildProcess:
        name = f"{what.rpartition('.')[2].lower()}{len(self.workers)}"
        child = start_child(
            [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", "--host", HOST, *arguments],
            name=name,
            log_path=self.folder / f"{name}.log",
            env={
                "SPARK_HOME": str(HOME),
                "JAVA_HOME": str(find_java().path.resolve().parent.parent),
                "SPARK_LOCAL_IP": HOST,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_DAEMON_JAVA_OPTS": class_archive.java_options(),
            },
        )
        self.callback(child.kill)
        return child

    def _listens(self) -> bool:
        with socket.socket() as link:
            return link.connect_ex((HOST, self.port)) == 0
