"""A simulated Kafka, as far as coordination depends on it, and peers' work on it.

A link has partitions with records and, in the end, sentinels; a task is a consumer group with positions; a slot's
transactional id has an epoch that fences; a member that is silent is put out of its group, and a commit on partitions that
one does not hold any more is refused. What is committed is counted, so that in the end each record must have come through once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec

from coordinator.core.state import Job
from coordinator.loop.side_effects import Needed, Rewired, Since, Trimmed
from peer.assignment import AssignmentHandle, AssignmentRevoked
from peer.back_pressure import BackPressure
from queues.losses import audit_differs, totals_differ
from sardonyx.core import node_paths, positions
from sardonyx.core.back_pressure import bounds_of, goes_on
from sardonyx.core.chains import WriterChains
from sardonyx.core.changing import changes_queues, rewiring
from sardonyx.core.errors import Failure, InputError, SardonyxError, SetupError
from sardonyx.core.events import Completed, Counts, Exhausted, LastCommits, LinkFacts, TaskFailed, Yielded
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.link_counts import LinkTally
from sardonyx.core.notes import Assignment, JobNote, LinksNote
from sardonyx.core.positions import Position
from sardonyx.core.resizing import facts_then, left_unread, queues, resized
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.taking_over import carried
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from sentinel.election import ElectionClosed, SentinelElection
from tests.simulation import chained
from tests.simulation.engine import Process, SimRuntime, Simulation

GROUP_TIMEOUT = 6.0
"""Seconds of silence after which a group puts a member out."""
RECORDS = 12
"""Records of each input."""
BATCH = 4


class Refused(Exception):
    """The broker does not take the transaction: another one holds the slot or the partitions."""


@dataclass
class Partition:
    records: int = 0
    position: int = 0
    first: int = 0
    """The first record that was not trimmed."""
    ended: bool = False
    """Whether it was committed as ended at its position, because the job stops."""
    metadata: str = ""
    """What was committed with the position."""
    blocks: list[tuple[int, bytes]] = field(default_factory=list)
    """On an internal link: the first record of each block, and what the block says about its writer's chain."""

    @property
    def committed(self) -> Position:
        return Position.read(self.position, self.metadata)


@dataclass
class Topic:
    partitions: list[Partition]
    end: bool = False
    """Whether it ends where it ends now, without a sentinel: a user's topic with an end."""
    sentinels: list[str] = field(default_factory=list)
    written_by: int = 0
    """By which number of partitions its rows were spread last."""

    def spread(self, partitions: int) -> None:
        """Rows are written by a number of partitions: all that was written by another one is read."""
        unread = [partition for partition in self.partitions if partition.position < partition.records]
        assert partitions == self.written_by or not unread, "rows are written by another number, and some are unread"
        self.written_by = partitions

    @property
    def split(self) -> bool:
        return bool(self.sentinels)


@dataclass
class Group:
    members: dict[str, Process] = field(default_factory=dict)
    held: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """(link, partition) -> member, and how often the partition has changed hands."""
    seen_by: dict[str, float] = field(default_factory=dict)


class SimKafka:
    """Topics by job, groups by job and task, epochs by job, task and slot."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.topics: dict[str, dict[str, Topic]] = {}
        self.bound: dict[str, dict[str, Topic]] = {}
        """The users' own topics, by job: they stay."""
        self.groups: dict[tuple[str, str], Group] = {}
        self.epochs: dict[tuple[str, str, int], int] = {}
        self.graphs: dict[str, Graph] = {}
        self.known: Callable[[str], Job | None] = lambda _job: None
        """What the log says of a job."""
        self.put: Counter[tuple[str, str]] = Counter()
        """How many records were ever put on each link, by job and link."""
        self.commits = 0
        self.refused = 0
        self.records = RECORDS
        self.failing = 0.0
        """How often an administrative call fails."""
        self.loses: Callable[[str, int], bool] | None = None
        """``loses(link, written) -> bool``: whether a committed block is lost, with which so many records were written."""
        self.lost: list[tuple[str, str]] = []
        """Job and link of each block that was."""

    def topic(self, job: str, link: Link) -> Topic | None:
        return (self.topics if link.owned else self.bound).get(job, {}).get(link.name)

    # Links, as the coordinator makes and removes them

    def create(self, runtime: SimRuntime, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        graph = graph_of(spec, "sim", job)
        self.graphs.setdefault(job, graph)
        for link in graph.links:
            runtime.sleep(self.sim.rng.random() * 0.05)
            self._fail_now_and_then()
            if link.owned:
                self.topics.setdefault(job, {}).setdefault(link.name, _topic(spec.partitions))
            else:
                records = RECORDS if link.kind == "input" else 0
                end = link.options.get("end") is not None
                self.bound.setdefault(job, {}).setdefault(link.name, _topic(spec.partitions, records, end=end))
        return {link.name: LinkFacts(spec.partitions) for link in graph.links}

    def read(self, runtime: SimRuntime, job: str, spec: JobSpec) -> LastCommits:
        """What another job would need to go on from there, no simulated one asks for."""
        del job, spec
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        return LastCommits()

    def delete(self, runtime: SimRuntime, job: str, spec: JobSpec) -> LastCommits:
        counts, positions = {}, {}
        graph = graph_of(spec, "sim", job)
        for stage in graph.stages:
            read = [topic for link in stage.ingress if (topic := self.topic(job, link)) is not None]
            counts[stage.name] = Counts(rows_in=sum(p.position for topic in read for p in topic.partitions))
            positions[stage.name] = {
                link.topic: [p.position for p in topic.partitions]
                for link in stage.ingress
                if link.kind == "input" and (topic := self.topic(job, link)) is not None
            }
        for name in list(self.topics.get(job, {})):
            runtime.sleep(self.sim.rng.random() * 0.05)
            self._fail_now_and_then()
            self.topics.get(job, {}).pop(name, None)
        if not self.topics.get(job):
            self.topics.pop(job, None)
        return LastCommits(counts, positions)

    def change(
        self, runtime: SimRuntime, job: str, spec: JobSpec, rewired: Rewired
    ) -> tuple[dict[str, LinkFacts], Since]:
        """The slots of tasks are fenced that do not go on; and the new queues are made."""
        before, after = graph_of(rewired.before, "sim", job), graph_of(spec, "sim", job)
        found = rewiring(before, after)
        fenced, resizes = [s for s in before.stages if s.name not in rewired.goes_on], resized(rewired.before, spec)
        links = self.create(runtime, job, spec) if changes_queues(before, after, resizes=resizes) else {}
        slots = max(known.partitions for known in rewired.facts.values())
        for stage in fenced:
            for number in range(slots):
                self.fence(runtime, Slot(job, stage.name, number))
        if resizes:
            links = self._resize(job, before, after, spec.partitions, links, rewired.facts)
        since: Since = {}
        for stage in fenced:
            read = {link.topic: self.topic(job, link) for link in stage.ingress}
            since[stage.name] = {
                name: [partition.position for partition in topic.partitions] for name, topic in read.items() if topic
            }
        for link in found.new:
            if link.kind == "input":
                self._begin_beside(job, link, before)
        held = {stage.name: self._positions(job, stage) for stage in found.touched}
        return carried(links, found, held, rewired.facts), since

    def _resize(
        self,
        job: str,
        before: Graph,
        after: Graph,
        partitions: int,
        links: dict[str, LinkFacts],
        facts: dict[str, LinkFacts],
    ) -> dict[str, LinkFacts]:
        """The queues get another number of partitions, if they are read to their end."""
        held = {stage.name: self._positions(job, stage) for stage in before.stages}
        failure = left_unread(job, before, held, facts)
        if failure is not None:
            raise SardonyxError.from_failure(failure)
        for link in queues(before):
            topic = self.topic(job, link)
            lacking = partitions - len(topic.partitions) if topic is not None else 0
            if topic is not None:
                topic.partitions += [Partition() for _ in range(lacking)]
        return facts_then(after, partitions, links, held, facts)

    def _positions(self, job: str, stage: Stage) -> dict[positions.Partition, Position | None]:
        places = [(link, topic) for link in stage.ingress if (topic := self.topic(job, link)) is not None]
        return {
            positions.Partition(link.topic, number): partition.committed
            for link, topic in places
            for number, partition in enumerate(topic.partitions)
        }

    def _begin_beside(self, job: str, link: Link, before: Graph) -> None:
        """A new reader of a topic begins where the hindmost of those stands that read it already."""
        others = [
            topic
            for other in before.links
            if (other.kind, other.source) == (link.kind, link.source) and (topic := self.topic(job, other)) is not None
        ]
        new = self.topic(job, link)
        for number, partition in enumerate(new.partitions if new is not None else ()):
            partition.position = min((other.partitions[number].position for other in others), default=0)

    def drop(self, runtime: SimRuntime, job: str, spec: JobSpec, before: JobSpec) -> None:
        """What a change has removed goes: its queues, and the groups of its tasks."""
        found = rewiring(graph_of(before, "sim", job), graph_of(spec, "sim", job))
        for stage in found.ended:
            self.groups.pop((job, stage.name), None)
        for link in found.gone:
            runtime.sleep(self.sim.rng.random() * 0.05)
            self._fail_now_and_then()
            self.topics.get(job, {}).pop(link.name, None)
        if not self.topics.get(job, True):
            self.topics.pop(job, None)

    def trim(self, runtime: SimRuntime, job: str, needed: Needed) -> Trimmed:
        """Delete what was committed as read. A leader that was deposed may do so long after it has asked for the positions."""
        asked = [(p, p.position) for topic in self.topics.get(job, {}).values() for p in topic.partitions]
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        needed()  # it is asked at any time; no task here keeps a state
        for partition, position in asked:
            partition.first = max(partition.first, position)
        return Trimmed(len(asked))

    def audit(self, runtime: SimRuntime, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], name: str) -> Any:
        """As :mod:`queues.audit`: what was read, then what was written, then what stands there from where it was read."""
        graph = graph_of(spec, "sim", job)
        link = next(link for link in graph.links if link.name == name)
        topic = self.topic(job, link)
        if topic is None:
            raise SetupError("SX-SIMULATED-GONE", "the topics of the job are gone")
        asked = [(partition, partition.position) for partition in topic.partitions]
        runtime.sleep(self.sim.rng.random() * 0.3)
        self._fail_now_and_then()
        tally = LinkTally(sum(position for _, position in asked), chained.written(self, job, link, graph, facts))
        runtime.sleep(self.sim.rng.random() * 0.3)
        present = sum(partition.records - position for partition, position in asked)
        exact = chained.written(self, job, link, graph, facts) == tally.written
        tally.look(tally.written, present)
        tally.close(present, exact=exact)
        error = audit_differs(link, tally)
        assert error is None or self.lost, f"a false alarm: {error}"
        return error

    def forget(self, runtime: SimRuntime, jobs: Collection[str]) -> None:
        """Topics of jobs that are forgotten: who was deposed may have made them late, and died before he could remove them."""
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        for job in jobs:
            self.topics.pop(job, None)

    def fence(self, runtime: SimRuntime, slot: Slot) -> None:
        """From the outside; the slot's present holder is fenced like the one before it."""
        runtime.sleep(self.sim.rng.random() * 0.05)
        self._fail_now_and_then()
        self.epochs[slot] = self.epochs.get(slot, 0) + 1

    def _fail_now_and_then(self) -> None:
        chance = self.sim.rng.random()
        if chance < self.failing:
            if chance < self.failing / 8:
                raise SardonyxError("SX-SIMULATED", "the topic is not what the job needs")
            raise SetupError("SX-SIMULATED-AWAY", "Kafka is away")

    # Groups and transactions

    def join(self, job: str, stage: Stage, member: str, process: Process) -> Group:
        group = self.groups.setdefault((job, stage.name), Group())
        group.members[member] = process
        group.seen_by[member] = self.sim.now
        self._rebalance(job, stage, group)
        return group

    def leave(self, job: str, stage: Stage, group: Group, member: str) -> None:
        if group.members.pop(member, None) is not None:
            self._rebalance(job, stage, group)

    def poll(self, job: str, stage: Stage, group: Group, member: str) -> bool:
        """A member is heard of; silent ones are put out. Whether it is still a member."""
        group.seen_by[member] = self.sim.now
        silent = [other for other in group.members if self.sim.now - group.seen_by[other] > GROUP_TIMEOUT]
        for other in silent:
            del group.members[other]
        if silent:
            self._rebalance(job, stage, group)
        return member in group.members

    def by_revision(self, job: str, stage: Stage, revision: int, facts: dict[str, LinkFacts]) -> None:
        """A batch is committed by a revision of its job: no other one may have taken over its task's queues."""
        found = self.known(job)
        if found is None or found.revision == revision:
            return
        now = {each.name: each for each in graph_of(found.spec, "sim", job).stages}
        names = [[link.name for link in links] for links in (stage.ingress, stage.egress)]
        stand = now.get(stage.name)
        assert stand is not None, f"{job}/{stage.name} was removed, and commits by revision {revision}"
        assert names == [[link.name for link in links] for links in (stand.ingress, stand.egress)], (
            f"{job}/{stage.name} commits by revision {revision} after {found.revision} has taken over"
        )
        ours = [link.name for link in (*stage.ingress, *stage.egress) if link.kind == "internal"]
        assert all(found.facts and found.facts[name].partitions == facts[name].partitions for name in ours), (
            f"{job}/{stage.name} commits by another number of partitions than revision {found.revision}"
        )
        shut = {link.name for link in stand.egress if not chained.goes(link)}
        late = [link.name for link in stage.egress if chained.goes(link) and link.name in shut]
        assert not late, f"{job}/{stage.name} writes to {late} after revision {found.revision} has closed it"

    def _rebalance(self, job: str, stage: Stage, group: Group) -> None:
        members = sorted(group.members)
        at = self.sim.rng.randrange(len(members) or 1)
        for link in stage.ingress:
            topic = self.topic(job, link)
            for number in range(len(topic.partitions) if topic else 0):
                member = members[(at + number) % len(members)] if members else ""
                before, times = group.held.get((link.name, number), ("", 0))
                if member != before:
                    group.held[link.name, number] = member, times + 1

    def init(self, job: str, task: str, slot: int) -> int:
        """A slot is taken: its epoch rises, and its holder before is fenced."""
        self.epochs[job, task, slot] = self.epochs.get((job, task, slot), 0) + 1
        return self.epochs[job, task, slot]

    def fenced(self, assignment: Assignment, epoch: int) -> bool:
        return self.epochs.get((assignment.job, assignment.task, assignment.slot)) != epoch


def _topic(partitions: int, records: int = 0, *, end: bool = False) -> Topic:
    topic = Topic([Partition() for _ in range(partitions)], end)
    for number in range(records):
        topic.partitions[number % partitions].records += 1
    return topic


@dataclass
class SimLinks:
    """A coordinator's hands on Kafka: stands in for ``coordinator.loop.side_effects.KafkaLinks``."""

    kafka: SimKafka
    runtime: SimRuntime

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        return self.kafka.create(self.runtime, job, spec)

    def topic_ids(self, job: str, spec: JobSpec) -> dict[str, str]:
        return {}

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        return self.kafka.change(self.runtime, job, spec, rewired)

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        self.kafka.drop(self.runtime, job, spec, rewired.before)

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        return self.kafka.read(self.runtime, job, spec)

    def delete_links(self, job: str, spec: JobSpec) -> LastCommits:
        return self.kafka.delete(self.runtime, job, spec)

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        self.kafka.fence(self.runtime, slot)

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        """The groups of this Kafka put silent members out by themselves."""

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        return self.kafka.trim(self.runtime, job, needed)

    def audit_link(self, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], link: str) -> InputError | None:
        found: InputError | None = self.kafka.audit(self.runtime, job, spec, facts, link)
        return found

    def forget(self, jobs: Collection[str]) -> None:
        self.kafka.forget(self.runtime, jobs)


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
    """A peer's work: stands in for ``peer.daemon.SparkTaskRunner``. The steps are those of ``peer.task_loop``."""

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
        for number in range(RECORDS):
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
        """The job stops: the partition ends where it is committed, for whoever gets it later, too."""
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
