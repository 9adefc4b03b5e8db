"""Which task an idle peer gets next, when peers are preempted, and how many peers are missing. Pure; it changes only the set of
jobs that may have capacity.

Jobs take turns. In a job, tasks without peers come first, in topological order. Then come tasks that more peers can share; the
one with the fewest peers comes first. A task is not offered while a task directly upstream has no peers and is not complete: its
peers could only wait, and may be just those that are missing upstream. A task that backs off after a failure is not offered.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

from coordinator.core.peer_states import WORKING
from coordinator.core.state import Job, Plan, State, Task


class Offer(NamedTuple):
    """A task to offer to ``peers`` idle peers at once."""

    job: str
    task: str
    peers: int


class Preemption(NamedTuple):
    """Peers to take off their tasks, so that with the idle ones there are enough for ``offer``."""

    peers: list[str]
    offer: Offer


def next_offer(state: State) -> Offer | None:
    """The next offer to the idle peers; None if no job has work for so few."""
    free = state.free
    if not free or not state.jobs_with_capacity:
        return None
    for name in in_turn(state, state.jobs_with_capacity):
        offer = choose(state, name, free)
        if offer is not None:
            return offer
        if choose(state, name, math.inf) is None and not any(
            task.backing_off for task in state.jobs[name].tasks.values()
        ):
            state.jobs_with_capacity.discard(name)
    return None


def in_turn(state: State, names: Collection[str]) -> list[str]:
    """The jobs in the order in which they are served: by submission, starting after the job that was served last."""
    if len(names) == 1:
        return list(names)
    jobs, turn = state.jobs, state.turn
    found = {jobs[name].number: name for name in names}
    numbers = sorted(found)
    first = bisect_right(numbers, turn)
    return [found[number] for number in numbers[first:] + numbers[:first]]


def choose(state: State, name: str, free: float) -> Offer | None:
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
            needed = needs(job, plan, stage)
            if needed <= free:
                return Offer(name, stage, needed)
        elif free > 0 and (shared is None or staffed < shared[0]):
            shared = (staffed, stage)
    return Offer(name, shared[1], 1) if shared else None


def needs(job: Job, plan: Plan, stage: str) -> int:
    """How many idle peers a task without peers needs: ``min_peers`` to start, one to go on."""
    if job.tasks[stage].state != "pending":
        return 1
    return max(1, min(plan.stages[stage].min_peers, plan.limit[stage]))


def deserted(task: Task) -> bool:
    """Whether the task has no peers and is not complete."""
    return not task.peers and task.state != "complete"


def asks(task: Task) -> bool:
    """Whether the task needs peers now: it is deserted and does not back off."""
    return deserted(task) and not task.backing_off


def blocking(job: Job, plan: Plan, stage: str) -> list[str]:
    """The deserted tasks directly upstream of this one, because of which it is not offered."""
    return [before for before in plan.upstream[stage] if deserted(job.tasks[before])]


def _blocked(job: Job, plan: Plan, stage: str) -> bool:
    tasks = job.tasks
    for before in plan.upstream[stage]:  # noqa: SIM110 - called most often of all; a generator takes twice as long
        if deserted(tasks[before]):
            return True
    return False


def stalled(job: Job, plan: Plan) -> list[str]:
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


def preemption(state: State, name: str) -> Preemption | None:
    """The peers that a bounded job must take off its downstream tasks, because it could not end otherwise.

    This happens when the peers of its front died and no peer is idle. Peers of the last tasks in topological order are taken
    first, and of these the ones that came last: they lose the least work.
    """
    job, plan = state.jobs[name], state.plans[name]
    front = stalled(job, plan)
    if not front:
        return None
    for stage in front:
        needed = needs(job, plan, stage)
        peers = _preempted(state, job, plan, needed - state.free)
        if peers:
            return Preemption(peers, Offer(name, stage, needed))
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


def waits_for(state: State, name: str) -> int:
    """How many more virtual peers a running job needs before it can go on; 0 if it can.

    An unbounded job needs peers on all its tasks at the same time. A bounded job completes its tasks one after the other. So it
    needs only the peers of the first task of its front, less the peers of its downstream tasks. A task that backs off needs none.
    """
    job, plan = state.jobs[name], state.plans[name]
    if not plan.graph.bounded:
        missing = sum(needs(job, plan, stage) for stage in plan.stages if asks(job.tasks[stage]))
        return max(0, missing - state.free)
    front = stalled(job, plan)
    if not front:
        return 0
    own = sum(len(job.tasks[stage].peers) for stage in plan.stages)
    return max(0, needs(job, plan, front[0]) - state.free - own)
