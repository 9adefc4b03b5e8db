"""A simulated cluster and one history of it: real coordinators and peer daemons on simulated ZooKeeper, Kafka and time.

What runs is the product's own code: ``Coordinator`` with its election, watches, log, loop and outer worker; ``PeerDaemon`` with
its virtual peers, grants and votes; ``ZooKeeperSession`` with all that it does about lost replies. Simulated are kazoo's client,
the ensemble behind it, Kafka, and a task's work. A :class:`Plan` says what is to happen and when; the plan and its seed give
the same history every time.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import msgspec
import structlog

import coordinator.core.job_changes
import coordinator.core.peer_changes
import coordinator.loop.leader
import coordinator.loop.link_trimmer
import coordinator.loop.snapshots
from coordinator.core import scheduling
from coordinator.core.decide import Undecided
from coordinator.core.invariants import check
from coordinator.core.state import State
from coordinator.daemon import Coordinator
from peer.daemon import PeerDaemon
from sardonyx.core import node_paths
from sardonyx.core.changing import NOTHING, rewiring
from sardonyx.core.errors import SetupError
from sardonyx.core.events import (
    Evicted,
    JobChanged,
    JobKilled,
    JobPurged,
    JobScaled,
    JobStopped,
    JobSubmitted,
    PolicySet,
    Request,
    Scheduler,
)
from sardonyx.core.graph import graph_of, is_bounded
from sardonyx.core.resizing import awake, stand_still
from sardonyx.core.spec import Route
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.settings_sections import CoordinatorSettings, PeerSettings, ZookeeperSettings
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.cards import Cards
from tests.random_jobs import regrown
from tests.shares import Turns, hold_shares
from tests.simulation.client import SimClient
from tests.simulation.engine import Process, SimRuntime, Simulation
from tests.simulation.kafka import SimKafka, SimLinks
from tests.simulation.nonsense import nonsense
from tests.simulation.oracle import Oracle
from tests.simulation.peer_work import SimRunner
from tests.simulation.plan import Fault, Plan, Tally
from tests.simulation.verdict import Stuck, Unforeseen, Wrong, says_so, word_of
from tests.simulation.zookeeper import SimZooKeeper

SESSION = 10.0
SETTLE = 600.0
"""Simulated seconds after the last fault within which everything bounded must have ended."""
STEPS = 400_000
_LIMITED: dict[str, Any] = {
    "REMEMBERED_DEAD": coordinator.core.peer_changes,
    "REMEMBERED_PURGED": coordinator.core.job_changes,
    "FORGIVEN": coordinator.core.job_changes,
    "LOG_EVERY": coordinator.loop.link_trimmer,
}
"""Limits that a history sets lower, and the modules that read them."""
"""Steps of a history, at most: more means that the same things happen without end."""


class SimTree(ZooKeeperSession):
    """The real tree; what it is asked to put in is written down."""

    oracle: Oracle

    def create_sequential(self, prefix: str, data: bytes, *, ephemeral: bool = False) -> str:
        made = super().create_sequential(prefix, data, ephemeral=ephemeral)
        uuid = prefix.rstrip("-").rpartition("-")[2]
        if prefix.startswith(node_paths.INBOX) and len(uuid) == 32:
            self.oracle.confirmed.add(uuid)
        return made


class World:
    """One history in the making. :meth:`play` plays it, and raises whatever is wrong."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sim = Simulation(random.Random(plan.seed))
        self.zookeeper = SimZooKeeper(self.sim, plan.servers)
        self.zookeeper.doubled = plan.doubled
        self.kafka = self._make_kafka()
        self.trouble = msgspec.structs.replace(plan)
        self.settings = settings_of(plan)
        self.oracle = self._make_oracle()
        self.places: dict[str, Process] = {}
        self.running: dict[str, Coordinator | PeerDaemon] = {}
        self.incarnations = 0
        self._passed: Counter[tuple[str, str]] = Counter()
        self.settling = False
        self.defect = False
        """Whether the coordinators have a defect, so that they cannot decide about some events."""
        self.undecided = 0
        """How many leaderships have ended by it."""
        self.wrong: list[str] = []
        self.unforeseen: list[str] = []
        """What processes have raised and never should."""
        self.user = Process(self.sim, "user")
        self._user_tree: ZooKeeperSession | None = None

    def _make_kafka(self) -> SimKafka:
        return SimKafka(self.sim)

    def _make_oracle(self) -> Oracle:
        return Oracle(self.zookeeper, self.kafka)

    def _make_runner(self, runtime: SimRuntime) -> SimRunner:
        return SimRunner(self.kafka, runtime, self)

    # Playing

    def play(self) -> Tally:
        """Raises what is wrong, with a picture of how things stood: ``Wrong`` if the simulation says so; ``Unforeseen``, or the
        error itself, if code breaks that never should.
        """
        with self._instrumented():
            try:
                self._begin()
                self._go_on(self.plan.until)
                self._settle()
                self.oracle.at_the_end(self)
            except BaseException as error:
                error.add_note(f"at {self.sim.now:.3f} s, step {self.sim.steps}: {self.oracle.picture()}")
                if says_so(error) and not isinstance(error, Wrong):
                    raise Wrong(word_of(error)) from error
                raise
            finally:
                self.sim.close()
        return self.tally()

    def tally(self) -> Tally:
        return Tally(
            steps=self.sim.steps,
            decisions=self.oracle.decisions,
            depositions=self.oracle.depositions,
            refused=self.oracle.refused,
            accepted=self.oracle.accepted,
            lost_replies=self.zookeeper.lost_replies,
            requests=len(self.oracle.confirmed),
        )

    def _instrumented(self) -> Any:
        return instrumented(self)

    def _begin(self) -> None:
        for number in range(self.plan.coordinators):
            self.sim.at(number * 0.01, partial(self._start, f"c{number}"))
        cued = {cue.start for cue in self.plan.cues}
        for number in range(len(self.plan.daemons)):
            if f"d{number}" not in cued:
                self.sim.at(0.02 + number * 0.01, partial(self._start, f"d{number}"))
        self.user.spawn("session", self._open_user_session)
        for job in self.plan.jobs:
            self.sim.at(job.at, partial(self._ask, JobSubmitted(job=job.job, spec=job.spec)))
        for fault in self.plan.faults:
            self.sim.at(fault.at, partial(self._fault, fault))

    def _go_on(self, until: float) -> None:
        while self.sim.now < until and self.sim.step():
            self._check_progress()

    def _settle(self) -> None:
        """No more faults: everybody is there, and everything bounded must end."""
        self.settling = True
        self.trouble = msgspec.structs.replace(self.plan, declines=0.0, fails=0.0, slow=0.2, dies=0.0, lost=0.0)
        self.zookeeper.doubled = 0.0
        self.kafka.failing = 0.0
        for replica in self.zookeeper.replicas:
            replica.lag = min(replica.lag, 0.03)
        for process in self.sim.processes:
            process.resume()
        for client in self.oracle.clients:
            client.away = False
        for number in range(len(self.plan.daemons)):
            self._start(f"d{number}")
        self._until("is worked off", self.oracle.left_over)
        self._stop_rest()
        self._until("has ended", self.oracle.unfinished)

    def _stop_rest(self) -> None:
        """Jobs without an end must end as well."""
        for job in self.plan.jobs:
            if not all(map(is_bounded, [t for t in job.spec.catalog if t.type == "input"])):
                self._ask(JobStopped(job=job.job))

    def _until(self, what: str, missing: Callable[[World], list[str]]) -> None:
        """Go on until nothing is missing."""
        limit = self.sim.now + SETTLE
        looked = self.sim.now
        while not (self.sim.now >= looked + 1.0 and not missing(self)):
            if self.sim.now >= looked + 1.0:
                self._resume_what_failed()
            looked = self.sim.now if self.sim.now >= looked + 1.0 else looked
            if not self.sim.step():
                raise Stuck("nothing happens any more")
            self._check_progress()
            if self.sim.now > limit:
                raise Stuck(f"not all {what} {SETTLE:g} s after the last fault: {missing(self)}")

    def _check_progress(self) -> None:
        if self.unforeseen:
            raise Unforeseen(self.unforeseen[0])
        if self.wrong:
            raise Wrong(self.wrong[0])
        if self.sim.steps > STEPS:
            raise Stuck(f"no end after {STEPS} steps")

    # Processes

    def _start(self, place: str) -> None:
        """Bring a process up at its place, if there is none."""
        before = self.places.get(place)
        if before is not None and before.alive:
            return
        self.incarnations += 1
        process = Process(self.sim, f"{place}.{self.incarnations}")
        self.places[place] = process
        runtime = SimRuntime(process)
        connect = partial(self._connect, process)
        made: Coordinator | PeerDaemon
        if place.startswith("c"):
            made = Coordinator(self.settings, SimLinks(self.kafka, runtime), connect=connect, runtime=runtime)
        else:
            least = self.plan.daemons[int(place[1:])]
            number: int | str = "auto" if self.plan.growing else least
            peers = self.settings.peer.model_copy(update={"virtual_peers": number})
            runner = self._make_runner(runtime)
            settings = self.settings.model_copy(update={"peer": peers})
            between = least, least + self.plan.growing
            made = PeerDaemon(settings, runner, connect=connect, runtime=runtime, between=between)
        self.running[place] = made

        def run() -> None:
            try:
                made.run()
            except SetupError as error:  # its supervisor starts it again
                if error.code not in ("SX-ZOOKEEPER-AWAY", "SX-ZOOKEEPER-UNREACHABLE"):
                    raise
            self.sim.at(0.0, process.kill)
            self._again(place)

        process.spawn("main", run)

    def _again(self, place: str) -> None:
        self.sim.at(self.sim.rng.uniform(0.2, 3.0), partial(self._start, place))

    def _connect(
        self,
        process: Process,
        settings: Settings,
        *,
        timeout: float | None = None,
        listener: Callable[[str], None] | None = None,
        survive_expiry: bool = False,
    ) -> ZooKeeperSession:
        client = SimClient(self.zookeeper, process, SESSION)
        self.oracle.clients.append(client)
        zk = SimTree(client, settings, survive_expiry=survive_expiry, runtime=SimRuntime(process))
        zk.oracle = self.oracle
        return zk.open(settings.zookeeper.connect_timeout if timeout is None else timeout, listener)

    # A user

    def _open_user_session(self) -> None:
        while self._user_tree is None:
            try:
                self._user_tree = self._connect(self.user, self.settings, survive_expiry=True)
            except Exception:  # noqa: BLE001, S112 - ZooKeeper is away just now
                continue

    def _ask(self, request: Request) -> None:
        self._put(lambda zk: zk.request(request))

    def _put(self, put: Callable[[ZooKeeperSession], object]) -> None:
        """Have the user do something with the tree, as often as it takes."""

        def ask() -> None:
            runtime = SimRuntime(self.user)
            while self._user_tree is None:
                runtime.sleep(0.1)
            while True:
                try:
                    put(self._user_tree)
                    return
                except (ZooKeeperAway, SessionLost):
                    runtime.sleep(0.5)

        self.user.spawn("ask", ask)

    # Faults

    def _fault(self, fault: Fault) -> None:
        getattr(self, f"_{fault.kind}")(fault)

    def _process(self, fault: Fault) -> Process | None:
        process = self.places.get(fault.who)
        return process if process is not None and process.alive else None

    def _clients(self, fault: Fault) -> list[SimClient]:
        process = self._process(fault)
        return [client for client in self.oracle.clients if client.process is process and not client.closed]

    def _kill(self, fault: Fault) -> None:
        if process := self._process(fault):
            process.kill()
            self._again(fault.who)

    def _crash(self, fault: Fault) -> None:
        if process := self._process(fault):
            process.on_kill.append(lambda: self._again(fault.who))
            self.zookeeper.crashes[process.name] = fault.count

    def _stop(self, fault: Fault) -> None:
        if process := self._process(fault):
            process.pause()
            self.sim.at(fault.seconds, process.resume)

    def _cut(self, fault: Fault) -> None:
        for client in self._clients(fault):
            client.cut_off(fault.seconds)

    def _break(self, fault: Fault) -> None:
        for client in self._clients(fault):
            client.break_off()

    def _mute(self, fault: Fault) -> None:
        for client in self._clients(fault):
            client.mute(min(fault.seconds, SESSION * 2 / 3))

    def _expire(self, fault: Fault) -> None:
        for client in self._clients(fault):
            self.zookeeper.expire(client.session)
            client.break_off()

    def _usurp(self, fault: Fault) -> None:
        del fault
        self.oracle.usurp()

    def _evict(self, fault: Fault) -> None:
        peers = self.oracle.children(node_paths.PEER_STATE)
        if peers:
            self._ask(Evicted(peer=peers[fault.count % len(peers)]))

    def _job_of(self, fault: Fault) -> str:
        """The job that a user means."""
        return self.plan.jobs[fault.count % len(self.plan.jobs)].job

    def _end(self, fault: Fault) -> None:
        if self.plan.jobs:
            self._ask(JobKilled(job=self._job_of(fault)))

    def _halt(self, fault: Fault) -> None:
        if self.plan.jobs:
            self._ask(JobStopped(job=self._job_of(fault)))

    def _purge(self, fault: Fault) -> None:
        if self.plan.jobs:
            self._ask(JobPurged(job=self._job_of(fault)))

    def _say(self, fault: Fault) -> None:
        del fault
        said = nonsense(self)
        if isinstance(said, bytes):
            self._put(lambda zk: zk.create_sequential(f"{node_paths.INBOX}/{self.sim.rng.random()}-", said))
        else:
            self._ask(said)

    def _policy(self, fault: Fault) -> None:
        schedulers = get_args(Scheduler)
        self._ask(PolicySet(scheduler=schedulers[fault.count % len(schedulers)]))

    def _scale(self, fault: Fault) -> None:
        if self.plan.jobs:
            job = self._job_of(fault)
            self._ask(
                JobScaled(job=job, priority=fault.count % 3, weight=1.0 + fault.count % 2, max_peers=fault.count % 4)
            )

    def _suspend(self, fault: Fault) -> None:
        if self.plan.jobs:
            job = self._job_of(fault)
            self._ask(JobScaled(job=job, suspended=True))
            self.sim.at(fault.seconds, lambda: self._ask(JobScaled(job=job, suspended=False)))

    def _change(self, fault: Fault) -> None:
        """Tasks are added to a job, and removed from it, with all that is unread before them."""
        job = self._job_of(fault) if self.plan.jobs else ""
        known = self.oracle.state.jobs.get(job)
        if known is None or known.ended:
            return
        rng = random.Random(f"{self.plan.seed}/{fault.at}")
        before = graph_of(known.spec, "sim", job)
        spec = regrown(rng, known.spec, (f"n{known.revision}x{number}" for number in range(9)))
        drop = rewiring(before, graph_of(spec, "sim", job)).names
        same = [stage.name for stage in before.stages]
        self._ask(JobChanged(job=job, spec=spec, revision=known.revision, drop=drop, same=same))

    def _close(self, fault: Fault) -> None:
        """No row goes over one edge of a job any more; if one is closed already, rows go over all again."""
        job = self.plan.jobs[0].job
        known = self.oracle.state.jobs.get(job)
        if known is None or known.ended:
            return
        stages = [stage.name for stage in graph_of(known.spec, "sim", job).stages]
        edges = [f"{source}.{target}" for source, target in known.spec.workflow if source in stages]
        routes = {} if known.spec.routes or not edges else {edges[fault.count % len(edges)]: Route(where=NOTHING)}
        spec = msgspec.structs.replace(known.spec, routes=routes)
        self._ask(JobChanged(job=job, spec=spec, revision=known.revision, same=stages))

    def _resize(self, fault: Fault) -> None:
        """The queues of a job get another number of partitions: its inputs stand still, and after a while the change is asked
        for, read or not.
        """
        job = self.plan.jobs[fault.count // 24 % len(self.plan.jobs)].job
        known = self.oracle.state.jobs.get(job)
        if known is None or known.ended:
            return
        stages = [stage.name for stage in graph_of(known.spec, "sim", job).stages]
        spec = stand_still(known.spec, 1 + fault.count % 5)
        self._ask(JobChanged(job=job, spec=spec, revision=known.revision, same=stages))
        for number in range(1, 4):
            self.sim.at(number * fault.seconds, lambda: self._resize_now(job))

    def _resize_now(self, job: str) -> None:
        known = self.oracle.state.jobs.get(job)
        if known is not None and not known.ended and known.spec.next_partitions is not None:
            spec = msgspec.structs.replace(awake(known.spec), partitions=known.spec.next_partitions)
            self._ask(JobChanged(job=job, spec=spec, revision=known.revision))

    def _resume_what_failed(self) -> None:
        """A job that was changed and fails is suspended: its user lets it go on. So does one whose inputs stand still."""
        for name, job in self.oracle.state.jobs.items():
            if job.spec.next_partitions is not None and not job.ended:
                self._ask(JobChanged(job=name, spec=awake(job.spec), revision=job.revision))
        for name, job in self.oracle.state.jobs.items():
            if job.suspended and not job.ended:
                self._ask(JobScaled(job=name, suspended=False))

    def _drain(self, fault: Fault) -> None:
        daemon = self.running.get(fault.who)
        if self._process(fault) and isinstance(daemon, PeerDaemon):
            daemon.stop()

    def _lag(self, fault: Fault) -> None:
        replica = self.zookeeper.replicas[fault.count % len(self.zookeeper.replicas)]
        if len(self.zookeeper.replicas) > 1:
            before, replica.lag = replica.lag, 3.0
            self.sim.at(fault.seconds, lambda: setattr(replica, "lag", before))

    def _kafka(self, fault: Fault) -> None:
        self.kafka.failing = 0.5
        self.sim.at(fault.seconds, lambda: setattr(self.kafka, "failing", 0.0))

    # What is asked of the world by a peer's work

    def pass_point(self, process: Process, point: str) -> None:
        """A peer comes to a point in its work: now is the moment of those cues that wait for it."""
        place = process.name.partition(".")[0]
        self._passed[place, point] += 1
        for cue in self.plan.cues:
            if (cue.who, cue.point, cue.count) == (place, point, self._passed[place, point]):
                if cue.start:
                    self.sim.at(0.0, partial(self._start, cue.start))
                if cue.kill:
                    self._again(place)
                    process.crash()
                SimRuntime(process).sleep(cue.hold)

    @property
    def slow(self) -> float:
        return self.trouble.slow

    @property
    def declines(self) -> float:
        return self.trouble.declines

    @property
    def fails(self) -> float:
        return self.trouble.fails

    @property
    def fails_for_good(self) -> float:
        return self.trouble.fails_for_good


def settings_of(plan: Plan) -> Settings:
    coordinator_settings = CoordinatorSettings(
        snapshot_every=plan.snapshot_every,
        keep_log=plan.keep_log,
        keep_jobs=plan.keep_jobs,
        trim_every=plan.trim_every,
        audit_every=plan.audit_every,
        quantum=plan.quantum,
        rebalance_after=plan.rebalance_after,
    )
    return Settings.model_construct(
        deployment="sim",
        zookeeper=ZookeeperSettings(hosts="simulated", session_timeout=SESSION, connect_timeout=15.0),
        coordinator=coordinator_settings,
        peer=PeerSettings(),
    )


class instrumented:  # noqa: N801 - reads as a word
    """Within it every decision is held against the rules, and the product's own cries for help are heard."""

    CRIES = ("leadership_broke", "peer_session_abandoned")
    DEFECTS = ("event_set_aside", "event_cannot_be_set_aside", "timers_broken")
    """Cries of coordinators that a simulated defect makes, and nothing else may."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[int, tuple[State, Turns, Cards]] = {}
        """By the id of each coordinator's state, which is kept here: a new leader decides again what another has decided."""

    def __enter__(self) -> None:
        self._names = os.getpid, socket.gethostname
        os.getpid, socket.gethostname = lambda: 1, lambda: "sim"  # what is written must be the same in every process
        self._decide = coordinator.loop.leader.decide
        coordinator.loop.leader.decide = self._checked  # type: ignore[assignment]
        plan = self._world.plan
        memory = {"REMEMBERED_DEAD": plan.memory, "REMEMBERED_PURGED": plan.memory}
        limits = memory | {"FORGIVEN": plan.forgiven, "LOG_EVERY": 5.0}
        self._limits = [(_LIMITED[name], name, getattr(_LIMITED[name], name)) for name in limits]
        for name, limit in limits.items():
            setattr(_LIMITED[name], name, limit)
        self._part = coordinator.loop.snapshots.PART
        coordinator.loop.snapshots.PART = PARTS.get(plan.snapshot_every, self._part)
        self._log = structlog.get_config()
        structlog.configure(processors=[self._heard], wrapper_class=structlog.make_filtering_bound_logger(VERBOSITY))

    def __exit__(self, *exc: object) -> None:
        os.getpid, socket.gethostname = self._names
        coordinator.loop.leader.decide = self._decide
        for module, name, limit in self._limits:
            setattr(module, name, limit)
        coordinator.loop.snapshots.PART = self._part
        structlog.configure(**self._log)

    def _checked(self, state: State, n: int, event: Any) -> Any:
        _, turns, cards = self._known.setdefault(id(state), (state, Turns(), Cards()))
        effects = cards.decide(self._decide, state, n, event)
        check(state)
        hold_shares(state)
        turns.look(state)
        for job in state.plans:
            if state.jobs[job].status == "running":
                assert scheduling.preemption(state, job) is None, f"{job} is stuck"
        self._world.oracle.decisions += 1
        return effects

    def _heard(self, _logger: object, method: str, event: dict[str, Any]) -> Any:
        if VERBOSITY < 40:
            print(f"{self._world.sim.now:9.3f} {method:7} {event.pop('event')} {event}")  # noqa: T201
            event["event"] = ""
        said, error = event["event"], event.get("exc_info")
        if said in self.CRIES and self._world.defect and isinstance(error, Undecided):
            self._world.undecided += 1
        elif said in self.CRIES or (said in self.DEFECTS and not self._world.defect):
            heard = self._world.wrong if error is None or says_so(error) else self._world.unforeseen
            heard.append(f"{said}: {error!r} {getattr(error, 'where', '')}")
        if event.get("code") == "SX-UNEXPECTED":
            self._world.unforeseen.append(f"{said}: {event.get('error')}")
        raise structlog.DropEvent


PARTS = {3: 400, 10: 2000}
"""By how often there are snapshots, the bytes of a part: of one part are those that are rare."""

VERBOSITY = 40
"""Level of what is logged: 40 hears the cries only, 10 tells the whole history on stdout."""
