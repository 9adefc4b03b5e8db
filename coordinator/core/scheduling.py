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
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from coordinator.core.entitlement import asked_of, front, gang, has_peers, needs, targets
from coordinator.core.indexes import Kind, Target
from coordinator.core.peer_states import WORKING
from coordinator.core.plan import Plan
from coordinator.core.state import Job, Peer, State, Task

Idle = Mapping[Kind, int]
"""How many idle peers there are of each kind."""


class Offer(NamedTuple):
    """A task to offer to ``peers`` idle peers at once; if ``kinds`` are given, only to peers of these."""

    job: str
    task: str
    peers: int
    kinds: Collection[Kind] | None = None


class Preemption(NamedTuple):
    """Peers to take off their tasks, so that with the idle ones there are enough for all of ``offers``."""

    peers: list[str]
    offers: list[Offer]


def next_offer(state: State) -> Offer | None:
    """The next offer to the idle peers; None if no job has work for so few, or if they are kept for jobs that need several at
    once.

    Jobs below their targets come first, up to their targets. Then the other jobs, and then the queued ones, get peers that are
    of no use to those. Of the jobs of one turn those of a higher priority come first, and then tasks without peers.
    """
    if not state.free:
        return None
    # An event adds at most a few jobs, and those that are full go here: the cost does not grow with the number of full jobs.
    full = [name for name in state.jobs_with_capacity if state.held[name] >= state.plans[name].places]
    state.jobs_with_capacity.difference_update(full)
    if not state.jobs_with_capacity:
        return None
    idle: Idle = {kind: len(row) for kind, row in state.idle_of.items()}
    names = in_turn(state, state.jobs_with_capacity)
    if len(names) == 1:
        return _best_offer(state, names, idle, {})
    wanted = targets(state)
    more = {name: wanted[name].peers - state.held[name] for name in names if wanted[name].peers > state.held[name]}
    found = _best_offer(state, list(more), idle, more)
    if found is not None:
        return found
    left = _left(_kept(state, more), idle)
    for queued in (False, True) if left else ():
        found = _best_offer(state, [name for name in names if state.jobs[name].queued == queued], left, {})
        if found is not None:
            return found._replace(kinds=left.keys())
    return None


def _best_offer(state: State, names: list[str], idle: Idle, more: Mapping[str, int]) -> Offer | None:
    """Of these jobs one of the highest priority, of these one with a task without peers; of equals the first. ``more``: how many
    more peers a job may get, if that is limited.
    """
    best = (math.inf, True)
    found: Offer | None = None
    for name in names:
        offer = choose(state, name, idle, more.get(name, math.inf))
        if offer is None:
            _leave_out(state, name)
            continue
        job = state.jobs[name]
        rank = (-job.priority, bool(job.tasks[offer.task].peers))
        if found is None or rank < best:
            best, found = rank, offer
    return found


def _leave_out(state: State, name: str) -> None:
    """A job that can take no peer, however many are idle, is not asked again until it changes."""
    job = state.jobs[name]
    if (
        job.max_peers is None
        and choose(state, name) is None
        and not any(task.backing_off for task in job.tasks.values())
    ):
        state.jobs_with_capacity.discard(name)


def _kept(state: State, more: Mapping[str, int]) -> Iterator[Kind]:
    """What jobs below their targets, which may get so many more, ask of the peers that are kept for them."""
    for name in more:
        yield from openings(state, name, more[name])


def _left(kept: Iterable[Kind], idle: Idle) -> Idle:
    """The peers that are kept for no job."""
    for asked in kept:
        idle = {kind: count for kind, count in idle.items() if not kind.fits(asked)}
        if not idle:
            break
    return idle


def openings(state: State, name: str, more: int) -> list[Kind]:
    """What a job asks of peers that it could use now, in some task, if it may have so many more. Idle peers that can do this
    are kept for a job below its target, and other jobs give such peers. A task is left out if it needs more to start. The peers
    that a bounded job has on later tasks count, if its front has none: they are preempted when there are enough.
    """
    job, plan = state.jobs[name], state.plans[name]
    more = int(min(more, room(state, name)))
    own = state.held[name] if more > 0 and not plan.turns and stalled(job, plan) else 0
    if more < (0 if not plan.turns or state.held[name] else gang(state, job, plan)):
        return []
    found = []
    for stage, needed in _startable(job, plan):
        asked = asked_of(job, plan, stage)
        if not job.tasks[stage].backing_off and needed <= more + own and needed <= state.supply(asked):
            found.append(asked)
    return found


def in_turn(state: State, names: Collection[str]) -> list[str]:
    """The jobs in the order in which they are served: by submission, starting after the job that was served last."""
    if len(names) == 1:
        return list(names)
    jobs, turn = state.jobs, state.turn
    found = {jobs[name].number: name for name in names}
    numbers = sorted(found)
    first = bisect_right(numbers, turn)
    return [found[number] for number in numbers[first:] + numbers[:first]]


def choose(state: State, name: str, idle: Idle | None = None, more: float = math.inf) -> Offer | None:
    """The next task of a running job if these peers are idle, and how many of them start it; if none are given, any number of any
    kind. ``more``: how many the job may get.
    """
    job, plan = state.jobs[name], state.plans[name]
    more = min(more, room(state, name))
    together = 0 if not plan.turns or state.held[name] else gang(state, job, plan)
    if together > (more if idle is None else min(more, _usable(job, plan, idle))):
        return None
    best: Offer | None = None
    least = (math.inf, 0)
    for stage, needed in _startable(job, plan):
        if needed > (more if idle is None else min(more, _able(state, job, plan, stage, idle))):
            continue
        peers = len(job.tasks[stage].peers)
        rank = (peers, 0 if not plan.turns or peers else job.tasks[stage].left)
        if rank < least:
            best, least = Offer(name, stage, needed), rank
    return best


def _startable(job: Job, plan: Plan) -> list[tuple[str, int]]:
    """The tasks of a job that could take peers now, and how many at least."""
    found = []
    for stage in plan.stages:
        task = job.tasks[stage]
        # The limit is checked first: in a busy cluster most tasks are full.
        if len(task.peers) >= plan.limit[stage] or task.state == "complete" or task.rests:
            continue
        if plan.turns or not _blocked(job, plan, stage):
            found.append((stage, 1 if task.peers else needs(job, plan, stage)))
    return found


def _able(state: State, job: Job, plan: Plan, stage: str, idle: Idle) -> int:
    """How many of the idle peers can run a task and are not of a process that declined it."""
    asked, declined = asked_of(job, plan, stage), job.tasks[stage].declined
    return sum(count - state.idle_in(kind, declined) for kind, count in idle.items() if kind.fits(asked))


def _usable(job: Job, plan: Plan, idle: Idle) -> int:
    """How many idle peers can run any task of a job that is not complete."""
    asked = {asked_of(job, plan, stage) for stage in plan.stages if job.tasks[stage].state != "complete"}
    return sum(count for kind, count in idle.items() if any(kind.fits(each) for each in asked))


def room(state: State, name: str) -> float:
    """How many more peers a running job may have."""
    most = state.jobs[name].most_peers
    return math.inf if most is None else max(most - state.held[name], 0)


def deserted(task: Task) -> bool:
    """Whether the task has no peers and is not complete."""
    return not task.peers and task.state != "complete"


def asks(task: Task) -> bool:
    """Whether the task needs peers now: it is deserted and does not back off."""
    return deserted(task) and not task.backing_off


def asking(state: State, job: Job, plan: Plan) -> list[str]:
    """The tasks that need peers now and that a live peer can run."""
    return [stage for stage in plan.stages if asks(job.tasks[stage]) and has_peers(state, job, plan, stage)]


def seeking(state: State, job: Job, plan: Plan) -> list[str]:
    """These, and the tasks that back off only for those who declined them."""
    return [
        stage
        for stage in plan.stages
        if deserted(job.tasks[stage]) and not job.tasks[stage].rests and has_peers(state, job, plan, stage)
    ]


def takes_any(state: State, peer: str, job: Job, plan: Plan, stages: Iterable[str]) -> bool:
    """Whether a peer can run any of these tasks, and its process has not declined it."""
    home = state.peers[peer].home
    return any(
        state.fits(peer, asked_of(job, plan, stage)) and home not in job.tasks[stage].declined for stage in stages
    )


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
    return [stage for stage in _without_peers(job, plan) if not job.tasks[stage].backing_off]


def _without_peers(job: Job, plan: Plan) -> list[str]:
    stages = front(job, plan)
    return [] if any(job.tasks[stage].peers for stage in stages) else stages


def preemption(state: State, name: str) -> Preemption | None:
    """The peers that must leave their tasks so that this bounded job can go on, because not enough peers are idle. None leaves if
    enough are, but were kept for others.

    If its front has no peers, it takes them from its own later tasks. Peers of the last tasks in topological order are taken
    first, and of these the ones that came last: they lose the least work. Other jobs keep theirs, see :func:`giving_back`.
    """
    job, plan = state.jobs[name], state.plans[name]
    if plan.turns or job.pauses:
        return None
    stages = [stage for stage in _without_peers(job, plan) if not job.tasks[stage].rests]
    if not stages or (job.queued and not state.held[name]):
        return None
    kinds = frozenset(state.live_of)
    if job.queued:  # it gets only what the others leave
        missing = {other: target.peers - state.held[other] for other, target in targets(state).items()}
        kinds = frozenset(
            _left(_kept(state, {other: more for other, more in missing.items() if more > 0}), state.live_of)
        )
    for stage in stages:
        needed, asked = needs(job, plan, stage), asked_of(job, plan, stage)
        peers = _preempted(state, name, needed, {kind for kind in kinds if kind.fits(asked)}, job.tasks[stage].declined)
        if peers is not None:
            return Preemption(peers, [Offer(name, stage, needed, kinds)])
    return None


def _preempted(
    state: State, name: str, needed: int, kinds: Collection[Kind], declined: Collection[str]
) -> list[str] | None:
    """Peers that leave their tasks, so that ``needed`` or more of these kinds, and not of the homes that declined the task, are
    idle, and the job may have them; None if there are not so many. Other peers leave to make room for them.

    Sealing peers are not taken, since they will be idle soon. Neither are waiting ones: they become idle with the last peer for
    which they wait.
    """
    job = state.jobs[name]
    free = sum(len(row) - state.idle_in(kind, declined) for kind, row in state.idle_of.items() if kind in kinds)

    def able(peer: Peer) -> bool:
        return peer.kind in kinds and peer.home not in declined and not peer.drained

    more = math.inf if job.max_peers is None else job.max_peers - state.held[name]
    found: list[str] = []
    rows = [state.on_task(job.tasks[stage]) for stage in reversed(state.plans[name].stages)]
    for for_room, row in [*((False, row) for row in rows), *((True, row) for row in rows)]:
        for peer in reversed(row.copy()):
            known = state.peers[peer]
            enough = more >= needed if for_room else free >= needed
            if enough or known.state not in WORKING or not (for_room or able(known)):
                continue
            found.append(peer)
            row.remove(peer)
            gone = [peer, *_waiting_only(state, row)]
            free += sum(able(state.peers[other]) for other in gone)
            more += len(gone)
    return found if min(free, more) >= needed else None


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
    that backs off needs none, nor does one that no live peer can run, because of its tags or its release: more peers of the
    daemons that there are would not help.
    """
    job, plan = state.jobs[name], state.plans[name]
    if job.pauses:
        return 0
    idle = state.fitting(Kind(job.needs, frozenset()))
    if plan.turns:
        missing = sum(needs(job, plan, stage) for stage in asking(state, job, plan))
        return max(0, int(min(missing, room(state, name))) - idle)
    stages = [stage for stage in stalled(job, plan) if has_peers(state, job, plan, stage)]
    if not stages:
        return 0
    return max(0, needs(job, plan, stages[0]) - idle - state.held[name])


class Move(NamedTuple):
    """Peers that a job is to give to others. ``at_once``: how many of them others cannot go on without."""

    job: str
    peers: list[str]
    at_once: int


def giving_back(state: State) -> list[Move]:
    """What each job above its target is to give, so that those below theirs can go on, or have their shares; and what a job has
    beyond its ``max_peers``, or has while it is suspended, in any case.

    Nothing else moves as long as each job has its share, rounded up or down. Peers that are idle, or give their tasks up already,
    count as given. The jobs that are furthest above their targets give first.
    """
    wanted = targets(state)
    over = {
        name: spare
        for name, target in wanted.items()
        if (spare := state.held[name] - state.giving.get(name, 0) - target.peers) > 0
    }
    if not over:
        return []
    excess = {name: _excess(state, name) for name in over}
    asked, first, lack = _lacking(state, wanted, over)
    first, lack = first - sum(excess.values()), lack - sum(excess.values())
    moves = []
    for name in sorted(over, key=lambda name: (-over[name], -state.jobs[name].number)):
        cut, able = _parts(state, name, excess[name], asked)
        able = [] if state.jobs[name].goes_on else able[: max(min(over[name] - excess[name], lack), 0)]
        if cut or able:
            moves.append(Move(name, [*cut, *able], len(cut) + max(min(first, len(able)), 0)))
        first, lack = first - len(able), lack - len(able)
    return moves


def _parts(state: State, name: str, excess: int, asked: Collection[Kind]) -> tuple[list[str], list[str]]:
    """The peers that a job gives in any case, and those that it could give beside them to jobs that ask for this."""
    peers = _given(state, name)
    return peers[:excess], [peer for peer in peers[excess:] if any(state.fits(peer, each) for each in asked)]


def _excess(state: State, name: str) -> int:
    """How many more peers a job has than it may have since a user changed that."""
    most = state.jobs[name].most_peers
    return 0 if most is None else max(state.held[name] - state.giving.get(name, 0) - most, 0)


def _lacking(state: State, wanted: Mapping[str, Target], over: Mapping[str, int]) -> tuple[set[Kind], int, int]:
    """What jobs below their targets ask of peers, how many peers they lack without which they cannot go on, and how many to their
    targets; nothing if each has its share, rounded up or down.
    """
    asked: set[Kind] = set()
    under = []
    for name, target in wanted.items():
        if state.held[name] < target.peers and (found := openings(state, name, target.peers - state.held[name])):
            asked.update(found)
            under.append(name)
    lacking = any(_lacks(state, name, wanted[name]) for name in under)
    if not under or not (lacking or any(_exceeds(wanted[name], spare) for name, spare in over.items())):
        return set(), 0, 0
    idle = sum(len(row) for kind, row in state.idle_of.items() if any(kind.fits(each) for each in asked))
    given = sum(state.giving.values()) + idle
    first = sum(max(wanted[name].floor - state.held[name], 0) for name in under)
    return asked, first - given, sum(wanted[name].peers - state.held[name] for name in under) - given


def _lacks(state: State, name: str, target: Target) -> bool:
    """Whether a job has less than its share, rounded down, or cannot go on."""
    return state.held[name] < max(math.floor(round(target.share, 6)), target.floor)


def _exceeds(target: Target, spare: int) -> bool:
    """Whether a job has more than its share, rounded up."""
    return target.peers + spare > math.ceil(round(target.share, 6))


def _given(state: State, name: str) -> list[str]:
    """The peers at work that a job could give, in this order: those of the task with the most of them, of equals the last in
    topological order; the latest first. While it is changed, the tasks that stay as they are give none.
    A bounded job keeps one at its front, or it could not go on, and would take it back.
    """
    job, plan = state.jobs[name], state.plans[name]
    stay = () if job.suspended else job.goes_on
    rows = [state.on_task(job.tasks[stage]) for stage in reversed(plan.stages) if stage not in stay]
    order = [max(rows, key=len).pop() for _ in range(sum(map(len, rows)))]
    found = [peer for peer in order if state.peers[peer].state in WORKING and state.peers[peer].yields != "share"]
    if not plan.turns and not job.queued and not job.pauses:
        stages = front(job, plan)
        kept = next((peer for peer in reversed(found) if state.assignment(peer).task in stages), None)
        found = [peer for peer in found if peer != kept]
    return found


def seconds(state: State, name: str) -> list[str]:
    """The peers of an unbounded job that give their tasks up at once, because other peers stay there and other tasks have
    none: of the task with the most peers, of equals the last in topological order; the latest first. Then those that can take a
    task that was declined, if at theirs another one stays, or a peer is idle that can take it and has declined the other.
    """
    job, plan = state.jobs[name], state.plans[name]
    asked = seeking(state, job, plan)
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
        if able and state.peers[peer].state in WORKING and takes_any(state, peer, job, plan, asked):
            found.append(peer)
    declined = [stage for stage in asked if job.tasks[stage].declined]
    for stage in reversed(plan.stages) if declined else ():
        row = [peer for peer in state.on_task(job.tasks[stage]) if peer not in leaving and peer not in found]
        for peer in reversed(row):
            able = len(found) + len(leaving) < len(asked) and state.peers[peer].state in WORKING
            stay = sum(other not in found for other in row) - 1
            if able and any(
                takes_any(state, peer, job, plan, [each]) and (stay or _can_follow(state, job, plan, stage, each))
                for each in declined
            ):
                found.append(peer)
    return found


def _can_follow(state: State, job: Job, plan: Plan, stage: str, declined: str) -> bool:
    """Whether an idle peer that has declined one task can take another one, if its peer leaves it."""
    if job.tasks[stage].backing_off:
        return False
    asked = asked_of(job, plan, stage)
    return any(kind.fits(asked) and state.idle_in(kind, job.tasks[declined].declined) for kind in state.idle_of)


def turns_over(state: State, name: str) -> list[str]:
    """The peers of an unbounded job whose turns may end: as many as tasks have no peer, less those that give their tasks up
    already; those that have been at theirs longest.
    """
    job, plan = state.jobs[name], state.plans[name]
    count = len(seeking(state, job, plan))
    peers = [peer for stage in plan.stages for peer in job.tasks[stage].peers]
    count -= sum(state.peers[peer].yields in ("turn", "share") for peer in peers)
    able = [peer for peer in peers if state.peers[peer].state == "active" and state.peers[peer].yields == "idle"]
    return sorted(able, key=lambda peer: state.peers[peer].order)[: max(count, 0)]
