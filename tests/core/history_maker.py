"""Random histories for the deciding core: a small world of peers, clients and faults, driven by a seeded source of chance.

The world is as unkind as the log allows: requests come late, twice, from the dead, about other assignments; links are made
twice or never; timers run out; the leader changes. Afterwards it can be told to behave, and then every bounded job must end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from scenario_runner import World, facts_of

from coordinator.core import scheduling
from coordinator.core.decide import decide, unfinished
from coordinator.core.state import Kind, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import Timers, due, expired_jobs, next_due
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    FORMAT,
    NEWER,
    OLDEST,
    RULES,
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Counts,
    CreateLinks,
    Declined,
    DeleteLinks,
    DeletePulse,
    Effect,
    Evicted,
    Exhausted,
    GraceEnded,
    JobKilled,
    JobPurged,
    JobScaled,
    JobStopped,
    JobSubmitted,
    Left,
    LettersClaimed,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    LinksKept,
    OuterEffect,
    PeerBorn,
    PeerDied,
    PolicySet,
    Rebalanced,
    Restored,
    TaskFailed,
    TurnEnded,
    Yielded,
)
from sardonyx.core.graph import graph_of
from tests.random_jobs import TAGS, random_spec, spoilt
from tests.shares import Turns, hold_shares

FAILURE = Failure("SX-TEST", "something broke")
TIMERS = Timers(keep_jobs=4)


def without_n(state: bytes) -> dict[str, object]:
    """A stored state without the number of its last event."""
    return {key: value for key, value in msgspec.json.decode(state).items() if key != "n"}


@dataclass
class History:
    """One random history. ``rng`` decides everything.

    ``doubled``: how likely it is that an event is delivered twice. ``rules``: under which its log begins.
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

    def __post_init__(self) -> None:
        if self.rules != RULES:
            self.world.state = new_state("test", self.rules)
        self._endless = self.rng.choice([0.3, 0.3, 0.9])
        self._most_peers = self.rng.choice([6, 6, 12])
        self._tags = self.rng.choice([0.0, 0.0, 0.3])
        self._old = self.rng.choice([0.0, 0.0, 0.4])

    # One event

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

    # Unkind

    def unkind(self, events: int) -> None:
        """Let so many things happen."""
        while events > 0:
            event = self._something()
            if event is not None:
                self.deliver(event)
                events -= 1
            if self.rng.random() < 0.02:
                self.new_leader()

    def new_leader(self) -> None:
        """Another leader: what it knows was stored, and what lies outside the tree it runs again."""
        self.world.state = decode_state(encode_state(self.world.state))
        self.to_run = unfinished(self.world.state)

    def _something(self) -> AnyEvent | None:
        kinds = {
            self._obedient: 60,
            self._failure: 4,
            self._late: 12,
            self.birth: 8,
            self._death: 4,
            self._submission: 4,
            self._effect_done: 12,
            self._time: 4,
            self._trouble: 6,
            self._users: 3,
        }
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def _obedient(self) -> AnyEvent | None:
        """What a peer would say next."""
        peers = sorted(
            name for name, peer in self.world.state.peers.items() if peer.state in ("acking", "active", "sealing")
        )
        if not peers:
            return None
        name = self.rng.choice(peers)
        peer = self.world.state.peers[name]
        assignment = self.world.state.assignment(name).id
        if peer.yields and self.rng.random() < 0.6:
            return Yielded(at=self.world.now, peer=name, assignment=assignment)
        if peer.state == "acking":
            return Acked(at=self.world.now, peer=name, assignment=assignment)
        if peer.state == "active":
            return Exhausted(at=self.world.now, peer=name, assignment=assignment)
        return Completed(
            at=self.world.now,
            peer=name,
            assignment=assignment,
            counts=Counts(rows_in=self.rng.randrange(9), dead=self.rng.choice([0, 0, 0, 1])),
            positions=self._positions(peer.assignment.job).get(peer.assignment.task, {}) if peer.assignment else {},
        )

    def _failure(self) -> AnyEvent | None:
        """A peer at work cannot go on, soon after the last time or long after it."""
        peers = sorted(name for name, peer in self.world.state.peers.items() if peer.assignment)
        if not peers:
            return None
        name = self.rng.choice(peers)
        self.world.now += self.rng.choice([0.0, 0.0, 700.0])
        assignment = self.world.state.assignment(name).id
        if self.world.state.peers[name].state == "acking":
            if self.rng.random() < 0.5:
                return AckTimedOut(at=self.world.now, peer=name, assignment=assignment)
            passing, error = self.rng.random() < 0.3, self._error(name)
            return Declined(at=self.world.now, peer=name, assignment=assignment, error=error, passing=passing)
        kind = self.rng.choice([{}, {}, {"passing": True}, {"fatal": True}])
        return TaskFailed(at=self.world.now, peer=name, assignment=assignment, error=self._error(name), **kind)

    def _error(self, peer: str) -> Failure:
        """A peer of an older release may meet what it cannot read."""
        old = self.world.state.peers[peer].format < FORMAT
        return Failure(self.rng.choice(sorted(NEWER)), "too old") if old and self.rng.random() < 0.5 else FAILURE

    def _late(self) -> AnyEvent | None:
        """Something that was said before, or about anything."""
        if self.past and self.rng.random() < 0.5:
            return self.rng.choice(self.past)
        if self.world.state.jobs and self.rng.random() < 0.2:
            name = self.rng.choice([*self.world.state.jobs])
            task = f"t{self.rng.randrange(5)}"
            return BackoffEnded(at=self.world.now, job=name, task=task, failures=self.rng.randint(1, 3))
        if self.rng.random() < 0.1:
            name = self.rng.choice([*self.world.state.jobs, *self.world.state.purged, "nobody-knows"])
            effect = self.rng.choice([CreateLinks, DeleteLinks])(name)
            return self.end_of(effect, fails=self.rng.random() < 0.5)
        if self.rng.random() < 0.1:
            return self.rng.choice([PeerDied, Left, Evicted])(at=self.world.now, peer="nobody-knows")
        peer = f"P{self.rng.randint(1, self.born + 1)}"
        kind = self.rng.choice([Acked, Exhausted, Completed, AckTimedOut])
        return kind(at=self.world.now, peer=peer, assignment=self.world.told.get(peer, 0))

    def birth(self) -> AnyEvent | None:
        """A new peer, if there are not too many; or the birth once more of one whose release was not known."""
        unknown = [
            name
            for name in sorted(self.pulses & self.world.state.peers.keys())
            if not self.world.state.peers[name].format
        ]
        if unknown and self.rng.random() < 0.3:
            tags = tuple(tag for tag in TAGS if self._tags and self.rng.random() < 0.4)
            return PeerBorn(at=self.world.now, peer=self.rng.choice(unknown), tags=tags, format=FORMAT)
        if len(self.pulses) >= self._most_peers:
            return None
        self.born += 1
        self.pulses.add(f"P{self.born}")
        tags = tuple(tag for tag in TAGS if self._tags and self.rng.random() < 0.4)
        peer = f"P{self.born}"
        reads = self.rng.choice([0, OLDEST]) if self.rng.random() < self._old else FORMAT
        return PeerBorn(at=self.world.now, peer=peer, daemon="d", host="h", pid=self.born % 3, tags=tags, format=reads)

    def _death(self) -> AnyEvent | None:
        if not self.pulses:
            return None
        peer = self.rng.choice(sorted(self.pulses))
        if self.rng.random() < 0.2:
            return self.rng.choice([Left, Evicted])(at=self.world.now, peer=peer)
        self.pulses.discard(peer)
        return PeerDied(at=self.world.now, peer=peer)

    def _submission(self) -> AnyEvent | None:
        if sum(not job.ended for job in self.world.state.jobs.values()) >= 3:
            return None
        self.submitted += 1
        spec = random_spec(
            self.rng, name=self.rng.choice(["one", "two", "three"]), endless=self._endless, tags=self._tags
        )
        if self.rng.random() < 0.1:
            spec = spoilt(self.rng, spec)
        name = f"{spec.name}-{self.submitted}" if self.rng.random() < 0.98 else "no/id"
        resumes = ""
        if self.rng.random() < 0.4:
            resumes = self.rng.choice([*self.world.state.jobs, "nobody-knows"])
            if resumes in self.world.state.jobs and self.rng.random() < 0.8:
                spec = msgspec.structs.replace(self.world.state.jobs[resumes].spec, partitions=self.rng.randint(1, 4))
        return JobSubmitted(at=self.world.now, job=name, spec=spec, resumes=resumes)

    def _effect_done(self) -> AnyEvent | None:
        if not self.to_run:
            return None
        effect = self.to_run[0] if self.rng.random() < 0.7 else self.rng.choice(self.to_run)
        if self.rng.random() < 0.8:  # otherwise its news comes again
            self.to_run.remove(effect)
        return self.end_of(effect, fails=self.rng.random() < 0.1)

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
        if fails:
            return LinksFailed(at=now, job=effect.job, error=FAILURE)
        job = self.world.state.jobs.get(effect.job)  # None: it was forgotten, and the news comes very late
        links = facts_of(job.spec, effect.job) if job is not None and not job.refused else {}
        return LinksCreated(at=now, job=effect.job, links=links)

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

    def _time(self) -> AnyEvent | None:
        events = self.timers_after(self.rng.choice([1.0, 1.0, 9.0, 16.0, 70.0, -3.0, -30.0]))
        for event in events[:-1]:
            self.deliver(event)
        return events[-1] if events else None

    def timers_after(self, seconds: float) -> list[AnyEvent]:
        """Time passes, or a clock is put back; the timers that have run out then."""
        self.world.now += seconds
        state, now = self.world.state, self.world.now
        events = [*expired_jobs(state, now, TIMERS), *due(state, now, TIMERS)]
        first = next_due(state, TIMERS)
        assert not events or first is not None, "what is due was announced"
        return events

    def _users(self) -> AnyEvent | None:
        """Users stop an unbounded job, or change what a running one is entitled to."""
        state, rng = self.world.state, self.rng
        running = [name for name in state.plans if state.jobs[name].status == "running"]
        if not running:
            return None
        job = rng.choice(running)
        if rng.random() < 0.3 and not state.plans[job].bounded:
            return JobStopped(at=self.world.now, job=job)
        weight = rng.choice([0.5, 1.0, 2.0, 4.0])
        return JobScaled(
            at=self.world.now, job=job, weight=weight, priority=0, max_peers=rng.choice([None, 0, 0, 1, 2])
        )

    def _trouble(self) -> AnyEvent | None:
        """Failures, kills and timers out of nowhere."""
        world, rng = self.world, self.rng
        peer = f"P{rng.randint(1, self.born + 1)}"
        assignment = world.told.get(peer, 0)
        job = rng.choice([*world.state.jobs, "nobody-knows"])
        gave = world.state.jobs[job].gave if job in world.state.jobs else 0
        return rng.choice(
            [
                Yielded(at=world.now, peer=peer, assignment=assignment),
                TurnEnded(at=world.now, peer=peer, assignment=assignment),
                Rebalanced(at=world.now, job=job, peers=rng.randint(1, 3), gave=gave),
                PolicySet(at=world.now, scheduler=rng.choice(["turns", "balanced", "greedy", "percentage"])),
                JobScaled(
                    at=world.now,
                    job=job,
                    priority=rng.choice([None, 0, 2, 9999]),
                    weight=rng.choice([None, None, 1.0, 3.0]),
                    percentage=rng.choice([None, None, 60.0, 0.0]),
                    max_peers=rng.choice([None, 0, 2]),
                ),
                TaskFailed(at=world.now, peer=peer, assignment=assignment, error=FAILURE, fatal=rng.random() < 0.1),
                Declined(at=world.now, peer=peer, assignment=assignment, error=FAILURE),
                GraceEnded(at=world.now, peer=peer),
                JobKilled(at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"])),
                Restored(at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"]), error=FAILURE),
                JobStopped(at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"])),
                LinksKept(
                    at=world.now,
                    job=rng.choice([*world.state.jobs, "nobody-knows"]),
                    seconds=rng.choice([0, 60, 90, 7200]),
                ),
                JobPurged(
                    at=world.now,
                    job=rng.choice([*world.state.jobs, *world.state.purged, "nobody-knows"]),
                    dead_letters=rng.random() < 0.5,
                ),
                LettersClaimed(
                    at=world.now,
                    job=rng.choice([*world.state.jobs, "nobody-knows"]),
                    task=rng.choice(["t0", "t0", "t1", "nobody-knows"]),
                    letters=rng.randrange(4),
                ),
            ]
        )

    # Kind

    def settle(self) -> int:
        """From here on all behave: no faults, and as many peers as the most demanding task asks for. Everything bounded
        must end; gives how many events that took.
        """
        world = self.world
        self.to_run = unfinished(world.state)
        for name in list(world.state.jobs):
            job = world.state.jobs[name]
            if not job.ended and not world.state.plans[name].bounded:
                self.deliver(self.rng.choice([JobKilled, JobStopped])(at=world.now, job=name))
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
            if peer.state in ("revoked", "acking", "sealing") or (peer.state == "active" and peer.yields == "share"):
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
        unended = [name for name, job in world.state.jobs.items() if not job.ended]
        assert not unended, f"no peer has anything to do, but {unended} have not ended: {world.picture()}"
        return None

    def able_birth(self) -> PeerBorn:
        """A new peer that can run every task."""
        self.born += 1
        self.pulses.add(f"P{self.born}")
        return PeerBorn(at=self.world.now, peer=f"P{self.born}", tags=tuple(TAGS) if self._tags else (), format=FORMAT)

    def _able(self) -> int:
        """How many peers there are that can run every task."""
        known = self.world.state.peers
        able = set(TAGS) if self._tags else set()
        return sum(name in known and known[name].kind.fits(Kind(FORMAT, frozenset(able))) for name in self.pulses)

    def _answer(self, name: str) -> AnyEvent:
        peer = self.world.state.peers[name]
        if peer.state == "revoked":
            self.pulses.discard(name)
            return PeerDied(at=self.world.now, peer=name)
        kind = {"acking": Acked, "active": Yielded, "sealing": Completed}[peer.state]
        return kind(at=self.world.now, peer=name, assignment=self.world.state.assignment(name).id)

    def wanted(self) -> int:
        jobs = [job for job in self.world.state.jobs.values() if not job.ended]
        return max((task.min_peers for job in jobs for task in job.spec.catalog), default=0)
