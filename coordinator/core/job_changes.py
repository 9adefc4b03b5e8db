"""The changes that one decision makes to jobs: from the submission to the day on which they are forgotten. Pure.

:class:`coordinator.core.changeset.ChangeSet` adds those by which a running job goes on by another spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from coordinator.core.peer_changes import PeerChanges
from coordinator.core.plan import Plan
from coordinator.core.projection import encode_note, job_nodes
from coordinator.core.state import (
    REMEMBERED_PURGED,
    Job,
    Task,
    plan_of,
)
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, CreateLinks, Delete, DeleteLinks, DropLinks, ReadLinks, Set
from sardonyx.core.errors import Failure
from sardonyx.core.events import OLDEST, Counts, JobStatus, LastCommits, LinkFacts, Scheduler, TaskState
from sardonyx.core.going_back import adopted_at_end, adopted_by, begins_of, state_topics
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.notes import LinksNote
from sardonyx.core.positions import next_offsets, stopped
from sardonyx.core.resizing import RESTING, awake
from sardonyx.core.spec import JobSpec, encode_spec
from sardonyx.core.state_points import CheckpointPoint

LOGGED = 2
"""Checkpoints of a running job that are kept. The logs of its states must hold all since the first of them."""
FORGIVEN = 600.0
"""Seconds after which an earlier failure no longer counts: a job that runs for months will see many."""


class JobChanges(PeerChanges):
    """The changes that one event makes to jobs."""

    __slots__ = ()

    def admit(
        self,
        name: str,
        spec: JobSpec,
        resumes: str = "",
        by: str = "",
        point: CheckpointPoint | None = None,
        *,
        replays: bool = False,
    ) -> None:
        """Accept a job: it is being planned, and its topics must be created. No other job can resume the same one. ``point``: it
        goes on from this checkpoint of it; ``replays``: without taking anything over, so other jobs can.
        """
        job = Job(
            self.n,
            self.n,
            spec,
            self.at,
            resumes=resumes,
            replays=replays,
            by=by,
            priority=spec.priority,
            weight=spec.weight,
            percentage=spec.percentage,
            max_peers=spec.max_peers,
        )
        if resumes and point is not None:
            if not replays:
                job.instead_of = self.state.jobs[resumes].resumed_by
                self.set_resumed(resumes, by=name)
            self._lend(job, resumes, point)
        elif resumes:
            before = self.set_resumed(resumes, by=name)
            job.begins = {task: known.positions for task, known in before.tasks.items() if known.positions}
            if before.end is not None:
                graph = graph_of(before.spec, self.state.deployment, resumes)
                job.adopts, job.clocks = adopted_at_end(before.end, state_topics(graph)), before.end.clocks
                self._keep_state(before, resumes)
        self._record(name, job)
        job.tasks = {task.name: Task(self.n) for task in spec.catalog}
        self.state.names[spec.name] = name
        self.state.plans[name] = plan_of(self.state, name)
        for task_name, task in job.tasks.items():
            self._touched[node_paths.job_task(name, task_name)] = (task, None)
        self._outer.append(CreateLinks(name))

    def _lend(self, job: Job, resumes: str, point: CheckpointPoint) -> None:
        """A job goes on from a checkpoint of another one, whose state must stay as long as it runs."""
        before = self.job(resumes)
        self._keep_state(before, resumes)
        graph = graph_of(before.spec, self.state.deployment, resumes)
        job.resumes_at = point.at
        job.begins = begins_of(point, graph, before.facts or {})
        job.adopts = adopted_by(point, state_topics(graph))

    def _keep_state(self, job: Job, name: str) -> None:
        """Another job begins with the state of this one."""
        job.lends = True
        self.state.expirable.pop(name, None)

    def _stop_lending(self, name: str, ended: str) -> None:
        """A job that began with the state of this one has ended. Others may not have."""
        others = (self.state.jobs[other] for other in self.state.plans if other != ended)
        if any(other.borrows and other.resumes == name for other in others):
            return
        job = self.job(name)
        job.lends = False
        if job.links == "gone":
            self.settle(name)

    def settle(self, name: str) -> None:
        """The topics of a job are gone, and no job needs its state: delete it if a user wants that, or let it expire."""
        job = self.job(name)
        job.left_alone = False
        if job.purge and (job.purge_letters or not job.letters):
            self.delete_job(name)
            return
        job.purge = False  # the job keeps its letters until a user gives them up
        if not job.letters:
            self.state.expirable[name] = None

    def need(self, name: str, version: int) -> None:
        """From now on only peers that read this format get tasks of the job."""
        job = self.state.jobs[name]
        if version > max(OLDEST, job.needs):
            job.needs = version
            self.state.stale.add(name)
            self.state.forget_targets()

    def refuse(self, name: str, spec: JobSpec, error: Failure, by: str = "") -> None:
        """Refuse a job: it is recorded as failed, without tasks."""
        self._record(name, Job(self.n, self.n, spec, self.at, "failed", ended_at=self.at, error=error, by=by))
        self.state.expirable[name] = None

    def start(self, name: str, facts: dict[str, LinkFacts]) -> None:
        """The job's links exist, so it runs."""
        job, graph = self.job(name), self.state.plans[name].graph
        if job.stopping:
            facts = stopped(graph, facts, closes=job.closes)
        job.status, job.links, job.facts = "running", "made", facts
        self.state.plans[name] = Plan(graph, facts, job.spec.tags, self.state.rules)
        self.state.held[name] = 0
        self.state.stale.add(name)
        self._made.append(Create(node_paths.job_links(name), encode_note(LinksNote(facts, job.topics))))
        self.state.jobs_with_capacity.add(name)

    def stop(self, name: str, *, closes: bool) -> None:
        """Let a job end where its inputs are committed. The tasks that read them are offered anew, so that their peers know."""
        job, graph = self.job(name), self.state.plans[name].graph
        job.stopping, job.closes = True, closes
        if not job.switching:  # what is begun on Kafka is brought to its end
            job.next_spec, job.goes_on = None, []
        if job.suspended:  # what it has read must go through it
            self.resume(name)
        if job.facts is None:
            return
        facts, job.facts = job.facts, stopped(graph, job.facts, closes=closes)
        rests = job.spec.next_partitions is not None
        if rests:  # its inputs are read to where they end
            job.spec = awake(job.spec)
            self._made.append(Set(node_paths.job_spec(name), encode_spec(job.spec)))
            graph = graph_of(job.spec, self.state.deployment, name)
        self.state.plans[name] = Plan(graph, job.facts, job.spec.tags, self.state.rules)
        self.state.stale.add(name)
        self._made.append(Set(node_paths.job_links(name), encode_note(LinksNote(job.facts, job.topics))))
        for stage in graph.stages:
            stood_still = rests and any(link.kind in RESTING for link in stage.ingress)
            if stood_still or any(job.facts.get(link.name) != facts.get(link.name) for link in stage.ingress):
                task = self._task(name, stage.name)
                for peer in self.state.on_task(task):
                    if peer in task.peers:  # it may have become idle when another peer left
                        self.leave(peer, "release")

    def keep_links(self, name: str, keep: str | None) -> None:
        job = self.job(name)
        job.spec = replace(job.spec, keep=keep)
        self._made.append(Set(node_paths.job_spec(name), encode_spec(job.spec)))

    def end(self, name: str, status: JobStatus, error: Failure | None = None) -> None:
        """End a job: its peers become idle, no task backs off any more, and its topics must be deleted."""
        self.waits_for(name, 0)
        job = self.job(name)
        if job.facts is None and not job.replays and job.resumes in self.state.jobs:
            self.set_resumed(job.resumes, by=job.instead_of)  # it has read nothing, so another job can go on there
        if job.borrows:
            self._stop_lending(job.resumes, name)
        job.status, job.ended_at, job.error = status, self.at, error
        if job.into_spec is not None and status != "stopped":  # another one could not go on from where it was left
            job.into, job.into_spec = "", None
        if job.switching:  # what may have been made of its next spec goes, too
            job.gone_spec = job.next_spec
            self._outer.append(DropLinks(name))
        job.suspended, job.next_spec, job.goes_on, job.switching, job.former = False, None, [], False, None
        for task_name, task in job.tasks.items():
            self.set_backing_off(name, task_name, backing_off=False)
            task.forget_homes()
            for peer in self.state.on_task(task):
                if peer in task.peers:  # it may have become idle when another peer left
                    self.leave(peer, "release")
        del self.state.plans[name], self.state.names[job.spec.name]
        self.set_queued(name, queued=False)
        self.state.jobs_with_capacity.discard(name)
        self.state.short.discard(name)
        self.state.held.pop(name, None)
        self.state.stale.add(name)
        self._outer.append(ReadLinks(name) if job.must_be_read else DeleteLinks(name))

    def links_came_late(self, name: str) -> None:
        """Topics may have been created after the deletion for the ended job: delete them again."""
        job = self.job(name)
        job.links, job.letters = "made", 0  # counted again when they are gone
        self.state.expirable.pop(name, None)
        self._outer.append(DeleteLinks(name))

    def keep_checkpoint(self, name: str, point: CheckpointPoint) -> None:
        """A running job can go back to this checkpoint, whatever becomes of its positions."""
        job = self.job(name)
        job.checkpoints = [*job.checkpoints, point][-LOGGED:]

    def links_read(self, name: str, last: LastCommits) -> None:
        """What the groups had committed last is known: keep it, and delete topics and groups."""
        job = self.job(name)
        job.read = True
        self._keep_last(name, last)
        job.checkpoints = last.checkpoints or job.checkpoints
        job.end = last.end if job.status == "stopped" and not job.closes else None
        self._outer.append(DeleteLinks(name))

    def take_up(self, name: str) -> None:
        """If nothing more was done about an ended job, try again to delete its topics."""
        job = self.state.jobs[name]
        if job.left_alone:
            job.left_alone = False
            self._outer += [DropLinks(name)] if job.gone_spec is not None else []
            self._outer.append(ReadLinks(name) if job.must_be_read else DeleteLinks(name))

    def links_gone(self, name: str, last: LastCommits) -> None:
        """The topics and groups are deleted: keep what the groups had committed last."""
        job = self.job(name)
        job.links = "gone"
        self._keep_last(name, last)
        for task_name in job.tasks:
            job.tasks[task_name].letters = last.letters.get(task_name, job.tasks[task_name].letters)
        job.letters = job.unclaimed_letters()
        if not job.lends and not job.into:
            self.settle(name)

    def _keep_last(self, name: str, last: LastCommits) -> None:
        """Counts and positions of tasks of which they are not known yet."""
        job = self.state.jobs[name]
        for task_name in job.tasks:
            if job.tasks[task_name].counts is None and task_name in last.counts:
                self._task(name, task_name).counts = last.counts[task_name]
        self.keep_positions(name, graph_of(job.spec, self.state.deployment, name), last.positions)

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
            if not left and not job.lends:
                job.left_alone = False
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
            task.forget_homes()
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
        """Begin or end a task's back-off, in which it is not offered; see also :meth:`set_declined`."""
        if self.state.jobs[job].tasks[name].backing_off != backing_off:
            task = self._task(job, name)
            self.state.forget_backoff(job, name, task)
            task.backing_off, task.declined = backing_off, []
            self.state.note_backoff(job, name, task)

    def set_declined(self, job: str, name: str, home: str) -> None:
        """A task that backs off was declined, or an offer of it not answered: it backs off for this home, and for those of which
        that was so before. Without a home, for all.
        """
        task = self._task(job, name)
        task.declined = sorted({*task.declined, home}) if home else []

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
        job = self.job(name) if "suspended" in values else self.state.jobs[name]
        for field, value in values.items():
            setattr(job, field, value)
        if job.status == "running":
            self.jobs[name] = None
            self.state.stale.add(name)
            self.state.jobs_with_capacity.add(name)
            self.state.forget_targets()

    def resume(self, name: str) -> None:
        """Let a suspended job have peers again."""
        self._forgive(name)
        self.scale(name, {"suspended": False})

    def _forgive(self, name: str) -> None:
        """What failed before does not count any more."""
        job = self.job(name)
        job.error = None
        for task_name in job.tasks:
            self.set_backing_off(name, task_name, backing_off=False)
            if job.tasks[task_name].failures:
                task = self._task(name, task_name)
                task.failures, task.passing, task.error, task.failed_at = 0, 0, None, None

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

    def _record(self, name: str, job: Job) -> None:
        self.state.jobs[name] = job
        self.jobs[name] = None
        self._made += [
            Create(node_paths.job(name)),
            Create(node_paths.job_spec(name), encode_spec(job.spec)),
            Create(node_paths.job_tasks(name)),
        ]
        self._touched[node_paths.job_status(name)] = (job, None)
