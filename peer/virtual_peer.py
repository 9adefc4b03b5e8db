"""One virtual peer: it watches its own state node and makes reality match it.

A peer receives no messages, so it cannot miss one. Whatever happened while ZooKeeper was away or the coordinator changed, the
peer reads its node again and acts on what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from peer.assignment import PATIENCE, WORKING, AssignmentHandle, RunnerLost
from peer.peer_machine import PeerLifeState, PeerMachine
from peer.peer_metrics import OFFERS
from peer.retry_policy import may_pass
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.errors import SardonyxError, failure_of
from sardonyx.core.events import Acked, Declined, Left
from sardonyx.core.notes import Assignment, BatchInHand, PeerNote, PulseNote, ServiceAway
from sardonyx.runtime.clock import Worker
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.full_disks import without_room
from sardonyx.runtime.secret_values import unquoted
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

_LOOK_ANYWAY = 5.0
"""Seconds after which the peer reads its state node without a watch event. A safety net: normally the watch tells it."""

_JOINS_AFTER = 1.0
"""Seconds that a peer takes to accept a task on which others work already. When a task is complete, its peers are offered the
next one, on which some work mostly. A short one is read to its end before they have joined the group, and its end would wait
for that.
"""

LONG = 10.0
"""Seconds after which a peer tells in its pulse on which batch it works."""

_LONGEST_PATIENCE = 8.0
"""Seconds that a peer waits at most for something to read, before it gives its task up to work at one that has no peer."""

_LET_GO = 10.0
"""Seconds that a task loop has to notice a revoked assignment, before the peer goes on without waiting for it. The next holder of
the slot fences it in any case."""


class TaskRunner(Protocol):
    """How a virtual peer runs a task. Called from the peer's own thread, :meth:`work` from the task's."""

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> Any:
        """Get everything ready before the peer accepts the task. An error makes the peer decline it, except RunnerLost and
        those of the session.
        """

    def work(self, prepared: Any, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        """Work, in a thread of its own, until the assignment is revoked or drained. Report to the coordinator.

        Raises:
            RunnerLost: and nothing else.
        """


@dataclass
class _TaskInHand:
    """A task from its preparation to its end."""

    assignment: Assignment
    prepared: Any
    """What the runner made of it."""
    handle: AssignmentHandle
    accept_at: float
    """When to accept it, by the monotonic clock."""
    worker: Worker | None = None
    """The thread of its loop."""


class VirtualPeer:
    """One place to run a task. It has a thread of its own, and takes a new id whenever the last one is used up.

    Its states are those of :mod:`peer.peer_machine`.

    Args:
        settings: timers.
        zk: the daemon's ZooKeeper session. When it ends, so does this virtual peer.
        runner: how tasks are run.
        name: unique in the deployment and this session; the peer's ids derive from it.
        about: the content of the pulse.
        broke: called, on the peer's thread or the task's, if the peer cannot go on although the session stands. The daemon must
            then end the session: otherwise the pulse would announce a peer that does no work.
    """

    def __init__(
        self,
        settings: Settings,
        zk: ZooKeeperSession,
        runner: TaskRunner,
        name: str,
        about: PulseNote,
        broke: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._zk = zk
        self._runner = runner
        self._runtime = zk.runtime
        self._name = name
        self._about = about
        self._broke = broke
        self._idle_tasks = 0
        """How many tasks in a row it had nothing to do for. In a job without work, peers then change tasks ever less often."""
        self._wake = self._runtime.signal()
        self._thread: Worker | None = None
        # Set by other threads; the peer's own thread acts on them at its next turn.
        self._leave_asked = False
        self._session_over = False
        # Set by the peer's own thread only.
        self._id = name
        self._identities = 0
        self._machine = PeerMachine(self._end_task)
        self._task: _TaskInHand | None = None
        self._idle_since: float | None = None
        self._told: tuple[BatchInHand | None, ServiceAway | None] = None, None
        """The batch of which its pulse tells, and the service that its task waits for."""

    def start(self) -> None:
        self._thread = self._runtime.spawn(f"peer-{self._name}", self._run)

    def join(self) -> None:
        """Wait until it has ended, which :meth:`leave` and :meth:`lose` bring about."""
        if self._thread is not None:
            self._thread.join()

    def leave(self) -> None:
        """Finish the batch in hand, say goodbye, and end. Returns at once; :meth:`join` waits until it is done."""
        self._leave_asked = True
        task = self._task  # read once: the peer's own thread may set it to None at any time
        if task is not None:
            task.handle.drain()
        self._wake.set()

    def lose(self) -> None:
        """The session has ended: stop without committing anything more."""
        self._session_over = True
        task = self._task
        if task is not None:
            task.handle.revoke()
        self._wake.set()

    def look(self) -> None:
        """Read the state node again soon. For the connection's listener: watches do not outlive a suspension."""
        self._wake.set()

    @property
    def idle_for(self) -> float:
        """Seconds since it has been without a task; 0 if it has one, or is not registered."""
        since = self._idle_since  # read once: the peer's own thread may change it at any time
        return 0.0 if since is None else self._runtime.now() - since

    @property
    def noticed(self) -> bool:
        """Whether the coordinator has counted it as a peer, as far as it knows."""
        return self._machine.state not in ("registering", "unnoticed")

    @property
    def state(self) -> PeerLifeState:
        """What it has done so far; it may change at any time."""
        return self._machine.state

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    # --- turns ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(peer=self._id)
        try:
            while self._machine.state != "closed":
                self._turn()
        except SessionLost:
            self._machine.fire("stop")
        except Exception as error:
            log.error("peer_session_abandoned", exc_info=error)
            self._broke()  # first: the task that ends with "stop" may take its time
            self._machine.fire("stop")
        finally:
            self._end_task()

    def _turn(self) -> None:
        """Read the state node and follow it; then wait for a reason to read it again.

        While ZooKeeper is away the peer goes on waiting: the session may outlive that, and the pulse with it.
        """
        self._wake.clear()
        if self._session_over or (self._leave_asked and self._machine.state == "registering"):
            self._machine.fire("stop")
            return
        try:
            if self._machine.state == "registering":
                self._register()
            if self._machine.state != "revoked":
                if self._leave_asked:
                    self._goodbye()
                    return
                self._look()
                self._tell_of_batch()
            if self._machine.state == "revoked":
                self._withdraw()
                return
        except ZooKeeperAway as away:
            if self._leave_asked:
                self._machine.fire("stop")
                return
            log.warning("zookeeper_unreachable", error=away.message)
        if self._machine.state != "idle":
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._runtime.now()
        self._wake.wait(self._next_look())

    def _next_look(self) -> float:
        """Seconds until the peer has something to do by itself."""
        if self._task is None or self._machine.state != "prepared":
            return _LOOK_ANYWAY
        left = self._task.accept_at - self._runtime.now()
        return left if 0 < left < _LOOK_ANYWAY else _LOOK_ANYWAY

    def _register(self) -> None:
        """Create the pulse, under the next id if this one is taken."""
        while not self._zk.create(node_paths.pulse(self._id), msgspec.json.encode(self._about), ephemeral=True):
            log.warning("peer_id_taken")
            self._next_identity()
        self._told = None, None
        self._machine.fire("register")
        log.info("peer_registered")

    def _withdraw(self) -> None:
        """The id is used up: remove its pulse, so that the coordinator can give the task away, and begin under a new id."""
        self._zk.delete(node_paths.pulse(self._id))
        if self._leave_asked:
            self._machine.fire("stop")
            return
        self._machine.fire("rejoin")
        self._next_identity()

    def _next_identity(self) -> None:
        self._identities += 1
        self._id = f"{self._name}.{self._identities}"
        structlog.contextvars.bind_contextvars(peer=self._id)

    def _look(self) -> None:
        """Read the state node and follow it. Without one the peer waits to be noticed, unless its pulse was removed."""
        data = self._zk.read(node_paths.peer_state(self._id), watch=self._signal)
        if data is not None:
            if self._machine.state == "unnoticed":
                self._machine.fire("notice")
            self._follow(msgspec.json.decode(data, type=PeerNote))
        elif self._machine.state != "unnoticed" or self._zk.read(node_paths.pulse(self._id)) is None:
            self._revoke("the coordinator took it for dead")

    def _tell_of_batch(self) -> None:
        """Say in the pulse on which batch the task works, or what it waits for, once that takes long, and when it is over. Only
        people read it: no decision depends on it, so it matters little if ZooKeeper is away then.
        """
        handle, long_ago = None if self._task is None else self._task.handle, self._runtime.wall() - LONG
        # Each is read once: the task's thread may set it at any time.
        batch, away = (None, None) if handle is None else (handle.in_hand, handle.away)
        batch = batch if batch is not None and batch.since <= long_ago else None
        away = away if away is not None and away.since <= long_ago else None
        if (batch, away) == self._told or self._machine.state == "revoked":
            return
        pulse = msgspec.json.encode(msgspec.structs.replace(self._about, batch=batch, away=away))
        try:
            self._zk.commit([Set(node_paths.pulse(self._id), pulse)])
        except SessionLost:
            raise
        except SardonyxError as error:
            log.debug("batch_not_told", error=str(error))
        else:
            self._told = batch, away

    def _signal(self, _event: object) -> None:
        self._wake.set()

    def _goodbye(self) -> None:
        """Finish the batch in hand, then tell the coordinator, then remove the pulse. In this order: the coordinator gives the
        task away as soon as it hears of it.
        """
        self._machine.fire("leave")
        if self._task is not None:
            self._task.handle.drain()
            if self._task.worker is not None:
                self._task.worker.join(self._settings.peer.transaction_timeout)
            self._end_task()
        self._zk.request(Left(peer=self._id))
        self._zk.delete(node_paths.pulse(self._id))
        self._machine.fire("close")
        log.info("peer_left")

    # --- following the state node --------------------------------------------------------------------------------

    def _follow(self, note: PeerNote) -> None:
        """Make reality match what the node says. Every log line from here on carries the number of the decision."""
        structlog.contextvars.bind_contextvars(n=note.n)
        if note.state == "revoked":
            self._revoke("its task was taken away")
            return
        if self._task is not None and self._task.assignment != note.assignment:
            self._machine.fire("release")
        if note.assignment is None:
            return
        if note.state == "acking":
            if self._task is None:
                self._prepare(note.assignment, joins=note.joins)
            # "prepared" also if ZooKeeper was away when the peer was to say so
            if self._machine.state == "prepared" and self._task and self._task.accept_at <= self._runtime.now():
                self._accept(note.assignment)
        elif note.state in WORKING:
            if self._task is None:
                self._revoke("its node grants a task that it never accepted")
                return
            self._task.handle.update(note.state, note.yields)
            if self._machine.state != "working":
                self._work_on(self._task)

    def _prepare(self, assignment: Assignment, *, joins: bool) -> None:
        """Get everything ready for the task that is offered, or decline it with the reason. ``joins``: others work on it."""
        bound = {"job": assignment.job, "task": assignment.task}
        failpoint("offered")
        try:
            prepared = self._runner.prepare(self._zk, self._id, assignment)
        except (SessionLost, ZooKeeperAway, RunnerLost):
            raise
        except Exception as reason:  # noqa: BLE001 (whatever it is, it is why this peer cannot run the task)
            error = without_room(reason)
            failure = unquoted(failure_of(error, where={**bound, "peer": self._id}))
            OFFERS.add(answer="declined")
            log.error("task_declined", code=failure.code, error=failure.message, **bound)
            self._zk.request(Declined(peer=self._id, assignment=assignment.id, error=failure, passing=may_pass(error)))
            return
        patience = min(PATIENCE * 2**self._idle_tasks, _LONGEST_PATIENCE)
        handle = AssignmentHandle(
            assignment,
            lambda: self._zk.connected,
            self._runtime,
            patience=patience,
            stands=partial(self._stands, assignment.id),
        )
        after = min(_JOINS_AFTER, self._settings.coordinator.ack_timeout / 4) if joins else 0.0
        self._task = _TaskInHand(assignment, prepared, handle, self._runtime.now() + after)
        self._machine.fire("prepare")

    def _stands(self, assignment: int) -> bool | None:
        """Whether the state node grants this assignment, up to the last write; None: ZooKeeper is away. Called from the task's
        thread.
        """
        try:
            self._zk.sync()
            data = self._zk.read(node_paths.peer_state(self._id))
        except ZooKeeperAway:
            return None
        place = None if data is None else msgspec.json.decode(data, type=PeerNote).assignment
        return place is not None and place.id == assignment

    def _accept(self, assignment: Assignment) -> None:
        self._zk.request(Acked(peer=self._id, assignment=assignment.id))
        self._machine.fire("accept")
        OFFERS.add(answer="accepted")
        log.info("task_accepted", job=assignment.job, task=assignment.task, slot=assignment.slot)

    def _work_on(self, task: _TaskInHand) -> None:
        """Start the task's loop in a thread of its own."""
        assignment = task.assignment
        context = {"peer": self._id, "job": assignment.job, "task": assignment.task, "n": assignment.id}
        task.worker = self._runtime.spawn(f"task-{self._id}-{assignment.task}", lambda: self._run_task(task, context))
        self._machine.fire("work")

    def _run_task(self, task: _TaskInHand, context: dict[str, Any]) -> None:
        """The thread of a task. Any end but an orderly one ends the session: the task would stay this peer's."""
        with structlog.contextvars.bound_contextvars(**context):
            try:
                self._runner.work(task.prepared, task.handle, self._zk)
            except RunnerLost as error:
                log.error("task_runner_lost", error=str(error))
                self._broke()
            except BaseException as error:
                if isinstance(error, Exception):
                    log.error("peer_session_abandoned", exc_info=error)
                if not task.handle.revoked:
                    self._broke()
                if not isinstance(error, Exception):
                    raise

    def _revoke(self, reason: str) -> None:
        """The id is used up. The task ends before the pulse is removed, see :meth:`_withdraw`."""
        log.warning("peer_id_revoked", reason=reason)
        self._machine.fire("revoke")

    def _end_task(self) -> None:
        """End the task in hand, if there is one: its loop commits nothing more."""
        task = self._task
        if task is None:
            return
        task.handle.revoke()
        self._idle_tasks = 0 if task.handle.worked else min(self._idle_tasks + 1, 10)
        if task.worker is not None:
            task.worker.join(_LET_GO)
            if task.worker.is_alive():
                log.warning("task_stop_timed_out", seconds=_LET_GO)
        self._task = None
