"""The changes of one decision: the operations from which :mod:`coordinator.core.decide` builds it. Pure.

Every change of a state goes through a :class:`ChangeSet`. It keeps each node's note from before the first change. In the end it
returns as effects exactly what differs. The cost depends on what was changed, not on the size of the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec.structs import force_setattr, replace

from coordinator.core import peer_states
from coordinator.core.entitlement import asked_of
from coordinator.core.homes import peers_for
from coordinator.core.peer_states import WORKING, Trigger
from coordinator.core.projection import encode_note, job_nodes
from coordinator.core.scheduling import Offer, asking, seconds
from coordinator.core.state import (
    REMEMBERED_DEAD,
    REMEMBERED_PURGED,
    Job,
    Kind,
    Peer,
    Plan,
    State,
    Task,
    free_slots,
    plan_of,
)
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    FORMAT,
    OLDEST,
    Counts,
    Create,
    CreateLinks,
    Delete,
    DeleteLinks,
    DeletePulse,
    Effect,
    JobStatus,
    LastCommits,
    LinkFacts,
    OuterEffect,
    PeerBorn,
    Scheduler,
    Set,
    TaskState,
    TreeEffect,
    Yields,
)
from sardonyx.core.formats import spec_format
from sardonyx.core.graph import Graph, graph_of, is_endless
from sardonyx.core.notes import Assignment, JobNote, LinksNote, PeerNote, TaskNote
from sardonyx.core.positions import next_offsets
from sardonyx.core.spec import JobSpec, encode_spec

FORGIVEN = 600.0
"""Seconds after which an earlier failure no longer counts: a job that runs for months will see many."""


class ChangeSet:
    """The changes that one event makes.

    Args:
        state: changed in place.
        n: number of the event.
        at: its wall clock, seconds since 1970.
    """

    __slots__ = ("_idle", "_made", "_outer", "_removed", "_touched", "at", "jobs", "kinds_changed", "n", "state")

    def __init__(self, state: State, n: int, at: float) -> None:
        self.state = state
        self.n = n
        self.at = at
        self.jobs: dict[str, None] = {}
        """The changed jobs, in order."""
        self._touched: dict[str, tuple[Peer | Job | Task, PeerNote | JobNote | TaskNote | None]] = {}
        self._made: list[TreeEffect] = []
        self._removed: list[TreeEffect] = []
        self._outer: list[OuterEffect] = []
        self._idle = {kind: len(row) for kind, row in state.idle_of.items()}
        self.kinds_changed = False
        """Whether the first live peer of a kind came, or the last one went."""

    @property
    def free_changed(self) -> bool:
        """Whether the numbers of idle peers of each kind differ from before the event."""
        return {kind: len(row) for kind, row in self.state.idle_of.items()} != self._idle

    def effects(self) -> list[Effect]:
        """What must be done: changes of nodes, parents before children; deletions, children before parents; then the effects
        outside ZooKeeper.
        """
        changes: list[TreeEffect] = list(self._made)
        for path, (entity, before) in self._touched.items():
            after = entity.note()
            if after == before:
                continue
            entity.n = self.n
            if after is None:
                changes.append(Delete(path))
                continue
            force_setattr(after, "n", self.n)  # nothing else refers to it yet
            changes.append((Create if before is None else Set)(path, encode_note(after)))
        return [*changes, *self._removed, *self._outer]

    # Peers

    def birth(self, name: str, born: PeerBorn) -> None:
        """Add an idle peer."""
        tags = frozenset(born.tags)
        peer = Peer("idle", self.n, self.at, self._rank(), daemon=born.daemon, host=born.host, pid=born.pid, tags=tags)
        peer.version, peer.format = born.version, born.format
        self.state.peers[name] = peer
        self._count(peer.kind, 1)
        self.state.by_state["idle"][name] = None
        self.state.add_idle(name)
        self._touched[node_paths.peer_state(name)] = (peer, None)

    def set_abilities(self, name: str, born: PeerBorn) -> None:
        """Set what a known peer reads, and its tags: jobs that ask for it may get the peer now."""
        peer, state = self._peer(name), self.state
        before = peer.kind
        if peer.state == "idle":
            state.remove_idle(name)
        peer.version, peer.format, peer.tags = born.version, born.format, frozenset(born.tags)
        if peer.state == "idle":  # of its kind it is the one that came last
            state.by_state["idle"].move_to_end(name)
            state.add_idle(name)
            peer.order = self._rank()
        self._count(before, -1)
        self._count(peer.kind, 1)
        self.jobs |= dict.fromkeys(sorted((state.requiring | state.stale) & state.plans.keys()))
        if peer.assignment is not None:
            self.jobs[peer.assignment.job] = None

    def move(self, name: str, trigger: Trigger) -> None:
        """Move a peer to another state; its assignment stays."""
        state, peer = self.state, self._peer(name)
        del state.by_state[peer.state][name]
        if peer.state == "idle":
            state.remove_idle(name)
        if trigger in ("die", "revoke") and peer.state != "revoked":
            self._count(peer.kind, -1)
        peer.state = peer_states.after(peer.state, trigger)
        if peer.state == "idle":
            state.add_idle(name)
        peer.since, peer.order = self.at, state.order
        state.order += 1
        state.by_state[peer.state][name] = None
        if peer.state == "dead":
            dead = state.by_state["dead"]
            while len(dead) > REMEMBERED_DEAD:
                del state.peers[dead.popitem(last=False)[0]]

    def leave(self, name: str, trigger: Trigger, *, failed: bool = False) -> None:
        """Move a peer to another state and off its task. If all remaining peers of the task are waiting, they become idle.

        Args:
            name: the peer.
            trigger: of the change of its state.
            failed: whether it leaves because it failed there.
        """
        peer = self._peer(name)
        if peer.assignment is None:
            self.move(name, trigger)
            return
        place = peer.assignment
        task = self._task(place.job, place.task)
        self._off(name, task, trigger, failed=failed)
        if all(self.state.peers[other].state == "waiting" for other in task.peers):
            for other in self.state.on_task(task):
                self._off(other, task, "release")
        if not task.peers and self.state.rules > 1:
            task.left = self.n

    def _off(self, name: str, task: Task, trigger: Trigger, *, failed: bool = False) -> None:
        """Take one peer off its task. Where it failed, or was revoked, its home is not preferred: the cause may lie there."""
        state, peer = self.state, self._peer(name)
        if peer.assignment is not None:
            place = peer.assignment
            state.held[place.job] -= 1
            if failed or trigger == "revoke":
                task.forget_home(place.slot)
            elif peer.state != "acking" and peer.home and self._goes_on(place.job, task):
                task.keep_home(place.slot, peer.home)
        self.mark(name, "")
        peer.assignment = None
        del task.peers[name]
        self.move(name, trigger)

    def _goes_on(self, job: str, task: Task) -> bool:
        """Whether the task may be offered again."""
        return self.state.rules > 2 and task.state != "complete" and not self.state.jobs[job].ended

    def mark(self, name: str, yields: Yields) -> None:
        """Set when a peer gives its task up."""
        peer = self.state.peers[name]
        if peer.yields == yields:
            return
        peer = self._peer(name)
        if peer.assignment is not None and "share" in (yields, peer.yields):
            job, giving = peer.assignment.job, self.state.giving
            count = giving.pop(job, 0) + (1 if yields == "share" else -1)
            if count:
                giving[job] = count
        peer.yields = yields

    def take_turns(self, name: str) -> None:
        """Have the peers of an unbounded job give their tasks up to a task without peers as soon as they have nothing to read;
        or no more, when each task has a peer.
        """
        state = self.state
        job, plan = state.jobs[name], state.plans.get(name)
        if plan is None or job.status != "running":
            return
        asked = [] if plan.bounded else [asked_of(job, plan, stage) for stage in asking(state, job, plan)]
        if not asked and name not in state.short:
            return
        state.short.discard(name)
        for stage in plan.stages:
            for other in state.on_task(job.tasks[stage]):
                peer = state.peers[other]
                if not any(state.fits(other, kind) for kind in asked):
                    if peer.yields in ("idle", "turn"):
                        self.mark(other, "")
                    continue
                if not peer.yields and peer.state in WORKING:
                    self.mark(other, "idle")
                if peer.yields in ("idle", "turn"):
                    state.short.add(name)
        if asked and state.held[name] > 1:
            for other in seconds(state, name):
                self.mark(other, "turn")

    def _count(self, kind: Kind, more: int) -> None:
        """One more or less live peer is of this kind. So jobs that not every peer can work for may ask for more or less."""
        state = self.state
        count = state.live_of.pop(kind, 0) + more
        if count:
            state.live_of[kind] = count
        if not count or count == more:
            self.kinds_changed = True
            state.stale |= state.requiring
        if state.restricted:
            state.stale |= state.restricted
            state.forget_targets()

    def take_pulse(self, name: str) -> None:
        """Have a dead peer's pulse removed."""
        self.state.peers[name].pulse_due = True
        self._outer.append(DeletePulse(name))

    def offer(self, offer: Offer) -> None:
        """Offer the smallest free slots of a task to idle peers (:func:`coordinator.core.homes.peers_for`)."""
        job = self.state.jobs[offer.job]
        task = self._task(offer.job, offer.task)
        asked = asked_of(job, self.state.plans[offer.job], offer.task)
        slots = list(islice(free_slots(task), offer.peers))
        for slot, name in peers_for(self.state, asked, slots, task.last, offer.kinds).items():
            self._peer(name).assignment = Assignment(self.n, offer.job, offer.task, slot)
            task.peers[name] = slot
            self.state.held[offer.job] += 1
            self.move(name, "offer")
        self.state.turn = job.number

    # Jobs

    def admit(self, name: str, spec: JobSpec, resumes: str = "", by: str = "") -> None:
        """Accept a job: it is being planned, and its topics must be created. No other job can resume the same one."""
        job = Job(
            self.n,
            self.n,
            spec,
            self.at,
            resumes=resumes,
            by=by,
            priority=spec.priority,
            weight=spec.weight,
            percentage=spec.percentage,
            max_peers=spec.max_peers,
        )
        if resumes:
            before = self.set_resumed(resumes, by=name)
            job.begins = {task: known.positions for task, known in before.tasks.items() if known.positions}
        self._record(name, job)
        self.need(name, spec_format(spec))
        job.tasks = {task.name: Task(self.n) for task in spec.catalog}
        self.state.names[spec.name] = name
        self.state.plans[name] = plan_of(self.state, name)
        for task_name, task in job.tasks.items():
            self._touched[node_paths.job_task(name, task_name)] = (task, None)
        self._outer.append(CreateLinks(name))

    def need(self, name: str, version: int) -> None:
        """From now on only peers that read this format get tasks of the job."""
        job = self.state.jobs[name]
        if version > max(OLDEST, job.needs) and self.state.rules > 1:
            job.needs = version
            self.state.stale.add(name)
            self.state.forget_targets()

    def release_unable(self, job: Job) -> None:
        """Take the peers off a job that cannot read it."""
        for task in job.tasks.values():
            for peer in self.state.on_task(task):
                if peer in task.peers and (self.state.peers[peer].format or OLDEST) < job.needs:
                    self.leave(peer, "release")

    def refuse(self, name: str, spec: JobSpec, error: Failure, by: str = "") -> None:
        """Refuse a job: it is recorded as failed, without tasks."""
        self._record(name, Job(self.n, self.n, spec, self.at, "failed", ended_at=self.at, error=error, by=by))
        self.state.expirable[name] = None

    def start(self, name: str, facts: dict[str, LinkFacts]) -> None:
        """The job's links exist, so it runs."""
        job, graph = self.job(name), self.state.plans[name].graph
        if job.stopping:
            facts = _stopped(graph, facts)
        job.status, job.links, job.facts = "running", "made", facts
        self.state.plans[name] = Plan(graph, facts, job.spec.tags)
        self.state.held[name] = 0
        self.state.stale.add(name)
        self._made.append(Create(node_paths.job_links(name), encode_note(LinksNote(facts))))
        self.state.jobs_with_capacity.add(name)

    def stop(self, name: str) -> None:
        """Let a job end where its inputs are committed. The tasks that read them are offered anew, so that their peers know."""
        job, graph = self.job(name), self.state.plans[name].graph
        job.stopping = True
        self.need(name, FORMAT)  # peers of the release before do not know how an input stops
        if job.facts is None:
            return
        facts, job.facts = job.facts, _stopped(graph, job.facts)
        self.state.plans[name] = Plan(graph, job.facts, job.spec.tags)
        self.state.stale.add(name)
        self._made.append(Set(node_paths.job_links(name), encode_note(LinksNote(job.facts))))
        for stage in graph.stages:
            if any(job.facts.get(link.name) != facts.get(link.name) for link in stage.ingress):
                task = self._task(name, stage.name)
                for peer in self.state.on_task(task):
                    if peer in task.peers:  # it may have become idle when another peer left
                        self.leave(peer, "release")

    def keep_links(self, name: str, keep: str | None) -> None:
        job = self.job(name)
        job.spec = replace(job.spec, keep=keep)
        self.need(name, spec_format(job.spec))
        self._made.append(Set(node_paths.job_spec(name), encode_spec(job.spec)))

    def end(self, name: str, status: JobStatus, error: Failure | None = None) -> None:
        """End a job: its peers become idle, no task backs off any more, and its topics must be deleted."""
        self.waits_for(name, 0)
        job = self.job(name)
        if job.facts is None and job.resumes in self.state.jobs:  # it has read nothing, so another job can go on there
            self.set_resumed(job.resumes, by="")
        job.status, job.ended_at, job.error = status, self.at, error
        for task_name, task in job.tasks.items():
            self.set_backing_off(name, task_name, backing_off=False)
            task.last = []
            for peer in self.state.on_task(task):
                if peer in task.peers:  # it may have become idle when another peer left
                    self.leave(peer, "release")
        del self.state.plans[name], self.state.names[job.spec.name]
        self.set_queued(name, queued=False)
        self.state.jobs_with_capacity.discard(name)
        self.state.short.discard(name)
        self.state.held.pop(name, None)
        self.state.stale.add(name)
        self._outer.append(DeleteLinks(name))

    def links_came_late(self, name: str) -> None:
        """Topics may have been created after the deletion for the ended job: delete them again."""
        job = self.job(name)
        job.links, job.letters = "made", 0  # counted again when they are gone
        self.state.expirable.pop(name, None)
        self._outer.append(DeleteLinks(name))

    def links_gone(self, name: str, last: LastCommits) -> None:
        """The topics and groups are deleted: keep what the groups had committed last."""
        job = self.job(name)
        job.links = "gone"
        for task_name in job.tasks:
            if job.tasks[task_name].counts is None and task_name in last.counts:
                self._task(name, task_name).counts = last.counts[task_name]
            job.tasks[task_name].letters = last.letters.get(task_name, job.tasks[task_name].letters)
        self.keep_positions(name, graph_of(job.spec, self.state.deployment, name), last.positions)
        job.letters = job.unclaimed_letters()
        if job.purge and (job.purge_letters or not job.letters):
            self.delete_job(name)
            return
        job.purge = False  # the job keeps its letters until a user gives them up
        if not job.letters:
            self.state.expirable[name] = None

    def keep_positions(
        self, name: str, graph: Graph, committed: Mapping[str, Mapping[str, Sequence[int | None]]]
    ) -> None:
        """Keep where tasks have come to in the user's topics, unless it is known. The first answer is the right one: a task
        that is complete commits nothing more.
        """
        job = self.state.jobs[name]
        if job.facts is None:
            return
        for stage in graph.stages:
            found = next_offsets(stage, job.facts, committed.get(stage.name, {}))
            if found and not job.tasks[stage.name].positions:
                self._task(name, stage.name).positions = found

    def claim_letters(self, name: str, task_name: str, letters: int) -> None:
        """So many dead letters of the task, all claims together, were redone or dropped.

        A job without further letters may expire from now on. It goes to the end of the row, so its letters stay for a
        while after the redo was submitted.
        """
        job = self.state.jobs[name]
        task = job.tasks[task_name]
        task.claimed = max(task.claimed, letters)
        left = job.unclaimed_letters()
        if job.links == "gone" and left != job.letters:
            self.job(name).letters = left
            if not left:
                self.state.expirable[name] = None

    def delete_job(self, name: str) -> None:
        """Delete an ended job from state and tree; only its id is remembered for a while."""
        job = self.state.jobs.pop(name)
        self.state.expirable.pop(name, None)
        self.jobs.pop(name, None)
        for path in reversed(job_nodes(name, job)):
            self._touched.pop(path, None)
            self._removed.append(Delete(path))
        purged = self.state.purged
        purged[name] = None
        while len(purged) > REMEMBERED_PURGED:
            purged.popitem(last=False)

    def task_is(self, job: str, name: str, state: TaskState, counts: Counts | None = None) -> None:
        """Set a task's state, and that of the bound tasks that mirror it. Setting the same state again changes nothing, so
        the job needs no further look.
        """
        if counts is None and self.state.jobs[job].tasks[name].state == state:
            return
        task = self._task(job, name)
        task.state = state
        self.state.stale.add(job)
        task.counts = counts or task.counts
        if state == "complete":
            task.last = []
            self.set_backing_off(job, name, backing_off=False)
        tasks = self.state.jobs[job].tasks
        for bound, stages in self.state.plans[job].graph.bound.items():
            if name in stages:
                complete = all(tasks[stage].state == "complete" for stage in stages)
                self._task(job, bound).state = "complete" if complete else "running"

    def task_failed(self, job: str, name: str, error: Failure, *, passing: bool) -> Task:
        """Count a failure, and keep the first error that counts for the limit, or else the last one. If the last failure was
        long ago, the count starts again.
        """
        self.set_backing_off(job, name, backing_off=False)
        task = self._task(job, name)
        if task.failed_at is not None and self.at - task.failed_at > FORGIVEN:
            task.failures, task.passing, task.error = 0, 0, None
        if task.failures == task.passing:  # none counts so far
            task.error = error
        task.failures += 1
        task.passing += passing
        task.failed_at = self.at
        return task

    def set_backing_off(self, job: str, name: str, *, backing_off: bool) -> None:
        """Begin or end a task's back-off, in which it is not offered."""
        if self.state.jobs[job].tasks[name].backing_off != backing_off:
            task = self._task(job, name)
            self.state.forget_backoff(job, name, task)
            task.backing_off = backing_off
            self.state.note_backoff(job, name, task)

    def waits_for(self, name: str, peers: int) -> None:
        """Set how many more peers a job needs; it also keeps since when it needs any."""
        if self.state.jobs[name].waits_for != peers:
            job = self.job(name)
            self.state.missing += peers - job.waits_for
            job.waits_for = peers
            job.waits_since = None if not peers else self.at if job.waits_since is None else job.waits_since

    def set_queued(self, name: str, *, queued: bool) -> None:
        """Set whether a job must wait until other jobs leave it the peers without which it cannot go on."""
        if self.state.jobs[name].queued != queued:
            self.job(name).queued = queued
            (self.state.queued.add if queued else self.state.queued.discard)(name)

    def scale(self, name: str, values: Mapping[str, object]) -> None:
        """Change what a job is entitled to."""
        job = self.state.jobs[name]
        for field, value in values.items():
            setattr(job, field, value)
        if job.status == "running":
            self.jobs[name] = None
            self.state.stale.add(name)
            self.state.jobs_with_capacity.add(name)
            self.state.forget_targets()

    def schedule(self, scheduler: Scheduler) -> None:
        """Divide the peers by another rule."""
        self.state.scheduler = scheduler
        self.state.forget_targets()
        self.jobs |= dict.fromkeys(name for name in self.state.plans if self.state.jobs[name].status == "running")

    def set_resumed(self, name: str, by: str) -> Job:
        """Set which job goes on from the positions of this one. It goes to the end of the row of those that may expire."""
        job = self.job(name)
        job.resumed_by = by
        if name in self.state.expirable:
            self.state.expirable.move_to_end(name)
        return job

    # The notes from before the first change

    def job(self, name: str) -> Job:
        """A job that the caller is about to change."""
        job = self.state.jobs[name]
        self.jobs[name] = None
        path = node_paths.job_status(name)
        if path not in self._touched:
            self._touched[path] = (job, job.note())
        return job

    def _task(self, job_name: str, name: str) -> Task:
        job = self.state.jobs[job_name]
        self.jobs[job_name] = None
        if job.status == "running":
            self.state.jobs_with_capacity.add(job_name)
        task = job.tasks[name]
        path = node_paths.job_task(job_name, name)
        if path not in self._touched:
            self._touched[path] = (task, task.note())
        return task

    def _peer(self, name: str) -> Peer:
        peer = self.state.peers[name]
        path = node_paths.peer_state(name)
        if path not in self._touched:
            self._touched[path] = (peer, peer.note())
        return peer

    def _record(self, name: str, job: Job) -> None:
        self.state.jobs[name] = job
        self.jobs[name] = None
        self._made += [
            Create(node_paths.job(name)),
            Create(node_paths.job_spec(name), encode_spec(job.spec)),
            Create(node_paths.job_tasks(name)),
        ]
        self._touched[node_paths.job_status(name)] = (job, None)

    def _rank(self) -> int:
        rank = self.state.order
        self.state.order += 1
        return rank


def _stopped(graph: Graph, facts: dict[str, LinkFacts]) -> dict[str, LinkFacts]:
    """The facts of a job's links from when it was stopped: its inputs without an end stop."""
    endless = {link.name for link in graph.links if is_endless(link)}
    return {name: replace(known, stops=True) if name in endless else known for name, known in facts.items()}
