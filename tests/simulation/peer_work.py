"""What simulated peers do on a simulated Kafka: their tasks, batch by batch, up to the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec

from peer.assignment import AssignmentHandle, AssignmentRevoked
from peer.back_pressure import BackPressure
from queues.losses import totals_differ
from sardonyx.core import node_paths
from sardonyx.core.back_pressure import bounds_of, goes_on
from sardonyx.core.chains import WriterChains
from sardonyx.core.errors import Failure, InputError, SardonyxError
from sardonyx.core.events import Completed, Counts, Exhausted, LinkFacts, TaskFailed, Yielded
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment, JobNote, LinksNote
from sardonyx.core.spec import decode_spec
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from sentinel.election import ElectionClosed, SentinelElection
from tests.simulation import chained
from tests.simulation.engine import SimRuntime, Simulation
from tests.simulation.kafka import Partition, Refused, SimKafka, Topic

BATCH = 4
"""Records of a batch at most."""


@dataclass
class Prepared:
    peer: str
    assignment: Assignment
    stage: Stage
    facts: dict[str, LinkFacts]
    graph: Graph
    revision: int


@dataclass
class SimRunner:
    """A peer's work: stands in for ``peer.task_runner.SparkTaskRunner``. The steps are those of ``peer.task_loop``."""

    kafka: SimKafka
    runtime: SimRuntime
    trouble: Any
    """``declines``, ``fails``, ``fails_for_good``: how often each happens; a part of 1."""

    def prepare(self, zk: ZooKeeperSession, peer: str, assignment: Assignment) -> Prepared:
        self.trouble.pass_point(self.runtime.process, "offered")
        self.runtime.sleep(self.kafka.sim.rng.random() * self.trouble.slow)
        spec = zk.read(node_paths.job_spec(assignment.job))
        links = zk.read(node_paths.job_links(assignment.job))
        status = zk.read(node_paths.job_status(assignment.job))
        if self.kafka.sim.rng.random() < self.trouble.declines:
            raise SardonyxError("SX-SIMULATED", "its code does not import")
        if spec is None or links is None or status is None:
            raise SardonyxError("SX-SIMULATED-GONE", "the job is gone")
        graph = graph_of(decode_spec(spec), "sim", assignment.job)
        facts = msgspec.json.decode(links, type=LinksNote).links
        if all(stage.name != assignment.task for stage in graph.stages):
            raise SardonyxError("SX-SIMULATED-GONE", "the job has changed, so the offer is an old one")
        revision = msgspec.json.decode(status, type=JobNote).revision
        return Prepared(peer, assignment, graph.stage(assignment.task), facts, graph, revision)

    def work(self, prepared: Prepared, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        Loop(self, prepared, handle, zk).run()


@dataclass
class SimUnread:
    """Tells a peer what is unread on the queues that its task writes, as it was half a second ago at most."""

    sim: Simulation
    links: list[Link]
    rows_of: Callable[[Link], int | None]
    asked_at: float = -1.0
    told: dict[str, int | None] = field(default_factory=dict)

    def latest(self) -> dict[str, int | None]:
        if self.sim.now > self.asked_at + 0.5:
            self.asked_at, self.told = self.sim.now, {link.name: self.rows_of(link) for link in self.links}
        return self.told

    def close(self) -> None:
        pass


def pressure_on(kafka: SimKafka, prepared: Any, zk: ZooKeeperSession) -> BackPressure:
    """What holds a peer, by the product's own code."""
    stage, facts, job = prepared.stage, prepared.facts, prepared.assignment.job
    bounds = bounds_of(stage.egress, facts)
    links = [link for link in stage.egress if link.name in bounds]

    def rows_of(link: Link) -> int | None:
        topic = kafka.topic(job, link)
        return None if topic is None else sum(each.records - each.position for each in topic.partitions)

    work = SimpleNamespace(
        assignment=prepared.assignment,
        bounds=bounds,
        readers={link.name: prepared.graph.stage(link.target) for link in links},
        goes_on=goes_on(prepared.graph, facts),
        unread_rows=lambda: SimUnread(kafka.sim, links, rows_of),
    )
    return BackPressure(work, zk)  # type: ignore[arg-type]


class Loop:
    """One peer on one task."""

    def __init__(self, runner: SimRunner, prepared: Prepared, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        self.kafka, self.runtime, self.trouble = runner.kafka, runner.runtime, runner.trouble
        self.rng = runner.kafka.sim.rng
        self.peer, self.assignment, self.stage = prepared.peer, prepared.assignment, prepared.stage
        self.facts, self.graph, self.revision = prepared.facts, prepared.graph, prepared.revision
        self.handle, self.zk = handle, zk
        self.votes = SentinelElection(zk, self.assignment.job)
        self.pressure = pressure_on(self.kafka, prepared, zk)
        self.told = self.sealed = False
        self.lives = 0
        self.quiet = 0
        self.member = f"{self.peer}/{self.assignment.id}"

    def _pass(self, point: str) -> None:
        self.trouble.pass_point(self.runtime.process, point)

    def run(self) -> None:
        self._pass("active")
        try:
            while not self._over:
                try:
                    self._open()
                    while not self._over:
                        self._step()
                except Refused:
                    self.kafka.refused += 1
                    self._close()
                    self.handle.check()
                    self.handle.pause(0.3)
                except ZooKeeperAway:
                    self.handle.pause(0.3)
        except (AssignmentRevoked, SessionLost):
            pass
        except ElectionClosed:
            self.handle.pause(10.0)
            with contextlib.suppress(AssignmentRevoked, SessionLost):
                self._fail(fatal=False)
        finally:
            self._close()
        if self.handle.gives_up:
            self._pass("yield")
            with contextlib.suppress(SessionLost):
                self._report(Yielded(peer=self.peer, assignment=self.assignment.id))

    @property
    def _over(self) -> bool:
        return self.handle.revoked or self.handle.draining or self.handle.gives_up

    def _open(self) -> None:
        self.runtime.sleep(self.rng.random() * 0.02)
        self.lives += 1
        self.chains = WriterChains(self.assignment.id, self.assignment.slot, self.lives, self.peer)
        self.epoch = self.kafka.init(self.assignment.job, self.stage.name, self.assignment.slot)
        self.group = self.kafka.join(self.assignment.job, self.stage, self.member, self.runtime.process)
        self.handle.confirm()

    def _close(self) -> None:
        group = self.__dict__.pop("group", None)
        if group is not None and self.runtime.process.alive:
            self.kafka.leave(self.assignment.job, self.stage, group, self.member)

    def _topics(self) -> dict[str, Topic]:
        found = {link.name: self.kafka.topic(self.assignment.job, link) for link in self.stage.ingress}
        if None in found.values():
            raise AssignmentRevoked  # the job has ended, and its topics with it
        return {name: topic for name, topic in found.items() if topic is not None}

    def _held(self) -> dict[tuple[str, int], int]:
        if not self.kafka.poll(self.assignment.job, self.stage, self.group, self.member):
            raise Refused
        return {partition: times for partition, (member, times) in self.group.held.items() if member == self.member}

    def _step(self) -> None:
        chance = self.rng.random()
        if chance < self.trouble.fails:
            self._fail(fatal=chance < self.trouble.fails * self.trouble.fails_for_good)
            return
        topics, held = self._topics(), self._held()
        if self.stage.ingress[0].kind == "splits":
            (name,) = topics
            if not topics[name].split and (name, 0) in held and not self._is_out(name, 0):
                self._split(name, held[name, 0])
                return
        for name, number in held:
            partition = topics[name].partitions[number]
            if partition.ended or self._is_out(name, number):
                continue
            if self.facts[name].stops:
                self._end_partition((name, number), held[name, number], partition)
                return
            if partition.position < partition.records and not self.pressure.holds:
                self.quiet = 0
                self._batch((name, number), held[name, number], partition)
                return
        self._look_at_the_end(topics, held)
        self.quiet += 1
        if held and self.quiet > 2 and self.handle.yields_when_idle:
            self.handle.give_up()
            return
        self.handle.pause(self.rng.uniform(0.1, 0.4))

    def _is_out(self, name: str, number: int) -> bool:
        """As of :class:`queues.reading.Reading`."""
        link, facts = next(link for link in self.stage.ingress if link.name == name), self.facts[name]
        return (link.rests and not facts.stops) or (link.kind == "internal" and number >= facts.partitions)

    def _wait_until_usable(self) -> None:
        while not self.handle.may_commit:
            self.handle.check()
            self.handle.pause(0.1)
            self._held()

    def _transaction(self, partitions: dict[tuple[str, int], int]) -> None:
        """Everything behind this line happens at once, or not at all."""
        self.handle.check()
        self.runtime.sleep(self.rng.random() * 0.01)
        if self.kafka.fenced(self.assignment, self.epoch):
            raise Refused
        if self.member not in self.group.members:
            raise Refused
        if any(self.group.held[partition] != (self.member, times) for partition, times in partitions.items()):
            raise Refused
        self.kafka.commits += 1

    def _split(self, name: str, times: int) -> None:
        self.runtime.sleep(self.rng.random() * 0.05)
        self._wait_until_usable()
        self._transaction({(name, 0): times})
        topic = self._topics()[name]
        if topic.split:
            return
        for number in range(self.kafka.records):
            topic.partitions[number % len(topic.partitions)].records += 1
        topic.sentinels.append(self.runtime.token())
        self._reply_lost()

    def _batch(self, where: tuple[str, int], times: int, partition: Partition) -> None:
        assert partition.first <= partition.position, "records were trimmed that are still to be read"
        position, size = partition.position, min(BATCH, partition.records - partition.position)
        try:
            committed = chained.heard(self.stage, where, partition, size, self.facts)
        except InputError as error:
            self._lost(error)
        self.chains.begin()
        self.runtime.sleep(self.rng.random() * 0.3)
        self._wait_until_usable()
        self._transaction({where: times})
        self.kafka.by_revision(self.assignment.job, self.stage, self.revision, self.facts)
        assert partition.position == position, "a batch was committed although another member holds the partition"
        assert not partition.ended, "a batch was committed behind the end of a partition"
        partition.position += size
        partition.metadata = committed.metadata()
        for link in self.stage.egress:
            out = self.kafka.topic(self.assignment.job, link)
            if out is not None and chained.goes(link):
                size_now = self.facts[link.name].partitions if link.kind == "internal" else len(out.partitions)
                out.spread(size_now)
                number = self.rng.randrange(size_now)
                self.kafka.put[self.assignment.job, link.name] += size
                chained.write(self.kafka, self.assignment.job, self.chains, link, number, size)
        self.chains.committed()
        self._reply_lost()

    def _lost(self, error: InputError) -> NoReturn:
        """Never where Kafka has lost nothing: a false alarm ends a job."""
        assert self.kafka.lost, f"a false alarm: {error}"
        self._fail(fatal=True, error=error.to_failure())

    def _end_partition(self, where: tuple[str, int], times: int, partition: Partition) -> None:
        """The job stops: the partition ends where it is committed, also for the peer that gets it later."""
        self._wait_until_usable()
        self._transaction({where: times})
        partition.ended = True
        self._reply_lost()

    def _reply_lost(self) -> None:
        if self.rng.random() < 0.02:
            raise Refused  # as after any outcome that is not known: begin afresh from what is committed

    def _drained(self, topics: dict[str, Topic], partitions: list[tuple[str, int]]) -> bool:
        for name, number in partitions:
            topic = topics[name]
            if topic.partitions[number].ended:
                continue
            if self._is_out(name, number) and number < self.facts[name].partitions:
                return False  # an input that stands still
            if not topic.end and not (
                topic.sentinels and self.votes.leader(name, self.rng.choice(topic.sentinels)) in topic.sentinels
            ):
                return False
            if topic.partitions[number].position < topic.partitions[number].records:
                return False
        return True

    def _look_at_the_end(self, topics: dict[str, Topic], held: dict[tuple[str, int], int]) -> None:
        if self.sealed or not self.handle.may_commit:
            return
        everything = [(name, number) for name, topic in topics.items() for number in range(len(topic.partitions))]
        if self.handle.state == "sealing":
            if self._drained(topics, everything):
                self._seal(held)
        elif not self.told and self._drained(topics, list(held) or everything):
            self._pass("exhausted")
            self.zk.request(Exhausted(peer=self.peer, assignment=self.assignment.id))
            self.told = True

    def _seal(self, held: dict[tuple[str, int], int]) -> None:
        self._pass("seal")
        self._transaction(held)
        topics = self._topics()
        if not self._drained(topics, [(n, i) for n, topic in topics.items() for i in range(len(topic.partitions))]):
            return
        for link in self.stage.ingress:
            read = sum(partition.position for partition in topics[link.name].partitions)
            if link.kind == "internal" and (written := self._written(link)) != read:
                self._lost(totals_differ(link, written, read))
        uuid = self.runtime.token()
        for link in self.stage.egress:
            out = self.kafka.topic(self.assignment.job, link)
            if out is not None and link.has_sentinels:
                out.sentinels.append(uuid)
        rows = sum(p.position for topic in topics.values() for p in topic.partitions)
        positions: dict[str, list[int | None]] = {
            link.topic: [p.position for p in topics[link.name].partitions]
            for link in self.stage.ingress
            if link.kind == "input"
        }
        self._reply_lost()
        self._pass("sealed")
        self.zk.request(
            Completed(peer=self.peer, assignment=self.assignment.id, counts=Counts(rows_in=rows), positions=positions)
        )
        self.sealed = True
        self._pass("complete!")

    def _written(self, link: Link) -> int:
        return chained.written(self.kafka, self.assignment.job, link, self.graph, self.facts)

    def _fail(self, *, fatal: bool, error: Failure | None = None) -> NoReturn:
        error = error or Failure("SX-SIMULATED", "the function raised" if fatal else "Spark went away")
        report = TaskFailed(peer=self.peer, assignment=self.assignment.id, error=error, fatal=fatal)
        self._report(report)
        while not self.handle.revoked:  # the coordinator takes the task away
            self.handle.pause(1.0)
        raise AssignmentRevoked

    def _report(self, report: TaskFailed | Yielded) -> None:
        while not self.handle.revoked:
            try:
                self.zk.request(report)
                return
            except ZooKeeperAway:
                self.handle.pause(1.0)
