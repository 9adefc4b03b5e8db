"""The peer daemon: one ZooKeeper session, N virtual peers, and one Spark session once a task needs it."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol

import psutil
import structlog

from peer import gc_policy
from peer.peer_metrics import SPARK_RESTARTS, VIRTUAL_PEERS
from peer.process import Process
from peer.task_runner import SparkTaskRunner, warm_up
from peer.telemetry import telling
from peer.virtual_peer import TaskRunner, VirtualPeer
from sardonyx.core import node_paths
from sardonyx.core.errors import SetupError
from sardonyx.core.events import FORMAT
from sardonyx.core.notes import PulseNote
from sardonyx.core.version import VERSION
from sardonyx.runtime import metrics
from sardonyx.runtime.clock import REAL, Post, Runtime
from sardonyx.runtime.daemon_metrics import CONNECTED
from sardonyx.runtime.java import find_java
from sardonyx.runtime.metrics_server import served
from sardonyx.runtime.secret_values import QUOTING
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.signals import heard
from sardonyx.runtime.temp_dirs import temp_dir
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from spark_tasks.session import SparkSession

log = structlog.get_logger()

_SAY_AGAIN = 10.0
"""Seconds between log lines that say what the daemon waits for."""

_BROKEN_PAUSE = 1.0
"""Seconds to wait before a new session if a virtual peer could not continue in the last one."""

_AT_LEAST = 4
"""Virtual peers of a daemon that was not told how many."""

_MEMORY = 256 * 2**20
"""Bytes of the machine's memory for each virtual peer that such a daemon may start."""

_LOOK_EVERY = 5.0
"""Seconds between two looks of such a daemon at whether its virtual peers are too few, or too many."""

_IDLE = 60.0
"""Seconds that a virtual peer which such a daemon has added may be idle before it is removed."""

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
        fixed = settings.peer.virtual_peers
        self._between = (fixed, fixed) if fixed != "auto" else between or (_AT_LEAST, most_peers())
        self._runner = runner
        self._connect_to = connect
        self._runtime = runtime
        self._news = runtime.post()
        """Events of the present session. Each session has its own queue, because an ended session may still report."""
        self._stopping = False
        self._zk: ZooKeeperSession | None = None
        self._crew: _Crew | None = None

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
        crew = _Crew(self._settings, zk, self._runner, news, self._between, self._metrics)
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


class _Crew:
    """The virtual peers of one session. Their number follows what jobs wait for, between ``least`` and ``most``.

    The leader says how many peers all jobs wait for. Every daemon starts its share of them, and more as long as jobs still wait:
    other daemons may not start any. Peers that turn out to be too many help with tasks that take more than one, or leave after a
    while.
    None leaves while any job waits: a job may need more than this daemon has, and would wait for the same peers again.
    """

    def __init__(
        self,
        settings: Settings,
        zk: ZooKeeperSession,
        runner: TaskRunner,
        news: Post,
        between: tuple[int, int],
        metrics: str,
    ) -> None:
        self._settings, self._zk, self._runner, self._news = settings, zk, runner, news
        self._least, self._most = between
        self._runtime = zk.runtime
        self._name = f"{_host()}-{self._runtime.token()[:12]}"
        tags = tuple(settings.peer.tags)
        self.about = PulseNote(self._name, socket.gethostname(), os.getpid(), VERSION, FORMAT, tags, metrics)
        self._numbers = itertools.count()
        self._peers: list[VirtualPeer] = []
        self._over = self._runtime.signal()
        self._is_demand_known = False
        self._missing = 0
        self._daemons = 1
        self._grow(self._least)
        log.info("peer_daemon_started", daemon=self._name, virtual_peers=self._least, deployment=settings.deployment)
        if self._most > self._least:
            self._runtime.spawn(f"idle-{self._name}", self._tick)

    def follow_demand(self) -> None:
        """Start peers if jobs wait for more, and remove some that have been idle for long if none does."""
        if self._most == self._least:
            return
        if not self._is_demand_known:
            self._is_demand_known = True  # before it is read: the watch may tell of a change at once
            try:
                self._missing = int(self._zk.read(node_paths.JOB, watch=self._on_demand) or 0)
                if self._missing:
                    pulses = self._zk.children(node_paths.PULSE)
                    self._daemons = len({self._name, *(pulse.rpartition("-")[0] for pulse in pulses)})
            except (ZooKeeperAway, SessionLost):
                self._is_demand_known = False
                return  # the session's listener says when it is back, or over
        self._peers = [peer for peer in self._peers if not peer.ended]
        # The leader has not counted those that it has not noticed yet.
        wanted = math.ceil(self._missing / self._daemons) - sum(not peer.noticed for peer in self._peers)
        wanted = min(wanted, self._most - len(self._peers))
        if wanted > 0:
            self._grow(wanted)
            log.info("virtual_peers_added", added=wanted, jobs_wait_for=self._missing, virtual_peers=len(self._peers))
        elif not self._missing:
            self._shrink()

    def _on_demand(self, _event: object) -> None:
        self._is_demand_known = False
        self._news.put("DEMAND")

    def _tick(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            self._news.put("TICK")

    def _grow(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            peer = VirtualPeer(
                self._settings,
                self._zk,
                self._runner,
                f"{self._name}-{number}",
                self.about,
                broke=lambda: self._news.put("BROKE"),
            )
            peer.start()
            self._peers.append(peer)

    def _shrink(self) -> None:
        idle = [peer for peer in reversed(self._peers) if peer.idle_for > _IDLE]
        for peer in idle[: len(self._peers) - self._least]:
            log.info("virtual_peer_removed", idle_s=round(peer.idle_for))
            peer.leave()

    def states(self) -> dict[tuple[str, ...], float]:
        """How many virtual peers there are in each state. Called in any thread."""
        return dict(Counter((peer.state,) for peer in list(self._peers) if not peer.ended))

    def look(self) -> None:
        """The connection is back, and watches did not outlive its loss."""
        self._is_demand_known = False
        for peer in self._peers:
            peer.look()

    def lose(self) -> None:
        """The session has ended."""
        for peer in self._peers:
            peer.lose()

    def leave(self) -> None:
        for peer in self._peers:
            peer.leave()

    def join(self) -> None:
        self._over.set()
        for peer in self._peers:
            peer.join()


def most_peers() -> int:
    """How many virtual peers this machine bears: each has clients of Kafka, threads and buffers, and most of them wait."""
    cores = os.cpu_count() or 1
    return max(_AT_LEAST, min(max(32, 8 * cores), psutil.virtual_memory().total // _MEMORY))


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


def _host() -> str:
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name) or "host"
