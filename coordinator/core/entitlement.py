"""What each running job is entitled to: :func:`targets`, how many virtual peers, by one weighted max-min rule. Pure.

A job states a demand: a *floor* without which it cannot go on, a *width* with which each of its tasks has a peer, and a *cap*.
Floors come first, in order of priority, then of submission. A job whose floor is not left is queued and gets nothing. What is
left goes to the jobs of the highest priority up to their caps, then to those of the next one. Among jobs of one priority it is
divided so that the least share, relative to the job's weight, is as large as possible.

Floors of a lower priority come before shares of a higher one: an unbounded job has use for very many peers, and never ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from coordinator.core.indexes import Bounds, Demand, Kind, Target, Tier
from coordinator.core.plan import Plan
from coordinator.core.state import Job, State

_NO_TAGS: frozenset[str] = frozenset()
_EXACT = 6
"""Decimals to which shares are compared: the order of a sum must not decide who gets a peer."""


class _Entry(NamedTuple):
    name: str
    job: Job
    demand: Demand


def demand_of(state: State, name: str) -> Demand:
    """What a running job asks for, from its tasks that are not complete and the peers that can run them. If live peers cannot
    run what it needs to go on, it asks for nothing: its floor is beyond its cap, so it is queued. A suspended job has no floor
    either.
    """
    job, plan = state.jobs[name], state.plans[name]
    stages = [stage for stage in plan.stages if job.tasks[stage].state != "complete"]
    if not stages or job.pauses:
        return Demand(0, 0, 0)
    able = {stage: state.supply(asked_of(job, plan, stage)) for stage in stages} if name in state.restricted else {}
    most = [min(plan.limit[stage], able.get(stage, plan.limit[stage])) for stage in stages]
    cap = sum(most) if job.max_peers is None else min(sum(most), job.max_peers)
    if not plan.turns:
        asked = [(stage, needs(job, plan, stage)) for stage in front(job, plan)]
        least = min((count for stage, count in asked if count <= able.get(stage, count)), default=0)
    else:
        least = gang(state, job, plan)
    if not least:
        return Demand(1, 0, 0)
    return Demand(least, max(min(cap, sum(limit > 0 for limit in most)), min(least, cap)), cap)


def front(job: Job, plan: Plan) -> list[str]:
    """The tasks that are not complete while all tasks upstream of them are."""
    return [
        stage
        for stage in plan.stages
        if job.tasks[stage].state != "complete"
        and all(job.tasks[before].state == "complete" for before in plan.upstream[stage])
    ]


def begun(job: Job, plan: Plan) -> bool:
    """Whether a peer has ever accepted a task of the job."""
    return any(job.tasks[stage].state != "pending" for stage in plan.stages)


def needs(job: Job, plan: Plan, stage: str) -> int:
    """How many idle peers a task without peers needs: ``min_peers`` to start, one to go on. In a job that has begun
    and whose peers take turns, one.
    """
    if job.tasks[stage].state != "pending" or (plan.turns and begun(job, plan)):
        return 1
    least = min(plan.stages[stage].min_peers, plan.limit[stage])
    return max(1, least if job.max_peers is None else min(least, job.max_peers))


def gang(state: State, job: Job, plan: Plan) -> int:
    """How many idle peers a job without peers needs whose peers take turns at its tasks: one. If a task asks
    for several to start, enough for all tasks at once. Tasks that no live peer can run are left out; 0 if that leaves none.
    """
    asked = [
        needs(job, plan, stage)
        for stage in plan.stages
        if job.tasks[stage].state != "complete" and has_peers(state, job, plan, stage)
    ]
    if max(asked, default=0) <= 1:
        return min(len(asked), 1)
    return sum(asked) if job.max_peers is None else min(sum(asked), job.max_peers)


def has_peers(state: State, job: Job, plan: Plan, stage: str) -> bool:
    """Whether any live peer can run a task. Where there are no peers at all, the next ones may be of any release."""
    asked = asked_of(job, plan, stage)
    if not asked.tags and not (asked.format and state.live_of):
        return True
    return state.supply(asked) > 0


def asked_of(job: Job, plan: Plan, stage: str) -> Kind:
    """What a task asks of its peers."""
    return Kind(job.needs, plan.tags.get(stage, _NO_TAGS))


def targets(state: State) -> dict[str, Target]:
    """What each running job is entitled to. Kept until a demand, or the number of live peers, changes."""
    _refresh(state)
    live = state.live
    known = state.targets.get(live)
    if known is None:
        if len(state.targets) > 8:  # peers come and go one by one: the last few numbers are asked for again
            state.targets.clear()
        found = _fair_to_all(state, live)
        if found is None:
            entries = [_Entry(name, state.jobs[name], demand) for name, demand in state.demands.items()]
            entries.sort(key=lambda entry: entry.job.number)
            found = _within_pools(state, entries, live)
        known = state.targets[live] = found
    return known


def queued(state: State) -> set[str]:
    """The running jobs whose floor cannot be given."""
    _refresh(state)
    if state.scheduler in ("turns", "balanced") and not state.restricted and state.floors <= state.live:
        return set()
    return {name for name, target in targets(state).items() if not target.peers and not state.jobs[name].pauses}


def _refresh(state: State) -> None:
    """Look again at the demands that may have changed."""
    if not state.stale:
        return
    for name in state.stale:
        before = state.demands.pop(name, None)
        plan = state.plans.get(name)
        after = None
        was_restricted = name in state.restricted
        state.requiring.discard(name)
        state.restricted.discard(name)
        if plan is not None and state.jobs[name].status == "running":
            _sort(state, name, plan)
            after = state.demands[name] = demand_of(state, name)
        if (name in state.restricted) != was_restricted:
            state.forget_targets()
        if after != before:
            state.floors += (after.floor if after else 0) - (before.floor if before else 0)
            state.forget_targets()
    state.stale.clear()


def _sort(state: State, name: str, plan: Plan) -> None:
    """Note whether not every peer can work for a job."""
    needs = state.jobs[name].needs
    if plan.tags or needs:
        state.requiring.add(name)
    if plan.tags or any(kind.format < needs for kind in state.live_of):
        state.restricted.add(name)


def _within_pools(state: State, entries: list[_Entry], live: int) -> dict[str, Target]:
    """Jobs whose tasks all ask for the same tags, and which ask for the same release, form a pool: together they get no more than
    the peers that can work for them. If they would, they divide those among themselves, and the others divide the rest.
    """
    divide = _SCHEDULERS[state.scheduler]
    found: dict[str, Target] = {}
    kinds = {entry.name: Kind(entry.job.needs, state.plans[entry.name].pool) for entry in entries}
    there = {kind: state.supply(kind) for kind in kinds.values()} if state.restricted else {}
    while True:
        shares = divide(entries, live)
        pools: dict[Kind, int] = {}
        for entry in entries if there else ():
            pools[kinds[entry.name]] = pools.get(kinds[entry.name], 0) + shares[entry.name].peers
        over = {pool: peers - there[pool] for pool, peers in pools.items() if peers > there[pool]}
        if not over:
            return found | shares
        tightest = max(sorted(over, key=lambda pool: (sorted(pool.tags), pool.format)), key=over.__getitem__)
        inside = [entry for entry in entries if kinds[entry.name] == tightest]
        found |= divide(inside, there[tightest])
        live -= sum(found[entry.name].peers for entry in inside)
        entries = [entry for entry in entries if entry.name not in found]


# Schedulers: from jobs in order of submission and a number of peers to targets


def _turns(entries: Sequence[_Entry], live: int) -> dict[str, Target]:
    """Each task of each job gets a peer before any gets a second one."""
    return _fair(entries, live, by_width=True)


def _balanced(entries: Sequence[_Entry], live: int) -> dict[str, Target]:
    """Jobs get equal numbers of peers, whatever the number of their tasks."""
    return _fair(entries, live, by_width=False)


def _greedy(entries: Sequence[_Entry], live: int) -> dict[str, Target]:
    """One job after the other takes as many peers as it can."""
    found = {}
    for name, _, demand in sorted(entries, key=lambda entry: -entry.job.priority):
        got = min(demand.cap, live)
        got = got if demand.floor <= got else 0
        found[name] = Target(demand.floor, got, got)
        live -= got
    return found


def _percentage(entries: Sequence[_Entry], live: int) -> dict[str, Target]:
    """Jobs get the percentage that they ask for; those that would bring the sum above 100 get nothing. Jobs without one share
    the rest. What they leave goes to the job with the highest percentage.
    """
    found: dict[str, Target] = {}
    admitted: list[_Entry] = []
    total = 0.0
    for entry in entries:
        if entry.job.percentage is None:
            continue
        if round(total + entry.job.percentage, _EXACT) > 100:
            found[entry.name] = Target(entry.demand.floor, 0.0, 0)
        else:
            total += entry.job.percentage
            admitted.append(entry)
    admitted.sort(key=lambda entry: -(entry.job.percentage or 0.0))
    served, left = _floors(admitted, live, found)
    low = [entry.demand.floor for entry in served]
    wanted = [
        min(max(live * (entry.job.percentage or 0.0) / 100, entry.demand.floor), entry.demand.cap) for entry in served
    ]
    got = min(math.floor(round(sum(wanted), _EXACT)), left + sum(low))
    peers = _whole(wanted, got, [entry.demand.cap for entry in served], low)
    left += sum(low) - sum(peers)
    others = [entry for entry in entries if entry.job.percentage is None]
    found |= _fair(others, left, by_width=True)
    left -= sum(found[entry.name].peers for entry in others)
    for index, (name, _, demand) in enumerate(served):
        more = min(left, demand.cap - peers[index])
        left -= more
        found[name] = Target(
            demand.floor, max(wanted[index], 0.0) + more if more else wanted[index], peers[index] + more
        )
    return found


_SCHEDULERS: dict[str, Callable[[Sequence[_Entry], int], dict[str, Target]]] = {
    "turns": _turns,
    "balanced": _balanced,
    "greedy": _greedy,
    "percentage": _percentage,
}


# The rule


def _floors(entries: Iterable[_Entry], live: int, found: dict[str, Target]) -> tuple[list[_Entry], int]:
    """The jobs that get their floors, in the order given, and how many peers are left. The others are queued."""
    served = []
    for entry in entries:
        floor = entry.demand.floor
        if floor <= min(live, entry.demand.cap):
            live -= floor
            served.append(entry)
        else:
            found[entry.name] = Target(floor, 0.0, 0)
    return served, live


def _fair(entries: Sequence[_Entry], live: int, *, by_width: bool) -> dict[str, Target]:
    found: dict[str, Target] = {}
    served, left = _floors(sorted(entries, key=lambda entry: -entry.job.priority), live, found)
    return found | _by_tiers(_tiers(served), left, by_width=by_width)


def _fair_to_all(state: State, live: int) -> dict[str, Target] | None:
    """The same where each job gets its floor and none has tags, from what is known of the jobs; None if that is not so."""
    if state.scheduler not in ("turns", "balanced") or state.restricted or state.floors > live:
        return None
    if not state.tiers:
        entries = [_Entry(name, state.jobs[name], demand) for name, demand in state.demands.items()]
        entries.sort(key=lambda entry: (-entry.job.priority, entry.job.number))
        state.tiers = _tiers(entries)
    return _by_tiers(state.tiers, live - state.floors, by_width=state.scheduler == "turns")


def _tiers(entries: Sequence[_Entry]) -> list[Tier]:
    """Jobs in the order of their priorities, as tiers of equal ones."""
    tiers = []
    for _, jobs in groupby(entries, key=lambda entry: entry.job.priority):
        tier = list(jobs)
        low, width, cap = ([entry.demand[place] for entry in tier] for place in range(3))
        weights = [entry.job.weight for entry in tier]
        tiers.append(
            Tier(
                [entry.name for entry in tier],
                Bounds(low, cap, weights),
                Bounds(low, width, weights),
                Bounds(width, cap, weights),
            )
        )
    return tiers


def _by_tiers(tiers: Sequence[Tier], left: int, *, by_width: bool) -> dict[str, Target]:
    """``left``: what remains when each job has its floor."""
    found: dict[str, Target] = {}
    for tier in tiers:
        floors = tier.all.low
        got = min(sum(floors) + left, sum(tier.all.high))
        left -= got - sum(floors)
        bounds = tier.all
        if by_width:
            bounds = tier.narrow if got <= sum(tier.narrow.high) else tier.wide
        shares = _level(got, bounds)
        peers = _whole(shares, got, bounds.high, bounds.low)
        for name, floor, share, whole in zip(tier.names, floors, shares, peers, strict=True):
            found[name] = Target(floor, share, whole)
    return found


def _level(amount: int, bounds: Bounds) -> list[float]:
    """Shares within the bounds whose sum is ``amount``, in proportion to the weights where they can be: a level rises, and
    lifts each job from its low to its high.
    """
    low, high, weights = bounds.low, bounds.high, bounds.weights
    level, slope, left = 0.0, 0.0, float(amount - sum(low))
    for height, change in bounds.turns:
        if slope > 0 and left <= slope * (height - level):
            break
        left -= slope * (height - level)
        level, slope = height, slope + change
    if slope > 1e-9:
        level += left / slope
    return [
        min(max(level * weight, float(least)), float(most))
        for least, most, weight in zip(low, high, weights, strict=True)
    ]


def _whole(shares: Sequence[float], amount: int, high: Sequence[int], low: Sequence[int]) -> list[int]:
    """Whole numbers of the sum ``amount``: each share rounded down, then one more each for the largest remainders; of equals,
    for the first.
    """
    rounded = [round(share, _EXACT) for share in shares]
    found = [max(math.floor(share), least) for share, least in zip(rounded, low, strict=True)]
    order = sorted(range(len(found)), key=lambda index: round(found[index] - rounded[index], _EXACT))
    left = amount - sum(found)
    while left > 0:
        gave = left
        for index in order:
            if left > 0 and found[index] < high[index]:
                found[index] += 1
                left -= 1
        if left == gave:
            break
    for index in reversed(order):  # floors above their shares have taken more than there is
        if left < 0:
            less = min(found[index] - low[index], -left)
            found[index] -= less
            left += less
    return found
