"""Why a job lacks virtual peers, or has fewer than it could: one part of :mod:`coordinator.core.explain`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from coordinator.core.entitlement import has_peers, needs, targets
from coordinator.core.explanation import Holder, Reason
from coordinator.core.indexes import Kind
from coordinator.core.peer_states import ASSIGNED
from coordinator.core.plan import Plan
from coordinator.core.scheduling import asking, asks, giving_back, openings, stalled
from coordinator.core.state import LIVE, Job, State
from sardonyx.core.text import counted, plural


def too_old(state: State, job: Job) -> Iterator[Reason]:
    old = sum(len(peers) for kind, peers in state.idle_of.items() if kind.format < job.needs)
    if old and any(asks(task) for task in job.tasks.values()):
        text = (
            f"{counted(old, 'idle virtual peer')} cannot read it, because their release is too old "
            "(SX-VERSION-PEER): `sardonyx upgrade --check` shows who runs which release"
        )
        yield Reason(code="peers-too-old", text=text, free=old)


def missing(state: State, name: str, job: Job, plan: Plan, *, who: bool) -> Iterator[Reason]:
    """Peers without which the job cannot go on."""
    revoked = list(state.by_state["revoked"])
    if not state.live and any(state.by_state[found] for found in LIVE):
        return  # all are drained
    if not state.free and not any(state.by_state[found] for found in ASSIGNED):
        dead = state.by_state["dead"]
        since = state.peers[next(reversed(dead))].since if dead else job.submitted_at
        yield Reason(
            code="no-live-peers",
            text="there is no virtual peer at all; is a peer daemon running?",
            since=max(since, job.submitted_at),
            needed=job.waits_for or None,
            free=0,
            peers=holders(state, revoked),
        )
        return
    if not job.waits_for:
        if job.queued:
            yield from _queued(state, name)
        return
    if plan.turns and state.held[name]:
        yield _turns(state, name, job, plan)
        return
    busy = [peer for found in ASSIGNED for peer in state.by_state[found]]
    if not plan.turns:
        lacking = [stage for stage in stalled(job, plan) if has_peers(state, job, plan, stage)][:1]
    else:
        lacking = asking(state, job, plan)
    needed = sum(needs(job, plan, stage) for stage in lacking)
    asks = f"task {lacking[0]} asks" if len(lacking) == 1 else f"tasks {', '.join(lacking)} ask"
    yield Reason(
        code="peers-missing",
        text=f"it waits for {virtual(job.waits_for, 'more ')}: {asks} for {needed}, {state.free} {are(state.free)} free",
        since=job.waits_since,
        needed=needed,
        free=state.free,
        peers=holders(state, [*busy, *revoked]) if who else [],
    )
    if job.queued:
        yield from _queued(state, name)
    others = [peer for peer in busy if state.assignment(peer).job != name]
    held = Counter(state.assignment(peer).job for peer in others)
    if job.queued and held and all(not state.plans[other].bounded for other in held):
        most = held.most_common(1)[0][0]
        holding = ", ".join(f"{other} ({virtual(count)})" for other, count in held.items())
        yield Reason(
            code="starved-by-unbounded-jobs",
            text=f"all peers with a task work for jobs that never end: {holding}",
            since=max(state.peers[peer].since for peer in others),
            fix=f"take the peers off one: `sardonyx job suspend {most}`; `sardonyx job resume {most}` lets it go on",
        )


def drained_by_a_user(state: State, job: Job, *, who: bool) -> Iterator[Reason]:
    """Peers that would be there if no user had taken them out."""
    there = sum(len(state.by_state[found]) for found in LIVE)
    if there > state.live and (job.waits_for or job.queued):
        many = there - state.live
        which = virtual(many) if state.live else plural(many, "the only virtual peer", f"all {virtual(many)}")
        then = plural(many, "it gets no task until it is taken", "they get no task until they are taken")
        at = f" ({plural(len(state.drained), 'host', 'hosts')} {', '.join(state.drained)})" if state.drained else ""
        yield Reason(
            code="peers-drained",
            text=f"a user has drained {which}{at}: {then} in again",
            since=job.waits_since,
            needed=job.waits_for or None,
            free=state.free,
            peers=holders(state, _taken_out(state)) if who else [],
            fix=_undrain(state, _taken_out(state)),
        )


def _undrain(state: State, drained: list[str]) -> str:
    """What takes these peers in again: a command for each host that a user has drained, and for each peer on another one."""
    names = dict.fromkeys(place if (place := state.peers[name].host) in state.drained else name for name in drained)
    commands = [f"`sardonyx peers undrain {name}`" for name in names]
    shown = ", ".join(commands[:3]) + (f" and {len(commands) - 3} more" if len(commands) > 3 else "")
    many = plural(len(drained), "takes it", "takes them") if len(commands) == 1 else "take them"
    return f"{shown} {many} in again; or start `sardonyx peer` on another host"


def _taken_out(state: State, tags: Collection[str] = ()) -> list[str]:
    """The peers with these tags that a user has drained."""
    there = (name for found in LIVE for name in state.by_state[found] if state.peers[name].drained)
    return [name for name in there if state.peers[name].kind.tags.issuperset(tags)]


def _queued(state: State, name: str) -> Iterator[Reason]:
    """The job is promised nothing: because of what it asks for, or because what there is has been promised to others."""
    wanted, job, demand = targets(state), state.jobs[name], state.demands[name]
    others = [other for other, found in wanted.items() if found.peers]
    fix = ""
    if demand.floor > demand.cap:
        fix = f"start peers that can run it, or allow it more: `sardonyx job scale {name} --max-peers N`"
        why = "with its tags, its release and its max_peers it cannot go on with the virtual peers that there are"
    elif state.scheduler == "percentage" and job.percentage is not None and _percent(state, name) > 100:
        why = f"with its {job.percentage:g} percent, the jobs up to it would ask for more than 100"
    elif others:
        why = f"all virtual peers that there are ({state.live}) have been promised to {', '.join(others)}"
        why += f"; what is free ({state.free}) cannot run it, or is kept for those" if state.free else ""
    else:
        why = f"it needs {demand.floor} to go on, and there {are(state.live)} {state.live}"
    if not job.waits_for or others:
        yield Reason(code="queued-behind", text=f"it is queued: {why}", needed=wanted[name].floor, fix=fix)


def _percent(state: State, name: str) -> float:
    """What the jobs up to this one ask for."""
    jobs = [state.jobs[other] for other in targets(state)]
    return sum(job.percentage or 0.0 for job in jobs if job.number <= state.jobs[name].number)


def _turns(state: State, name: str, job: Job, plan: Plan) -> Reason:
    lacking = asking(state, job, plan)
    verb = plural(len(lacking), "has", "have")
    return Reason(
        code="takes-turns",
        text=f"its {virtual(state.held[name])} {plural(state.held[name], 'takes', 'take')} turns: "
        f"{counted(len(lacking), 'task')} ({', '.join(lacking)}) {verb} no peer now; {virtual(job.waits_for, 'more ')} would do",
        since=job.waits_since,
        needed=job.waits_for,
        free=state.free,
    )


def untagged(state: State, job: Job, plan: Plan, *, who: bool) -> Iterator[Reason]:
    """Tasks that no live peer can run, or none that is idle."""
    for stage, tags in plan.tags.items():
        able = state.supply(Kind(0, tags))
        if job.tasks[stage].state == "complete" or (able and not (asks(job.tasks[stage]) and state.free)):
            continue
        if not state.fitting(Kind(0, tags)):
            words = f"{plural(len(tags), 'the tag', 'the tags')} {', '.join(sorted(tags))}"
            text = f"task {stage} needs a virtual peer with {words}, and "
            drained = [] if able else _taken_out(state, tags)
            daemon = f"`sardonyx peer --tag {' --tag '.join(sorted(tags))}`"
            if able:
                text += plural(able, "the only one has another task", f"all {able} that there are have other tasks")
                yield Reason(code="tag-busy", text=text, task=stage, fix=f"start one more daemon that has it: {daemon}")
            elif not drained:
                fix = f"start a daemon that has it: {daemon}"
                yield Reason(code="no-tag", text=f"{text}there is none", task=stage, fix=fix)
            elif state.live:  # otherwise the first reason says it of all peers
                text += (
                    f"a user has drained {plural(len(drained), 'the only one', f'all {len(drained)} that there are')}"
                )
                held = holders(state, drained) if who else []
                yield Reason(code="peers-drained", text=text, task=stage, peers=held, fix=_undrain(state, drained))


def shares(state: State, name: str, job: Job) -> Iterator[Reason]:
    """The job has more peers than it is entitled to, or less, or all that it may have."""
    held, share = state.held[name], targets(state)[name].peers
    if job.max_peers is not None and held > job.max_peers:
        text = f"it has {virtual(held)} and may have {job.max_peers} (max_peers): the others leave after their batches"
        yield Reason(code="job-full", text=text, limit=job.max_peers)
        return
    peers = (state.peers[peer] for task in job.tasks.values() for peer in task.peers) if name in state.giving else ()
    if giving := sum(peer.yields == "share" and not peer.drained for peer in peers):
        yield Reason(
            code="over-share",
            text=f"it has {virtual(held)} and a share of {share}: {giving} of them {plural(giving, 'goes', 'go')} to other jobs "
            "after the batch in hand",
            since=job.gave_at,
        )
    elif openings(state, name, share - held) and (state.giving or giving_back(state)):
        yield Reason(
            code="below-share",
            text=f"it has {virtual(held)} and a share of {share}: other jobs give it some when they have committed their batches",
            needed=share - held,
        )
    if job.max_peers is not None and held >= job.max_peers:
        yield Reason(
            code="job-full", text=f"it has as many peers as its max_peers allows: {job.max_peers}", limit=job.max_peers
        )


def holders(state: State, peers: list[str]) -> list[Holder]:
    """These peers with their tasks; those that have been there longest come first."""
    found = []
    for name in sorted(peers, key=lambda name: state.peers[name].order):
        peer = state.peers[name]
        place = peer.assignment
        found.append(Holder(name, peer.state, peer.since, place.job if place else None, place.task if place else None))
    return found


def virtual(number: int, more: str = "") -> str:
    """So many virtual peers, in words."""
    return counted(number, f"{more}virtual peer")


def are(number: int) -> str:
    """The verb after a number of peers."""
    return plural(number, "is", "are")
