"""A history of the deciding core in which all behave: events are delivered, side effects end, timers run out, peers answer.

Every event is held against all rules that there are. From any state on, every bounded job must end then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from scenario_runner import World, facts_of

from coordinator.core import scheduling
from coordinator.core.decide import decide, unfinished
from coordinator.core.indexes import Kind
from coordinator.core.state import new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import Timers, due, expired_jobs, next_due
from sardonyx.core.effects import (
    ChangeLinks,
    DeleteLinks,
    DeletePulse,
    DropLinks,
    Effect,
    OuterEffect,
    ReadLinks,
)
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    FORMAT,
    RULES,
    Acked,
    AnyEvent,
    Completed,
    Counts,
    Exhausted,
    JobKilled,
    JobScaled,
    JobStopped,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksRead,
    PeerBorn,
    PeerDied,
    Yielded,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.state_points import CheckpointPoint
from tests.random_jobs import TAGS
from tests.shares import Turns, hold_shares

FAILURE = Failure("SX-TEST", "something broke")
TIMERS = Timers(keep_jobs=4)
MINUTE = 60_000_000


def without_n(state: bytes) -> dict[str, object]:
    """A stored state without the number of its last event."""
    return {key: value for key, value in msgspec.json.decode(state).items() if key != "n"}


@dataclass
class KindHistory:
    """One history. ``rng`` decides everything.

    ``doubled``: how likely it is that an event is delivered twice. ``rules``: under which its log begins.
    ``parts``: whether changes also part rows by their times. ``restarts``: whether jobs are also restarted.
    """

    rng: random.Random
    world: World = field(default_factory=World)
    pulses: set[str] = field(default_factory=set)
    to_run: list[OuterEffect] = field(default_factory=list)
    past: list[AnyEvent] = field(default_factory=list)
    born: int = 0
    submitted: int = 0
    doubled: float = 0.3
    turns: Turns = field(default_factory=Turns)
    rules: int = RULES
    settling: bool = False
    parts: bool = False
    restarts: bool = False

    def __post_init__(self) -> None:
        if self.rules != RULES:
            self.world.state = new_state("test", self.rules)
        self._endless = self.rng.choice([0.3, 0.3, 0.9])
        self._most_peers = self.rng.choice([6, 6, 12])
        self._tags = self.rng.choice([0.0, 0.0, 0.3])
        self._old = self.rng.choice([0.0, 0.0, 0.4])
        self._newest = FORMAT + 1 if self._old else FORMAT
        self._clocked = self.rng.choice([0.0, 0.0, 0.9])
        own = random.Random(repr(self.rng.getstate()))  # the others stay as they were before peers could be drained
        self._drains = own if own.random() < 0.2 else None

        own = random.Random(f"checkpoints {self.rng.getstate()}")
        self._logged = own if own.random() < 0.2 else None
        own = random.Random(f"spoils {self.rng.getstate()}")
        self._spoils = own if own.random() < 0.2 else None

    def deliver(self, event: AnyEvent) -> list[Effect]:
        """Deliver an event, and now and then again; hold the state against every rule that there is. Gives its effects."""
        effects = self._once(event)
        if self.rng.random() < self.doubled:
            before = without_n(encode_state(self.world.state))
            again = self._once(event)
            assert without_n(encode_state(self.world.state)) == before, f"twice is not once: {event}"
            assert again == [], f"the second delivery has effects: {event}: {again}"
        self.past.append(event)
        self.to_run += [effect for effect in effects if isinstance(effect, OuterEffect)]
        return effects

    def _once(self, event: AnyEvent) -> list[Effect]:
        world = self.world
        if self.rng.random() < 0.01:
            self._out_of_order(event)
        world.n += 1
        effects = world.decide(world.n, event)  # holds it against invariants and projection
        state = world.state
        for job in state.plans:
            if state.jobs[job].status == "running":
                assert scheduling.preemption(state, job) is None, f"{job} is stuck"
                assert state.jobs[job].waits_for == scheduling.waits_for(state, job), f"{job} says what it waits for"
                assert job in state.jobs_with_capacity or scheduling.choose(state, job) is None, f"{job} is left out"
        hold_shares(state)
        self.turns.look(state)
        return effects

    def _out_of_order(self, event: AnyEvent) -> None:
        """A number that is behind is refused, and nothing is changed."""
        state = self.world.state
        before = encode_state(state)
        with pytest.raises(InternalError, match="SX-LOG-ORDER"):
            decide(state, self.rng.randint(0, state.n), event)
        assert encode_state(state) == before

    def new_leader(self) -> None:
        """Another leader: what it knows was stored, and what lies outside the tree it runs again."""
        self.world.state = decode_state(encode_state(self.world.state))
        self.to_run = unfinished(self.world.state)

    def end_of(self, effect: OuterEffect, *, fails: bool = False) -> AnyEvent | None:
        """The news that something outside the tree was done."""
        now = self.world.now
        if isinstance(effect, DeletePulse):
            self.pulses.discard(effect.peer)
            return PeerDied(at=now, peer=effect.peer)
        if isinstance(effect, DeleteLinks):
            dead = sum(effect.job.encode()) % 3
            known = (
                self.rng.random() < 0.7
            )  # otherwise an earlier coordinator deleted the groups, and its event was lost
            return LinksDeleted(
                at=now,
                job=effect.job,
                counts={"t0": Counts(rows_in=5, dead=dead)} if known else {},
                letters={} if known or not dead else {"t0": dead},
                positions=self._positions(effect.job),
            )
        if isinstance(effect, ReadLinks):
            checkpoints = self._checkpoints(effect.job)
            return LinksRead(at=now, job=effect.job, positions=self._positions(effect.job), checkpoints=checkpoints)
        job = self.world.state.jobs.get(effect.job)  # None: it was forgotten, and the news comes very late
        revision = 0 if job is None else job.revision
        if isinstance(effect, DropLinks):
            return LinksDropped(at=now, job=effect.job, revision=revision - self._wrong())
        revision = revision + 1 - self._wrong() if isinstance(effect, ChangeLinks) else 0
        if fails:
            return LinksFailed(at=now, job=effect.job, error=FAILURE, revision=revision)
        spec = None if job is None or job.refused else job.spec
        if job is not None and isinstance(effect, ChangeLinks) and not (spec is not None and self._wrong()):
            spec = job.next_spec
        links = {} if spec is None else facts_of(spec, effect.job)
        topics = {}
        if spec is not None and self.world.state.rules > 3:
            inputs = [link for link in graph_of(spec, "test", effect.job).links if link.kind == "input"]
            topics = {link.topic: f"{link.topic} of {revision}" for link in inputs}  # those that are known stay
        return LinksCreated(at=now, job=effect.job, links=links, revision=revision, topics=topics)

    def _wrong(self) -> bool:
        """Whether the news is about something else: only while the world is unkind."""
        return not self.settling and self.rng.random() < 0.07

    def _positions(self, name: str) -> dict[str, dict[str, list[int | None]]]:
        """What a job's groups had committed in the topics that it reads: here and there nothing, or of one partition too many."""
        job, rng = self.world.state.jobs.get(name), self.rng
        if job is None or job.refused or rng.random() < 0.2:
            return {}
        topics = {
            stage.name: {link.topic for link in stage.ingress if link.kind == "input"}
            for stage in graph_of(job.spec, "test", name).stages
        }
        return {
            task: {
                topic: [rng.choice([None, rng.randint(0, 99)]) for _ in range(job.spec.partitions + rng.randint(0, 1))]
                for topic in sorted(found)
            }
            for task, found in topics.items()
            if found
        }

    def _checkpoints(self, name: str) -> list[CheckpointPoint]:
        """The checkpoints that a job had kept, of which tasks without state have only offsets."""
        job, rng = self.world.state.jobs.get(name), self.rng
        if job is None or job.refused or job.spec.checkpoint_every is None or rng.random() < 0.2:
            return []
        return [CheckpointPoint(at * MINUTE, self._positions(name)) for at in rng.choice([[], [2], [1, 2, 4]])]

    def timers_after(self, seconds: float) -> list[AnyEvent]:
        """Time passes, or a clock is put back; the timers that have run out then."""
        self.world.now += seconds
        state, now = self.world.state, self.world.now
        events = [*expired_jobs(state, now, TIMERS), *due(state, now, TIMERS)]
        first = next_due(state, TIMERS)
        assert not events or first is not None, "what is due was announced"
        return events

    def settle(self) -> int:
        """From here on all behave: no faults, and as many peers as the most demanding task asks for. Everything bounded
        must end; gives how many events that took.
        """
        world = self.world
        self.to_run, self.settling = unfinished(world.state), True
        for name in list(world.state.jobs):
            job = world.state.jobs[name]
            if not job.ended and not world.state.plans[name].bounded:
                self.deliver(self.rng.choice([JobKilled, JobStopped])(at=world.now, job=name))
            elif job.suspended:
                self.deliver(JobScaled(at=world.now, job=name, suspended=False))
            if not job.ended and job.spec.cycles and job.max_peers is not None:
                # All that it may have could be peers that can run none of its other tasks, because of their tags.
                self.deliver(JobScaled(at=world.now, job=name, max_peers=0))
        few = self.rng.random() < 0.5  # the last fault may take nearly all peers
        for name in sorted(self.pulses):
            peer = world.state.peers.get(name)  # None: dead, and forgotten since
            if peer is None or peer.state == "dead" or (few and self.rng.random() < 0.6):
                self.deliver(PeerDied(at=world.now, peer=name))
                self.pulses.discard(name)
        while self._able() < self.wanted():
            self.deliver(self.able_birth())
        open_tasks = sum(len(job.spec.catalog) for job in world.state.jobs.values() if not job.ended)
        # Jobs that have ended have topics to be removed, and are forgotten.
        limit = 20 * (open_tasks + len(world.state.jobs) + 1) * (len(self.pulses) + 1)
        for taken in range(limit):
            event = self._good_step()
            if event is None:
                return taken
            self.deliver(event)
        raise AssertionError(f"no end after {limit} events: {world.picture()}")

    def _good_step(self) -> AnyEvent | None:
        world = self.world
        while self.to_run:
            event = self.end_of(self.to_run.pop(0))
            if event is not None:
                return event
        for name, peer in sorted(world.state.peers.items()):
            leaves = peer.state == "active" and peer.yields in ("share", "turn")
            if peer.state in ("revoked", "acking", "sealing") or leaves:
                return self._answer(name)
        if self._able() < self.wanted():
            return self.able_birth()  # who was revoked comes back under a new id
        for name in world.state.by_state["active"]:
            place = world.state.assignment(name)
            tasks, plan = world.state.jobs[place.job].tasks, world.state.plans[place.job]
            if all(tasks[before].state == "complete" for before in plan.upstream[place.task]):
                return Exhausted(at=world.now, peer=name, assignment=place.id)
        backing_off = next_due(world.state, TIMERS)  # no peer is acking or revoked: the back-offs of tasks run
        if backing_off is not None:
            world.now = max(world.now, backing_off)
            return self.timers_after(0)[0]
        idle = [name for name in world.state.by_state["active"] if world.state.peers[name].yields == "idle"]
        unended = [name for name, job in world.state.jobs.items() if not job.ended]
        assert idle or not unended, f"no peer has anything to do, but {unended} have not ended: {world.picture()}"
        return self._answer(idle[0]) if idle else None

    def able_birth(self) -> PeerBorn:
        """A new peer that can run every task."""
        self.born += 1
        self.pulses.add(f"P{self.born}")
        tags = tuple(TAGS) if self._tags else ()
        return PeerBorn(at=self.world.now, peer=f"P{self.born}", tags=tags, format=self._newest)

    def _able(self) -> int:
        """How many peers there are that can run every task."""
        known = self.world.state.peers
        able = set(TAGS) if self._tags else set()
        asked = Kind(self._newest, frozenset(able))
        return sum(name in known and self.world.state.fits(name, asked) for name in self.pulses)

    def _answer(self, name: str) -> AnyEvent:
        peer = self.world.state.peers[name]
        if peer.state == "revoked":
            self.pulses.discard(name)
            return PeerDied(at=self.world.now, peer=name)
        kind = {"acking": Acked, "active": Yielded, "sealing": Completed}[peer.state]
        return kind(at=self.world.now, peer=name, assignment=self.world.state.assignment(name).id)

    def wanted(self) -> int:
        """As many peers as the most demanding task asks for; those of a job with a loop, whose tasks begin together, add up."""
        specs = [job.spec for job in self.world.state.jobs.values() if not job.ended]
        asked = [[task.min_peers for task in spec.catalog] for spec in specs]
        return max(
            (sum(each) if spec.cycles else max(each) for spec, each in zip(specs, asked, strict=True)), default=0
        )
