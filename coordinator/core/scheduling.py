"""Which task an idle peer gets next, when peers are preempted, and how many peers are missing. Pure; it changes only the set of
jobs that may have capacity.

Tasks without peers come first, of whatever job; jobs take turns in this. In a job they come in topological order. An unbounded
job without peers begins only if there are enough for all its tasks, since it gives no results before that. Then come tasks that
more peers can share: jobs take turns again, and in a job the task with the fewest peers comes first.

A task is not offered while a task directly upstream has no peers and is not complete: its peers could only wait, and may be just
those that are missing upstream. A task that backs off after a failure is not offered.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import partial
from typing import NamedTuple

from coordinator.core.peer_states import WORKING
from coordinator.core.state import Job, Plan, State, Task


class Offer(NamedTuple):
    """A task to offer to ``peers`` idle peers at once."""

    job: str
    task: str
    peers: int


class Preemption(NamedTuple):
    """Peers to take off their tasks, so that with the idle ones there are enough for all of ``offers``."""

    peers: list[str]
    offers: list[Offer]


def next_offer(state: State) -> Offer | None:
    """The next offer to the idle peers; None if no job has work for so few.

    A task without peers comes first, of whatever job; then an unbounded job without peers, if there are enough for all its tasks;
    then a further peer for a task that has some.
    """
    if not state.free or not state.jobs_with_capacity:
        return None
    begins: Offer | None = None
    shares: Offer | None = None
    for name in in_turn(state, state.jobs_with_capacity):
        offer = choose(state, name, state.free_for(state.jobs[name]))
        if offer is None:
            if choose(state, name, math.inf) is None and not any(
                task.backing_off for task in state.jobs[name].tasks.values()
            ):
                state.jobs_with_capacity.discard(name)
        elif state.jobs[name].tasks[offer.task].peers:
            shares = shares or offer
        elif state.plans[name].bounded or holds_peers(state, name):
            return offer
        else:
            begins = begins or offer
    return begins or shares


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
    gang: int | None = None
    shared: tuple[int, str] | None = None
    for stage in plan.stages:
        task = job.tasks[stage]
        staffed = len(task.peers)
        full = staffed >= plan.limit[stage]  # checked first: in a busy cluster most tasks are full
        if full or task.state == "complete" or task.backing_off or _blocked(job, plan, stage):
            continue
        if not staffed:
            if gang is None:  # only for jobs with such a task
                gang = 0 if plan.bounded or holds_peers(state, name) else floor(job, plan)
            needed = needs(job, plan, stage)
            if max(needed, gang) <= free:
                return Offer(name, stage, needed)
        elif free > 0 and (shared is None or staffed < shared[0]):
            shared = (staffed, stage)
    return Offer(name, shared[1], 1) if shared else None


def holds_peers(state: State, name: str) -> bool:
    """Whether any task of the job has peers."""
    return any(task.peers for task in state.jobs[name].tasks.values())


def gives_peers(state: State, name: str) -> bool:
    """Whether other jobs may take peers from this one: it runs and is unbounded."""
    return state.jobs[name].status == "running" and not state.plans[name].bounded


def lacks_peers(state: State, name: str) -> bool:
    """Whether a task of this running job has no peers. An unbounded job gives no results then."""
    return any(deserted(state.jobs[name].tasks[stage]) for stage in state.plans[name].stages)


def floor(job: Job, plan: Plan) -> int:
    """How many peers an unbounded job without peers needs before it can give results: enough for all its tasks at once."""
    return sum(needs(job, plan, stage) for stage in plan.stages if job.tasks[stage].state != "complete")


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
    """The peers that must leave their tasks so that this job can go on, because not enough peers are idle.

    A bounded job whose front has no peers takes them from its own later tasks. Peers of the last tasks in topological order are
    taken first, and of these the ones that came last: they lose the least work. Otherwise, see :func:`_spare`.
    """
    job, plan = state.jobs[name], state.plans[name]
    if job.needs and not all(state.reads(peer, job) for peer, known in state.peers.items() if known.state != "dead"):
        return None  # it would get peers that cannot read it
    if plan.bounded:
        front = stalled(job, plan)
        for stage in front:
            needed = needs(job, plan, stage)
            peers = _preempted(state, job, plan, needed - state.free_for(job))
            if peers:
                return Preemption(peers, [Offer(name, stage, needed)])
        choices = [[Offer(name, stage, needs(job, plan, stage))] for stage in front]
    else:
        choices = [_missing(job, plan, name)]
    for offers in choices:
        needed = sum(offer.peers for offer in offers)
        peers = _spare(state, job, needed - state.free_for(job)) if needed > state.free_for(job) else []
        if peers:
            return Preemption(peers, offers)
    return None


def _missing(job: Job, plan: Plan, name: str) -> list[Offer]:
    """Offers for all tasks without peers, except those that back off and those that would have to wait for such a task."""
    found: list[str] = []
    for stage in plan.stages:
        if asks(job.tasks[stage]) and all(before in found for before in blocking(job, plan, stage)):
            found.append(stage)
    return [Offer(name, stage, needs(job, plan, stage)) for stage in found]


def _spare(state: State, job: Job, missing: int) -> list[str]:
    """``missing`` peers that unbounded jobs can give to this one; an empty list if they cannot.

    First the peers beyond the first ones of a task: those of the task with the most of them, the latest first. Then all peers of
    later unbounded jobs that lack peers for one of their tasks, since such a job gives no results: those of the latest job first,
    and of its last tasks. A bounded job gives none to others, because its peers become idle by themselves.
    """
    found: list[str] = []
    extra = _extra_peers(state)
    while extra:
        largest = max(extra, key=lambda each: (len(each.peers) - each.least, each.number, each.place))
        peer = largest.peers.pop()
        if state.peers[peer].state in WORKING:
            found.append(peer)
        if len(found) == missing:
            return found
        if len(largest.peers) == largest.least:
            extra.remove(largest)
    for peer in _peers_of_stuck_jobs(state, job):
        if peer not in found:
            found.append(peer)
        if len(found) == missing:
            return found
    return []


class _Extra(NamedTuple):
    """A task of an unbounded job with more peers than it needs; ``peers``: all of them, the latest last."""

    number: int
    place: int
    least: int
    peers: list[str]


def _extra_peers(state: State) -> list[_Extra]:
    found = []
    for name in filter(partial(gives_peers, state), state.plans):
        job, plan = state.jobs[name], state.plans[name]
        for place, stage in enumerate(plan.stages):
            least = max(1, min(plan.stages[stage].min_peers, plan.limit[stage]))
            if len(job.tasks[stage].peers) > least:
                found.append(_Extra(job.number, place, least, state.on_task(job.tasks[stage])))
    return found


def _peers_of_stuck_jobs(state: State, job: Job) -> Iterator[str]:
    """Peers at work for unbounded jobs that are later than this one and lack peers: in the order in which they are taken."""
    later = [
        name
        for name in filter(partial(gives_peers, state), state.plans)
        if state.jobs[name].number > job.number and lacks_peers(state, name)
    ]
    for name in sorted(later, key=lambda name: state.jobs[name].number, reverse=True):
        for stage in reversed(state.plans[name].stages):
            for peer in reversed(state.on_task(state.jobs[name].tasks[stage])):
                if state.peers[peer].state in WORKING:
                    yield peer


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
    if not plan.bounded:
        missing = sum(needs(job, plan, stage) for stage in plan.stages if asks(job.tasks[stage]))
        return max(0, missing - state.free_for(job))
    front = stalled(job, plan)
    if not front:
        return 0
    own = sum(len(job.tasks[stage].peers) for stage in plan.stages)
    return max(0, needs(job, plan, front[0]) - state.free_for(job) - own)
