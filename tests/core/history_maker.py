"""Random histories for the deciding core: a small world of peers, clients and faults, driven by a seeded source of chance.

The world is as unkind as the log allows: requests come late, twice, from the dead, about other assignments; links are made
twice or never; timers run out; the leader changes. Afterwards it can be told to behave (:mod:`kind_history`).
"""

from __future__ import annotations

import random

import msgspec
from kind_history import FAILURE, MINUTE, KindHistory
from scenario_runner import within

from sardonyx.core.changing import NOTHING, rewiring
from sardonyx.core.effects import (
    ChangeLinks,
    CreateLinks,
    DeleteLinks,
    DropLinks,
    ReadLinks,
)
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    NEWER,
    OLDEST,
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
    LinksKept,
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


class History(KindHistory):
    """One random history."""

    def unkind(self, events: int) -> None:
        """Let so many things happen."""
        while events > 0:
            event = self._something()
            if event is not None:
                self.deliver(event)
                events -= 1
            if self.rng.random() < 0.02:
                self.new_leader()

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

    def _time(self) -> AnyEvent | None:
        events = self.timers_after(self.rng.choice([1.0, 1.0, 9.0, 16.0, 70.0, -3.0, -30.0]))
        for event in events[:-1]:
            self.deliver(event)
        return events[-1] if events else None

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
