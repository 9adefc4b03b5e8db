"""Every fault that a run can bring about, by name: at a failpoint in the code, or done to a process, service or connection."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import psutil
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
from kazoo.protocol.states import ZnodeStat

from sardonyx.core import node_paths
from sardonyx.core.errors import SetupError
from sardonyx.core.notes import PulseNote
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.faults.cluster import BROKER, SESSION, TRANSACTION, Cluster, Seat, now
from tests.faults.flow import Flow, abandoned
from tests.sessions import end_session
from tests.waiting import until

PATIENCE = 20.0
"""Seconds that an armed failpoint waits for a process to pass it."""


class NotNow(Exception):
    """The fault could not strike: there was no process to hit."""


@dataclass
class Scene:
    """What a fault is done to.

    Args:
        cluster: all processes.
        flows: the jobs that run.
        finishing: set when the last records are going in.
        ended: set when the jobs have all ended.
    """

    cluster: Cluster
    flows: list[Flow]
    finishing: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    services: threading.Lock = field(default_factory=threading.Lock)
    """One service at a time is down."""
    feeding: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that gives records to Kafka."""
    up: float = 0.0
    """When the last service that was down was up again: nothing is got over before."""
    points: dict[str, threading.Lock] = field(default_factory=dict)
    """One fault at a time lies in wait at a failpoint."""
    stale: list[tuple[str, float]] = field(default_factory=list)
    """(process, when it woke up, in seconds since 1970) of those stopped before a commit and past every timeout."""

    def hold(self, seconds: float) -> None:
        """Let things take their course for so long."""
        threading.Event().wait(seconds)

    @contextmanager
    def fasting(self) -> Iterator[None]:
        """Nothing goes in meanwhile, and nothing is on its way: what spins then (see :meth:`Flow.step`) would leave the broker no
        processor to start with.
        """
        with self.feeding:
            for flow in self.flows:
                flow.feed.arrived()
            yield

    @contextmanager
    def seat(self, rng: random.Random, *, spark: bool | None = None) -> Iterator[Seat]:
        """A peer that nothing else is being done to."""
        wanted = [seat for seat in self.cluster.peers if not seat.spared and (spark is None or seat.spark == spark)]
        rng.shuffle(wanted)
        taken = until(lambda: next((seat for seat in wanted if seat.busy.acquire(blocking=False)), None), what="a seat")
        try:
            yield taken
        finally:
            taken.busy.release()


Verb = Callable[[Scene, random.Random], str]
"""Brings the fault about, returns when it is over, and says whom it hit."""


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


def _at_failpoint(point: str, action: str) -> Verb:
    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.points.setdefault(point, threading.Lock()):
            pid = _struck(scene, point, action)
        found = scene.cluster.whose(pid)
        assert found is not None, f"process {pid} was hit at {point} and is none of ours"
        seat, process = found
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


def _struck(scene: Scene, point: str, action: str) -> int:
    """Arm a failpoint and wait until it hits a process; gives the process id."""
    failpoints = scene.cluster.failpoints
    failpoints.arm(point, action)
    deadline = now() + PATIENCE
    while not (pid := failpoints.struck(point)):
        if (
            scene.services.locked() or scene.finishing.is_set()
        ):  # no process can pass while a service is down; in the end all do
            deadline = now() + PATIENCE
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
            until(lambda: process.gone, what=f"{process.name} to leave", timeout=TRANSACTION + 20)
        except AssertionError:
            process.send(signal.SIGUSR1)
            raise
        finally:
            scene.cluster.mend()
        return process.name


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


def password_of(session: int) -> bytes:
    """The password that ZooKeeper gave a session: what Java's generator makes of the id and a constant of its server."""
    mask, state = (1 << 48) - 1, session ^ 0xB3415C00
    state = (state ^ 0x5DEECE66D) & mask
    password = b""
    while len(password) < 16:
        state = (state * 0x5DEECE66D + 0xB) & mask
        password += (state >> 16).to_bytes(4, "little")
    return password


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
    first = min(zk.children(node_paths.ELECTION), key=lambda node: node[-10:], default="nobody")
    found = _owned(zk, f"{node_paths.ELECTION}/{first}")
    if found is None:
        raise NotNow(f"{seat.process.name} has no session")
    _expire(scene, found[1].ephemeralOwner)
    return seat.process.name


# Services


Pick = Callable[[Cluster, random.Random], list[str]]
"""Which servers are hit: their names."""


def _any(kind: str) -> Pick:
    return lambda cluster, rng: [cluster.server(kind, rng)]


def _majority(kind: str) -> Pick:
    def pick(cluster: Cluster, rng: random.Random) -> list[str]:
        numbers = rng.sample(range(1, cluster.servers + 1), cluster.servers // 2 + 1)
        return [f"{kind}{number}" for number in numbers]

    return pick


def _again(pick: Pick, *, kill: bool) -> Verb:
    """Servers go down and come back. Records keep coming in while enough servers remain."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.services, ExitStack() as stack:
            names = pick(scene.cluster, rng)
            if 2 * len(names) > scene.cluster.servers:
                stack.enter_context(scene.fasting())
            _restart(scene, names, kill=kill)
        return ", ".join(names)

    return verb


def _restart(scene: Scene, names: list[str], *, kill: bool) -> None:
    services = scene.cluster.services
    services.stop(*names, kill=kill)
    try:
        services.start(*names)
    except SetupError:  # the machine has other things to do; the longer they were down
        services.stop(*names, kill=True)
        services.start(*names)
    scene.up = now()


def _rolling(kind: str) -> Verb:
    """Every server in turn, while records come in."""

    def verb(scene: Scene, _rng: random.Random) -> str:
        names = [f"{kind}{number}" for number in range(1, scene.cluster.servers + 1)]
        with scene.services:
            for name in names:
                _restart(scene, [name], kill=False)
        return ", ".join(names)

    return verb


def _stop_server(pick: Pick) -> Verb:
    """A server that stands still (SIGSTOP) for longer than the others wait for it, and then believes that it still leads."""

    def verb(scene: Scene, rng: random.Random) -> str:
        with scene.services:
            names = pick(scene.cluster, rng)
            pids = [scene.cluster.services.pids[name] for name in names]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            scene.hold(BROKER + 1.5)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            scene.up = now()
        return ", ".join(names)

    return verb


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
    """Somebody upstream leaves a transaction open: readers wait for its end, and never see what is in it."""
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


def _kinds() -> dict[str, Kind]:
    kinds = {f"kill at {point}": Kind("sigkill", "run", _at_failpoint(point, "kill")) for point in RUNNING}
    kinds["kill at rewind"] = Kind("sigkill", "run", _while_some_leave(_at_failpoint("rewind", "kill")))
    kinds |= {f"stop at {point}": Kind("sigstop", "run", _at_failpoint(point, "stop")) for point in RUNNING}
    kinds |= {f"kill at {point}": Kind("sigkill", "end", _at_failpoint(point, "kill")) for point in ENDING}
    kinds |= {f"stop at {point}": Kind("sigstop", "end", _at_failpoint(point, "stop")) for point in ("seal", "sealed")}
    kinds |= {
        "kill at split": Kind("sigkill", "begin", _at_failpoint("split", "kill")),
        "kill in publish": Kind("files", "run", _at_failpoint("in-publish", "kill")),
        "kill in seal of files": Kind("files", "end", _at_failpoint("in-seal", "kill")),
        "kill peer": Kind("sigkill", "run", _kill_peer),
        "stop peer": Kind("sigstop", "run", _stop_peer),
        "kill leader": Kind("leader", "run", _kill_leader),
        "stop leader": Kind("leader", "run", _stop_leader),
        "expire peer": Kind("session", "run", _expire_peer),
        "expire leader": Kind("session", "run", _expire_leader),
        "transaction times out": Kind("transaction", "run", _connection("kafka", "timed-out")),
        "rebalance": Kind("rebalance", "run", _rebalance),
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
            f"restart {to}": Kind(to, "run", _again(_any(to), kill=False)),
            f"kill {to}": Kind(to, "run", _again(_any(to), kill=True)),
            f"stop {to}": Kind(to, "run", _stop_server(_any(to)), 3),
            f"kill {to} {head}": Kind(to, "run", _again(find, kill=True), 3),
            f"stop {to} {head}": Kind(to, "run", _stop_server(find), 3),
            f"kill majority of {to}": Kind(to, "run", _again(_majority(to), kill=True), 3),
            f"rolling restart of {to}": Kind(to, "run", _rolling(to), 3),
        }
        for how in ("cut", "refused", "delayed", "deaf", "mute"):
            kinds[f"{to} {how}"] = Kind("network", "run", _connection(to, how))
    return kinds


KINDS = _kinds()
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS.values()))

__all__ = ["FAMILIES", "KINDS", "Kind", "NotNow", "Scene", "password_of"]
