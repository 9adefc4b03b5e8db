"""The peer daemon: one ZooKeeper session, N virtual peers, and one Spark session once a task needs it."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog

from peer import gc_policy
from peer.crew import Crew, peers_between
from peer.peer_metrics import SPARK_RESTARTS, VIRTUAL_PEERS
from peer.process import Process
from peer.task_runner import SparkTaskRunner, warm_up
from peer.telemetry import telling
from peer.virtual_peer import TaskRunner
from sardonyx.core.errors import SetupError
from sardonyx.runtime import metrics
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.daemon_metrics import CONNECTED
from sardonyx.runtime.java import find_java
from sardonyx.runtime.metrics_server import served
from sardonyx.runtime.secret_values import QUOTING
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.signals import heard
from sardonyx.runtime.temp_dirs import temp_dir
from sardonyx.zookeeper.errors import SessionLost
from sardonyx.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from spark_tasks.session import SparkSession

log = structlog.get_logger()

_SAY_AGAIN = 10.0
"""Seconds between log lines that say what the daemon waits for."""

_BROKEN_PAUSE = 1.0
"""Seconds to wait before a new session if a virtual peer could not continue in the last one."""

_REGISTERED = frozenset({"idle", "prepared", "accepted", "working"})
"""States of virtual peers that the coordinator knows."""

_NEEDED = (
    *("peer.preparation", "peer.standby_tasks", "peer.task_loop", "queues.connectivity", "queues.state_follower"),
    # what a task uses of Kafka's client is imported at its first use
    *("queues.audit", "queues.confirmed_end", "queues.group_clocks", "queues.marked_topics", "queues.state_topics"),
    *("queues.topic_ids", "queues.totals", "queues.unread_rows", "spark_tasks.on_demand"),
)
"""Modules that import all others."""

_LAST_STEPS = 30.0
"""Seconds that draining may take beyond the transaction timeout: leave the group, deregister the peers, stop Spark."""


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
        between: how many virtual peers at least and at most, if the settings leave the number to the daemon. None: four, and
            as many as this machine bears.
        metrics: ``host:port`` where this process serves its metrics, for others to know.
    """

    def __init__(
        self,
        settings: Settings,
        runner: TaskRunner,
        *,
        connect: Connect = ZooKeeperSession.connect,
        runtime: Runtime = REAL,
        between: tuple[int, int] | None = None,
        metrics: str = "",
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._between = peers_between(settings.peer.virtual_peers, between)
        self._runner = runner
        self._connect_to = connect
        self._runtime = runtime
        self._news = runtime.post()
        """Events of the present session. Each session has its own queue, because an ended session may still report."""
        self._stopping = False
        self._zk: ZooKeeperSession | None = None
        self._crew: Crew | None = None

    @property
    def connected(self) -> bool:
        """Whether it has a session with ZooKeeper that is connected now."""
        zk = self._zk
        return zk is not None and zk.connected

    @property
    def process(self) -> Process | None:
        """Its session, and what it is in it; None while there is none."""
        zk, crew = self._zk, self._crew
        return None if zk is None or crew is None else Process(zk, crew.about)

    def states(self) -> dict[tuple[str, ...], float]:
        """How many virtual peers there are in each state."""
        crew = self._crew
        return {} if crew is None else crew.states()

    def unready(self) -> str:
        """Why this daemon takes no tasks now; empty if it does."""
        if self._stopping:
            return "the daemon drains"
        if not self.connected:
            return "there is no connection to ZooKeeper"
        states = {state for (state,) in self.states()}
        return "" if states & _REGISTERED else "no virtual peer is registered with the coordinator"

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
        crew = Crew(self._settings, zk, self._runner, news, self._between, self._metrics)
        self._zk, self._crew = zk, crew
        try:
            while not self._stopping:
                crew.follow_demand()
                heard = news.get()
                if heard in ("LOST", "BROKE"):
                    log.warning("zookeeper_session_ended", cause=heard.lower())
                    crew.lose()
                    if heard == "BROKE":  # the peer may break again at once
                        self._runtime.signal().wait(_BROKEN_PAUSE)
                    break
                if heard == "CONNECTED":
                    crew.look()
                elif heard == "SUSPENDED":
                    log.warning("zookeeper_suspended", zookeeper=zk.hosts)
            if self._stopping:
                log.info("peer_daemon_draining")
                crew.leave()
            crew.join()
        finally:
            self._zk = self._crew = None
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


def import_all() -> None:
    """Import what the daemon and its tasks need, but for Spark: it takes a second."""
    gc_policy.keep_little()  # first: later, pyarrow is imported and clients of Kafka have threads
    for name in _NEEDED:
        import_module(name)
    import_module("pandas")  # pyarrow does so when it first converts Python values: the first batch would wait


def main(settings: Settings, *, reached: bool = False) -> NoReturn:
    """Run the peer daemon, for ``sardonyx peer``. It ends the process unless it raises.

    ``reached``: it does not ask whether the services answer, because the caller knows, or has just started them.

    SIGTERM and SIGINT drain the daemon; a second signal stops it at once. Draining takes a bounded time, even if
    something hangs: SIGALRM then ends the process. Committed batches stay committed, and the next peer does the rest.

    Raises SetupError if something that the daemon needs is missing at the start.
    """
    gc_policy.keep_little()  # first: later, pyarrow is imported and clients of Kafka have threads
    settings.require("zookeeper", "kafka")
    QUOTING.records = settings.peer.quote_records
    from sardonyx.job.signatures import public_keys

    if settings.peer.signers:
        public_keys(settings.peer.signers)  # to tell at once of what would have it decline every task
    started: list[PeerDaemon] = []
    SPARK_RESTARTS.add(0)
    CONNECTED.follow(lambda: {(): float(any(daemon.connected for daemon in started))})
    VIRTUAL_PEERS.follow(lambda: started[0].states() if started else {})
    probes = (lambda: "", lambda: started[0].unready() if started else "the daemon starts")
    # The endpoints first: whether Kafka is missing or Spark takes its time, a probe gets an answer.
    with (
        served(settings, "peer", *probes) as place,
        temp_dir("sardonyx-peer-") as folder,
        metrics.written_to(settings.metrics.file),
    ):
        find_java()  # Spark needs it: who lacks it is to hear of it now, and not when the first task comes
        import_all()  # before the first task comes
        from queues.connectivity import check_reachable
        from spark_tasks.on_demand import SparkOnDemand

        if not reached:
            check_reachable(settings)

        def start() -> SparkSession:
            from spark_tasks.session import start_session  # here, since not all daemons need it

            return start_session(settings.spark, folder)

        spark = SparkOnDemand(start, warm_up)
        runner = SparkTaskRunner(settings, spark, folder / "code")
        threading.Thread(target=runner.keep_workers, name="workers", daemon=True).start()
        threading.Thread(target=gc_policy.keep_giving_back, name="memory", daemon=True).start()
        gc_policy.seldom()  # before any virtual peer exists: a batch's objects would never be freed

        def connect(settings: Settings, *, listener: Callable[[str], None] | None = None) -> ZooKeeperSession:
            runner.restore()
            return ZooKeeperSession.connect(settings, listener=listener)

        daemon = PeerDaemon(settings, runner, connect=connect, metrics=place)
        started.append(daemon)
        runner.stand_by(lambda: daemon.process)

        def on_signal(_number: int) -> None:
            if daemon._stopping:  # noqa: SLF001 (the signal handler belongs to the daemon)
                os._exit(130)
            daemon.stop()
            signal.alarm(math.ceil(settings.peer.transaction_timeout + _LAST_STEPS))

        with telling(settings), heard((signal.SIGTERM, signal.SIGINT), on_signal):
            try:
                daemon.run()
            finally:
                runner.close()
                spark.stop()
    # Skip the interpreter's own shutdown: it waits for threads and destroys Kafka clients. Either can hang without end
    # if the broker became unreachable during a request.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
