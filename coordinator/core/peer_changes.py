"""The changes that one decision makes to peers, and the notes of what it has changed. Pure.

:class:`coordinator.core.job_changes.JobChanges` adds those to jobs.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import force_setattr

from coordinator.core import peer_states
from coordinator.core.entitlement import asked_of
from coordinator.core.homes import Standby, peers_for
from coordinator.core.peer_states import WORKING, Trigger
from coordinator.core.projection import encode_note
from coordinator.core.scheduling import Offer, seconds, seeking, takes_any
from coordinator.core.state import (
    REMEMBERED_DEAD,
    Job,
    Peer,
    State,
    Task,
    free_slots,
)
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, DeletePulse, Effect, OuterEffect, Set, TreeEffect
from sardonyx.core.events import PeerBorn, Yields
from sardonyx.core.notes import Assignment, JobNote, PeerNote, TaskNote


class PeerChanges:
    """The changes that one event makes to peers.

    Args:
        state: changed in place.
        n: number of the event.
        at: its wall clock, seconds since 1970.
    """

    __slots__ = ("_idle", "_made", "_outer", "_removed", "_touched", "at", "jobs", "kinds_changed", "n", "state")

    def __init__(self, state: State, n: int, at: float) -> None:
        self.state = state
        self.n = n
        self.at = at
        self.jobs: dict[str, None] = {}
        """The changed jobs, in order."""
        self._touched: dict[str, tuple[Peer | Job | Task, PeerNote | JobNote | TaskNote | None]] = {}
        self._made: list[TreeEffect] = []
        self._removed: list[TreeEffect] = []
        self._outer: list[OuterEffect] = []
        self._idle = {kind: len(row) for kind, row in state.idle_of.items()}
        self.kinds_changed = False
        """Whether the first live peer of a kind came, or the last one went."""

    @property
    def free_changed(self) -> bool:
        """Whether the numbers of idle peers of each kind differ from before the event."""
        return {kind: len(row) for kind, row in self.state.idle_of.items()} != self._idle

    def effects(self) -> list[Effect]:
        """What must be done: changes of nodes, parents before children; deletions, children before parents; then the effects
        outside ZooKeeper.
        """
        changes: list[TreeEffect] = list(self._made)
        for path, (entity, before) in self._touched.items():
            after = entity.note()
            if after == before:
                continue
            entity.n = self.n
            if after is None:
                changes.append(Delete(path))
                continue
            force_setattr(after, "n", self.n)  # nothing else refers to it yet
            changes.append((Create if before is None else Set)(path, encode_note(after)))
        return [*changes, *self._removed, *self._outer]

    # Peers

    def birth(self, name: str, born: PeerBorn) -> None:
        """Add an idle peer."""
        tags = frozenset(born.tags)
        peer = Peer("idle", self.n, self.at, self._rank(), daemon=born.daemon, host=born.host, pid=born.pid, tags=tags)
        peer.version, peer.format, peer.drained = born.version, born.format, born.host in self.state.drained
        self.state.peers[name] = peer
        self._count(peer, 1)
        self.state.by_state["idle"][name] = None
        self.state.add_idle(name, peer)
        self._touched[node_paths.peer_state(name)] = (peer, None)

    def move(self, name: str, trigger: Trigger) -> None:
        """Move a peer to another state; its assignment stays."""
        state, peer = self.state, self._peer(name)
        del state.by_state[peer.state][name]
        if peer.state == "idle":
            state.remove_idle(name, peer)
        if trigger in ("die", "revoke") and peer.state != "revoked":
            self._count(peer, -1)
        peer.state = peer_states.after(peer.state, trigger)
        if peer.state == "idle":
            state.add_idle(name, peer)
        peer.joins = peer.joins and peer.state == "acking"
        peer.since, peer.order = self.at, state.order
        state.order += 1
        state.by_state[peer.state][name] = None
        if peer.state == "dead":
            dead = state.by_state["dead"]
            while len(dead) > REMEMBERED_DEAD:
                del state.peers[dead.popitem(last=False)[0]]

    def leave(self, name: str, trigger: Trigger, *, failed: bool = False) -> None:
        """Move a peer to another state and off its task. If all remaining peers of the task are waiting, they become idle.

        Args:
            name: the peer.
            trigger: of the change of its state.
            failed: whether it leaves because it failed there.
        """
        peer = self._peer(name)
        if peer.assignment is None:
            self.move(name, trigger)
            return
        place = peer.assignment
        task = self._task(place.job, place.task)
        self._off(name, task, trigger, failed=failed)
        if all(self.state.peers[other].state == "waiting" for other in task.peers):
            for other in self.state.on_task(task):
                self._off(other, task, "release")
        if not task.peers:
            task.left = self.n

    def _off(self, name: str, task: Task, trigger: Trigger, *, failed: bool = False) -> None:
        """Take one peer off its task. Where it failed, or was revoked, its home is not preferred: the cause may lie there."""
        state, peer = self.state, self._peer(name)
        if peer.assignment is not None:
            place = peer.assignment
            state.held[place.job] -= 1
            home, goes_on = peer.home, self._goes_on(place.job, task)
            if failed or trigger == "revoke":
                task.forget_home(place.slot)
                # By rules 3, a peer without a home left the slot to be avoided by the home before.
                if (home or state.rules > 3) and state.plans[place.job].stages[place.task].standby:
                    task.avoid_home(place.slot, home)
            elif goes_on and peer.state != "acking" and home:
                task.keep_home(place.slot, home)
        self.mark(name, "")
        peer.assignment = None
        del task.peers[name]
        self.move(name, trigger)

    def _goes_on(self, job: str, task: Task) -> bool:
        """Whether the task may be offered again."""
        return task.state != "complete" and not self.state.jobs[job].ended

    def mark(self, name: str, yields: Yields) -> None:
        """Set when a peer gives its task up."""
        peer = self.state.peers[name]
        if peer.yields == yields:
            return
        peer = self._peer(name)
        if peer.assignment is not None and "share" in (yields, peer.yields):
            job, giving = peer.assignment.job, self.state.giving
            count = giving.pop(job, 0) + (1 if yields == "share" else -1)
            if count:
                giving[job] = count
        peer.yields = yields

    def drain(self, name: str, *, drained: bool) -> None:
        """Take a live peer out, after its batch in hand; or in again, as the idle one that came last."""
        state, peer = self.state, self.state.peers[name]
        if peer.drained == drained:
            return
        self._peer(name)
        if peer.state == "idle":
            state.remove_idle(name, peer)
        if drained:
            self._count(peer, -1)
        peer.drained = drained
        if not drained:
            self._count(peer, 1)
        if peer.assignment is not None:
            self.job(peer.assignment.job)  # it has fewer peers soon, or not
            self.mark(name, "share" if drained else "")
        elif not drained:
            peer.since, peer.order = self.at, self._rank()
            state.by_state["idle"].move_to_end(name)
            state.add_idle(name, peer)

    def take_turns(self, name: str) -> None:
        """Have the peers of an unbounded job give their tasks up to a task without peers as soon as they have nothing to read;
        or no more, when each task has a peer.
        """
        state = self.state
        job, plan = state.jobs[name], state.plans.get(name)
        if plan is None or job.status != "running":
            return
        asked = seeking(state, job, plan) if plan.turns and not job.goes_on else []
        if not asked and name not in state.short:
            return
        state.short.discard(name)
        for stage in plan.stages:
            for other in state.on_task(job.tasks[stage]):
                peer = state.peers[other]
                if not takes_any(state, other, job, plan, asked):
                    if peer.yields in ("idle", "turn"):
                        self.mark(other, "")
                    continue
                if not peer.yields and peer.state in WORKING:
                    self.mark(other, "idle")
                if peer.yields in ("idle", "turn"):
                    state.short.add(name)
        if asked:
            for other in seconds(state, name):
                self.mark(other, "turn")

    def _count(self, peer: Peer, more: int) -> None:
        """One more or less live peer is of this kind. So jobs that not every peer can work for may ask for more or less."""
        state, kind = self.state, peer.kind
        if peer.drained:
            return
        count = state.live_of.pop(kind, 0) + more
        if count:
            state.live_of[kind] = count
        if not count or count == more:
            self.kinds_changed = True
            state.stale |= state.requiring
        if state.restricted:
            state.stale |= state.restricted
            state.forget_targets()

    def take_pulse(self, name: str) -> None:
        """Have a dead peer's pulse removed."""
        self.state.peers[name].pulse_due = True
        self._outer.append(DeletePulse(name))

    def offer(self, offer: Offer) -> None:
        """Offer the smallest free slots of a task to idle peers (:func:`coordinator.core.homes.peers_for`). By rules from 4 on,
        they know whether others work there already, in a job whose tasks end.
        """
        job = self.state.jobs[offer.job]
        task = self._task(offer.job, offer.task)
        plan = self.state.plans[offer.job]
        asked = asked_of(job, plan, offer.task)
        slots = list(islice(free_slots(task), offer.peers))
        standby = Standby(offer.job, offer.task, task.avoids) if plan.stages[offer.task].standby else None
        joins = self.state.rules > 3 and not plan.turns and self._is_worked_on(task)
        found = peers_for(self.state, asked, slots, task.last, offer.kinds, standby, task.declined)
        for slot, name in found.items():
            peer = self._peer(name)
            peer.assignment, peer.joins = Assignment(self.n, offer.job, offer.task, slot), joins
            task.peers[name] = slot
            self.state.held[offer.job] += 1
            self.move(name, "offer")
        self.state.turn = job.number

    def _is_worked_on(self, task: Task) -> bool:
        return any(self.state.peers[name].state != "acking" for name in task.peers)

    # The notes from before the first change

    def job(self, name: str) -> Job:
        """A job that the caller is about to change."""
        job = self.state.jobs[name]
        self.jobs[name] = None
        path = node_paths.job_status(name)
        if path not in self._touched:
            self._touched[path] = (job, job.note())
        return job

    def _task(self, job_name: str, name: str) -> Task:
        job = self.state.jobs[job_name]
        self.jobs[job_name] = None
        if job.status == "running":
            self.state.jobs_with_capacity.add(job_name)
        task = job.tasks[name]
        path = node_paths.job_task(job_name, name)
        if path not in self._touched:
            self._touched[path] = (task, task.note())
        return task

    def _peer(self, name: str) -> Peer:
        peer = self.state.peers[name]
        path = node_paths.peer_state(name)
        if path not in self._touched:
            self._touched[path] = (peer, peer.note())
        return peer

    def _rank(self) -> int:
        rank = self.state.order
        self.state.order += 1
        return rank
