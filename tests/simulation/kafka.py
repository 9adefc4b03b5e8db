"""A simulated Kafka, as far as coordination depends on it. What peers do on it: :mod:`tests.simulation.peer_work`.

A link has partitions with records and, in the end, sentinels; a task is a consumer group with positions; a slot's
transactional id has an epoch that fences; a member that is silent is put out of its group, and a commit on partitions that
one does not hold any more is refused. What is committed is counted, so that in the end each record must have come through once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.core.state import Job
from coordinator.loop.side_effects import Needed, Rewired, Since, Trimmed
from queues.losses import audit_differs
from sardonyx.core import positions
from sardonyx.core.changing import changes_queues, rewiring
from sardonyx.core.errors import InputError, SardonyxError, SetupError
from sardonyx.core.events import Counts, LastCommits, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.link_counts import LinkTally
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Position
from sardonyx.core.resizing import facts_then, left_unread, queues, resized
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.core.taking_over import carried
from tests.simulation import chained
from tests.simulation.engine import Process, SimRuntime, Simulation

GROUP_TIMEOUT = 6.0
"""Seconds of silence after which a group puts a member out."""
RECORDS = 12
"""Records of each input."""


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
        self.without_states: set[str] = set()
        """Jobs that have ended, and with whose states no other one can begin."""
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

    def drop_states(self, job: str) -> None:
        """The logs of the states of a job that has ended go. No task here keeps a state that another job could begin with."""

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

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        found = self.kafka.delete(self.runtime, job, spec)
        if not keeps_states:
            self.kafka.drop_states(job)
        return found

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
