"""Histories of a job with clocks, windows and state: real coordinators and peers, with the real batches and their code.

What is simulated is the broker (:mod:`tests.simulation.broker`), ZooKeeper and time; functions give what they get. So
the reader, the timekeeper, the windows with their state log, the writers' chains and the seal are the product's own. A history
has rows that come over a while, in some partitions of a topic; in the end each window must have counted what it must.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec

import peer.batch_commit
import peer.loop_end
import peer.retry_policy
import peer.sealing
import peer.shards
import peer.task_loop
import peer.task_session
import queues.committed
import queues.group_watch
import queues.reader
import sardonyx.state.log
from coordinator.loop.side_effects import Needed, Trimmed
from peer.assignment import AssignmentHandle
from peer.preparation import assemble
from peer.prepared_task import PreparedTask
from peer.slot_clients import SlotClients
from peer.task_loop import TaskLoop
from peer.timekeeper import Timekeeper
from queues.quiet_times import QuietTimes
from sardonyx.core import link_counts, node_paths
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LastCommits, LinkFacts
from sardonyx.core.going_back import points_of, state_logs
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.positions import Partition, Position, total
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.runtime.settings_sections import KafkaSettings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.simulation.broker import Broker, Group, Log
from tests.simulation.broker_clients import SimClocks, SimConsumer, SimStateTopic, SimWriter
from tests.simulation.checkpoint_oracle import CheckpointOracle
from tests.simulation.engine import SimRuntime, Simulation, Waiter, current
from tests.simulation.kafka import SimKafka, Topic
from tests.simulation.peer_work import SimRunner, SimUnread
from tests.simulation.plan import Fault, Plan
from tests.simulation.progress_oracle import ProgressOracle
from tests.simulation.time_oracle import TimeOracle, Window
from tests.simulation.timed_plans import KEPT, Row, rows_of
from tests.simulation.world import World

TICK = 0.4
"""Seconds between looks of a peer that has nothing to do: each is computed, so there are fewer than in the product."""
EVERY = 1.0
"""Seconds between two statements of a clock."""
FRONT_EVERY = 0.3
"""The same of a front: a history has few rows."""


class TimedKafka(SimKafka):
    """What coordinators do on the broker."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.broker = Broker(sim)
        self.input: list[int] = []
        """Records of each partition of the users' topic, in the end."""
        self.kept = False
        """Links are kept from their first records on, as ``sardonyx link keep`` does."""

    def group(self, stage: Stage, job: str) -> Group:
        places = [
            Partition(link.topic, number)
            for link in stage.ingress
            for number in range(len(self.input) if link.kind == "input" else self._partitions[job])
        ]
        return self.broker.group(stage.group("sim", job), places)

    def create(self, runtime: SimRuntime, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        graph = self.graphs.setdefault(job, graph_of(spec, "sim", job))
        self._partitions[job] = spec.partitions
        facts = {}
        for link in graph.links:
            runtime.sleep(self.sim.rng.random() * 0.05)
            self._fail_now_and_then()
            if link.kind == "input":
                end = None if link.options.get("end") is None else list(self.input)
                facts[link.name] = LinkFacts(len(self.input), [0] * len(self.input), end)
                continue
            facts[link.name] = LinkFacts(spec.partitions if link.owned else 1)
            self.broker.create(link.topic, facts[link.name].partitions)
            if link.owned:
                self.topics.setdefault(job, {})[link.name] = Topic([])
        return facts

    @property
    def _partitions(self) -> dict[str, int]:
        found: dict[str, int] = self.__dict__.setdefault("_sizes", {})
        return found

    def delete(self, runtime: SimRuntime, job: str, spec: JobSpec) -> LastCommits:
        graph = graph_of(spec, "sim", job)
        known = job in self._partitions
        counts = {s.name: total(self.group(s, job).positions().values()) for s in graph.stages} if known else {}
        for link in graph.links:
            if link.owned and link.name in self.topics.get(job, {}):
                runtime.sleep(self.sim.rng.random() * 0.05)
                self._fail_now_and_then()
                self.topics.get(job, {}).pop(link.name, None)
        self.topics.pop(job, None)
        return LastCommits(counts, {})

    def trim(self, runtime: SimRuntime, job: str, needed: Needed) -> Trimmed:
        graph = self.graphs[job]
        held = {stage.name: self.group(stage, job).positions() for stage in graph.stages}
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        points, asked = needed(), []
        for stage in graph.stages:
            queues = {link.topic for link in stage.ingress if link.kind == "internal"}
            asked += [(place, p.offset) for place, p in held[stage.name].items() if p and place.topic in queues]
        logs = {} if points is None else state_logs(graph.stages, held, points)
        for place, offset in (*asked, *logs.items()) if not self.kept else ():
            self.broker.logs[place].delete_before(offset)
        return Trimmed(len(asked), next(reversed(points_of(graph, held)), None))

    def audit(self, runtime: SimRuntime, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], name: str) -> Any:
        """Jobs with clocks end by themselves here, so no link of theirs is audited."""
        raise AssertionError(f"link {name} of {job} is audited")

    def fence(self, runtime: SimRuntime, slot: Slot) -> None:
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        job, task, number = slot
        name = self.graphs[job].stage(task).transactional_id("sim", job, number)
        while not self.broker.init(name):
            runtime.sleep(0.02)


@dataclass
class TimedRunner(SimRunner):
    """A peer's work, by the product's own loop."""

    quiet_times: QuietTimes = field(default_factory=QuietTimes)
    """Those of the process."""

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> Any:
        self.runtime.sleep(self.kafka.sim.rng.random() * self.trouble.slow)
        spec = zk.read(node_paths.job_spec(assignment.job))
        links = zk.read(node_paths.job_links(assignment.job))
        if self.kafka.sim.rng.random() < self.trouble.declines:
            raise SardonyxError("SX-SIMULATED", "its code does not import")
        if spec is None or links is None:
            raise SardonyxError("SX-SIMULATED-GONE", "the job is gone")
        graph = graph_of(decode_spec(spec), "sim", assignment.job)
        facts = msgspec.json.decode(links, type=LinksNote).links
        return self._task(graph, facts, peer, assignment)

    def _task(self, graph: Graph, facts: dict[str, LinkFacts], peer: str, assignment: Assignment) -> PreparedTask:
        kafka, world, runtime = self.kafka, self.trouble, self.runtime
        broker = kafka.broker
        task = assemble(
            world.settings,
            None,
            peer,
            assignment,
            graph,
            facts,
            None,
            lambda link: SimStateTopic(broker, link.topic, runtime),
            runtime=runtime,  # type: ignore[arg-type]
        )
        job = assignment.job

        def apply(batch: Any, clock: Any) -> Any:
            runtime.sleep(kafka.sim.rng.choice([0.01, 0.1, 0.1, kafka.sim.rng.uniform(0.1, world.slow)]))
            return PreparedTask.apply(task, batch, clock)

        def written() -> dict[str, int | None]:
            found = {}
            for link, stage in task.writers.items():
                group = kafka.group(stage, job)
                while group.unstable(group.partitions):
                    runtime.sleep(0.02)
                found[link] = link_counts.written(stage, link, group.positions())
            return found

        def loop_positions(loop: Any) -> dict[str, dict[Partition, Position | None]]:
            found = {}
            for name in kafka.sim.rng.sample(loop.cycle.stages, len(loop.cycle.stages)):
                group = kafka.group(loop.graph.stage(name), job)
                while group.unstable(group.partitions):
                    runtime.sleep(0.02)
                found[name] = group.positions()
                runtime.sleep(kafka.sim.rng.random() * world.slow)
            return found

        def unread_of(link: Link) -> int | None:
            wrote = kafka.group(task.stage, job).positions()
            ahead = link_counts.written(task.stage, link.name, wrote)
            read = link_counts.read(link, kafka.group(graph.stage(link.target), job).positions())
            return None if ahead is None else max(ahead - read, 0)

        def moved(batch: Any) -> bool:
            group = kafka.group(task.stage, job)
            now = {p: None if position is None else position.offset for p, position in group.positions().items()}
            return any(now[partition] != started for partition, started in batch.started.items())

        task.apply, task.written, task._positions_moved = apply, written, moved  # type: ignore[method-assign]
        links = [link for link in task.stage.counted if link.name in task.bounds]
        task.unread_rows = lambda: SimUnread(kafka.sim, links, unread_of)  # type: ignore[method-assign, assignment, return-value]
        task.loop_positions, task.audited = loop_positions, lambda _: {}  # type: ignore[method-assign]
        return task

    def work(self, prepared: Any, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        TaskLoop(prepared, handle, zk, self._open).run()

    def _open(self, work: PreparedTask, elect: Callable[[str, str], str], _store: Any) -> SlotClients:
        broker, group = self.kafka.broker, self.kafka.group(work.stage, work.assignment.job)
        links = {link.name: (link, work.facts[link.name]) for link in work.stage.ingress}
        world = self.trouble
        lost = lambda: world.trouble.lost  # noqa: E731
        waits = partial(world.pass_failpoint, "within")
        writer = SimWriter(broker, work.transactional_id, self.runtime.process, lost, waits)
        with patch.object(
            queues.reader,
            "open_consumer",
            lambda _settings, _group, member, _links, **_: SimConsumer(broker, group, member, self.runtime.process),
        ):
            reader = queues.reader.Reader(
                work.settings,
                work.group,
                work.member,
                links,
                elect,
                work.stage.task.rows_per_batch,
                timed=work.timed,
                lineage=work.sources is not None,
                quiet_times=self.quiet_times,
                runtime=self.runtime,  # type: ignore[arg-type]
            )
        clients = SlotClients(reader, writer, SimClocks(broker, group))  # type: ignore[arg-type]
        writer.open()
        return clients


# --- Time and threads in the modules of the product that take the machine's -------------------------------------------


class SimTime:
    """Stands in for the module ``time``."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def monotonic(self) -> float:
        return self._sim.now

    def time(self) -> float:
        return SimRuntime.EPOCH + self._sim.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        Waiter(current()).park(seconds)


class SimFuture(Future[Any]):
    """A future for which a simulated thread waits."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            waiter = Waiter(current())
            self.add_done_callback(lambda _: waiter.fire())
            waiter.park(timeout)
        return super().result(0)


class SimBackground:
    """As :class:`sardonyx.runtime.background.BackgroundThread`."""

    def __init__(self, _name: str, _first: Callable[[], None] = lambda: None) -> None:
        self._process = current()
        self._last: SimFuture | None = None

    def submit(self, call: Callable[[], Any]) -> SimFuture:
        future, before = SimFuture(), self._last
        self._last = future

        def run() -> None:
            if before is not None and not before.done():
                before.exception_seen = True  # type: ignore[attr-defined]
                waiter = Waiter(self._process)
                before.add_done_callback(lambda _: waiter.fire())
                waiter.park()
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - the thread that waits for the result gets it
                future.set_exception(error)

        self._process.spawn("background", run)
        return future

    def close(self) -> None:
        pass


class NoAudit:
    """No partition is ever forgotten by the simulated group."""

    def __init__(self, *_: Any) -> None:
        pass

    def missing(self) -> None:
        return None


class TimedWorld(World):
    """One history of such a job."""

    kafka: TimedKafka

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.settings = self.settings.model_copy(update={"kafka": KafkaSettings()})
        self.rows = rows_of(plan)
        self.kafka.kept = plan.trim_every == KEPT
        self.damaged = False
        """Kafka has lost something of a task's state or positions."""
        self.progress = ProgressOracle(self) if any(job.spec.lineage for job in plan.jobs) else None
        self.checkpoints = CheckpointOracle(self) if any(job.spec.checkpoint_every for job in plan.jobs) else None
        counts = [0] * (1 + max(row.partition for row in self.rows))
        for row in self.rows:
            counts[row.partition] += 1
        self.kafka.input = counts
        self.kafka.broker.create("rows", len(counts))
        for row in self.rows:
            self.sim.at(row.comes, lambda row=row: self._put_row(row))  # type: ignore[misc]

    def begun(self, stage: Stage, number: int) -> tuple[Counter[Window], int, int | None]:
        """With what a shard begins: rows by key and window, the clock, and the time before which rows are left out."""
        del stage, number
        return Counter(), NEVER, None

    def _put_row(self, row: Row) -> None:
        record = {"k": row.key, "at": row.at, "n": row.n}
        self.kafka.broker.put(Partition("rows", row.partition), json.dumps(record).encode())

    # Faults of Kafka's that nothing can make good

    def _tear(self, fault: Fault) -> None:
        """Kafka loses one of the records that a restore needs."""
        needed = [(log, offset) for log, low in self._state_logs() for offset, _ in log.committed(low, log.stable)]
        for log, offset in needed[fault.count % len(needed or ".") :][:1]:
            log.lose(offset)
            self.damaged = True

    def _erase(self, fault: Fault) -> None:
        """All records of a log of state are gone."""
        logs = [log for log, low in self._state_logs() if any(log.committed(low, log.stable))]
        for log in logs[fault.count % len(logs or ".") :][:1]:
            log.delete_before(log.stable)
            self.damaged = True

    def _forget(self, fault: Fault) -> None:
        """No peer is there, and the positions of a task have expired whose log of state is not empty."""
        del fault
        for group in self.kafka.broker.groups.values():
            for place, position in group.positions().items():
                if position is not None and position.state is not None and not position.drained:
                    del group.committed[place]
                    self.damaged = True

    def _state_logs(self) -> Iterator[tuple[Log, int]]:
        """The logs of state, each with the offset from which on it is needed."""
        for job, graph in self.kafka.graphs.items():
            for stage in graph.stages:
                for link in (link for link in stage.egress if link.kind == "state"):
                    for place, position in self.kafka.group(stage, job).positions().items():
                        log = self.kafka.broker.logs.get(Partition(link.topic, place.number))
                        if log is not None and position is not None and position.state is not None:
                            yield log, position.state[1]

    def _make_kafka(self) -> TimedKafka:
        return TimedKafka(self.sim)

    def _make_oracle(self) -> TimeOracle:
        return TimeOracle(self.zookeeper, self.kafka, self)

    def _make_runner(self, runtime: SimRuntime) -> TimedRunner:
        return TimedRunner(self.kafka, runtime, self)

    def _instrumented(self) -> Any:
        stack = ExitStack()
        stack.enter_context(super()._instrumented())
        stack.enter_context(self._on_simulated_time())
        return stack

    @contextmanager
    def _on_simulated_time(self) -> Iterator[None]:
        clock = SimTime(self.sim)
        with ExitStack() as stack:
            for module in (
                peer.task_loop,
                peer.batch_commit,
                peer.loop_end,
                peer.sealing,
                peer.shards,
                queues.group_watch,
                queues.committed,
            ):
                stack.enter_context(patch.object(module, "time", clock))
            for module in (peer.task_loop, peer.batch_commit, peer.task_session):
                stack.enter_context(patch.object(module, "TICK", TICK))
            for module in (peer.task_loop, peer.batch_commit, peer.loop_end, peer.sealing):
                stack.enter_context(patch.object(module, "failpoint", self.pass_failpoint))
            for target, name, value in (
                (
                    peer.task_session,
                    "Timekeeper",
                    partial(Timekeeper, every=EVERY, front_every=FRONT_EVERY, runtime=SimRuntime(self.user)),
                ),
                (peer.task_loop, "reach_kafka", lambda *_, **__: None),
                (peer.task_session, "BackgroundThread", SimBackground),
                *((module, "uuid", self._uuids()) for module in (peer.loop_end, peer.sealing)),
                (queues.reader, "AssignmentAudit", NoAudit),
                (queues.reader, "leave", SimConsumer.leave),
                (peer.retry_policy.RetryPolicy.__init__, "__defaults__", (clock.monotonic,)),
                (sardonyx.state.log.ShardLog.__init__, "__kwdefaults__", SMALL_LOGS),
            ):
                stack.enter_context(patch.object(target, name, value))
            stack.enter_context(self.oracle.looking())
            yield

    def _uuids(self) -> Any:
        """Stands in for the module ``uuid``."""
        return SimpleNamespace(uuid4=lambda: UUID(int=self.sim.rng.getrandbits(128)))

    def pass_failpoint(self, point: str) -> None:
        """A peer comes to a point of a batch, and may die there, or be stopped for a while."""
        if not self.trouble.dies or self.sim.rng.random() >= self.trouble.dies:
            return
        process = current()
        if self.sim.rng.random() < 0.5:
            self._again(process.name.partition(".")[0])
            process.crash()
        process.pause()
        self.sim.at(self.sim.rng.choice([0.5, self.sim.rng.uniform(6.0, 12.0), 20.0]), process.resume)
        SimRuntime(process).sleep(0.0)


SMALL_LOGS = (sardonyx.state.log.ShardLog.__init__.__kwdefaults__ or {}) | {
    "max_bytes": 900_000,
    "spare": 2,
    "piece": 1,
}
"""Logs of state are restated soon; what else a log may be given stays as it is."""
