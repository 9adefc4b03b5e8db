"""Why a job does not run: what is missing, which peers hold it, and since when. Read from any state, also a past one. Pure.

``sardonyx job explain`` shows it. The most important reason comes first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coordinator.core.entitlement import asked_of, needs
from coordinator.core.explanation import FIXES, Code, Explanation, Reason
from coordinator.core.lacking_peers import (
    are,
    drained_by_a_user,
    holders,
    missing,
    shares,
    too_old,
    untagged,
    virtual,
)
from coordinator.core.plan import Plan
from coordinator.core.scheduling import asking, asks, blocking, deserted
from coordinator.core.state import Job, State, Task
from sardonyx.core.changing import failed_after
from sardonyx.core.changing_at import pending, waits_text
from sardonyx.core.cycles import outer_links
from sardonyx.core.errors import Failure
from sardonyx.core.reach import Reach
from sardonyx.core.text import counted, plural


def explain(state: State, job: str, *, who: bool = True) -> Explanation:
    """Why this job does not run; works for every status and for unknown jobs.

    Args:
        state: the coordinator's state.
        job: its id.
        who: whether to tell of a running job which peers work, are full or have not answered, and on what. It takes most of the
            time where there are thousands, and a list of jobs has no room for it.
    """
    found = state.jobs.get(job)
    if found is None:
        return Explanation(job, state.n, [_unknown(state, job)])
    if found.ended:
        reasons = list(_ended(found))
    elif found.status == "planning":
        text = "its topics are being created, or looked up in Kafka"
        reasons = [Reason(code="topics-creating", text=text, since=found.submitted_at)]
    else:
        reasons = _running(state, job, found, who=who)
    return Explanation(job, state.n, [_with_fix(reason, job) for reason in reasons], found.status)


def _with_fix(reason: Reason, job: str) -> Reason:
    """The reason, saying what to do about it."""
    fix = FIXES.get(reason.code)
    return reason if reason.fix or fix is None else msgspec.structs.replace(reason, fix=fix.format(job=job))


def _unknown(state: State, job: str) -> Reason:
    if job in state.purged:
        return Reason(code="purged", text="it had ended, and was purged")
    return Reason(code="unknown", text="no job of this id was ever submitted, or it was purged long ago")


# Jobs that have ended


def _ended(job: Job) -> Iterator[Reason]:
    if job.status == "failed" and job.error is not None:
        what: tuple[Code, str] = ("refused", "it was refused") if job.refused else ("failed", "it failed")
        text = f"{what[1]}: {_one_line(job.error)}"
        yield Reason(code=what[0], text=text, since=job.ended_at, error=job.error)
    elif job.status == "killed":
        yield Reason(code="killed", text="a user ended it", since=job.ended_at)
    elif job.status == "stopped":
        text = "a user stopped it, and all that its inputs had read went through it"
        yield Reason(code="stopped", text=text, since=job.ended_at)
    else:
        yield Reason(code="completed", text="all its tasks are complete", since=job.ended_at)
    if job.left_alone:
        text = "what could not be decided of its end was set aside: its topics stay until a user purges it"
        yield Reason(code="topics-left", text=text, since=job.ended_at)
    elif not job.purgeable:
        then = f"; then job {job.into} goes on from there" if job.into else ""
        then += "; after that the job is deleted" if job.purge else ""
        yield Reason(code="topics-deleting", text=f"its topics and groups are being deleted{then}", since=job.ended_at)


# Jobs that run, or should


def _running(state: State, name: str, job: Job, *, who: bool) -> list[Reason]:
    plan = state.plans[name]
    at_work = [peer for stage in plan.stages for peer in state.on_task(job.tasks[stage])] if who or job.pauses else []
    if job.pauses:
        return [_paused(state, name, job, [peer for peer in at_work if state.assignment(peer).task not in job.goes_on])]
    drained = list(drained_by_a_user(state, job, who=who))
    reasons = [
        *(drained if not state.live else ()),  # nothing else helps as quickly
        *too_old(state, job),
        *untagged(state, job, plan, who=who),
        *missing(state, name, job, plan, who=who),
        *(drained if state.live else ()),
        *shares(state, name, job),
        *_backing_off(state, job, plan),
    ]
    if job.stopping:
        text = "a user stopped it: it ends when all that its inputs have read has gone through it"
        if job.into:
            text += f"; job {job.into} goes on from there then"
        reasons.append(Reason(code="stopping", text=text))
    else:
        reasons += _awaiting_markers(job, plan)
    reasons += [
        *_loops(job, plan),
        *_short(state, job, plan),
        *_blocked(job, plan),
        *_full(state, job, plan, who=who),
        *_unanswered(state, job, plan, who=who),
    ]
    waits = pending(job.spec)
    if waits is not None:
        reasons.append(Reason(code="changing-at", text=waits_text(waits)))
    if job.spec.next_partitions is not None:
        reasons.append(_resizing(name, job.spec.next_partitions))
    if job.error is not None:
        text = f"{job.error.message.removesuffix('.')}: {job.error.cause}; {job.error.fix}"
        reasons.append(Reason(code="taken-back", text=" ".join(text.split()), error=job.error))
    if at_work:
        peers = holders(state, at_work)
        words = f"{virtual(len(peers))} {are(len(peers))} at work"
        text = words if reasons else f"it runs: {words}"
        reasons.append(Reason(code="runs", text=text, since=peers[0].since, peers=peers))
    return reasons


def _resizing(name: str, partitions: int) -> Reason:
    """Its queues get another number of partitions."""
    text = (
        f"nothing is read of its inputs until its queues are read to their end and get {counted(partitions, 'partition')}; "
        f"if that is no longer wanted, `sardonyx job change {name} SPEC` lets it go on"
    )
    return Reason(code="resizing", text=text)


def _paused(state: State, name: str, job: Job, at_work: list[str]) -> Reason:
    who = (
        f"; {virtual(len(at_work))} {plural(len(at_work), 'leaves', 'leave')} after the batch in hand"
        if at_work
        else ""
    )
    if job.next_spec is not None:
        what = ": Kafka is being prepared for it" if job.switching else ""
        return Reason(code="changing", text=f"it is being changed{what}{who}", peers=holders(state, at_work))
    resume = f"`sardonyx job resume {name}` lets it go on where it was"
    if job.error is None or not failed_after(job.error):
        text = f"a user suspended it{who}; {resume}"
    else:  # the same error would come again
        mend = f"change it again with `sardonyx job change {name} SPEC`, and then {resume}"
        text = f"it failed after a change: {_one_line(job.error)}{who}; {mend}"
    return Reason(code="suspended", text=text, error=job.error, peers=holders(state, at_work))


def _backing_off(state: State, job: Job, plan: Plan) -> Iterator[Reason]:
    limit = job.spec.failure_limit
    for stage in plan.stages:
        task = job.tasks[stage]
        if task.backing_off and task.error is not None:
            others = (
                f"; {virtual(len(task.peers))} on it {plural(len(task.peers), 'goes', 'go')} on" if task.peers else ""
            )
            yield Reason(
                code="task-backing-off",
                text=f"task {stage} backs off after failure {task.failures} ({_counted(task, limit)}), "
                f"first {_one_line(task.error)}{others}{_declined(task)}",
                since=task.failed_at,
                task=stage,
                failures=task.failures,
                limit=limit,
                error=task.error,
                peers=holders(state, state.on_task(task)),
            )


def _declined(task: Task) -> str:
    """Who declined a task, or did not answer, so that only others may take it meanwhile."""
    if not task.declined:
        return ""
    who = ", ".join(map(_process, task.declined))
    return f"; {who} declined it or did not answer, and peers of other processes may take it at once"


def _counted(task: Task, limit: int) -> str:
    """How many failures of a task the job survives."""
    if task.passing == task.failures:
        return "the cause may pass, so the job survives any number"
    return f"the job survives {limit}" + (f", and {task.passing} may pass and do not count" if task.passing else "")


def _short(state: State, job: Job, plan: Plan) -> Iterator[Reason]:
    """Tasks that would run if more peers were idle, unless the job as a whole waits for peers."""
    if job.waits_for or job.queued or plan.turns:
        return
    for stage in asking(state, job, plan):
        needed, free = needs(job, plan, stage), state.fitting(asked_of(job, plan, stage))
        if free < needed and not blocking(job, plan, stage):
            yield Reason(
                code="task-short",
                text=f"task {stage} is offered when {virtual(needed)} for it {are(needed)} free, and {free} {are(free)}",
                task=stage,
                needed=needed,
                free=free,
            )


def _blocked(job: Job, plan: Plan) -> Iterator[Reason]:
    if plan.turns:
        return
    # Over deserted tasks only: a task that has peers holds up no other, whatever is missing before it.
    without = [stage for stage in plan.stages if deserted(job.tasks[stage])]
    reach = Reach(without, ((before, stage) for stage in without for before in blocking(job, plan, stage)))
    first = [stage for stage in without if _waits_by_itself(job, plan, stage)]
    for stage in filter(lambda stage: asks(job.tasks[stage]), plan.stages):
        before = blocking(job, plan, stage)
        if before:
            distances = reach.before(stage)
            nearest = min((task for task in first if task in distances), key=distances.__getitem__)
            text = f"task {stage} is not offered while no peer works on {', '.join(before)}"
            if nearest not in before:
                text += f"; the nearest task that holds it up is {nearest} ({' -> '.join(reach.path(nearest, stage))})"
            yield Reason(code="task-blocked", text=text, task=stage, held_by=nearest)


def _waits_by_itself(job: Job, plan: Plan, stage: str) -> bool:
    """Whether a deserted task lacks peers for a reason of its own: it backs off, or no task before it is deserted."""
    return job.tasks[stage].backing_off or not blocking(job, plan, stage)


def _full(state: State, job: Job, plan: Plan, *, who: bool) -> Iterator[Reason]:
    """Tasks that cannot take another idle peer."""
    if not state.free:
        return
    for stage, spec in plan.stages.items():
        task, limit = job.tasks[stage], plan.limit[stage]
        if task.state == "complete" or task.backing_off or len(task.peers) < limit:
            continue
        if spec.consumption == "sequential":
            why = "it is sequential"
        elif limit == spec.max_peers:
            why = f"its max_peers is {limit}"
        else:
            why = f"its widest link has {counted(limit, 'partition')}"
        yield Reason(
            code="task-full",
            text=f"task {stage} takes no more than {virtual(limit)}: {why}; {virtual(state.free)} {are(state.free)} idle",
            task=stage,
            free=state.free,
            limit=limit,
            peers=holders(state, state.on_task(task)) if who else [],
        )


def _unanswered(state: State, job: Job, plan: Plan, *, who: bool) -> Iterator[Reason]:
    for stage in plan.stages:
        peers = list(job.tasks[stage].peers)
        if peers and all(state.peers[peer].state == "acking" for peer in peers):
            since = min((state.peers[peer] for peer in peers), key=lambda peer: peer.order).since
            held = holders(state, peers) if who else []
            text = f"task {stage} was offered to {virtual(len(peers))}, and no peer has answered yet{_moved(state, job, stage)}"
            yield Reason(code="unanswered", text=text, since=since, task=stage, peers=held)


def _moved(state: State, job: Job, stage: str) -> str:
    """Which slots of a task go to another process than had them last, because it had no idle peer."""
    task = job.tasks[stage]
    if not any(task.last):
        return ""
    homes = {slot: state.peers[peer].home for peer, slot in task.peers.items()}
    text = "; the coordinator moved slot {} from {} to {}, because no peer of the first process was idle"
    slots = [slot for slot, last in enumerate(task.last) if last and homes.get(slot, last) != last]
    return "".join(text.format(slot, _process(task.last[slot]), _process(homes[slot])) for slot in slots)


def _process(home: str) -> str:
    host, _, number = home.rpartition(":")
    return f"process {number} on {host}" if home else "another process"


def _awaiting_markers(job: Job, plan: Plan) -> Iterator[Reason]:
    """Tasks that read a topic up to end markers: only the job that writes them can tell when they come."""
    for stage in plan.graph.stages:
        topics = [link.topic for link in stage.ingress if link.ends_at_marker]
        if topics and job.tasks[stage.name].state != "complete":
            text = (
                f"task {stage.name} reads topic {topics[0]} up to its end markers; the job that writes them does so when it "
                "completes, and never if it fails or is killed"
            )
            yield Reason(code="awaits-end-marker", text=text, task=stage.name)


def _loops(job: Job, plan: Plan) -> Iterator[Reason]:
    """Loops that alone can keep a job that ends from its end: every task before them is complete. What is in them is in Kafka."""
    for cycle in plan.graph.cycles if plan.bounded else ():
        left = [stage for stage in cycle.stages if job.tasks[stage].state != "complete"]
        outer = outer_links(plan.graph, cycle)
        before = [link.source for link in outer if link.source in plan.stages]
        if left and all(job.tasks[stage].state == "complete" for stage in before):
            topics = sorted({link.topic for link in outer if link.source not in plan.stages})
            known = [f"it reads topic {topic} itself" for topic in topics]
            known += ["the tasks before it are complete"] if before else []
            hops = "no max_hops" if cycle.max_hops is None else f"max_hops is {cycle.max_hops}"
            text = (
                f"loop {cycle.name} ({' -> '.join(cycle.stages)}) goes on: {' and '.join(known)}; it ends when no row goes round "
                f"any more ({hops})"
            )
            yield Reason(code="loop-goes-on", text=text, limit=cycle.max_hops)


# For people


def _one_line(error: Failure) -> str:
    return f"{error.code}: {error.message}".splitlines()[0]
