"""What the coordinator decides on an event about a job: one handler for each event. Pure.

The rules of :mod:`coordinator.core.decide` hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from coordinator.core.admission import refusal, resume_refusal
from coordinator.core.changeset import ChangeSet
from coordinator.core.state import Job, State
from coordinator.core.stored_state import derive, refuse_newer_rules
from sardonyx.core import units
from sardonyx.core.changing import change_failure, changes_queues, finished
from sardonyx.core.errors import Failure, InputError, failure_of
from sardonyx.core.events import (
    UNKNOWN_JOB,
    Checkpointed,
    JobChanged,
    JobKilled,
    JobPurged,
    JobRestarted,
    JobRolledBack,
    JobScaled,
    JobStopped,
    JobSubmitted,
    LastCommits,
    LettersClaimed,
    LinkFacts,
    LinkLost,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksKept,
    LinksRead,
    PolicySet,
    Restored,
    RulesRaised,
)
from sardonyx.core.going_back import adopting, last_at
from sardonyx.core.graph import graph_of
from sardonyx.core.names import is_job_id
from sardonyx.core.positions import continued
from sardonyx.core.resizing import awake, resized, unprepared
from sardonyx.core.spec import JobSpec
from sardonyx.core.structure import share_problems
from sardonyx.core.topics_anew import ids_after, other_topics
from sardonyx.core.untouched import untouched


def _policy_set(changes: ChangeSet, event: PolicySet) -> None:
    if changes.state.scheduler != event.scheduler:
        changes.schedule(event.scheduler)


def _job_scaled(changes: ChangeSet, event: JobScaled) -> None:
    """What the event leaves out stays as it is. A value that is not valid, or of a job that has ended, changes nothing."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.ended:
        return
    given = {name: getattr(event, name) for name in ("priority", "weight", "percentage", "max_peers")}
    found = {name: value for name, value in given.items() if value is not None and value != getattr(job, name)}
    found |= {name: found[name] or None for name in ("percentage", "max_peers") if name in found}  # 0 takes it back
    if next(share_problems(**found), None) is not None:
        return
    if event.suspended is True and not job.suspended:
        found["suspended"] = True
    if found:
        changes.scale(event.job, found)
    if event.suspended is False and job.suspended:
        changes.resume(event.job)


def _spec_changed(changes: ChangeSet, event: JobChanged) -> None:
    """Only of a running job that is as it was when the user compared it, and only what can be changed in it."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.status != "running" or job.stopping or job.next_spec is not None or job.spec == event.spec:
        return
    if job.revision != event.revision or refusal(event.job, event.spec, None) is not None:
        return
    if (
        change_failure(event.job, job.spec, event.spec, event.drop, job.retired) is not None
        or job.gone_spec is not None
    ):
        return
    resizes = resized(job.spec, event.spec)
    if resizes and unprepared(job.spec, event.spec):
        return
    if changes.state.rules < 4 and (job.spec.partitions != event.spec.partitions or _rests(event.spec)):
        return
    before, after = changes.state.plans[event.job].graph, graph_of(event.spec, changes.state.deployment, event.job)
    if not finished(before, after, job.complete, resizes=resizes):
        goes_on = untouched(job.spec, event.spec, event.same, job.facts or {}, changes.state.rules)
        changes.change(event.job, event.spec, [] if job.suspended else goes_on)


def _rests(spec: JobSpec) -> bool:
    return spec.next_partitions is not None


def _is_new(changes: ChangeSet, job: str) -> bool:
    """Whether this can be the id of a job, and was not that of one."""
    return is_job_id(job) and job not in changes.state.jobs and job not in changes.state.purged


def _submitted(changes: ChangeSet, event: JobSubmitted) -> None:
    """A known id is a repetition, even if its job was deleted. An invalid id is ignored: it cannot be the name of a node."""
    if not _is_new(changes, event.job):
        return
    state = changes.state
    error = refusal(event.job, event.spec, state.names.get(event.spec.name))
    if error is None and event.resumes:
        told = event.resumes, state.jobs, event.resumes_at, event.replays
        error = resume_refusal(event.job, event.spec, *told, reshards=state.rules > 3)
    if error is not None:
        changes.refuse(event.job, event.spec, error, event.by)
        return
    replays = event.replays if event.resumes else None
    point = replays
    if event.resumes and point is None and event.resumes_at is not None:
        point = last_at(state.jobs[event.resumes].checkpoints, event.resumes_at)
    changes.admit(event.job, event.spec, event.resumes, event.by, point, replays=replays is not None)


def refused(changes: ChangeSet, event: JobSubmitted, error: Failure) -> None:
    """Refuse a job, unless its id is known or invalid."""
    if _is_new(changes, event.job):
        changes.refuse(event.job, event.spec, error, event.by)


def _links_created(changes: ChangeSet, event: LinksCreated) -> None:
    """If the job has ended meanwhile, its topics must be deleted again: nothing else would delete them. For a change, only the
    topics count of the revision that the job waits for. The coordinator gives the change up if a new task was to read an input
    that has been read to its end meanwhile: what is complete stays so.
    """
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning" and not event.revision:
        job.topics = event.topics
        try:
            graph = changes.state.plans[event.job].graph
            facts = continued(graph, event.links, job.begins, _made_anew(changes.state, job, event.topics))
            if job.borrows:
                earlier = _earlier_facts(changes.state, job)
                facts = adopting(graph, facts, job.adopts, job.resumes_at, job.clocks, earlier)
        except InputError as error:
            changes.end(event.job, "failed", failure_of(error, where={"job": event.job}))
            job.links = "made"
        else:
            changes.start(event.job, facts)
    elif job.next_spec is not None and job.switching and event.revision == job.revision + 1:
        _links_of_change(changes, event, job.next_spec)
    elif job.ended and job.links != "made":
        changes.links_came_late(event.job)


def _made_anew(state: State, job: Job, now: Mapping[str, str]) -> set[str]:
    """The topics that have another id than when the job was submitted that this one goes on from."""
    before = state.jobs.get(job.resumes)
    return set() if before is None else other_topics(before.topics, now)


def _earlier_facts(state: State, job: Job) -> Mapping[str, LinkFacts]:
    """The facts of the links of the job that this one goes on from. By rules before 4 it goes by none of them."""
    before = state.jobs.get(job.resumes) if state.rules > 3 else None
    return {} if before is None else before.facts or {}


def _links_of_change(changes: ChangeSet, event: LinksCreated, spec: JobSpec) -> None:
    """The links of the version that the job waits for are made."""
    job = changes.state.jobs[event.job]
    before, graph = changes.state.plans[event.job].graph, graph_of(spec, changes.state.deployment, event.job)
    resizes = resized(job.spec, spec)
    if changes.state.rules > 3 and finished(before, graph, job.complete, resizes=resizes):
        changes.keep_spec(event.job)
    elif not changes_queues(before, graph, resizes=resizes):
        changes.swap_spec(event.job, spec)
    elif all(link.name in event.links for link in graph.links):
        job.topics = ids_after(job.topics, event.topics, before, graph)
        changes.swap_spec(event.job, spec, event.links)


def _links_failed(changes: ChangeSet, event: LinksFailed) -> None:
    """Some of the topics may exist, so they are handled as if all did."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning" and not event.revision:
        changes.end(event.job, "failed", event.error)
        job.links = "made"  # in part; a repetition of the event then changes nothing
    elif job.switching and event.revision == job.revision + 1:
        changes.keep_spec(event.job)
    elif job.ended and job.links != "made":
        changes.links_came_late(event.job)


def _checkpointed(changes: ChangeSet, event: Checkpointed) -> None:
    """Keep the checkpoint if the job runs, by the spec that it is about, and has kept none as late. Rules before 4 keep none."""
    job = changes.state.jobs.get(event.job)
    if changes.state.rules < 4 or job is None or job.status != "running" or job.revision != event.revision:
        return
    if not job.checkpoints or job.checkpoints[-1].at < event.point.at:
        changes.keep_checkpoint(event.job, event.point)


def _link_lost(changes: ChangeSet, event: LinkLost) -> None:
    """Fail the job as if a task that reads the link had found it, unless its spec has changed since, or it has failed already."""
    job = changes.state.jobs.get(event.job)
    if job is not None and job.status == "running" and job.revision == event.revision and not job.suspended:
        changes.fail(event.job, event.error)


def _links_read(changes: ChangeSet, event: LinksRead) -> None:
    """The first answer is the right one: no peer commits anything after it. None is right once the links are gone."""
    job = changes.state.jobs.get(event.job)
    if job is not None and job.ended and job.must_be_read and job.links != "gone":
        last = LastCommits(event.counts, event.positions, checkpoints=event.checkpoints, end=event.end)
        changes.links_read(event.job, last)


def _links_deleted(changes: ChangeSet, event: LinksDeleted) -> None:
    job = changes.state.jobs.get(event.job)
    if job is not None and job.ended and not job.refused and job.links != "gone":
        changes.links_gone(event.job, LastCommits(event.counts, event.positions, event.letters))
        if job.into:
            _followed(changes, event.job)


def _followed(changes: ChangeSet, name: str) -> None:
    """What a job had committed last is known: the one that is to go on from there is submitted. It is entitled to what this one
    is, if its spec does not say something else than the spec of this one.
    """
    job = changes.job(name)
    into, job.into = job.into, ""
    asked, job.into_spec = job.into_spec, None
    spec = awake(job.spec if asked is None else asked)
    shares = ("priority", "weight", "percentage", "max_peers")
    kept = {
        each: getattr(job, each)
        for each in shares
        if getattr(spec, each) == getattr(job.spec, each) != getattr(job, each)
    }
    at = job.into_at if asked is None else None
    _submitted(
        changes,
        JobSubmitted(at=changes.at, job=into, spec=replace(spec, **kept), resumes=name, resumes_at=at, by=job.into_by),
    )
    if not job.lends:
        changes.settle(name)
        if into in changes.state.expirable:  # the other one was refused, and both may expire: this one first
            changes.state.expirable.move_to_end(into)


def _rolled_back(changes: ChangeSet, event: JobRolledBack) -> None:
    """Only of a running job with checkpoints, and into one that is not known. It ends as if it was killed."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.status != "running" or job.stopping or not _is_new(changes, event.into):
        return
    if changes.state.plans[event.job].graph.checkpoint_every is None:
        return
    job.into, job.into_at, job.into_by = event.into, event.to, event.by
    changes.end(event.job, "killed")


def _restarted(changes: ChangeSet, event: JobRestarted) -> None:
    """Only of a running job that is as it was when the user looked, that has no end of its own, and into one that is not known.
    It ends as if it was stopped.
    """
    job = changes.state.jobs.get(event.job)
    if changes.state.rules < 4 or job is None or job.status != "running" or job.stopping or job.next_spec is not None:
        return
    if job.revision != event.revision or changes.state.plans[event.job].bounded or not _is_new(changes, event.into):
        return
    if refusal(event.into, event.spec, None) is None:
        job.into, job.into_spec, job.into_by = event.into, event.spec, event.by
        changes.stop(event.job, closes=False)


def _links_dropped(changes: ChangeSet, event: LinksDropped) -> None:
    """What a change has removed is gone; the job can be changed again."""
    job = changes.state.jobs.get(event.job)
    if job is not None and job.gone_spec is not None and job.revision == event.revision:
        job.gone_spec = None


def _stopped(changes: ChangeSet, event: JobStopped) -> None:
    """A bounded job is left alone: it ends by itself. A coordinator of the release before does not know of closing."""
    job = changes.state.jobs.get(event.job)
    if job is not None and not job.ended and not job.stopping and not changes.state.plans[event.job].bounded:
        changes.stop(event.job, closes=event.closes and changes.state.rules > 3)


def _links_kept(changes: ChangeSet, event: LinksKept) -> None:
    """Nothing depends on it but what the leader trims, so no peer needs to know."""
    job = changes.state.jobs.get(event.job)
    keep = units.written(event.seconds) if event.seconds else None
    if job is not None and not job.ended and job.spec.keep != keep:
        changes.keep_links(event.job, keep)


def _killed(changes: ChangeSet, event: JobKilled) -> None:
    job = changes.state.jobs.get(event.job)
    if job is not None and not job.ended:
        changes.end(event.job, "killed")


def _purged(changes: ChangeSet, event: JobPurged) -> None:
    """A job is deleted only after it has ended and its topics are gone; until then the coordinator must know whose they are.

    One with dead letters that were neither redone nor dropped stays, unless the user gives these up.
    """
    job = changes.state.jobs.get(event.job)
    if job is None or not job.ended:
        return
    if not job.purgeable:
        job.purge = True
        job.purge_letters = job.purge_letters or event.dead_letters
        changes.take_up(event.job)
    elif event.dead_letters or not job.letters:
        changes.delete_job(event.job)


def _letters_claimed(changes: ChangeSet, event: LettersClaimed) -> None:
    """The total says what all claims of the task come to, so a repetition changes nothing."""
    job = changes.state.jobs.get(event.job)
    if job is not None and event.task in job.tasks:
        changes.claim_letters(event.job, event.task, event.letters)


def _restored(changes: ChangeSet, event: Restored) -> None:
    """A refused job has read nothing, so nothing of it can be lost."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if not job.ended:
        changes.end(event.job, "failed", event.error)
    if not job.resumed_by:
        changes.set_resumed(event.job, by=UNKNOWN_JOB)


# Rules


def _rules_raised(changes: ChangeSet, event: RulesRaised) -> None:
    """What follows from the state may follow otherwise by the new rules. So it is computed again, and work is offered anew."""
    refuse_newer_rules(event.rules)
    if event.rules > changes.state.rules:
        changes.state.rules = event.rules
        derive(changes.state)
        for name in changes.state.plans:
            changes.job(name)


HANDLERS: dict[type, Callable[[ChangeSet, Any], None]] = {
    PolicySet: _policy_set,
    JobScaled: _job_scaled,
    JobChanged: _spec_changed,
    JobSubmitted: _submitted,
    LinksCreated: _links_created,
    LinksFailed: _links_failed,
    Checkpointed: _checkpointed,
    LinkLost: _link_lost,
    LinksRead: _links_read,
    LinksDeleted: _links_deleted,
    LinksDropped: _links_dropped,
    JobStopped: _stopped,
    JobRolledBack: _rolled_back,
    JobRestarted: _restarted,
    LinksKept: _links_kept,
    JobKilled: _killed,
    JobPurged: _purged,
    LettersClaimed: _letters_claimed,
    Restored: _restored,
    RulesRaised: _rules_raised,
}
