"""The peer daemon: one ZooKeeper session, one Spark session, N virtual peers."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
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
"""Seconds between log lines that tell what the daemon waits for."""

_BROKEN_PAUSE = 1.0
"""Seconds before a new session, if a virtual peer could not go on in the last one."""

_LAST_STEPS = 30.0
"""Seconds that draining may take beyond the transaction timeout: leaving the group, goodbyes, stopping Spark."""


class SparkTaskRunner:
    """Tasks as Spark micro-batches between Kafka queues.

    Args:
        settings: where Kafka is, timers.
        spark: the daemon's Spark session; :meth:`restore` puts another in its place if it has ended.
        code_cache: where bundles of job code are kept.
    """

    def __init__(self, settings: Settings, spark: SparkSession, code_cache: Path) -> None:
        self._settings = settings
        self.spark = spark
        self._code_cache = code_cache

    def restore(self, folder: Path) -> None:
        """Start Spark again if its JVM has ended, with its temporary files in ``folder``.

        Raises:
            SardonyxError: ``SX-SPARK-START``, it does not start any more. No SetupError: with those the daemon tries again.
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

    def warm_up(self) -> None:
        """Let Spark have its Python workers ready before the first task comes: they take seconds, in which the daemon
        registers, a job is planned and a consumer finds its group.
        """
        from spark_tasks.worker import ready
        from spark_tasks.worker_pool import on_workers

        try:
            on_workers(self.spark, "getting workers ready", ready, range(self.spark.sparkContext.defaultParallelism))
        except Exception as error:  # noqa: BLE001 - the first task meets it too, and is the one to tell it
            log.debug("spark_warm_up_failed", error=str(error))

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> PreparedTask:
        from peer.prepared_task import prepare
        from spark_tasks.session import is_alive

        if not is_alive(self.spark):
            raise RunnerLost("Spark has ended")
        return prepare(self._settings, zk, self.spark, peer, assignment, self._code_cache)

    def work(self, prepared: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        from peer.task_loop import TaskLoop

        TaskLoop(prepared, handle, zk).run()


class Connect(Protocol):
    """How a session with ZooKeeper is opened: :meth:`ZooKeeperSession.connect`."""

    def __call__(self, settings: Settings, *, listener: Callable[[str], None] | None = None) -> ZooKeeperSession: ...


class PeerDaemon:
    """Virtual peers for as long as the process lives, over any number of ZooKeeper sessions.

    When a session ends, everything that it owned is gone. Then all virtual peers stop without committing, and come back under
    new ids in a new session.

    Args:
        settings: where ZooKeeper is, timers, how many virtual peers.
        runner: how tasks are run.
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
        """What happens to the present session. Each session has a queue of its own, since one that ends may still report."""
        self._stopping = False

    def stop(self) -> None:
        """Drain: every virtual peer finishes its batch and leaves."""
        self._stopping = True
        self._news.put("STOP")

    def run(self) -> None:
        """Until :meth:`stop`.

        Raises:
            SetupError: ZooKeeper could not be reached at the start.
        """
        zk: ZooKeeperSession | None
        try:
            zk = self._connect()
        except SessionLost:  # it ended right after it began
            zk = self._reconnect()
        while zk is not None:
            self._session(zk)
            zk = None if self._stopping else self._reconnect()

    def _connect(self) -> ZooKeeperSession:
        self._news = self._runtime.post()
        return self._connect_to(self._settings, listener=self._news.put)

    def _session(self, zk: ZooKeeperSession) -> None:
        """One ZooKeeper session, from its first pulse to its end."""
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
                    if heard == "BROKE":  # it may break again at once
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
    """What ``sardonyx peer`` runs. SIGTERM drains, a second one stops at once. Ends the process, unless it raises.

    Draining takes a bounded time, whatever hangs: the system ends the process by SIGALRM. What was committed stays committed,
    and the next peer does the rest.

    Raises SetupError if something that it needs is missing at the start.
    """
    settings.require("zookeeper", "kafka")
    from queues.connectivity import check_reachable
    from spark_tasks.session import start_session, stop_session

    check_reachable(settings)
    with temp_dir("sardonyx-peer-") as folder, metrics.written_to(settings.metrics.file):
        # Spark before the first pulse, of later sessions too: a peer that is offered a task must be able to answer at once.
        runner = SparkTaskRunner(settings, start_session(settings.spark, folder), folder / "code")
        threading.Thread(target=runner.warm_up, name="warm-up", daemon=True).start()
        # pyarrow imports it as soon as it makes an array of Python's values: in front of the first batch, otherwise.
        threading.Thread(target=import_module, args=("pandas",), name="imports", daemon=True).start()
        import peer.task_loop  # noqa: F401 - what tasks need, while Spark has its workers ready

        gc_policy.seldom()  # before there are virtual peers: what a batch has in hand now would stay permanently

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
    # Not by the interpreter's own shutdown: it waits for threads and destroys Kafka clients. Either can take without end when
    # the broker went away in the middle of something.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _host() -> str:
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name) or "host"
