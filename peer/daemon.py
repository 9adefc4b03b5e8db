"""The peer daemon: one ZooKeeper session, one Spark session, N virtual peers."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from peer import gc_policy
from peer.assignment import AssignmentHandle, RunnerLost
from peer.virtual_peer import TaskRunner, VirtualPeer
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.events import Assignment
from sardonyx.runtime import metrics
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.signals import heard
from sardonyx.runtime.temp_dirs import temp_dir
from sardonyx.zookeeper.errors import SessionLost
from sardonyx.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from spark_tasks.session import SparkSession

log = structlog.get_logger()

_SAY_AGAIN = 10.0
"""Seconds between log lines that say what the daemon waits for."""

_WORKERS_LAST = 40.0
"""Seconds between small jobs for Spark's Python workers. Spark ends workers after a minute without any."""

_BROKEN_PAUSE = 1.0
"""Seconds to wait before a new session if a virtual peer could not continue in the last one."""

_LAST_STEPS = 30.0
"""Seconds that draining may take beyond the transaction timeout: leave the group, deregister the peers, stop Spark."""


class SparkTaskRunner:
    """Runs tasks as Spark micro-batches between Kafka queues.

    Args:
        settings: connection to Kafka, and timers.
        spark: the daemon's Spark session. :meth:`restore` replaces it if it has ended.
        code_cache: directory for the bundles of job code.
    """

    def __init__(self, settings: Settings, spark: SparkSession, code_cache: Path) -> None:
        self._settings = settings
        self.spark = spark
        self._code_cache = code_cache
        self._at_work: set[str] = set()
        """The virtual peers that work on a task."""

    def restore(self, folder: Path) -> None:
        """Start Spark again if its JVM has ended, with its temporary files in ``folder``.

        Raises:
            SardonyxError: ``SX-SPARK-START``, Spark does not start any more. It is not a SetupError, because the daemon
                tries again after a SetupError.
        """
        from spark_tasks.session import is_alive, start_session, stop_session

        if is_alive(self.spark):
            return
        log.warning("spark_restarting")
        stop_session(self.spark)
        try:
            self.spark = start_session(self._settings.spark, folder)
        except SetupError as error:
            raise SardonyxError(error.code, error.message, cause=error.cause, fix=error.fix) from error

    def keep_workers(self) -> None:
        """Make Spark start its Python workers before the first task arrives, and keep them while there are tasks. Never returns.

        Their start takes seconds. Meanwhile the daemon registers, a job is planned and a consumer joins its group. Spark ends
        workers that had nothing to do for a minute, and the first record after that would wait for new ones.
        """
        while True:
            self._warm_up()
            time.sleep(_WORKERS_LAST)
            while not self._at_work:
                time.sleep(_WORKERS_LAST)

    def _warm_up(self) -> None:
        from spark_tasks.worker import ready
        from spark_tasks.worker_pool import on_workers

        try:
            on_workers(self.spark, "getting workers ready", ready, range(self.spark.sparkContext.defaultParallelism))
        except Exception as error:  # noqa: BLE001 - the first task meets the error too, and reports it
            log.debug("spark_warm_up_failed", error=str(error))

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> PreparedTask:
        from peer.prepared_task import prepare
        from spark_tasks.session import is_alive

        if not is_alive(self.spark):
            raise RunnerLost("Spark has ended")
        return prepare(self._settings, zk, self.spark, peer, assignment, self._code_cache)

    def work(self, prepared: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        from peer.task_loop import TaskLoop

        self._at_work.add(prepared.peer)
        try:
            TaskLoop(prepared, handle, zk).run()
        finally:
            self._at_work.discard(prepared.peer)


class Connect(Protocol):
    """Opens a session with ZooKeeper, like :meth:`ZooKeeperSession.connect`."""

    def __call__(self, settings: Settings, *, listener: Callable[[str], None] | None = None) -> ZooKeeperSession: ...


class PeerDaemon:
    """Runs virtual peers for the life of the process, over any number of ZooKeeper sessions.

    When a session ends, ZooKeeper deletes all ephemeral nodes of the session. Then all virtual peers stop without
    committing. The daemon starts them under new ids in a new session.

    Args:
        settings: connection to ZooKeeper, timers, and the number of virtual peers.
        runner: runs the tasks.
        connect: opens a session with ZooKeeper.
        runtime: time and threads.
    """

    def __init__(
        self,
        settings: Settings,
        runner: TaskRunner,
        *,
        connect: Connect = ZooKeeperSession.connect,
        runtime: Runtime = REAL,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._connect_to = connect
        self._runtime = runtime
        self._news = runtime.post()
        """Events of the present session. Each session has its own queue, because an ended session may still report."""
        self._stopping = False

    def stop(self) -> None:
        """Drain the daemon: every virtual peer finishes its batch and leaves."""
        self._stopping = True
        self._news.put("STOP")

    def run(self) -> None:
        """Run the virtual peers until :meth:`stop`.

        Raises:
            SetupError: ZooKeeper could not be reached at the start.
        """
        zk: ZooKeeperSession | None
        try:
            zk = self._connect()
        except SessionLost:  # the session ended right after it began
            zk = self._reconnect()
        while zk is not None:
            self._session(zk)
            zk = None if self._stopping else self._reconnect()

    def _connect(self) -> ZooKeeperSession:
        self._news = self._runtime.post()
        return self._connect_to(self._settings, listener=self._news.put)

    def _session(self, zk: ZooKeeperSession) -> None:
        """Run the virtual peers in one ZooKeeper session, from its first pulse to its end."""
        news = self._news
        name = f"{_host()}-{self._runtime.token()[:12]}"
        about: dict[str, str | int] = {"daemon": name, "host": socket.gethostname(), "pid": os.getpid()}
        peers = [
            VirtualPeer(
                self._settings,
                zk,
                self._runner,
                f"{name}-{index}",
                about,
                broke=lambda: news.put("BROKE"),
            )
            for index in range(self._settings.peer.virtual_peers)
        ]
        log.info("peer_daemon_started", daemon=name, virtual_peers=len(peers), deployment=self._settings.deployment)
        for peer in peers:
            peer.start()
        try:
            while not self._stopping:
                heard = news.get()
                if heard in ("LOST", "BROKE"):
                    log.warning("zookeeper_session_ended", cause=heard.lower())
                    for peer in peers:
                        peer.lose()
                    if heard == "BROKE":  # the peer may break again at once
                        self._runtime.signal().wait(_BROKEN_PAUSE)
                    break
                if heard == "CONNECTED":
                    for peer in peers:
                        peer.look()
                elif heard == "SUSPENDED":
                    log.warning("zookeeper_suspended", zookeeper=zk.hosts)
            if self._stopping:
                log.info("peer_daemon_draining")
                for peer in peers:
                    peer.leave()
            for peer in peers:
                peer.join()
        finally:
            zk.close()

    def _reconnect(self) -> ZooKeeperSession | None:
        since = self._runtime.now()
        said = 0.0
        while not self._stopping:
            try:
                return self._connect()
            except (SetupError, SessionLost) as error:
                if self._runtime.now() - said > _SAY_AGAIN:
                    said = self._runtime.now()
                    log.warning("zookeeper_unreachable", seconds=round(said - since, 1), error=error.message)
        return None


def main(settings: Settings) -> NoReturn:
    """Run the peer daemon, for ``sardonyx peer``. It ends the process unless it raises.

    SIGTERM and SIGINT drain the daemon; a second signal stops it at once. Draining takes a bounded time, even if
    something hangs: SIGALRM then ends the process. Committed batches stay committed, and the next peer does the rest.

    Raises SetupError if something that the daemon needs is missing at the start.
    """
    settings.require("zookeeper", "kafka")
    from queues.connectivity import check_reachable
    from spark_tasks.session import start_session, stop_session

    check_reachable(settings)
    with temp_dir("sardonyx-peer-") as folder, metrics.written_to(settings.metrics.file):
        # Start Spark before the first pulse of every session: a peer that gets an offer must be able to answer at once.
        runner = SparkTaskRunner(settings, start_session(settings.spark, folder), folder / "code")
        threading.Thread(target=runner.keep_workers, name="workers", daemon=True).start()
        # pyarrow imports pandas when it first converts Python values. Without this thread, the first batch would wait.
        threading.Thread(target=import_module, args=("pandas",), name="imports", daemon=True).start()
        import peer.task_loop  # noqa: F401 - import what tasks need while Spark starts its workers

        gc_policy.seldom()  # before any virtual peer exists: a batch's objects would never be freed

        def connect(settings: Settings, *, listener: Callable[[str], None] | None = None) -> ZooKeeperSession:
            runner.restore(folder)
            return ZooKeeperSession.connect(settings, listener=listener)

        daemon = PeerDaemon(settings, runner, connect=connect)

        def on_signal(_number: int) -> None:
            if daemon._stopping:  # noqa: SLF001 (the signal handler belongs to the daemon)
                os._exit(130)
            daemon.stop()
            signal.alarm(math.ceil(settings.peer.transaction_timeout + _LAST_STEPS))

        with heard((signal.SIGTERM, signal.SIGINT), on_signal):
            try:
                daemon.run()
            finally:
                stop_session(runner.spark)
    # Skip the interpreter's own shutdown: it waits for threads and destroys Kafka clients. Either can hang without end
    # if the broker became unreachable during a request.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _host() -> str:
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name) or "host"
