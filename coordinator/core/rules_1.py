"""Rules 1: what the release before this one decided differently. Pure.

A log that it wrote is replayed by its rules, so that the state is what its coordinator made of it. Once all coordinators know
rules 2, no new decision follows these. Delete this module when no release reads format 4 any more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection
from typing import Any

from coordinator.core.changeset import ChangeSet
from coordinator.core.peer_states import WORKING
from coordinator.core.plan import Plan
from coordinator.core.scheduling import Offer
from coordinator.core.state import Job, State, Task
from sardonyx.core.errors import Failure
from sardonyx.core.events import AckTimedOut, Declined, LastCommits, LinksCreated, LinksDeleted, TaskFailed
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment


def offer_work(changes: ChangeSet) -> None:
    """Idle peers get work. Jobs that could not end otherwise take peers off their later tasks."""
    state = changes.state
    while True:
        while (offer := _next_offer(state)) is not None:
            changes.offer(offer)
        jobs = _in_question(changes)
        back = next(filter(None, (_preemption(state, job) for job in _in_turn(state, jobs))), None)
        if back is None:
            return
        peers, offer = back
        for peer in peers:
            changes.leave(peer, "release")
        changes.offer(offer)


def count_missing(changes: ChangeSet) -> None:
    for job in _in_question(changes):
        changes.waits_for(job, _waits_for(changes.state, job))


def _in_question(changes: ChangeSet) -> list[str]:
    known, touched = changes.state.jobs, changes.jobs
    if changes.free_changed:
        touched = dict.fromkeys([*touched, *sorted(changes.state.jobs_with_capacity)])
    return [job for job in touched if known[job].status == "running"] if touched else []


# Handlers


def _held(changes: ChangeSet, event: AckTimedOut | Declined | TaskFailed) -> Assignment | None:
    peer = changes.state.peers.get(event.peer)
    place = None if peer is None else peer.assignment
    return place if place is not None and place.id == event.assignment else None


def _ack_timed_out(changes: ChangeSet, event: AckTimedOut) -> None:
    if _held(changes, event) is not None and changes.state.peers[event.peer].state == "acking":
        changes.leave(event.peer, "revoke")


def _declined(changes: ChangeSet, event: Declined) -> None:
    place = _held(changes, event)
    if place is not None and changes.state.peers[event.peer].state == "acking":
        _give_up(changes, place, event.peer, event.error, fatal=False)


def _task_failed(changes: ChangeSet, event: TaskFailed) -> None:
    place = _held(changes, event)
    if place is not None:
        _give_up(changes, place, event.peer, event.error, fatal=event.fatal)


def _give_up(changes: ChangeSet, place: Assignment, name: str, error: Failure, *, fatal: bool) -> None:
    task = changes.task_failed(place.job, place.task, error, passing=False)
    changes.leave(name, "release")
    if fatal:
        changes.end(place.job, "failed", error)
    elif task.failures > changes.state.jobs[place.job].spec.failure_limit:
        changes.end(place.job, "failed", task.error)
    else:
        changes.set_backing_off(place.job, place.task, backing_off=True)


def _links_created(changes: ChangeSet, event: LinksCreated) -> None:
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning":
        changes.start(event.job, event.links)
    elif job.ended and job.links != "made":
        changes.links_came_late(event.job)


def _links_deleted(changes: ChangeSet, event: LinksDeleted) -> None:
    """Partitions that were added while the job ran do not count."""
    job = changes.state.jobs.get(event.job)
    if job is None or not job.ended or job.refused or job.links == "gone":
        return
    facts = job.facts or {}
    graph = graph_of(job.spec, changes.state.deployment, event.job)
    known = {link.topic: facts[link.name].partitions for link in graph.links if link.name in facts}
    cut = {
        task: {topic: offsets[: known.get(topic, 0)] for topic, offsets in topics.items()}
        for task, topics in event.positions.items()
    }
    changes.links_gone(event.job, LastCommits(event.counts, cut))


HANDLERS: dict[type, Callable[[ChangeSet, Any], None]] = {
    AckTimedOut: _ack_timed_out,
    Declined: _declined,
    TaskFailed: _task_failed,
    LinksCreated: _links_created,
    LinksDeleted: _links_deleted,
}


# Which task an idle peer gets


def _next_offer(state: State) -> Offer | None:
    """The next offer to the idle peers; None if no job has work for so few."""
    free = state.free
    if not free or not state.jobs_with_capacity:
        return None
    for name in _in_turn(state, state.jobs_with_capacity):
        offer = _choose(state, name, free)
        if offer is not None:
            return offer
        if _choose(state, name, math.inf) is None and not any(
            task.backing_off for task in state.jobs[name].tasks.values()
        ):
            state.jobs_with_capacity.discard(name)
    return None


def _in_turn(state: State, names: Collection[str]) -> list[str]:
    """The jobs in the order in which they are served: by submission, starting after the job that was served last."""
    if len(names) == 1:
        return list(names)
    jobs, turn = state.jobs, state.turn
    found = {jobs[name].number: name for name in names}
    numbers = sorted(found)
    first = bisect_right(numbers, turn)
    return [found[number] for number in numbers[first:] + numbers[:first]]


def _choose(state: State, name: str, free: float) -> Offer | None:
    """The next task of a running job if ``free`` peers are idle, and how many of them start it."""
    job, plan = state.jobs[name], state.plans[name]
    shared: tuple[int, str] | None = None
    for stage in plan.stages:
        task = job.tasks[stage]
        staffed = len(task.peers)
        full = staffed >= plan.limit[stage]  # checked first: in a busy cluster most tasks are full
        if full or task.state == "complete" or task.backing_off or _blocked(job, plan, stage):
            continue
        if not staffed:
            needed = _needs(job, plan, stage)
            if needed <= free:
                return Offer(name, stage, needed)
        elif free > 0 and (shared is None or staffed < shared[0]):
            shared = (staffed, stage)
    return Offer(name, shared[1], 1) if shared else None


def _needs(job: Job, plan: Plan, stage: str) -> int:
    """How many idle peers a task without peers needs: ``min_peers`` to start, one to go on."""
    if job.tasks[stage].state != "pending":
        return 1
    return max(1, min(plan.stages[stage].min_peers, plan.limit[stage]))


def _deserted(task: Task) -> bool:
    """Whether the task has no peers and is not complete."""
    return not task.peers and task.state != "complete"


def _blocked(job: Job, plan: Plan, stage: str) -> bool:
    tasks = job.tasks
    for before in plan.upstream[stage]:  # noqa: SIM110 - called most often of all; a generator takes twice as long
        if _deserted(tasks[before]):
            return True
    return False


def _stalled(job: Job, plan: Plan) -> list[str]:
    """The front of a bounded job: the tasks whose upstream tasks are complete. Empty if any of them has peers.

    While a task of the front has peers, it will complete, and the job makes progress. If none has, no peer downstream can ever
    finish. Tasks that back off are left out, since they get peers later.
    """
    if not plan.graph.bounded:
        return []
    front = [
        stage
        for stage in plan.stages
        if job.tasks[stage].state != "complete"
        and all(job.tasks[before].state == "complete" for before in plan.upstream[stage])
    ]
    if any(job.tasks[stage].peers for stage in front):
        return []
    return [stage for stage in front if not job.tasks[stage].backing_off]


def _preemption(state: State, name: str) -> tuple[list[str], Offer] | None:
    """The peers that a bounded job must take off its downstream tasks, because it could not end otherwise.

    This happens when the peers of its front died and no peer is idle. Peers of the last tasks in topological order are taken
    first, and of these the ones that came last: they lose the least work.
    """
    job, plan = state.jobs[name], state.plans[name]
    front = _stalled(job, plan)
    if not front:
        return None
    for stage in front:
        needed = _needs(job, plan, stage)
        peers = _preempted(state, job, plan, needed - state.free)
        if peers:
            return peers, Offer(name, stage, needed)
    return None


def _preempted(state: State, job: Job, plan: Plan, missing: int) -> list[str]:
    """Peers that give ``missing`` or more idle peers when they leave; an empty list if there are not so many.

    Sealing peers are not taken, since they will be idle soon. Neither are waiting ones: they become idle with the last peer for
    which they wait.
    """
    found: list[str] = []
    for stage in reversed(plan.stages):
        others = state.on_task(job.tasks[stage])
        for peer in reversed(others.copy()):
            if missing > 0 and state.peers[peer].state in WORKING:
                found.append(peer)
                others.remove(peer)
                missing -= 1
                if all(state.peers[other].state == "waiting" for other in others):
                    missing -= len(others)
    return found if missing <= 0 else []


def _waits_for(state: State, name: str) -> int:
    """How many more virtual peers a running job needs before it can go on; 0 if it can.

    An unbounded job needs peers on all its tasks at the same time. A bounded job completes its tasks one after the other. So it
    needs only the peers of the first task of its front, less the peers of its downstream tasks. A task that backs off needs none.
    """
    job, plan = state.jobs[name], state.plans[name]
    if not plan.graph.bounded:
        missing = sum(
            _needs(job, plan, stage)
            for stage in plan.stages
            if _deserted(job.tasks[stage]) and not job.tasks[stage].backing_off
        )
        return max(0, missing - state.free)
    front = _stalled(job, plan)
    if not front:
        return 0
    own = sum(len(job.tasks[stage].peers) for stage in plan.stages)
    return max(0, _needs(job, plan, front[0]) - state.free - own)
