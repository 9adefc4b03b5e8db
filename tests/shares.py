"""What must hold, after every event, of how peers are divided among jobs and take turns at their tasks."""

from __future__ import annotations

import math

from coordinator.core import scheduling
from coordinator.core.entitlement import asked_of, begun, needs, targets
from coordinator.core.state import State


def hold_shares(state: State) -> None:
    """No more is promised than there is, no peer idles beside work that it may do, and each has the tags of its task."""
    wanted = targets(state)
    assert sum(target.peers for target in wanted.values()) <= state.live, "no more is promised than there is"
    without = {name for name, target in wanted.items() if not target.peers}
    pausing = {name for name in wanted if state.jobs[name].pauses}
    assert pausing <= without, "a job that pauses is promised nothing"
    assert without - pausing == state.queued, "another job without a share is queued"
    running = [name for name in state.plans if state.jobs[name].status == "running"]
    hold_work(state, running)
    for name in running:
        job, plan = state.jobs[name], state.plans[name]
        assert wanted[name].peers <= (job.max_peers or math.inf), f"{name} is promised more than it may have"
        for stage, task in job.tasks.items():
            tags = plan.tags.get(stage, frozenset())
            assert all(tags <= state.peers[peer].tags for peer in task.peers), "a peer has the tags of its task"
    hold_moves(state)


def hold_work(state: State, running: list[str]) -> None:
    """A peer is idle beside work that it could do only if a job below its share could use this very peer; and a bounded job that
    could go on with idle peers does.
    """
    wanted = targets(state)
    idle = {kind: len(row) for kind, row in state.idle_of.items()}
    keeping = [
        asked
        for name in running
        if wanted[name].peers > state.held[name]
        for asked in scheduling.openings(state, name, wanted[name].peers - state.held[name])
    ]
    left = {kind: count for kind, count in idle.items() if not any(kind.fits(asked) for asked in keeping)}
    for name in running:
        job, plan = state.jobs[name], state.plans[name]
        assert scheduling.choose(state, name, left) is None, f"a peer is idle beside work of {name}"
        missing = wanted[name].peers - state.held[name]
        assert missing <= 0 or scheduling.choose(state, name, idle, missing) is None, (
            f"a peer is idle beside {name}, which is below its share"
        )
        for stage in scheduling.stalled(job, plan) if not plan.turns else ():
            able = state.fitting(asked_of(job, plan, stage)) if not job.queued else 0
            enough = not job.pauses and min(able, scheduling.room(state, name)) >= needs(job, plan, stage)
            assert not enough, f"{name} stands still at {stage} beside idle peers"


def hold_moves(state: State) -> None:
    """What jobs give, others lack; no job gives below its share."""
    wanted = targets(state)
    moves = scheduling.giving_back(state)
    assert len({move.job for move in moves}) == len(moves)
    lack = sum(max(target.peers - state.held[name], 0) for name, target in wanted.items())
    most = {name: state.jobs[name].most_peers for name in wanted}
    beyond = {name: max(state.held[name] - (math.inf if limit is None else limit), 0) for name, limit in most.items()}
    given = sum(state.giving.values())
    assert sum(len(move.peers) for move in moves) + given <= max(lack, given) + sum(beyond.values())
    for move in moves:
        left = state.held[move.job] - state.giving.get(move.job, 0) - len(move.peers)
        assert left >= wanted[move.job].peers, f"{move.job} gives below its share"
        assert 0 <= move.at_once <= len(move.peers)


class Turns:
    """How often peers went to other tasks of an unbounded job while one of its tasks had none."""

    def __init__(self) -> None:
        self._passed_over: dict[tuple[str, int, str], int] = {}

    def look(self, state: State) -> None:
        """After each event: no task is passed over more often than its job has tasks, since it has these."""
        passed = {}
        for name in state.plans:
            job, plan = state.jobs[name], state.plans[name]
            if job.status != "running" or not plan.turns or not begun(job, plan):
                continue
            offered = [
                peer
                for task in job.tasks.values()
                for peer in task.peers
                if state.assignment(peer).id == state.n and len(task.peers) == 1
            ]
            for stage in plan.stages:
                if scheduling.asks(job.tasks[stage]):
                    able = sum(state.fits(peer, asked_of(job, plan, stage)) for peer in offered)
                    place = name, job.revision, stage
                    count = passed[place] = self._passed_over.get(place, 0) + able
                    assert count <= len(plan.stages), f"{name}/{stage} is left alone: {count} other offers"
        self._passed_over = passed
