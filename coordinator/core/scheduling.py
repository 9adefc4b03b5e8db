"""Which task does an idle peer get next, when is a peer called back, and how many peers are missing. Pure; changes nothing
but the note of which jobs have no room left.

The order: jobs take turns. In a job, tasks that nobody works on come first, in topological order; then tasks that can
share, the one with the fewest peers first. No task is offered while a task right in front of it has nobody and is not
complete: its peers could only wait, and might be just those that are missing in front. A task that rests after a failure
is offered to nobody.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

from coordinator.core.peer_states import WORKING
from coordinator.core.state import Job, Plan, State, Task


class Offer(NamedTuple):
    """``peers`` idle peers are to be offered a task at once."""

    job: str
    task: str
    peers: int


class Preemption(NamedTuple):
    """Peers to be freed, so that with those already idle ``offer`` can be made."""

    peers: list[str]
    offer: Offer


def next_offer(state: State) -> Offer | None:
    """The next offer to the idle peers, or None if no job has work for as few as there are."""
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
    """Jobs in the order in which they are served: as they were submitted, beginning behind the one that was served last."""
    if len(names) == 1:
        return list(names)
    jobs, turn = state.jobs, state.turn
    found = {jobs[name].number: name for name in names}
    numbers = sorted(found)
    first = bisect_right(numbers, turn)
    return [found[number] for number in numbers[first:] + numbers[:first]]


def choose(state: State, name: str, free: float) -> Offer | None:
    """The task of a running job that comes next if ``free`` peers are idle, and how many of them begin it."""
    job, plan = state.jobs[name], state.plans[name]
    shared: tuple[int, str] | None = None
    for stage in plan.stages:
        task = job.tasks[stage]
        staffed = len(task.peers)
        full = staffed >= plan.limit[stage]  # asked first: most are, in a cluster that is at work
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
    """How many idle peers a task that nobody works on asks for: ``min_peers`` to be begun, one to be gone on with."""
    if job.tasks[stage].state != "pending":
        return 1
    return max(1, min(plan.stages[stage].min_peers, plan.limit[stage]))


def deserted(task: Task) -> bool:
    """Nobody works on it, and somebody must."""
    return not task.peers and task.state != "complete"


def asks(task: Task) -> bool:
    """Nobody works on it, and somebody should now."""
    return deserted(task) and not task.backing_off


def blocking(job: Job, plan: Plan, stage: str) -> list[str]:
    """The deserted tasks right in front of this one, because of which it is not offered."""
    return [before for before in plan.upstream[stage] if deserted(job.tasks[before])]


def _blocked(job: Job, plan: Plan, stage: str) -> bool:
    tasks = job.tasks
    for before in plan.upstream[stage]:  # noqa: SIM110 - asked most often of all; a generator takes twice as long
        if deserted(tasks[before]):
            return True
    return False


def stalled(job: Job, plan: Plan) -> list[str]:
    """The tasks on which a bounded job's end depends now, if nobody works on any of them; without those that rest.

    Everything in front of these is complete. As long as one of them has peers it comes to its end, and then the job has
    come a step nearer to its own. If none has, no peer further down can ever finish. What rests gets peers when it has.
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
    """Whom a bounded job must take from further down its graph, because it could not end otherwise.

    This happens when the peers at its front died and nobody is free to follow them. Those furthest down, and of these
    the ones that came last, lose least.
    """
    job, plan = state.jobs[name], state.plans[name]
    front = stalled(job, plan)
    if not front:
        return None
    for stage in front:
        needed = needs(job, plan, stage)
        peers = _who_is_called(state, job, plan, needed - state.free)
        if peers:
            return Preemption(peers, Offer(name, stage, needed))
    return None


def _who_is_called(state: State, job: Job, plan: Plan, missing: int) -> list[str]:
    """The peers whose leaving frees ``missing`` or more; nobody if there are not so many.

    A sealing peer will be free soon. Those that wait are not called, but become idle with the last one that they wait for.
    """
    called: list[str] = []
    for stage in reversed(plan.stages):
        others = state.on_task(job.tasks[stage])
        for peer in reversed(others.copy()):
            if missing > 0 and state.peers[peer].state in WORKING:
                called.append(peer)
                others.remove(peer)
                missing -= 1
                if all(state.peers[other].state == "waiting" for other in others):
                    missing -= len(others)
    return called if missing <= 0 else []


def waits_for(state: State, name: str) -> int:
    """How many more virtual peers a running job needs before it can go on; 0 if it goes on as it is.

    An unbounded job needs all its tasks at work at the same time. A bounded one works them off one after the other, so it
    needs only what the first task at its front asks for, less the peers that it has further down. A task that rests asks
    for nobody.
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
