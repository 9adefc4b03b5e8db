"""Which task an idle peer gets next, which peers give their tasks up, and how many peers are missing. Pure; it changes only
the set of jobs that may have capacity.

Jobs below their targets (:mod:`coordinator.core.entitlement`) come first, of these those of a higher priority, then tasks without
peers, then tasks that more peers can share; jobs take turns. In a bounded job tasks without peers come in topological order,
in an unbounded one those that have been left longest. Of tasks to be shared the one with the fewest peers comes first.

In a bounded job a task is not offered while a task directly upstream has no peers and is not complete: its peers could only
wait, and may be just those that are missing upstream. In an unbounded job peers take turns at the tasks, and what was read
waits in the links. A task that backs off after a failure is not offered.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

from coordinator.core.entitlement import gang, needs, supply, targets
from coordinator.core.peer_states import WORKING
from coordinator.core.state import Job, Plan, State, Target, Task


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
    """The next offer to the idle peers; None if no job has work for so few, or if they are kept for a job that needs several
    at once.

    Jobs below their targets come first. Of these, and of the others, those of a higher priority do, and then tasks without
    peers.
    """
    if not state.free:
        return None
    # An event adds at most a few jobs, and those that are full go here: the cost does not grow with the number of full jobs.
    full = [name for name in state.jobs_with_capacity if state.held[name] >= state.plans[name].places]
    state.jobs_with_capacity.difference_update(full)
    if not state.jobs_with_capacity:
        return None
    names = in_turn(state, state.jobs_with_capacity)
    wanted = targets(state) if len(names) > 1 else {}
    below = [name for name in names if name not in wanted or state.held[name] < wanted[name].peers]
    found = _best_offer(state, below)
    if found is not None or len(below) == len(names) or any(_keeps(state, name) for name in below):
        return found
    return _best_offer(state, [name for name in names if name not in below])


def _best_offer(state: State, names: list[str]) -> Offer | None:
    """Of these jobs one of the highest priority, of these one with a task without peers; of equals the first."""
    best = (math.inf, True)
    found: Offer | None = None
    for name in names:
        offer = _offer_to(state, name)
        if offer is not None:
            job = state.jobs[name]
            rank = (-job.priority, bool(job.tasks[offer.task].peers))
            if found is None or rank < best:
                best, found = rank, offer
    return found


def _offer_to(state: State, name: str) -> Offer | None:
    """What a job would be offered. A job that can take no peer, however many are idle, is not asked again until it changes."""
    job = state.jobs[name]
    if job.queued:
        return None
    offer = choose(state, name, state.free)
    if offer is not None or job.max_peers is not None or choose(state, name, math.inf) is not None:
        return offer
    if not any(task.backing_off for task in job.tasks.values()):
        state.jobs_with_capacity.discard(name)
    return None


def _keeps(state: State, name: str) -> bool:
    """Whether idle peers are kept for a job below its target, which needs several at once."""
    return not (state.plans[name].tags or choose(state, name, math.inf) is None)


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
    """The next task of a running job if ``free`` peers are idle, and how many of them start it. Infinitely many have all
    tags.
    """
    job, plan = state.jobs[name], state.plans[name]
    look = free < math.inf and bool(plan.tags or job.needs)
    free = min(free, room(state, name))
    together = 0 if plan.bounded or state.held[name] else gang(job, plan)
    best: Offer | None = None
    least = (math.inf, 0)
    for stage in plan.stages:
        task = job.tasks[stage]
        # The limit is checked first: in a busy cluster most tasks are full.
        if len(task.peers) >= plan.limit[stage] or task.state == "complete" or task.backing_off:
            continue
        if plan.bounded and _blocked(job, plan, stage):
            continue
        needed = 1 if task.peers else needs(job, plan, stage)
        able = _able(state, job, plan, stage, free) if look else free
        if needed > able or together > free:
            continue
        rank = (len(task.peers), 0 if plan.bounded or task.peers else task.left)
        if rank < least:
            best, least = Offer(name, stage, needed), rank
    return best


def _able(state: State, job: Job, plan: Plan, stage: str, free: float) -> float:
    """How many of ``free`` idle peers can run a task."""
    return min(free, state.fitting(job, _tags(plan, stage)))


def room(state: State, name: str) -> float:
    """How many more peers a running job may have."""
    most = state.jobs[name].max_peers
    return math.inf if most is None else max(most - state.held[name], 0)


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
    """The peers that must leave their tasks so that this bounded job can go on, because not enough peers are idle.

    If its front has no peers, it takes them from its own later tasks. Peers of the last tasks in topological order are taken
    first, and of these the ones that came last: they lose the least work. Other jobs keep theirs, see :func:`giving_back`.
    """
    job, plan = state.jobs[name], state.plans[name]
    if not plan.bounded or job.queued:
        return None
    for stage in stalled(job, plan):
        needed, tags = needs(job, plan, stage), _tags(plan, stage)
        peers = _preempted(state, name, needed, (state.fitting(job, tags), room(state, name)), tags)
        if peers:
            return Preemption(peers, [Offer(name, stage, needed)])
    return None


def _preempted(state: State, name: str, needed: int, had: tuple[float, float], tags: frozenset[str]) -> list[str]:
    """Peers with these tags that give ``needed`` or more idle peers when they leave; an empty list if there are not so many,
    or if none must leave. ``had``: how many are idle, and how many more the job may have; peers without the tags leave to make
    room for others.

    Sealing peers are not taken, since they will be idle soon. Neither are waiting ones: they become idle with the last peer for
    which they wait.
    """
    free, more = had
    job = state.jobs[name]
    found: list[str] = []
    rows = [state.on_task(job.tasks[stage]) for stage in reversed(state.plans[name].stages)]
    for for_room, row in [*((False, row) for row in rows), *((True, row) for row in rows)]:
        for peer in reversed(row.copy()):
            known = state.peers[peer]
            enough = more >= needed if for_room else free >= needed
            if enough or known.state not in WORKING or not (for_room or state.fits(peer, job, tags)):
                continue
            found.append(peer)
            row.remove(peer)
            gone = [peer, *_waiting_only(state, row)]
            free += sum(state.fits(other, job, tags) for other in gone)
            more += len(gone)
    return found if min(free, more) >= needed else []


def _waiting_only(state: State, peers: list[str]) -> list[str]:
    """These peers, if all of them are waiting; they are taken out of the list."""
    if any(state.peers[peer].state != "waiting" for peer in peers):
        return []
    gone = peers.copy()
    peers.clear()
    return gone


def waits_for(state: State, name: str) -> int:
    """How many more virtual peers a running job needs: 0 if none.

    An unbounded job needs one on each of its tasks, as far as its ``max_peers`` allows. A bounded job completes its tasks one
    after the other. So it needs only the peers of the first task of its front, less the peers of its downstream tasks. A task
    that backs off needs none, nor does one whose tags no live peer has: more peers of the daemons that there are would not
    help.
    """
    job, plan = state.jobs[name], state.plans[name]
    if not plan.bounded:
        asking = (stage for stage in plan.stages if asks(job.tasks[stage]) and has_peers(state, plan, stage))
        missing = sum(needs(job, plan, stage) for stage in asking)
        return max(0, int(min(missing, room(state, name))) - state.fitting(job))
    front = [stage for stage in stalled(job, plan) if has_peers(state, plan, stage)]
    if not front:
        return 0
    return max(0, needs(job, plan, front[0]) - state.fitting(job) - state.held[name])


def has_peers(state: State, plan: Plan, stage: str) -> bool:
    """Whether any live peer has the tags of a task."""
    return stage not in plan.tags or supply(state, plan.tags[stage]) > 0


class Move(NamedTuple):
    """Peers that a job is to give to others. ``at_once``: how many of them others cannot go on without."""

    job: str
    peers: list[str]
    at_once: int


def giving_back(state: State) -> list[Move]:
    """What each job above its target is to give, so that those below theirs can go on, or have their shares.

    Nothing moves as long as each job has its share, rounded up or down. Peers that are idle, or give their tasks up already,
    count as given. The jobs that are furthest above their targets give first.
    """
    if len(state.plans) < 2 or state.rules == 1:
        return []
    wanted = targets(state)
    under = [
        name
        for name, target in wanted.items()
        if state.held[name] < target.peers and choose(state, name, math.inf) is not None
    ]
    if not under:
        return []
    over = {
        name: spare
        for name, target in wanted.items()
        if (spare := state.held[name] - state.giving.get(name, 0) - target.peers) > 0
    }
    lacking = [name for name in under if _lacks(state, name, wanted[name])]
    if not lacking and not any(_exceeds(wanted[name], spare) for name, spare in over.items()):
        return []
    asked = [(state.jobs[name], _tags(state.plans[name], stage)) for name in under for stage in _open(state, name)]
    given = sum(state.giving.values()) + sum(_of_use(state, name, asked) for name in state.by_state["idle"])
    first = sum(max(wanted[name].floor - state.held[name], 0) for name in under) - given
    lack = sum(wanted[name].peers - state.held[name] for name in under) - given
    moves = []
    for name in sorted(over, key=lambda name: (-over[name], -state.jobs[name].number)):
        peers = _given(state, name, asked)[: max(min(over[name], lack), 0)]
        if peers:
            moves.append(Move(name, peers, max(min(first, len(peers)), 0)))
            lack -= len(peers)
            first -= len(peers)
    return moves


def _lacks(state: State, name: str, target: Target) -> bool:
    """Whether a job has less than its share, rounded down, or cannot go on."""
    return state.held[name] < max(math.floor(round(target.share, 6)), target.floor)


def _exceeds(target: Target, spare: int) -> bool:
    """Whether a job has more than its share, rounded up."""
    return target.peers + spare > math.ceil(round(target.share, 6))


def _of_use(state: State, peer: str, asked: list[tuple[Job, frozenset[str]]]) -> bool:
    """Whether a peer could run a task of one of these jobs with these tags."""
    return any(state.fits(peer, job, tags) for job, tags in asked)


def _tags(plan: Plan, stage: str) -> frozenset[str]:
    return plan.tags.get(stage, frozenset())


def _open(state: State, name: str) -> list[str]:
    """The tasks of a job that may take another peer."""
    job, plan = state.jobs[name], state.plans[name]
    return [
        stage
        for stage in plan.stages
        if job.tasks[stage].state != "complete"
        and not job.tasks[stage].backing_off
        and len(job.tasks[stage].peers) < plan.limit[stage]
    ]


def _given(state: State, name: str, asked: list[tuple[Job, frozenset[str]]]) -> list[str]:
    """The peers at work that a job could give, in this order: those of the task with the most of them, of equals the last in
    topological order; the latest first.
    """
    rows = [state.on_task(state.jobs[name].tasks[stage]) for stage in reversed(state.plans[name].stages)]
    order = [max(rows, key=len).pop() for _ in range(state.held[name])]
    return [
        peer
        for peer in order
        if state.peers[peer].state in WORKING and state.peers[peer].yields != "share" and _of_use(state, peer, asked)
    ]


def seconds(state: State, name: str) -> list[str]:
    """The peers of an unbounded job that give their tasks up at once, because other peers stay there and other tasks have
    none: of the task with the most peers, of equals the last in topological order; the latest first.
    """
    job, plan = state.jobs[name], state.plans[name]
    asked = [(job, _tags(plan, stage)) for stage in plan.stages if asks(job.tasks[stage])]
    peers = [peer for stage in plan.stages for peer in job.tasks[stage].peers]
    leaving = [peer for peer in peers if state.peers[peer].yields in ("turn", "share")]
    rows = [
        [peer for peer in state.on_task(job.tasks[stage]) if peer not in leaving] for stage in reversed(plan.stages)
    ]
    found: list[str] = []
    for _ in peers:
        row = max(rows, key=len)
        able = len(row) > 1 and len(found) + len(leaving) < len(asked)
        peer = row.pop() if able else ""
        if able and state.peers[peer].state in WORKING and _of_use(state, peer, asked):
            found.append(peer)
    return found


def turns_over(state: State, name: str) -> list[str]:
    """The peers of an unbounded job whose turns may end: as many as tasks have no peer, less those that give their tasks up
    already; those that have been at theirs longest.
    """
    job, plan = state.jobs[name], state.plans[name]
    asking = sum(asks(job.tasks[stage]) for stage in plan.stages)
    peers = [peer for stage in plan.stages for peer in job.tasks[stage].peers]
    asking -= sum(state.peers[peer].yields in ("turn", "share") for peer in peers)
    able = [peer for peer in peers if state.peers[peer].state == "active" and state.peers[peer].yields == "idle"]
    return sorted(able, key=lambda peer: state.peers[peer].order)[: max(asking, 0)]
