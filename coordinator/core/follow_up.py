"""What follows from an event that has changed a job, or the number of idle peers. Pure.

Jobs that are to be changed go on by their next spec. Then idle peers are offered work, and peers that others wait for are to give
their tasks up. Last, the number of peers that each job misses is computed again.
"""

from __future__ import annotations

from coordinator.core import scheduling
from coordinator.core.changeset import ChangeSet
from coordinator.core.entitlement import queued
from coordinator.core.state import State
from sardonyx.core.changing import finished, rewired
from sardonyx.core.graph import graph_of
from sardonyx.core.resizing import resized
from sardonyx.core.spec import JobSpec


def follow_up(changes: ChangeSet) -> None:
    """Decide what follows from the changes of one event."""
    _swap_specs(changes)
    _queue_jobs(changes)
    _offer_work(changes)
    for job in dict.fromkeys([*_changed(changes), *_with_declines(changes.state)]):
        changes.take_turns(job)
    _count_missing(changes)


def _swap_specs(changes: ChangeSet) -> None:
    """A job that is to be changed goes on by its next spec when the last peer has left the tasks that the change touches, these
    are fenced, it is known where they stand, and the queues are made that it has by that spec. By the rules before 4, only those
    are fenced whose queues come or go.
    """
    state = changes.state
    for name in [name for name in changes.jobs if name in state.plans]:
        job = state.jobs[name]
        touched = (task for task_name, task in job.tasks.items() if task_name not in job.goes_on)
        if job.next_spec is not None and not job.switching and not any(task.peers for task in touched):
            _swap_spec(changes, name, job.next_spec)


def _swap_spec(changes: ChangeSet, name: str, spec: JobSpec) -> None:
    state, job = changes.state, changes.state.jobs[name]
    before, after = state.plans[name].graph, graph_of(spec, state.deployment, name)
    touches = state.rules > 3 and any(stage.name not in job.goes_on for stage in before.stages)
    if not touches and not rewired(before, after):
        changes.swap_spec(name, spec)
    elif finished(before, after, job.complete, resizes=resized(job.spec, spec)):  # since the user has asked
        changes.keep_spec(name)
    else:
        changes.switch(name)


def _queue_jobs(changes: ChangeSet) -> None:
    """Jobs whose floors cannot be given are queued; those whose floors can be given now, no more."""
    state = changes.state
    wanted = queued(state)
    if wanted != state.queued:
        for job in sorted(wanted ^ state.queued):
            changes.set_queued(job, queued=job in wanted)


def _offer_work(changes: ChangeSet) -> None:
    """Idle peers get work. Bounded jobs that could not go on otherwise preempt peers of their own: the oldest such job first."""
    while True:
        while (offer := scheduling.next_offer(changes.state)) is not None:
            changes.offer(offer)
        jobs = _in_question(changes)
        if not jobs:
            return
        oldest = sorted(jobs, key=lambda job: changes.state.jobs[job].number)
        back = next(filter(None, (scheduling.preemption(changes.state, job) for job in oldest)), None)
        if back is None:
            return
        for peer in back.peers:
            changes.leave(peer, "release")
        for offer in back.offers:
            changes.offer(offer)


def _count_missing(changes: ChangeSet) -> None:
    for job in _in_question(changes):
        changes.waits_for(job, scheduling.waits_for(changes.state, job))


def _in_question(changes: ChangeSet) -> list[str]:
    """The running jobs that may get other peers after this event: those that it changed; if the number of idle peers changed, all
    that have capacity; and else the queued ones that hold peers, since what they may do depends on what other jobs ask for, and
    those with a task that was declined, since it may be offered to some of the idle peers only.
    """
    state, touched = changes.state, _changed(changes)
    holding = [*(name for name in state.queued if state.held[name]), *_with_declines(state)]
    others = state.jobs_with_capacity if changes.free_changed else holding
    touched = list(dict.fromkeys([*touched, *sorted(others)]))
    return [job for job in touched if state.jobs[job].status == "running"]


def _with_declines(state: State) -> list[str]:
    """The jobs with a task that backs off only for those who declined it."""
    rows = state.backing_off.values()
    return sorted({job for row in rows for _, job, task in row if state.jobs[job].tasks[task].declined})


def _changed(changes: ChangeSet) -> list[str]:
    """The jobs that the event changed, and those that ask for certain peers if other kinds of peers are there now."""
    if not changes.kinds_changed:
        return list(changes.jobs)
    return list(dict.fromkeys([*changes.jobs, *sorted(changes.state.requiring)]))


__all__ = ["follow_up"]
