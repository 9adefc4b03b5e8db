"""Random histories for the deciding core: a small world of peers, clients and faults, driven by a seeded source of chance.

The world is as unkind as the log allows: requests come late, twice, from the dead, about other assignments; links are made
twice or never; timers run out; the leader changes. Afterwards it can be told to behave, and then every bounded job must end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from scenario_runner import World, facts_of, within

from coordinator.core import scheduling
from coordinator.core.decide import decide, unfinished
from coordinator.core.indexes import Kind
from coordinator.core.state import new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import Timers, due, expired_jobs, next_due
from sardonyx.core.changing import NOTHING, rewiring
from sardonyx.core.effects import (
    ChangeLinks,
    CreateLinks,
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
    NEWER,
    OLDEST,
    RULES,
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Checkpointed,
    Completed,
    Counts,
    Declined,
    Drained,
    Evicted,
    Exhausted,
    GraceEnded,
    JobChanged,
    JobKilled,
    JobPurged,
    JobRestarted,
    JobRolledBack,
    JobScaled,
    JobStopped,
    JobSubmitted,
    Left,
    LettersClaimed,
    LinkLost,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksKept,
    LinksRead,
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
from sardonyx.core.resizing import awake, stand_still
from sardonyx.core.spec import JobSpec, Route
from sardonyx.core.state_points import CheckpointPoint
from tests.random_jobs import TAGS, random_spec, regrown, spoilt
from tests.shares import Turns, hold_shares

FAILURE = Failure("SX-TEST", "something broke")
TIMERS = Timers(keep_jobs=4)
MINUTE = 60_000_000


def without_n(state: bytes) -> dict[str, object]:
    """A stored state without the number of its last event."""
    return {key: value for key, value in msgspec.json.decode(state).items() if key != "n"}


@dataclass
class History:
    """One random history. ``rng`` decides everything.

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
        if self._drains is not None and self._drains.random() < 0.05:
            return self._drained(self._drains)
        if self._logged is not None and self._logged.random() < 0.1:
            return self._checkpointed()
        if self._spoils is not None and self._spoils.random() < 0.8:
            event = self._declined_at_first(self._spoils)
            if event is not None:
                return event
        kinds = {
            self._obedient: 60,
            self._failure: 4,
            self._late: 12,
            self.birth: 8,
            self._death: 4,
            self._submission: 4,
            self._rollback: 3 if self.restarts else 1,
            self._effect_done: 12,
            self._time: 4,
            self._trouble: 6,
            self._users: 6,
        }
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def _declined_at_first(self, rng: random.Random) -> AnyEvent | None:
        """A peer that is to be the first to work by a new version cannot, or the time passes after which the next one may try."""
        jobs = [job for job in self.world.state.jobs.values() if job.former is not None and not job.pauses]
        for task in (task for job in jobs for task in job.tasks.values()):
            peers = sorted(name for name in task.peers if self.world.state.peers[name].state == "acking")
            if peers:
                name = rng.choice(peers)
                number = self.world.state.assignment(name).id
                return Declined(at=self.world.now, peer=name, assignment=number, error=FAILURE)
            if task.backing_off:
                return self._time()
        return None

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
        old = self.world.state.peers[peer].format < self._newest
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
            effect = self.rng.choice([CreateLinks, ReadLinks, DeleteLinks, ChangeLinks, DropLinks])(name)
            return self.end_of(effect, fails=self.rng.random() < 0.5)
        if self.rng.random() < 0.1:
            return self.rng.choice([PeerDied, Left, Evicted])(at=self.world.now, peer="nobody-knows")
        peer = f"P{self.rng.randint(1, self.born + 1)}"
        kind = self.rng.choice([Acked, Exhausted, Completed, AckTimedOut])
        return kind(at=self.world.now, peer=peer, assignment=self.world.told.get(peer, 0))

    def birth(self) -> AnyEvent | None:
        """A new peer, if there are not too many."""
        if len(self.pulses) >= self._most_peers:
            return None
        self.born += 1
        self.pulses.add(f"P{self.born}")
        tags = tuple(tag for tag in TAGS if self._tags and self.rng.random() < 0.4)
        peer = f"P{self.born}"
        reads = self.rng.choice([0, OLDEST]) if self.rng.random() < self._old else self._newest
        return PeerBorn(at=self.world.now, peer=peer, daemon="d", host="h", pid=self.born % 3, tags=tags, format=reads)

    def _death(self) -> AnyEvent | None:
        if not self.pulses:
            return None
        peer = self.rng.choice(sorted(self.pulses))
        if self.rng.random() < 0.2:
            return self.rng.choice([Left, Evicted])(at=self.world.now, peer=peer)
        self.pulses.discard(peer)
        return PeerDied(at=self.world.now, peer=peer)

    def _drained(self, rng: random.Random) -> AnyEvent:
        """A user takes peers out, or in again; most often one."""
        back = rng.random() < 0.6
        if rng.random() < 0.3:
            return Drained(at=self.world.now, host=rng.choice("hhg"), back=back)
        return Drained(at=self.world.now, peer=rng.choice([*sorted(self.world.state.peers), "nobody-knows"]), back=back)

    def _submission(self) -> AnyEvent | None:
        if sum(not job.ended for job in self.world.state.jobs.values()) >= 3:
            return None
        self.submitted += 1
        spec = random_spec(
            self.rng,
            name=self.rng.choice(["one", "two", "three"]),
            endless=self._endless,
            tags=self._tags,
            clocked=self._clocked,
            loops=0.2,
        )
        if self.rng.random() < 0.3:
            stands = [msgspec.structs.replace(task, standby=self.rng.choice([0, 1])) for task in spec.catalog]
            spec = msgspec.structs.replace(spec, catalog=stands)
        if self.rng.random() < 0.1:
            spec = spoilt(self.rng, spec)
        name = f"{spec.name}-{self.submitted}" if self.rng.random() < 0.98 else "no/id"
        resumes, jobs = "", self.world.state.jobs
        back = [each for each in jobs if jobs[each].checkpoints]
        if back and self.rng.random() < 0.5:
            resumes = self.rng.choice(back)
            spec = jobs[resumes].spec
        elif self.rng.random() < 0.4:
            resumes = self.rng.choice([*self.world.state.jobs, "nobody-knows"])
            if resumes in self.world.state.jobs and self.rng.random() < 0.8:
                spec = msgspec.structs.replace(self.world.state.jobs[resumes].spec, partitions=self.rng.randint(1, 4))
        time = self.rng.choice([None, MINUTE, 3 * MINUTE]) if resumes else None
        replays = None
        if self.rng.random() < 0.3:
            resumes, spec, replays = self._replay(resumes, spec)
        return JobSubmitted(at=self.world.now, job=name, spec=spec, resumes=resumes, resumes_at=time, replays=replays)

    def _replay(self, resumes: str, spec: JobSpec) -> tuple[str, JobSpec, CheckpointPoint]:
        """Rows of another job are to be worked once more with its states, mostly of one that runs and has checkpoints."""
        jobs, point = self.world.state.jobs, CheckpointPoint(self.rng.choice([MINUTE, 2 * MINUTE, 2 * MINUTE + 1]))
        running = [each for each in jobs if jobs[each].spec.checkpoint_every and not jobs[each].ended]
        if running and self.rng.random() < 0.8:
            resumes = self.rng.choice(running)
            taken = {job.spec.name for job in jobs.values() if not job.ended}
            free = [each for each in ("one", "two", "three") if each not in taken]
            spec = msgspec.structs.replace(jobs[resumes].spec, name=self.rng.choice(free))
        return resumes, spec, point

    def _rollback(self) -> AnyEvent | None:
        jobs = self.world.state.jobs
        if not jobs:
            return None
        self.submitted += 1
        job = self.rng.choice([*jobs, "nobody-knows"])
        into = self.rng.choice([f"back-{self.submitted}"] * 8 + ["no/id", *jobs, *self.world.state.purged])
        if self.restarts and job in jobs and self.rng.random() < 0.7:
            return self._restart(job, into)
        return JobRolledBack(at=self.world.now, job=job, into=into, to=self.rng.choice([0, MINUTE, 9 * MINUTE]))

    def _restart(self, job: str, into: str) -> AnyEvent:
        known = self.world.state.jobs[job]
        spec = msgspec.structs.replace(known.spec, weight=self.rng.choice([1.0, 2.0]))
        if not known.refused and self.rng.random() < 0.2:
            spec = spoilt(self.rng, spec)
        revision = known.revision + (self.rng.random() < 0.1)
        return JobRestarted(at=self.world.now, job=job, into=into, spec=spec, revision=revision)

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

    def _checkpointed(self) -> AnyEvent | None:
        """Mostly of a job that runs with checkpoints, as it is now."""
        jobs = self.world.state.jobs
        keep = [name for name, job in jobs.items() if job.spec.checkpoint_every and job.status == "running"]
        if not jobs or (not keep and not self._wrong()):
            return None
        name = "nobody-knows" if self._wrong() else self.rng.choice([*jobs] if self._wrong() or not keep else keep)
        revision = jobs[name].revision - self._wrong() if name in jobs else 1
        point = CheckpointPoint(self.rng.randint(1, 9) * MINUTE, self._positions(name))
        return Checkpointed(at=self.world.now, job=name, revision=revision, point=point)

    def _checkpoints(self, name: str) -> list[CheckpointPoint]:
        """The checkpoints that a job had kept, of which tasks without state have only offsets."""
        job, rng = self.world.state.jobs.get(name), self.rng
        if job is None or job.refused or job.spec.checkpoint_every is None or rng.random() < 0.2:
            return []
        return [CheckpointPoint(at * MINUTE, self._positions(name)) for at in rng.choice([[], [2], [1, 2, 4]])]

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
            return JobStopped(at=self.world.now, job=job, closes=state.n % 2 == 0)
        if rng.random() < 0.5:
            return self._change(job)
        if rng.random() < 0.3:
            return JobScaled(at=self.world.now, job=job, suspended=not state.jobs[job].suspended)
        weight = rng.choice([0.5, 1.0, 2.0, 4.0])
        return JobScaled(
            at=self.world.now, job=job, weight=weight, priority=0, max_peers=rng.choice([None, 0, 0, 1, 2])
        )

    def _change(self, name: str) -> AnyEvent:
        """A new version of a job: mostly one that can be made, compared with the present one."""
        rng, job = self.rng, self.world.state.jobs[name]
        touched = rng.choice([1.0, 0.3, 0.0])
        catalog = [
            msgspec.structs.replace(
                task,
                fn=task.fn and rng.choice(["m:f", "m:g"]),
                max_peers=rng.choice([task.max_peers, 1, None]),
                tags=rng.choice([task.tags, [], ["gpu"]]) if self._tags else task.tags,
            )
            if rng.random() < touched
            else task
            for task in job.spec.catalog
        ]
        spec = msgspec.structs.replace(
            job.spec,
            catalog=catalog,
            failure_limit=rng.randint(0, 5),
            partitions=job.spec.partitions + (rng.random() < 0.1),
            weight=rng.choice([job.spec.weight, 2.0]),
        )
        drop: list[str] = []
        if rng.random() < 0.2:  # no row goes over one edge any more, or rows go again over all
            edge = ".".join(rng.choice(spec.workflow))
            route, source = Route(where=NOTHING), spec.task(edge.partition(".")[0])
            if self.parts and rng.random() < 0.4 and source.type != "input":  # or those of other times do
                route = within(rng.choice(["from", "before"]), rng.randint(1, 2))
            routes = {} if spec.routes else {edge: route}
            spec = msgspec.structs.replace(spec, routes=routes)
        elif rng.random() < 0.7:
            before = graph_of(job.spec, "test", name)
            spec = regrown(rng, spec, iter(lambda: f"n{rng.randint(0, 12)}", ""))
            if rng.random() < 0.2:
                edges = rng.sample(spec.workflow, len(spec.workflow))
                spec = msgspec.structs.replace(spec, workflow=edges)
            if len({task.name for task in spec.catalog}) == len(spec.catalog):
                drop = rewiring(before, graph_of(spec, "test", name)).names
                drop = rng.sample(drop, len(drop) - (rng.random() < 0.1)) if drop else drop
        if job.spec.next_partitions is not None and rng.random() < 0.6:  # it may have queues of another number now
            spec, drop = msgspec.structs.replace(awake(job.spec), partitions=job.spec.next_partitions), []
        elif rng.random() < 0.15:
            spec = stand_still(spec, rng.randint(1, 4))
        if rng.random() < 0.05:
            spec = spoilt(rng, spec)
        revision = job.revision + (rng.random() < 0.1)
        name = name if rng.random() > 0.05 else "nobody-knows"
        names = [task.name for task in job.spec.catalog]
        same = rng.choice([[], names, names, rng.sample(names, rng.randint(0, len(names)))])
        return JobChanged(at=self.world.now, job=name, spec=spec, revision=revision, drop=drop, same=same)

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
                    suspended=rng.choice([None, None, True, False]),
                ),
                TaskFailed(at=world.now, peer=peer, assignment=assignment, error=FAILURE, fatal=rng.random() < 0.1),
                Declined(at=world.now, peer=peer, assignment=assignment, error=FAILURE),
                GraceEnded(at=world.now, peer=peer),
                JobKilled(at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"])),
                Restored(at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"]), error=FAILURE),
                JobStopped(
                    at=world.now, job=rng.choice([*world.state.jobs, "nobody-knows"]), closes=world.state.n % 2 == 0
                ),
                LinkLost(
                    at=world.now,
                    job=rng.choice([*world.state.jobs, "nobody-knows"]),
                    link="t0.t1",
                    error=FAILURE,
                    revision=rng.choice([1, 1, 2]),
                ),
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
