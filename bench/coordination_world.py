"""A coordinator that is driven by hand on a real ZooKeeper, and virtual peers that only say what peers say.

Between two rounds of the loop the peers put into the inbox what they would have put there: each that was offered a task
takes it, each at work finds it exhausted, each that seals says that it has. Some die, others are born, and for each job
that ends another one is handed in. Only the loop's own time is measured, from the moment at which it begins to gather to
the one at which the checkpoint stands at the last event.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Event
from typing import Any

import msgspec
import psutil

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from coordinator.core.timers import Timers, expired_jobs
from coordinator.loop.election import Candidate, Leadership
from coordinator.loop.intake import Scan
from coordinator.loop.leader import Leader
from coordinator.loop.log_writer import Appended
from coordinator.loop.side_effects import Needed, Rewired, Since, Trimmed
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, CreateLinks, Delete, DeleteLinks, Effect
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Completed,
    Exhausted,
    JobSubmitted,
    LastCommits,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    PeerBorn,
    PeerDied,
    encode_event,
    kind_of,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import PulseNote
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import chunked

STAGES, PARTITIONS = 5, 8
"""Tasks of a job, and the most peers on each of them."""
STEPS = ("read", "append", "decide", "effects", "snapshot")
"""What the loop does with a round of events: how long each keeps it, the waiting for ZooKeeper included. While it decides,
ZooKeeper works on what was sent before, so `append` and `effects` are less than these take by themselves."""

PROCESSES = ("coordinator", "zookeeper")
"""Whose processor time is measured; the coordinator's with all its threads."""

TIMERS = Timers(ack_timeout=15.0, revoke_grace=10.0, failure_backoff=1.0, keep_jobs=100)
"""Of the core alone, where no time passes: only ended jobs are forgotten."""


def job_spec(name: str) -> JobSpec:
    """A chain of tasks."""
    names = [f"t{index}" for index in range(STAGES)]
    catalog = [TaskSpec(name=names[0], type="input", connector="generator")]
    catalog += [TaskSpec(name=name, type="function", fn="m:f") for name in names[1:-1]]
    catalog.append(TaskSpec(name=names[-1], type="output", connector="blackhole"))
    return JobSpec(name=name, workflow=list(itertools.pairwise(names)), catalog=catalog, partitions=PARTITIONS)


def jobs_for(peers: int) -> int:
    """So many jobs that every peer has a place."""
    return max(1, -(-peers // (STAGES * PARTITIONS)))


class Links:
    """Links that stand nowhere: the job's topics are not what is measured."""

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        return {link.name: LinkFacts(PARTITIONS) for link in graph_of(spec, "bench", job).links}

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        del job, spec
        return LastCommits()

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        del job, spec, keeps_states
        return LastCommits()

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        del rewired
        return self.create_links(job, spec), {}

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        pass

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        pass

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        pass

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        del job, spec, needed
        return Trimmed()

    def forget(self, jobs: Collection[str]) -> None:
        pass


class Crowd:
    """What so many virtual peers and their users do, given the state of which they hear. Pure; from a seed."""

    def __init__(self, peers: int, rng: random.Random) -> None:
        self.peers = peers
        self._rng = rng
        self._serial = itertools.count()
        self.gone: set[str] = set()
        """Peers that died; the coordinator may hear of it later."""

    def born(self, count: int) -> list[PeerBorn]:
        """New peers."""
        return [PeerBorn(peer=f"host-{next(self._serial):06d}", daemon="d", host="bench", pid=1) for _ in range(count)]

    def dying(self, state: State, count: int) -> list[PeerDied]:
        """Peers at work or without it that are gone."""
        at_rest = ("idle", "active", "waiting")
        alive = [name for state_name in at_rest for name in state.by_state[state_name] if name not in self.gone]
        dead = self._rng.sample(alive, min(count, len(alive)))
        self.gone.update(dead)
        return [PeerDied(peer=name) for name in dead]

    def jobs(self, state: State) -> list[JobSubmitted]:
        """As many as are missing to a place for every peer."""
        missing = jobs_for(self.peers) - len(state.names)
        names = [f"job{next(self._serial):06d}" for _ in range(missing)]
        return [JobSubmitted(job=f"{name}-x", spec=job_spec(name)) for name in names]

    def said(self, state: State, count: int) -> list[Acked | Exhausted | Completed]:
        """What at most ``count`` peers that were told something say to it, in any order."""
        told = [
            (name, kind)
            for kind in ("acking", "active", "sealing")
            for name in state.by_state[kind]
            if name not in self.gone
        ]
        self._rng.shuffle(told)
        answers = {"acking": Acked, "active": Exhausted, "sealing": Completed}
        return [answers[kind](peer=name, assignment=state.assignment(name).id) for name, kind in told[:count]]


class Pure:
    """The deciding core alone: no ZooKeeper, no log."""

    def __init__(self) -> None:
        self.state = new_state("bench")
        self.seconds = 0.0
        self.events = 0

    def take(self, events: list[AnyEvent]) -> list[tuple[int, AnyEvent]]:
        """Decide each, and what follows from it outside. Gives all of them as they would stand in a log."""
        taken: list[tuple[int, AnyEvent]] = []
        waiting = list(events)
        while waiting:
            began = time.perf_counter()
            effects: list[Effect] = []
            for event in waiting:
                taken.append((self.state.n + 1, event))
                effects += decide(self.state, self.state.n + 1, event)
            self.seconds += time.perf_counter() - began
            self.events += len(waiting)
            waiting = [done for effect in effects if (done := self._outside(effect)) is not None]
        return taken

    def _outside(self, effect: Effect) -> AnyEvent | None:
        if isinstance(effect, CreateLinks):
            return LinksCreated(
                job=effect.job, links=Links().create_links(effect.job, self.state.jobs[effect.job].spec)
            )
        if isinstance(effect, DeleteLinks):
            return LinksDeleted(job=effect.job)
        return None


def pure_round(pure: Pure, crowd: Crowd, requests: int, churn: int) -> list[tuple[int, AnyEvent]]:
    """One round of the core alone; the same mix as :meth:`World.round`."""
    dying = crowd.dying(pure.state, churn)
    said = crowd.said(pure.state, requests)
    forgotten = expired_jobs(pure.state, 0.0, TIMERS)
    return pure.take([*crowd.born(len(dying)), *crowd.jobs(pure.state), *said, *dying, *forgotten])


class World:
    """A leader, driven by hand, and its crowd.

    Args:
        leadership: a won epoch.
        outside: a session of the peers' own.
        settings: of the deployment.
        crowd: who speaks.
    """

    def __init__(self, leadership: Leadership, outside: ZooKeeperSession, settings: Settings, crowd: Crowd) -> None:
        self.crowd = crowd
        self.cpu = dict.fromkeys(PROCESSES, 0.0)
        """Seconds of processor time that the measured rounds took, by process: the load of the machine disturbs it less."""
        self._zookeeper = serving(settings)
        self.kinds: Counter[str] = Counter()
        """Events taken in measured rounds, by kind."""
        self.seconds = dict.fromkeys(STEPS, 0.0)
        """What the measured rounds took, by step."""
        self._outside = outside
        self._leader = Leader(leadership, settings, Links(), wake=Event())
        self._under: list[str] = []
        self._since = 0.0
        self._leader.take_over()
        self._put([], crowd.born(crowd.peers), [])
        self._settle()

    @property
    def state(self) -> State:
        return self._leader.state

    @property
    def events(self) -> int:
        return sum(self.kinds.values())

    def _settle(self) -> None:
        """Take everything in until all jobs run; not measured."""
        while True:
            self._put(self.crowd.jobs(self.state), [], [])
            before = self.state.n
            self._leader.turn()
            self._leader.settle()
            if self.state.n > before:
                continue
            if all(job.status != "planning" for job in self.state.jobs.values()):
                return
            time.sleep(0.001)

    def round(self, requests: int, churn: int) -> None:
        """What ``requests`` peers say, and so many deaths and births; then one measured round of the loop."""
        dying = self.crowd.dying(self.state, churn)
        said = self.crowd.said(self.state, requests)
        self._put([*self.crowd.jobs(self.state), *said], self.crowd.born(len(dying)), dying)
        self._leader._zk.sync()  # noqa: SLF001 - so that its watches have fired
        with self._steps():
            before = self._processors()
            self._leader.turn()
            self._leader.settle()
        for process, spent, now in zip(PROCESSES, before, self._processors(), strict=True):
            self.cpu[process] += now - spent

    def forget(self) -> None:
        """Measure from here on."""
        self.kinds.clear()
        self.cpu = dict.fromkeys(PROCESSES, 0.0)
        self.seconds = dict.fromkeys(STEPS, 0.0)

    def _processors(self) -> tuple[float, float]:
        """Seconds of processor time of this process and of ZooKeeper's, since they began."""
        if self._zookeeper is None:
            return time.process_time(), 0.0
        spent = self._zookeeper.cpu_times()
        return time.process_time(), spent.user + spent.system

    @contextmanager
    def _steps(self) -> Iterator[None]:
        """Measure the loop's steps as they run; what a step asks another one to do is that one's."""
        leader: Any = self._leader
        parts = (
            (leader._intake, "begin", "read"),  # noqa: SLF001
            (leader._log, "add", "append"),  # noqa: SLF001
            (leader._log, "rest", "append"),  # noqa: SLF001
            (leader._log, "submit", "append"),  # noqa: SLF001
            (leader._effects, "flush", "effects"),  # noqa: SLF001
            (leader._effects, "drain", "effects"),  # noqa: SLF001
            (leader, "_write_snapshot", "snapshot"),
            (leader.snapshots, "finish", "snapshot"),
        )
        with ExitStack() as stack:
            for owner, name, step in parts:
                stack.enter_context(replaced(owner, name, partial(self._timed, step, getattr(owner, name))))
            read, wait = Scan.read, Appended.wait
            stack.enter_context(replaced(Scan, "read", lambda *args: self._timed("read", read, *args)))
            stack.enter_context(replaced(Appended, "wait", lambda appended: self._counted(wait, appended)))
            stack.enter_context(self._in("decide"))
            yield

    @contextmanager
    def _in(self, step: str) -> Iterator[None]:
        """The time from here on is this step's, but for what others take within it."""
        self._book(step)
        try:
            yield
        finally:
            self._book()

    def _book(self, begun: str = "") -> None:
        """The step in hand has taken the time since the last booking; another one begins, or this one ends."""
        now = time.perf_counter()
        if self._under:
            self.seconds[self._under[-1]] += now - self._since
        self._since = now
        if begun:
            self._under.append(begun)
        else:
            self._under.pop()

    def _timed(self, step: str, function: Callable[..., Any], *args: Any) -> Any:
        with self._in(step):
            return function(*args)

    def _counted(self, wait: Callable[..., Any], appended: Appended) -> Any:
        entries = self._timed("append", wait, appended)
        self.kinds.update(kind_of(entry.event) for entry in entries)
        return entries

    def _put(self, requests: list[Any], born: list[PeerBorn], dying: list[PeerDied]) -> None:
        """Pulses and requests into the tree, as peers and clients do, only many to a transaction."""
        note = msgspec.json.encode(PulseNote("d", "bench", 1))
        pulses = [Create(node_paths.pulse(event.peer), note) for event in born]
        for chunk in chunked(
            [operation] for operation in [*pulses, *(Delete(node_paths.pulse(e.peer)) for e in dying)]
        ):
            self._outside.commit(chunk)
        for at in range(0, len(requests), 500):
            transaction = self._outside.client.transaction()
            for event in requests[at : at + 500]:
                prefix = node_paths.inbox_prefix(kind_of(event), self._outside.runtime.token())
                transaction.create(self._outside.path(prefix), encode_event(event), sequence=True)
            failed = [result for result in transaction.commit() if isinstance(result, Exception)]
            if failed:
                raise failed[0]


def serving(settings: Settings) -> psutil.Process | None:
    """The process that listens as ZooKeeper, if it is one of this user's on this machine."""
    port = int(str(settings.zookeeper.hosts).split("/", 1)[0].rpartition(":")[2])
    with suppress(psutil.AccessDenied):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid is not None:
                return psutil.Process(found.pid)
    return None


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """Another attribute of that name for a while."""
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def world(settings: Settings, peers: int, seed: int) -> Iterator[World]:
    """A coordinator that has taken over an empty deployment, with so many peers on running jobs."""
    with swept(settings), leadership(settings) as won:
        outside = ZooKeeperSession.connect(settings)
        try:
            yield World(won, outside, settings, Crowd(peers, random.Random(seed)))  # noqa: S311 - repeatable, not secret
        finally:
            outside.close()


@contextmanager
def swept(settings: Settings) -> Iterator[Settings]:
    """A deployment that is removed in the end: ZooKeeper keeps all in memory."""
    yield settings
    zk = ZooKeeperSession.connect(settings)
    try:
        _sweep(zk, "")
    finally:
        zk.close()


def _sweep(zk: ZooKeeperSession, path: str) -> None:
    below = [f"{path}/{name}" for name in zk.children(path)]
    leaves = path in {node_paths.PEER_STATE, node_paths.PULSE, node_paths.INBOX} or path.startswith(
        node_paths.LOG + "/"
    )
    for child in () if leaves else below:
        _sweep(zk, child)
    for chunk in chunked([Delete(child)] for child in below):
        zk.commit(chunk)


@contextmanager
def leadership(settings: Settings) -> Iterator[Leadership]:
    """A won election, without a process that drives it."""
    zk = ZooKeeperSession.connect(settings)
    try:
        candidate = Candidate(zk, Event())
        if not candidate.wait(Event()):
            raise RuntimeError("not elected")
        yield candidate.take()
    finally:
        zk.close()
