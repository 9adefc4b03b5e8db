"""Every fault that a run can bring about, by name: at a failpoint in the code, or done to a process, service or connection."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import psutil
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
from kazoo.protocol.states import ZnodeStat

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.notes import PulseNote
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.faults import changes
from tests.faults.cluster import SESSION, TRANSACTION, Seat, now
from tests.faults.flow import abandoned
from tests.faults.scene import NotNow, Scene, Verb
from tests.faults.servers import Pick, any_of, back_again, majority_of, rolling, standing_still
from tests.sessions import end_session, password_of
from tests.waiting import PATIENCE, until

LURKS = 60.0
"""Seconds that an armed failpoint waits for a process to pass it."""


class Kind(NamedTuple):
    """One kind of fault."""

    family: str
    """What KINDS names."""
    phase: str
    """``begin``, ``run`` or ``end``: when in the life of a job it can strike."""
    verb: Verb
    servers: int = 1
    """It needs a cluster of so many."""


# Processes


UNCOMMITTED = frozenset({"read", "cut", "checked", "applied", "begin", "written", "positions", "seal"})
"""Failpoints in front of the commit of what the process has in hand."""


def _past(rng: random.Random) -> float:
    """Seconds of a pause: past ZooKeeper's session; half the time past the group's and the transaction's life, too."""
    return rng.choice([SESSION + 1.5, TRANSACTION + 1.5])


def at_failpoint(point: str, action: str) -> Verb:
    """A process dies (``kill``) or stops for a while (``stop``) when it passes a point."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.points.setdefault(point, threading.Lock()):
            pid = _struck(scene, point, action)
        # It may be hit before the thread that has started it writes it down.
        seat, process = until(
            lambda: scene.cluster.whose(pid), what=f"process {pid}, hit at {point}, to be one of ours"
        )
        if action == "kill":
            until(lambda: process.gone, what=f"the end of {process.name}")
            scene.cluster.mend()
            return process.name
        mine = seat.busy.acquire(blocking=False)  # or something else is being done to it, and goes on
        seconds = _past(rng)
        scene.hold(seconds)
        if seconds > TRANSACTION and point in UNCOMMITTED:
            scene.stale.append((process.name, time.time()))
        process.send(signal.SIGCONT)
        if mine:
            seat.busy.release()
        return process.name

    return verb


def in_superstep(point: str, action: str) -> Verb:
    """The same at a failpoint that every batch passes, once supersteps are being done; and one fault after the other."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.supersteps:
            if point != SUPERSTEP:
                with scene.points.setdefault(SUPERSTEP, threading.Lock()):
                    _struck(scene, SUPERSTEP, "pass")
            whom = at_failpoint(point, action)(scene, rng)
            scene.hold(rng.uniform(0.2, 1.0))
        return whom

    return verb


def _struck(scene: Scene, point: str, action: str) -> int:
    """Arm a failpoint and wait until it hits a process; gives the process id."""
    failpoints = scene.cluster.failpoints
    failpoints.arm(point, action)
    deadline = now() + LURKS
    while not (pid := failpoints.struck(point)):
        if (
            scene.services.locked() or scene.finishing.is_set()
        ):  # no process can pass while a service is down; in the end all do
            deadline = now() + LURKS
        if (now() > deadline or scene.ended.is_set()) and failpoints.disarm(point):
            raise NotNow(f"no process came by {point}")
        scene.hold(0.02)
    return pid


def _kill_peer(scene: Scene, rng: random.Random) -> str:
    with scene.seat(rng) as seat:
        return _kill(scene, seat)


def _kill_leader(scene: Scene, _rng: random.Random) -> str:
    return _kill(scene, scene.cluster.leader())


def _kill(scene: Scene, seat: Seat) -> str:
    process = seat.process
    assert process is not None
    if seat.spared:
        raise NotNow(f"{process.name} is spared")
    process.send(signal.SIGKILL)
    until(lambda: process.gone, what=f"the end of {process.name}")
    scene.cluster.mend()
    return process.name


def _stop_peer(scene: Scene, rng: random.Random) -> str:
    with scene.seat(rng) as seat:
        return _stop(scene, seat, _past(rng))


def _stop_leader(scene: Scene, rng: random.Random) -> str:
    return _stop(scene, scene.cluster.leader(), SESSION + 1.5)


def _stop(scene: Scene, seat: Seat, seconds: float) -> str:
    process = seat.process
    assert process is not None
    if process.gone:
        raise NotNow(f"{process.name} has just died of something else")
    process.send(signal.SIGSTOP)
    scene.hold(seconds)
    process.send(signal.SIGCONT)
    return process.name


def _kill_spark(scene: Scene, rng: random.Random) -> str:
    with scene.seat(rng, spark=True) as seat:
        assert seat.process is not None
        below = psutil.Process(seat.process.pid).children(recursive=True)
        machine = next((child for child in below if child.name() == "java"), None)
        if machine is None:
            raise NotNow("Spark is just starting")
        machine.kill()
        return seat.process.name


def _rebalance(scene: Scene, rng: random.Random) -> str:
    """One leaves after its batch, another comes: partitions move twice while the others work."""
    with scene.seat(rng) as seat:
        process = seat.process
        assert process is not None
        process.send(signal.SIGTERM)
        try:
            until(lambda: process.gone, what=f"{process.name} to leave")
        except AssertionError:
            process.send(signal.SIGUSR1)
            raise
        finally:
            scene.cluster.mend()
        return process.name


def _suspend(scene: Scene, rng: random.Random) -> str:
    """A user suspends a job, and resumes it once its peers have left after their batches."""
    client = scene.cluster.client
    running = [view.id for view in client.jobs() if not view.ended]
    if not running:
        raise NotNow
    handle = client.job(rng.choice(running))

    def without_peers() -> bool:
        with contextlib.suppress(SardonyxError):  # ZooKeeper is away
            view = handle.status(live=False)
            return view.ended or not any(task.peers for task in view.tasks)
        return False

    def asked(ask: Callable[[], None]) -> bool:
        """Whether a coordinator has processed it, or the job has ended. Another fault may have taken the leader away."""
        try:
            ask()
        except SardonyxError as error:
            return error.code in ("SX-JOB-ENDED", "SX-JOB-GONE")
        return True

    try:
        until(lambda: asked(handle.suspend), what=f"{handle.id} to be suspended")
        until(without_peers, what=f"the peers of {handle.id} to leave")
    finally:
        until(lambda: asked(handle.resume), what=f"{handle.id} to be resumed")
    return handle.id


def _change(scene: Scene, rng: random.Random) -> str:
    """A user adds a task to a job, or removes the one that was added."""
    client = scene.cluster.client
    running = [view.id for view in client.jobs() if view.status == "running"]
    if not running:
        raise NotNow
    return changes.change(client, client.job(rng.choice(running)), rng, 2 * PATIENCE)


def _while_some_leave(verb: Verb) -> Verb:
    """For what only happens when partitions move, which a death does not make them do: the slot goes over as it is."""

    def both(scene: Scene, rng: random.Random) -> str:
        with ThreadPoolExecutor(1) as aside:
            struck = aside.submit(verb, scene, random.Random(rng.random()))
            while not struck.done():
                _rebalance(scene, rng)
                scene.hold(1.0)
        return struck.result()

    return both


# Sessions


def _expire(scene: Scene, session: int) -> None:
    end_session(scene.cluster.services.zookeeper, (session, password_of(session)))


def _owned(zk: ZooKeeperSession, path: str) -> tuple[bytes, ZnodeStat] | None:
    """A node and whose it is; None if it has gone, or ZooKeeper is away just now: other faults strike as well."""
    try:
        return zk.client.get(zk.path(path))
    except (NoNodeError, ConnectionLoss, SessionExpiredError):
        return None


def _expire_peer(scene: Scene, rng: random.Random) -> str:
    with scene.seat(rng) as seat:
        assert seat.process is not None
        zk = scene.cluster.client.zk
        for peer in zk.children(node_paths.PULSE):
            found = _owned(zk, node_paths.pulse(peer))
            if found is None:
                continue
            data, stat = found
            if msgspec.json.decode(data, type=PulseNote).pid == seat.process.pid:
                _expire(scene, stat.ephemeralOwner)
                return seat.process.name
        raise NotNow(f"{seat.process.name} has no session")


def _expire_leader(scene: Scene, _rng: random.Random) -> str:
    zk = scene.cluster.client.zk
    seat = scene.cluster.leader()
    assert seat.process is not None
    first = min(zk.children(node_paths.ELECTION), key=lambda node: node[-10:], default="none")
    found = _owned(zk, f"{node_paths.ELECTION}/{first}")
    if found is None:
        raise NotNow(f"{seat.process.name} has no session")
    _expire(scene, found[1].ephemeralOwner)
    return seat.process.name


# Connections


def _connection(to: str, how: str) -> Verb:
    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.seat(rng) as seat:
            assert seat.process is not None
            proxy = seat.kafka if to == "kafka" else seat.zookeeper
            assert proxy is not None
            if how == "refused":
                proxy.refuse()
            elif how == "delayed":
                proxy.delay(0.2)
            elif how == "deaf":
                proxy.lose_replies()
            elif how in ("mute", "timed-out"):
                proxy.lose_requests()
            if how != "cut":
                scene.hold(TRANSACTION + 1.5 if how == "timed-out" else rng.choice([1.0, SESSION + 1.5]))
            proxy.restore()
            return seat.process.name

    return verb


# Disks


def _full_disk(scene: Scene, rng: random.Random) -> str:
    """Every peer that writes files finds no room, all at once; a task rests for a second after each failure, or for longer."""
    disk = scene.cluster.disk
    assert disk is not None
    with scene.points.setdefault("disk", threading.Lock()), disk.full():
        scene.hold(rng.choice([2.0, 8.0]))
    return "the disk"


# Strangers


def _zombie(scene: Scene, rng: random.Random) -> str:
    """A producer upstream leaves a transaction open: readers wait for its end, and never see what is in it."""
    flows = [flow for flow in scene.flows if flow.feed.places]
    if not flows:
        raise NotNow("no job reads a topic")
    place = rng.choice(rng.choice(flows).feed.places)
    with scene.services:
        forget = abandoned(scene.cluster.services.kafka, place.topic, place.partition, SESSION)
    scene.hold(SESSION + 1.0)  # the broker looks twice a second
    forget()
    return f"{place.topic}[{place.partition}]"


RUNNING = ("read", "cut", "checked", "applied", "begin", "written", "positions", "committed")
"""Failpoints of the eight steps; the last, going back to the committed positions, is ``rewind``."""
ENDING = ("vote", "voted", "exhausted", "seal", "sealed", "complete", "completed")
"""Failpoints that are passed when a task ends."""

SUPERSTEP = "graph-superstep"
"""The failpoint of a shard that has made its part of a superstep, of which nothing is written yet."""
SUPERSTEPS = (SUPERSTEP, "graph-heard", "cut", "applied", "begin", "written", "positions", "apply-state", "committed")
"""Failpoints of a batch in which a superstep is done. At ``graph-heard`` messages have come, and a marker is missing."""


def _kinds() -> dict[str, Kind]:
    kinds = {f"kill at {point}": Kind("sigkill", "run", at_failpoint(point, "kill")) for point in RUNNING}
    kinds["kill at rewind"] = Kind("sigkill", "run", _while_some_leave(at_failpoint("rewind", "kill")))
    kinds |= {f"stop at {point}": Kind("sigstop", "run", at_failpoint(point, "stop")) for point in RUNNING}
    kinds |= {f"kill at {point}": Kind("sigkill", "end", at_failpoint(point, "kill")) for point in ENDING}
    kinds |= {f"stop at {point}": Kind("sigstop", "end", at_failpoint(point, "stop")) for point in ("seal", "sealed")}
    kinds |= {
        f"kill in superstep at {point}": Kind("superstep", "end", in_superstep(point, "kill")) for point in SUPERSTEPS
    }
    kinds |= {
        f"stop in superstep at {point}": Kind("superstep", "end", in_superstep(point, "stop"))
        for point in (SUPERSTEP, "positions", "committed")
    }
    kinds |= {
        f"kill at {point}": Kind("loop", "end", at_failpoint(point, "kill")) for point in ("loop-end", "loop-ended")
    }
    kinds |= {
        "kill at split": Kind("sigkill", "begin", at_failpoint("split", "kill")),
        "kill at graph-rows": Kind("graph", "run", at_failpoint("graph-rows", "kill")),
        "kill at graph-computed": Kind("graph", "end", at_failpoint("graph-computed", "kill")),
        "kill at graph-given": Kind("graph", "end", at_failpoint("graph-given", "kill")),
        "kill in publish": Kind("files", "run", at_failpoint("in-publish", "kill")),
        "kill in seal of files": Kind("files", "end", at_failpoint("in-seal", "kill")),
        "kill peer": Kind("sigkill", "run", _kill_peer),
        "stop peer": Kind("sigstop", "run", _stop_peer),
        "kill leader": Kind("leader", "run", _kill_leader),
        "stop leader": Kind("leader", "run", _stop_leader),
        "expire peer": Kind("session", "run", _expire_peer),
        "expire leader": Kind("session", "run", _expire_leader),
        "transaction times out": Kind("transaction", "run", _connection("kafka", "timed-out")),
        "rebalance": Kind("rebalance", "run", _rebalance),
        "suspend": Kind("suspend", "run", _suspend),
        "change": Kind("change", "run", _change),
        "full disk": Kind("disk", "run", _full_disk),
        "kill spark": Kind("spark", "run", _kill_spark),
        "zombie upstream": Kind("zombie", "run", _zombie),
    }
    leads: dict[str, tuple[str, Pick]] = {
        "zookeeper": ("leader", lambda cluster, _: [cluster.zookeeper_leader()]),
        "kafka": ("controller", lambda cluster, _: [cluster.kafka_controller()]),
    }
    for to, (head, find) in leads.items():
        kinds |= {
            f"restart {to}": Kind(to, "run", back_again(any_of(to), kill=False)),
            f"kill {to}": Kind(to, "run", back_again(any_of(to), kill=True)),
            f"stop {to}": Kind(to, "run", standing_still(any_of(to)), 3),
            f"kill {to} {head}": Kind(to, "run", back_again(find, kill=True), 3),
            f"stop {to} {head}": Kind(to, "run", standing_still(find), 3),
            f"kill majority of {to}": Kind(to, "run", back_again(majority_of(to), kill=True), 3),
            f"rolling restart of {to}": Kind(to, "run", rolling(to), 3),
        }
        for how in ("cut", "refused", "delayed", "deaf", "mute"):
            kinds[f"{to} {how}"] = Kind("network", "run", _connection(to, how))
    return kinds


KINDS = _kinds()
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS.values()))

__all__ = ["FAMILIES", "KINDS", "Kind", "at_failpoint"]
