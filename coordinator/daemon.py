"""The coordinator as a process: connects, stands for election, leads (:mod:`coordinator.loop.leader`), and starts over."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from datetime import datetime
from functools import partial
from typing import Protocol

import msgspec
import structlog

from coordinator.history import archive
from coordinator.kafka.job_links import KafkaLinks
from coordinator.loop import event_log, leader_metrics
from coordinator.loop.election import Candidate, LeadershipEnded, identity
from coordinator.loop.leader import Leader
from coordinator.loop.side_effects import SideEffects
from coordinator.loop.watchdog import Watchdog
from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import ENDED
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.daemon_metrics import CONNECTED
from sardonyx.runtime.metrics_server import served
from sardonyx.runtime.retrying_worker import RetryingWorker
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.signals import heard
from sardonyx.runtime.this_process import THIS
from sardonyx.zookeeper.errors import Deposed, OutcomeUnknown, SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a coordinator whose leadership broke stands for election again; doubled each time, until a leadership lasts."""
LASTS = 60.0
"""Seconds of leadership after which earlier failures are forgotten."""
CONNECT_ATTEMPT = 3.0
"""Seconds of one attempt to connect; after the first one, what is waited for is logged."""
TOO_OLD_PAUSE = 30.0
"""Seconds before a coordinator that is too old to lead looks whether it can. Meanwhile it does not stand for election."""
REMIND = 30.0
"""Seconds between reminders of what is waited for."""

RESTORE_PAUSE = 5.0
"""Seconds between looks whether a restore is complete. The coordinator does not stand for election meanwhile, since the restore
leads."""

SWITCH = 0.0005
"""Seconds after which the thread that decides gives way to the one that speaks with ZooKeeper. With Python's own 5 ms, each step
of a request or an answer waits that long, and what was sent ahead is answered late."""

ABANDONED_PAUSE = 1.0
"""Seconds between two attempts to delete topics that were created too late."""
ABANDONED_THREADS = 4
"""Jobs whose topics are deleted at a time, if they were created too late."""

_OVER = (Deposed, OutcomeUnknown, SessionLost, LeadershipEnded, ZooKeeperAway)
"""Ways in which a leadership ends without a fault in this process."""
_TOO_NEW = ("SX-VERSION-COORDINATOR", "SX-VERSION-RULES")
"""Errors of a coordinator that is older than the log. It stays, and says so, because to start it again would not help."""
log = structlog.get_logger()


class Connect(Protocol):
    """How a session with ZooKeeper is opened: :meth:`ZooKeeperSession.connect`."""

    def __call__(self, settings: Settings, *, timeout: float | None = None) -> ZooKeeperSession: ...


class Coordinator:
    """A coordinator in this process: connects, stands for election, leads, and starts over when that ends.

    Args:
        settings: where ZooKeeper is, the deployment, timers.
        side_effects: how topics are created and deleted: :class:`coordinator.kafka.job_links.KafkaLinks`.
        connect: opens a session with ZooKeeper.
        runtime: time and threads.
    """

    def __init__(
        self,
        settings: Settings,
        side_effects: SideEffects,
        *,
        connect: Connect = ZooKeeperSession.connect,
        runtime: Runtime = REAL,
    ) -> None:
        self._settings = settings
        self._side_effects = side_effects
        self._connect = connect
        self._runtime = runtime
        self._stop = runtime.signal()
        self._wake = runtime.signal()
        self._failures = 0
        """Leaderships in a row that broke."""
        self._session: ZooKeeperSession | None = None
        self.leader: Leader | None = None
        """The present leadership, while this one leads."""
        self.leading = runtime.signal()
        """Set while this one leads."""
        self.metrics = ""
        """``host:port`` where this process serves its metrics. Set it before :meth:`run`."""
        self._abandoned = RetryingWorker(
            "abandoned",
            threads=ABANDONED_THREADS,
            first_pause=ABANDONED_PAUSE,
            longest_pause=ABANDONED_PAUSE,
            runtime=runtime,
        )

    def stop(self) -> None:
        """Make :meth:`run` return soon, from any thread."""
        self._stop.set()
        self._wake.set()
        self._abandoned.close()

    def run(self) -> None:
        """Be a coordinator until :meth:`stop`.

        Raises:
            SetupError: ZooKeeper denies access, or the address is invalid.
            SardonyxError: ``SX-LOG-FORMAT``: the log cannot be read. A log of a newer release is waited for instead: see
                :data:`TOO_OLD_PAUSE`.
        """
        while (zk := self._connected()) is not None:
            pause = self._term(zk)
            if pause:
                self._stop.wait(pause)

    def _term(self, zk: ZooKeeperSession) -> float:
        """Stand and lead once, and end the session, so that another can lead. Returns the seconds until the next time."""
        began, self._session = self._runtime.now(), zk
        try:
            self._stand_and_lead(zk)
        except _OVER as error:
            if not self._stop.is_set():
                log.warning("leadership_ended", code=error.code, error=error.message)
        except Exception as error:
            if isinstance(error, SardonyxError) and error.code == "SX-RESTORE-UNFINISHED":
                log.warning("waiting_for_restore", error=error.message, retry_in_seconds=RESTORE_PAUSE)
                return RESTORE_PAUSE
            if isinstance(error, SardonyxError) and error.code in _TOO_NEW:
                log.error(
                    "cannot_lead", code=error.code, error=error.message, fix=error.fix, retry_in_seconds=TOO_OLD_PAUSE
                )
                return TOO_OLD_PAUSE
            if isinstance(error, SardonyxError) and not isinstance(error, InternalError):
                raise
            # The leadership is over, and the pause grows for as long as this happens again.
            self._failures = 1 if self._runtime.now() - began > LASTS else self._failures + 1
            pause = min(FIRST_PAUSE * 2.0 ** (self._failures - 1), LONGEST_PAUSE)
            log.error("leadership_broke", retry_in_seconds=pause, attempt=self._failures, exc_info=error)
            return pause
        finally:
            self.leading.clear()
            self._session = self.leader = None
            zk.close()
        return 0.0

    def _stand_and_lead(self, zk: ZooKeeperSession) -> None:
        if zk.read(node_paths.RESTORE) is not None:
            raise event_log.restore_unfinished(self._settings.deployment)
        candidate = Candidate(zk, self._wake, self.metrics)
        log.info("election_entered", candidate=identity())
        if not candidate.wait(self._stop):
            return
        folder = self._settings.coordinator.log_archive
        leader = Leader(
            candidate.take(),
            self._settings,
            self._side_effects,
            wake=self._wake,
            abandoned=self._delete_abandoned,
            archive=None if folder is None else partial(archive.write, folder, self._settings.deployment),
        )
        self.leader = leader
        self.leading.set()
        with THIS.leads(leader.epoch):
            leader.lead(self._stop)
        log.info("leadership_left", n=leader.state.n)

    @property
    def connected(self) -> bool:
        """Whether it has a session with ZooKeeper that is connected now: it leads, or stands for election."""
        zk = self._session
        return zk is not None and zk.connected

    def in_charge(self) -> tuple[Leader, ZooKeeperSession] | None:
        """The present leadership and its session, once it has taken its first turn; None while there is none."""
        leader, zk = self.leader, self._session
        return None if leader is None or zk is None or leader.turned_at is None else (leader, zk)

    def unready(self) -> str:
        """Why this coordinator cannot lead now; empty if it leads, or stands for election."""
        return "" if self.connected else "there is no connection to ZooKeeper, or this coordinator may not lead"

    def _delete_abandoned(self, job: str, spec: JobSpec) -> None:
        """Called when a leadership is over, whose topics may have been created after the next leader deleted them."""
        self._abandoned.submit(job, lambda _attempt: self._deletes_abandoned(job, spec))

    def _deletes_abandoned(self, job: str, spec: JobSpec) -> bool:
        """If the topics' job has ended, no other process deletes them. If not, it uses them, whichever process created them."""
        zk = self._session
        if zk is None:  # between two sessions
            return False
        try:
            zk.sync()
            data = zk.read(node_paths.job_status(job))
            if data is None or msgspec.json.decode(data, type=JobNote).status in ENDED:
                self._side_effects.delete_links(job, spec)
                log.info("abandoned_topics_deleted", job=job)
        except Exception as error:  # noqa: BLE001 - Kafka or ZooKeeper is away: again, for as long as it takes
            log.warning("abandoned_topics_not_deleted", job=job, error=str(error))
            return False
        return True

    def _connected(self) -> ZooKeeperSession | None:
        """A session, however long it takes; None if stopped before."""
        since, said = datetime.now().astimezone(), 0.0
        while not self._stop.is_set():
            try:
                return self._connect(self._settings, timeout=CONNECT_ATTEMPT)
            except (SetupError, SessionLost) as error:
                if error.code not in ("SX-ZOOKEEPER-UNREACHABLE", "SX-ZOOKEEPER-AWAY", "SX-ZOOKEEPER-SESSION-LOST"):
                    raise
                if self._runtime.now() - said > REMIND:
                    said = self._runtime.now()
                    hosts = self._settings.zookeeper.hosts
                    waits = since.isoformat(timespec="seconds")
                    log.warning("waiting_for_zookeeper", zookeeper=hosts, since=waits, error=error.message)
        return None


def main(settings: Settings) -> int:
    """Run a coordinator until SIGTERM or SIGINT: the first one leaves the leadership, a second one stops at once.

    Must be called in the main thread. Returns the exit code.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, or as :meth:`Coordinator.run`.
    """
    settings.require("zookeeper", "kafka")
    sys.setswitchinterval(SWITCH)
    log.info(
        "coordinator_started",
        coordinator=identity(),
        deployment=settings.deployment,
        zookeeper=settings.zookeeper.hosts,
        kafka=settings.kafka.bootstrap_servers,
    )
    coordinator = Coordinator(settings, KafkaLinks(settings))
    leader_metrics.follow(lambda: coordinator.leader)
    CONNECTED.follow(lambda: {(): float(coordinator.connected)})
    dog, over = Watchdog(coordinator.in_charge), threading.Event()
    threading.Thread(target=dog.run, args=(over,), name="watchdog", daemon=True).start()
    try:
        with served(settings, "coordinator", dog.hangs, coordinator.unready) as coordinator.metrics:
            return _until_stopped(coordinator)
    finally:
        over.set()


def _until_stopped(coordinator: Coordinator) -> int:
    """Run it in a thread until a signal comes, or it ends by itself. Returns the exit code."""
    ended: list[BaseException] = []
    ends: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # of signals, and None when the coordinator has ended

    def run() -> None:
        try:
            coordinator.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            ended.append(error)
        finally:
            ends.put(None)

    with heard((signal.SIGTERM, signal.SIGINT), ends.put):
        threading.Thread(target=run, name="coordinator", daemon=True).start()
        number = ends.get()
        if number is not None:
            log.info("coordinator_stopping", signal=signal.Signals(number).name)
            coordinator.stop()
            if ends.get() is not None:
                return 128 + number
    if ended:
        raise ended[0]
    return 0
