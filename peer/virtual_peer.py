"""One virtual peer: it watches one node, its own state, and makes reality match it.

There are no messages to a peer, so none can be missed. Whatever happened while it looked away (a suspended connection, a
coordinator that changed), it reads its node again and acts on what stands there now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import structlog

from peer.assignment import WORKING, AssignmentHandle, RunnerLost
from sardonyx.core import node_paths
from sardonyx.core.errors import failure_of
from sardonyx.core.events import Acked, Assignment, Declined, Left, PeerNote
from sardonyx.runtime.clock import Worker
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

_LOOK_ANYWAY = 5.0
"""Seconds after which the state node is read without having been told to: a net under the watches, not the way."""

_LET_GO = 10.0
"""Seconds that a task loop gets to notice that its handle is gone, before a new one is begun beside it. Its slot's next
holder fences it in any case."""


class _Reborn(Exception):
    """Its id is used up: the peer was revoked or taken for dead."""


class TaskRunner(Protocol):
    """What a virtual peer can do with a task. Called from its own thread."""

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> Any:
        """Get everything ready, before the task is taken; whatever it raises declines the task, but for RunnerLost."""

    def work(self, prepared: Any, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        """Work, in a thread of its own, until the handle is gone or drained. Reports to the coordinator; raises
        RunnerLost, and nothing else.
        """


class VirtualPeer:
    """One place to run a task. Lives on a thread of its own, and as many lives as it takes, each under a new id.

    Args:
        settings: timers.
        zk: the daemon's ZooKeeper session; when it ends, so does this virtual peer.
        runner: how tasks are run.
        name: unique in the deployment and this session; the ids of its lives derive from it.
        about: what the pulse says: daemon, host, pid.
        broke: called, on this peer's thread or its task's, if it cannot go on in this session though it stands: the daemon must
            end the session, or the pulse would tell of a peer that is none.
    """

    def __init__(
        self,
        settings: Settings,
        zk: ZooKeeperSession,
        runner: TaskRunner,
        name: str,
        about: dict[str, str | int],
        broke: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._zk = zk
        self._runner = runner
        self._runtime = zk.runtime
        self._name = name
        self._about = about
        self._broke = broke
        self._wake = self._runtime.signal()
        self._leaving = False
        self._lost = False
        self._known = False
        self._id = name
        self._ready: tuple[Assignment, Any] | None = None
        self._acked = False
        self._handle: AssignmentHandle | None = None
        self._loop: Worker | None = None
        self._life: Worker | None = None

    def start(self) -> None:
        self._life = self._runtime.spawn(f"peer-{self._name}", self._run)

    def join(self) -> None:
        """Wait until it has ended, as :meth:`leave` and :meth:`lose` make it."""
        if self._life is not None:
            self._life.join()

    def leave(self) -> None:
        """Finish the batch in hand, say goodbye, and end. Returns at once; :meth:`join` waits until it is done."""
        self._leaving = True
        handle = self._handle  # looked at once: the peer's own thread may let go of it at any time
        if handle is not None:
            handle.drain()
        self._wake.set()

    def lose(self) -> None:
        """The session has ended: stop without committing anything more."""
        self._lost = True
        handle = self._handle
        if handle is not None:
            handle.revoke()
        self._wake.set()

    def look(self) -> None:
        """Read the state node again soon. For the connection's listener: watches do not outlive a suspension."""
        self._wake.set()

    # --- lives ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        life = 0
        while not self._leaving and not self._lost:
            self._known = False
            self._id = self._name if life == 0 else f"{self._name}.{life}"
            life += 1
            structlog.contextvars.bind_contextvars(peer=self._id)
            try:
                self._live()
            except _Reborn as reason:
                log.warning("comes back under a new id", reason=str(reason))
            except SessionLost:
                self._lost = True
            except Exception as error:
                log.error("cannot go on in this session", exc_info=error)
                self._lost = True
                self._broke()
            finally:
                self._stop_task()

    def _live(self) -> None:
        """One life. While ZooKeeper is away it goes on waiting: the session may outlive that, and the pulse with it."""
        pulse = node_paths.pulse(self._id)
        registered = False
        while not self._lost:
            self._wake.clear()
            try:
                if not registered:
                    registered = self._zk.create(pulse, msgspec.json.encode(self._about), ephemeral=True)
                    if not registered:
                        raise _Reborn("somebody of its name lives")
                    log.info("registered")
                if self._leaving:
                    self._goodbye()
                    return
                self._look(pulse)
            except _Reborn:
                self._stop_task()
                if registered:
                    self._zk.delete(pulse)
                raise
            except ZooKeeperAway as away:
                if self._leaving:
                    return
                log.warning("waits for ZooKeeper", reason=away.message)
            self._wake.wait(_LOOK_ANYWAY)

    def _look(self, pulse: str) -> None:
        """Read the state node and follow it. Without one we wait to be noticed, unless our pulse was taken away."""
        data = self._zk.read(node_paths.peer_state(self._id), watch=self._signal)
        if data is not None:
            self._known = True
            self._follow(msgspec.json.decode(data, type=PeerNote))
        elif self._known or self._zk.read(pulse) is None:
            raise _Reborn("the coordinator took it for dead")

    def _signal(self, _event: object) -> None:
        self._wake.set()

    def _goodbye(self) -> None:
        """The batch in hand is finished first; then the coordinator hears of it, then the pulse goes."""
        if self._handle is not None:
            self._handle.drain()
        if self._loop is not None:
            self._loop.join(self._settings.peer.transaction_timeout)
        self._stop_task()
        self._zk.request(Left(peer=self._id))
        self._zk.delete(node_paths.pulse(self._id))
        log.info("left")

    # --- following the state node --------------------------------------------------------------------------------

    def _follow(self, note: PeerNote) -> None:
        """Make reality match what the node says. Every line from here on carries the number of the decision."""
        structlog.contextvars.bind_contextvars(n=note.n)
        if note.state == "revoked":
            raise _Reborn("its task was taken away")
        current = self._handle.assignment if self._handle is not None else None
        if current is not None and current != note.assignment:
            self._stop_task()
        if note.assignment is None:
            self._ready = None
        elif note.state == "acking":
            self._answer(note.assignment)
        elif note.state in WORKING:
            self._work_on(note, note.assignment)

    def _answer(self, assignment: Assignment) -> None:
        """Get everything ready, then take the task; or decline it with the reason. Either way once per offer."""
        if self._ready is not None and self._ready[0] == assignment:
            if not self._acked:  # got ready, but ZooKeeper was away when it said so
                self._take(assignment)
            return
        bound = {"job": assignment.job, "task": assignment.task}
        failpoint("offered")
        try:
            self._ready = assignment, self._runner.prepare(self._zk, self._id, assignment)
        except (SessionLost, ZooKeeperAway, RunnerLost):
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is why this peer cannot run the task)
            failure = failure_of(error, where={**bound, "peer": self._id})
            log.error("declines the task", code=failure.code, error=failure.message, **bound)
            self._zk.request(Declined(peer=self._id, assignment=assignment.id, error=failure))
            return
        self._acked = False
        self._take(assignment)

    def _take(self, assignment: Assignment) -> None:
        self._zk.request(Acked(peer=self._id, assignment=assignment.id))
        self._acked = True
        log.info("takes the task", job=assignment.job, task=assignment.task, slot=assignment.slot)

    def _work_on(self, note: PeerNote, assignment: Assignment) -> None:
        if self._handle is None:
            if self._ready is None or self._ready[0] != assignment:
                raise _Reborn("its node grants a task that it never took")
            prepared, handle = self._ready[1], AssignmentHandle(assignment, lambda: self._zk.connected, self._runtime)
            handle.update(note.state)
            context = {"peer": self._id, "job": assignment.job, "task": assignment.task, "n": assignment.id}

            def run() -> None:
                ended = lost = False
                with structlog.contextvars.bound_contextvars(**context):
                    try:
                        self._runner.work(prepared, handle, self._zk)
                        ended = True
                    except RunnerLost as error:
                        lost = True
                        log.error("cannot go on in this session", reason=str(error))
                    except Exception as error:
                        log.error("cannot go on in this session", exc_info=error)
                    finally:  # whatever it was, even what is no exception: without its thread the task would be ours for ever
                        if lost or not (ended or handle.revoked):
                            self._broke()

            self._handle = handle
            self._loop = self._runtime.spawn(f"task-{self._id}-{assignment.task}", run)
        else:
            self._handle.update(note.state)

    def _stop_task(self) -> None:
        if self._handle is not None:
            self._handle.revoke()
        if self._loop is not None:
            self._loop.join(_LET_GO)
            if self._loop.is_alive():
                log.warning("the task's last batch does not end; going on without it")
        self._handle = self._loop = self._ready = None
