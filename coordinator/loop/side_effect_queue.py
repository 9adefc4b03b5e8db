"""Holds side effects back until the effects of their entry are in the tree, then begins them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import structlog

from coordinator.core.state import Job, State
from coordinator.loop.election import Leadership
from coordinator.loop.side_effects import LinksEffect, LinksWork, LinksWorker, Rewired
from coordinator.loop.slot_fencing import SlotFencer
from sardonyx.core import node_paths
from sardonyx.core.effects import ChangeLinks, Delete, DeletePulse, DropLinks, OuterEffect
from sardonyx.core.events import AnyEvent, Evicted, Left, PeerDied, TaskFailed
from sardonyx.core.slot import Slot
from sardonyx.zookeeper.errors import TransactionFailed

_LEAVING = (PeerDied, Evicted, TaskFailed, Left)
"""Events by which a peer may leave a slot with something open on Kafka. A peer that leaves in order may leave its place in a
group that is rebalancing."""

log = structlog.get_logger()


def slot_left_by(state: State, event: AnyEvent) -> Slot | None:
    """The slot that the event's peer works on, if the peer may be about to leave it. Ask before the leader decides the event."""
    if not isinstance(event, _LEAVING):
        return None
    peer = state.peers.get(event.peer)
    if peer is None or peer.assignment is None or peer.state == "acking":  # a peer that has not begun has nothing open
        return None
    return Slot(peer.assignment.job, peer.assignment.task, peer.assignment.slot)


def is_vacant(state: State, slot: Slot) -> bool:
    """Whether no peer holds a slot. Any thread may ask while the leader decides."""
    job = state.jobs.get(slot.job)
    if job is not None and slot.task not in job.tasks:  # a change removed it, and all its slots were fenced for that
        return False
    return job is None or slot.number not in list(job.tasks[slot.task].peers.values())


class SideEffectQueue:
    """Side effects in the order of their entries, each begun when its entry's effects are durable.

    Args:
        leadership: whose epoch each write checks.
        links: creates and deletes links.
        fencer: fences slots that peers left.
        pulse_deleted: called when a peer's pulse was deleted.
    """

    def __init__(
        self,
        leadership: Leadership,
        links: LinksWorker,
        fencer: SlotFencer,
        pulse_deleted: Callable[[], None],
    ) -> None:
        self._leadership = leadership
        self._links = links
        self._fencer = fencer
        self._pulse_deleted = pulse_deleted
        self._waiting: deque[tuple[int, OuterEffect | Slot]] = deque()
        """With each, the number of its entry. A slot is to be fenced."""
        self._left: dict[Slot, int] = {}
        """Of each slot that waits, the entry by which it was left last."""

    @property
    def waiting(self) -> int:
        """Those that are not begun, and those that are begun and not done. Any thread may ask."""
        return len(self._waiting) + self._links.pending + self._fencer.pending

    def add(self, n: int, effects: Sequence[OuterEffect]) -> None:
        """Take in side effects of entry ``n``."""
        self._waiting += ((n, effect) for effect in effects)

    def add_slot(self, n: int, slot: Slot) -> None:
        """A peer left this slot by entry ``n``: have it fenced."""
        self._waiting.append((n, slot))
        self._left[slot] = n

    def begin(self, state: State, durable: int) -> None:
        """Begin those whose entries' effects are in the tree.

        Args:
            state: as it is decided so far.
            durable: the entry up to which all effects are in the tree.

        Raises:
            LeadershipEnded, Deposed, SessionLost, OutcomeUnknown: as :meth:`Leadership.commit`.
        """
        while self._waiting and self._waiting[0][0] <= durable:
            n, effect = self._waiting.popleft()
            if isinstance(effect, Slot):
                self._fence(state, n, effect)
            elif isinstance(effect, DeletePulse):
                self._delete_pulse(n, effect.peer)
            elif effect.job in state.jobs:  # otherwise its links are gone, and it was purged after this entry
                self._begin(n, effect, state.jobs[effect.job])

    def _begin(self, n: int, effect: LinksEffect, job: Job) -> None:
        """Those of a change are not begun if the job has ended since: all of it is deleted then."""
        if isinstance(effect, ChangeLinks):
            if job.next_spec is not None and job.switching:
                rewired = Rewired(job.spec, dict(job.facts or {}), job.revision + 1, goes_on=job.goes_on)
                self._links.submit(LinksWork(n, effect, job.next_spec, rewired))
        elif isinstance(effect, DropLinks):
            if job.gone_spec is not None:
                rewired = Rewired(job.gone_spec, {}, job.revision, job.lends)
                self._links.submit(LinksWork(n, effect, job.spec, rewired))
        else:
            self._links.submit(LinksWork(n, effect, job.spec, keeps_states=job.keeps_states))

    def _fence(self, state: State, n: int, slot: Slot) -> None:
        if self._left[slot] > n:  # another peer has got it since, and has left it too: it is fenced then
            return
        del self._left[slot]
        job = state.jobs.get(slot.job)
        # A peer that has got it meanwhile ends by itself, when it begins, what is open there.
        if job is not None and is_vacant(state, slot):
            self._fencer.submit(n, slot, job.spec)

    def _delete_pulse(self, n: int, peer: str) -> None:
        try:
            self._leadership.commit([Delete(node_paths.pulse(peer))])
        except TransactionFailed as error:  # it went by itself
            log.debug("pulse_already_gone", n=n, peer=peer, error=repr(error.reason))
        self._pulse_deleted()
