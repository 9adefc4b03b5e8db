"""The coordinator as a process: connects, stands for election, leads (:mod:`coordinator.loop.leader`), and begins anew."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from coordinator.kafka.job_links import KafkaLinks
from coordinator.loop.election import Candidate, LeadershipEnded, identity
from coordinator.loop.leader import Leader
from coordinator.loop.side_effects import OuterEffects
from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import ENDED, JobNote
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.signals import heard
from sardonyx.zookeeper.errors import Deposed, OutcomeUnknown, SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a coordinator that broke stands again; doubled each time, until a leadership lasts."""
LASTS = 60.0
"""Seconds of leadership after which earlier troubles are forgotten."""
CONNECT_ATTEMPT = 3.0
"""Seconds of one attempt to connect; after the first one it is said what is waited for."""
REMIND = 30.0
"""Seconds between reminders of what is waited for."""

SWITCH = 0.0005
"""Seconds after which the thread that decides gives way to the one that speaks with ZooKeeper. At Python's own 5 ms each step
of a request or an answer waits so long for it, and what was sent ahead is answered late."""

LATE_PAUSE = 1.0
"""Seconds between attempts to remove topics that were made too late."""

_OVER = (Deposed, OutcomeUnknown, SessionLost, LeadershipEnded, ZooKeeperAway)
"""Ways in which a leadership ends that are nobody's fault here."""
log = structlog.get_logger()


class Connect(Protocol):
    """How a session with ZooKeeper is opened: :meth:`ZooKeeperSession.connect`."""

    def __call__(self, settings: Settings, *, timeout: float | None = None) -> ZooKeeperSession: ...


class Coordinator:
    """A coordinator in this process: connects, stands for election, leads, and begins anew when that ends.

    Args:
        settings: where ZooKeeper is, the deployment, timers.
        outer: how topics are made and removed; on Kafka if not given.
        connect: opens a session with ZooKeeper.
        clockwork: time and threads.
    """

    def __init__(
        self,
        settings: Settings,
        outer: OuterEffects | None = None,
        *,
        connect: Connect = ZooKeeperSession.connect,
        runtime: Runtime = REAL,
    ) -> None:
        self._settings = settings
        self._outer = KafkaLinks(settings) if outer is None else outer
        self._connect = connect
        self._runtime = runtime
        self._stop = runtime.signal()
        self._wake = runtime.signal()
        self._troubles = 0
        self._session: ZooKeeperSession | None = None
        self.leading = runtime.signal()
        """Set while this one leads."""

    def stop(self) -> None:
        """Make :meth:`run` return soon, from any thread."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Be a coordinator until :meth:`stop`.

        Raises:
            SetupError: ZooKeeper denies access, or the address is none.
            SardonyxError: ``SX-LOG-FORMAT``: the deployment was made by another version.
        """
        sys.setswitchinterval(SWITCH)
        while (zk := self._connected()) is not None:
            pause = self._term(zk)
            if pause:
                self._stop.wait(pause)

    def _term(self, zk: ZooKeeperSession) -> float:
        """Stand and lead once, and end the session, so that another can lead. Gives the pause until the next time."""
        began, self._session = self._runtime.now(), zk
        try:
            self._stand_and_lead(zk)
        except _OVER as error:
            if not self._stop.is_set():
                log.warning("leadership or candidacy ended", code=error.code, reason=error.message)
        except Exception as error:
            if isinstance(error, SardonyxError) and not isinstance(error, InternalError):
                raise
            # Not passed over: the leadership is over, and the pause grows for as long as it happens again.
            self._troubles = 1 if self._runtime.now() - began > LASTS else self._troubles + 1
            pause = min(FIRST_PAUSE * 2.0 ** (self._troubles - 1), LONGEST_PAUSE)
            log.error("leadership broke, stands again after a pause", pause=pause, times=self._troubles, exc_info=error)
            return pause
        finally:
            self.leading.clear()
            self._session = None
            zk.close()
        return 0.0

    def _stand_and_lead(self, zk: ZooKeeperSession) -> None:
        candidate = Candidate(zk, self._wake)
        log.info("stands for election", me=identity())
        if not candidate.wait(self._stop):
            return
        leader = Leader(candidate.take(), self._settings, self._outer, wake=self._wake, late=self._note_late)
        self.leading.set()
        leader.lead(self._stop)
        log.info("leaves the leadership", n=leader.state.n)

    def _note_late(self, job: str, spec: JobSpec) -> None:
        """In a thread of a leadership that is over, whose topics may have come behind the back of whoever leads now."""
        self._runtime.spawn(f"late-{job}", lambda: self._undo_late(job, spec))

    def _undo_late(self, job: str, spec: JobSpec) -> None:
        """If their job has ended nobody else removes them. If not, they are its topics, whoever made them."""
        while not self._stop.is_set():
            zk = self._session
            try:
                if zk is not None:
                    zk.sync()
                    data = zk.read(node_paths.job_status(job))
                    if data is None or msgspec.json.decode(data, type=JobNote).status in ENDED:
                        self._outer.delete_links(job, spec)
                        log.info("topics that came late are removed", job=job)
                    return
            except Exception as error:  # noqa: BLE001 - Kafka or ZooKeeper is away: again, for as long as it takes
                log.warning("topics that came late cannot be removed yet", job=job, reason=str(error))
            self._runtime.signal().wait(LATE_PAUSE)

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
                    log.warning("waits for ZooKeeper", zookeeper=hosts, since=since.isoformat(timespec="seconds"))
        return None


def main(settings: Settings) -> int:
    """Run a coordinator until SIGTERM or SIGINT: the first one leaves the leadership, a second one stops at once.

    Must be called in the main thread. Returns the exit code.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, or as :meth:`Coordinator.run`.
    """
    settings.require("zookeeper", "kafka")
    log.info(
        "coordinator starts",
        me=identity(),
        deployment=settings.deployment,
        zookeeper=settings.zookeeper.hosts,
        kafka=settings.kafka.bootstrap_servers,
    )
    coordinator = Coordinator(settings)
    ended: list[BaseException] = []
    told: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            coordinator.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            ended.append(error)
        finally:
            told.put(None)

    with heard((signal.SIGTERM, signal.SIGINT), told.put):
        threading.Thread(target=run, name="coordinator", daemon=True).start()
        number = told.get()
        if number is not None:
            log.info("coordinator stops", signal=signal.Signals(number).name)
            coordinator.stop()
            if told.get() is not None:
                return 128 + number
    if ended:
        raise ended[0]
    return 0
