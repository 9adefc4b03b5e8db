"""The invariants of the coordinator's state: rules that hold after every event. Pure."""

from __future__ import annotations

from coordinator.core import peer_states
from coordinator.core.state import REMEMBERED_DEAD, REMEMBERED_PURGED, Job, Peer, State, Task, broken
from coordinator.core.stored_state import expirable_jobs, idle_homes, idle_kinds, live_kinds
from sardonyx.core.changing import TAKEN_BACK


def check(state: State) -> None:
    """Check the invariants that hold after every event. For tests and tools; it checks the whole state.

    Raises:
        InternalError: SX-INVARIANT, with the broken rule and the peer, job or task that breaks it.
    """
    places: dict[str, list[tuple[str, str, int]]] = {}
    for job_name, job in state.jobs.items():
        for task_name, task in job.tasks.items():
            for peer, slot in task.peers.items():
                places.setdefault(peer, []).append((job_name, task_name, slot))
    for name in state.peers:
        _check_peer(state, name, places.get(name, []))
    for name, job in state.jobs.items():
        _check_job(state, name, job)
        for task_name, task in job.tasks.items():
            _check_task(state, name, task_name, task)
    borrowed = {job.resumes for job in state.jobs.values() if job.borrows and not job.ended}
    _rule(
        {name for name, job in state.jobs.items() if job.lends} == borrowed,
        "states are lent to jobs that begin with them",
    )
    _check_kept(state)
    _check_shares(state)


def _check_peer(state: State, name: str, listed: list[tuple[str, str, int]]) -> None:
    peer = state.peers[name]
    found = peer.assignment
    if peer.state not in peer_states.ASSIGNED:
        _rule(found is None, "an idle, revoked or dead peer has no assignment", peer=name, state=peer.state)
        return
    _rule(found is not None, "a peer at work has exactly one assignment", peer=name, state=peer.state)
    wanted = [(found.job, found.task, found.slot)] if found else []
    _rule(listed == wanted, "a peer is listed on exactly the task and slot it is assigned to", peer=name)


def _check_job(state: State, name: str, job: Job) -> None:
    staffed = any(task.peers for task in job.tasks.values())
    _rule(job.status == "running" or not staffed, "no peer is on a task of a job that is not running", job=name)
    _rule(job.ended == (job.ended_at is not None), "a job has an end exactly if it has ended", job=name)
    changed = job.status == "running" and job.revision > 1
    taken_back = job.error is not None and job.error.code == TAKEN_BACK
    held = changed and job.error is not None and (job.suspended or taken_back)
    _rule(job.former is None or changed, "only a running job that was changed has a version before", job=name)
    _rule(held or (job.status == "failed") == (job.error is not None), "exactly a failed job has an error", job=name)
    restarts = job.into_spec is not None
    _rule(not restarts or (bool(job.into) and job.stopping), "only a job that is stopped is restarted", job=name)
    pauses = job.suspended or job.next_spec is not None
    _rule(not (pauses and job.ended), "only a job that has not ended is suspended or changed", job=name)
    _rule(not job.switching or job.next_spec is not None, "queues are made only for a next spec", job=name)
    touched = any(task.peers for task_name, task in job.tasks.items() if task_name not in job.goes_on)
    _rule(not (job.switching and touched), "while queues are made, no peer is on a task that changes", job=name)
    _rule(not job.goes_on or job.next_spec is not None, "tasks go on only while their job is changed", job=name)
    _rule(job.gone_spec is None or not job.switching, "one change is at work on the queues of a job", job=name)
    names = {task.name for task in job.spec.catalog} | set(job.facts or ())
    _rule(not names.intersection(job.retired), "nothing of a removed task is left", job=name)
    if job.status == "running":
        links = {link.name for link in state.plans[name].graph.links}
        _rule(links == set(job.facts or ()), "each link of a running job has facts, and nothing else has", job=name)
    _rule(job.waits_for == 0 or job.status == "running", "only a running job waits for peers", job=name)
    _rule((job.waits_for > 0) == (job.waits_since is not None), "a job that waits knows since when", job=name)
    _rule(not job.purge or (job.ended and not job.purgeable), "only an ended job waits to be deleted", job=name)
    _rule(job.purge or not job.purge_letters, "only a job that waits to be deleted gives up its letters", job=name)
    letters = job.unclaimed_letters() if job.links == "gone" else 0
    _rule(job.letters == letters, "a job's dead letters are those of its tasks that no user claimed", job=name)
    _rule(job.links != "made" or job.status != "planning", "a job whose links exist is not being planned", job=name)
    if job.status in ("completed", "stopped"):
        complete = all(task.state == "complete" for task in job.tasks.values())
        _rule(complete, "a completed or stopped job has all its tasks complete", job=name)
        _rule(job.stopping == (job.status == "stopped"), "exactly a job that was stopped ends as stopped", job=name)
    _rule(job.ended or not job.resumed_by, "only an ended job is resumed", job=name)
    if not job.ended and job.resumes in state.jobs:
        takes_over = state.jobs[job.resumes].resumed_by == name
        _rule(
            takes_over is not job.replays, "a job is resumed by at most one job; a replay takes nothing over", job=name
        )
    if job.status == "running":
        _rule(job.facts is not None and job.links == "made", "a running job has its links", job=name)
        for bound, stages in state.plans[name].graph.bound.items():
            done = all(job.tasks[stage].state == "complete" for stage in stages)
            _rule(
                (job.tasks[bound].state == "complete") == done, "a bound task mirrors its stages", job=name, task=bound
            )


def _check_task(state: State, job: str, name: str, task: Task) -> None:
    where = {"job": job, "task": name}
    states = [state.peers[peer].state for peer in task.peers if peer in state.peers]
    _rule(len(states) == len(task.peers), "every peer on a task is known", **where)
    _rule(all(found in peer_states.ASSIGNED for found in states), "every peer on a task is at work", **where)
    _rule(states.count("sealing") <= 1, "at most one peer of a task is sealing", **where)
    _rule(not states or set(states) != {"waiting"}, "not all peers of a task are waiting", **where)
    _rule((task.failures > 0) == (task.failed_at is not None), "a task that failed knows when", **where)
    _rule((task.failures > 0) == (task.error is not None), "a task that failed knows why", **where)
    if task.backing_off:
        _rule(task.failures > 0, "a task that backs off has failed", **where)
        _rule(task.state != "complete", "a complete task does not back off", **where)
        _rule(state.jobs[job].status == "running", "a task that backs off belongs to a running job", **where)
    _rule(task.backing_off or not task.declined, "only of a task that backs off it is known who declined it", **where)
    over = task.state == "complete" or state.jobs[job].ended
    _rule(
        not (over and (task.last or task.avoids)),
        "only of a task that goes on is it known which process had which slot",
        **where,
    )
    _rule(len(set(task.peers.values())) == len(task.peers), "no slot of a task is held twice", **where)
    if task.peers:
        _rule(task.state != "complete", "a complete task has no peers", **where)
        plan = state.plans[job]
        _rule(name in plan.stages, "a bound task has no peers", **where)
        _rule(len(task.peers) <= plan.limit[name], "a task has no more peers than it can take", **where)
        _rule(max(task.peers.values()) < plan.limit[name], "slots are the smallest that are free", **where)


def _check_kept(state: State) -> None:
    """The attributes that are not stored must follow from those that are."""
    for where, queue in state.by_state.items():
        wanted = sorted((p for p in state.peers if state.peers[p].state == where), key=lambda p: state.peers[p].order)
        _rule(list(queue) == wanted, "peers are in the queue of their state, in order", state=where)
    alive = [name for name, job in state.jobs.items() if not job.ended]
    _rule(set(state.plans) == set(alive), "exactly the jobs that have not ended have a plan")
    _rule(len(state.names) == len(alive), "no two jobs that have not ended share a name")
    _rule(all(state.names.get(state.jobs[name].spec.name) == name for name in alive), "names lead to their jobs")
    _rule(
        all(state.jobs[name].status == "running" for name in state.jobs_with_capacity), "only running jobs are served"
    )
    backing_off: dict[int, list[tuple[float, str, str]]] = {}
    for name, job in state.jobs.items():
        for task_name, task in job.tasks.items():
            if task.backing_off and task.failed_at is not None:
                backing_off.setdefault(task.failures, []).append((task.failed_at, name, task_name))
    _rule(
        state.backing_off == {key: sorted(rows) for key, rows in backing_off.items()},
        "tasks that back off are in their rows",
    )
    _rule(list(state.expirable) == expirable_jobs(state), "jobs that may expire are in the order of their end")
    _rule(not state.purged.keys() & state.jobs.keys(), "a deleted job is unknown")
    _rule(len(state.purged) <= REMEMBERED_PURGED, "only the last deleted jobs are remembered")
    _rule(len(state.by_state["dead"]) <= REMEMBERED_DEAD, "only the last dead peers are remembered")


def _check_shares(state: State) -> None:
    """What is kept of how peers are divided among jobs must follow from what is stored."""
    held: dict[str, list[Peer]] = {name: [] for name in state.plans if state.jobs[name].status == "running"}
    for peer in state.peers.values():
        if peer.assignment is not None:
            held[peer.assignment.job].append(peer)
        _rule(not peer.yields or peer.assignment is not None, "only a peer with a task gives one up")
    for name, peers in held.items():
        job, marks = state.jobs[name], [peer.yields for peer in peers]
        _rule(state.held.get(name) == len(peers), "peers of jobs are counted", job=name)
        _rule(state.giving.get(name, 0) == marks.count("share"), "peers that are given away are counted", job=name)
        _rule((name in state.short) == ("idle" in marks or "turn" in marks), "jobs with turns are known", job=name)
        if name in state.short:
            lacks = any(not task.peers and task.state != "complete" for task in job.tasks.values())
            _rule(lacks and state.plans[name].turns, "no turns without need", job=name)
    _rule(state.held.keys() == held.keys(), "peers are counted for the running jobs")
    _rule(state.queued == {name for name, job in state.jobs.items() if job.queued}, "queued jobs are known")
    _rule(state.live_of == live_kinds(state), "live peers are counted by kind")
    idle = {kind: list(row) for kind, row in state.idle_of.items()}
    _rule(
        idle == {kind: list(row) for kind, row in idle_kinds(state).items()}, "idle peers are known by kind, in order"
    )
    homes = {place: list(row) for place, row in state.idle_at.items()}
    found = {place: list(row) for place, row in idle_homes(state).items()}
    _rule(homes == found, "idle peers are known by home, in order")
    _rule(all(not job.queued or job.status == "running" for job in state.jobs.values()), "only running jobs are queued")


def _rule(holds: bool, rule: str, **where: object) -> None:
    if not holds:
        raise broken(rule, **where)
