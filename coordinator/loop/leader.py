"""One leadership: the one loop in which everything is decided.

What must be durable before what, in :meth:`Leader.handle`:

1. events stand in the log, and the requests they came from are gone, before anything is decided;
2. the effects of an event stand in the tree, with the checkpoint, before anything outside ZooKeeper is done about it;
3. what is done outside ends as an event of its own, so a leader that finds no such event in the log does it again.

Whatever goes wrong in the loop ends the leadership; the next leader, maybe this process again, starts from the log.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

import structlog

from coordinator.core.decide import Timers, decide, due, next_due, surplus, unfinished
from coordinator.core.state import decode_state, encode_state, new_state, project
from coordinator.loop import event_log as journal
from coordinator.loop import sentinel_nodes, snapshots
from coordinator.loop.election import AHEAD, Leadership
from coordinator.loop.event_log import Intake
from coordinator.loop.intake import Watches, stamped
from coordinator.loop.node_gc import sweep_claims, sweep_code
from coordinator.loop.side_effects import OuterEffects, OuterWorker
from coordinator.loop.slot_fencing import Fences
from coordinator.loop.topic_gc import Orphans, readers_of_letters
from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Completed,
    Create,
    Delete,
    DeletePulse,
    Effect,
    Evicted,
    Exhausted,
    JobPurged,
    JobSubmitted,
    Left,
    LinksCreated,
    LinksDeleted,
    OuterEffect,
    PeerBorn,
    PeerDied,
    Set,
    TaskFailed,
    TreeEffect,
    kind_of,
)
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import Signal
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.transactions import PIECE, TRANSACTION_LIMIT, Merged, Operation, chunked, weight

STATE_AN_ENTRY = 256
"""Bytes of state that a snapshot may store for each entry since the last one, so that its cost for each event does not grow
with the state: at ten thousand peers it is one every eight thousand."""

RECALLED = 20_000
"""Entries before the snapshot that a new leader reads for their requests."""

_LEAVING = (PeerDied, Evicted, TaskFailed, Left)
"""Events by which a slot may be left with something open on Kafka; of a peer that left in order, its place in a group that was in
the midst of a round."""

_FORGETTING = (JobPurged, LinksDeleted)
"""Events by which a job may be forgotten."""

_OF_THE_TREE = (Create, Set, Delete)
"""As a tuple it is asked three times as fast as the union."""

_EVERYDAY = (Acked, Exhausted, Completed)
"""Events that are logged for debugging only: there are many, and they say nothing that is out of the ordinary."""
_ALIKE = (PeerBorn, PeerDied, Left, JobSubmitted, LinksCreated, LinksDeleted, JobPurged)
"""Events that are told one by one only if few come at once; how many of each there are is told anyway."""
ALIKE = 5
"""Events of one kind at once, of those that may be many, that are still told one by one; all of them when debugging."""

_FEW = 3
"""Changes of one event that fit into a transaction beside what was gathered before, however large each of them is."""

log = structlog.get_logger()


class Leader:
    """One leadership, from taking over to its end. Everything but :meth:`wake` happens in one thread.

    Args:
        leadership: the epoch that was won.
        settings: timers, deployment, how often to take snapshots.
        outer: how topics are made and removed.
        late: hears of jobs whose topics were still being made when the leadership was over.
        wake: set whenever there is something to look at.
    """

    def __init__(
        self,
        leadership: Leadership,
        settings: Settings,
        outer: OuterEffects,
        *,
        wake: Signal,
        late: Callable[[str, JobSpec], None] = lambda _job, _spec: None,
    ) -> None:
        self._leadership = leadership
        self._zk = leadership.zk
        self._settings = settings
        self._wake = wake
        self._runtime = leadership.zk.runtime
        self._done: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        self._late = late
        self._worker = OuterWorker(outer, self._outer_done, late, self._runtime)
        self._orphans = Orphans(outer.forget, self._runtime)
        self._fences = Fences(outer, self._vacant, settings.peer.patience, self._runtime)
        self._timers = Timers(
            ack_timeout=settings.coordinator.ack_timeout,
            revoke_grace=settings.coordinator.revoke_grace,
            failure_backoff=settings.coordinator.failure_backoff,
            keep_jobs=settings.coordinator.keep_jobs,
        )
        self.state = new_state(settings.deployment)
        self._snapshot = 0
        self._forgotten: dict[str, int] = {}
        """Jobs that were forgotten, and whose leavings are still to be swept -> by which event; the state remembers but the last
        thousand."""
        self._read: dict[str, str] = {}
        """Jobs that were forgotten and whose dead letters are still read -> the job that reads them."""
        self._weighs = 0
        """Entries that must lie between two snapshots of a state as large as it was in the last."""
        self._under_way: deque[tuple[Callable[[], None], int]] = deque()
        """Of each transaction with effects that was sent: waits for it; up to which event the tree is whole then."""
        self._checkpoint, self._moved = 0, 0
        """The checkpoint when all of these stand, and how many times it has been moved then."""
        self._whole = 0
        """Up to which event the tree is known to be whole."""
        self._keeping: Iterator[None] | None = None
        """The last snapshot, while it is being written; each step of it waits for the one before."""
        self._outer: deque[tuple[int, OuterEffect | Slot]] = deque()
        """What is to be done outside once the effects of its event stand: also the slots that were left by it."""
        self._left: dict[Slot, int] = {}
        """Of the slots in there, by which event each was left last."""
        self._watches = Watches(leadership, wake=wake.set)

    def lead(self, stop: Signal) -> None:
        """Take over and lead until ``stop`` is set (set ``wake`` after it). Raises whatever ends the leadership."""
        try:
            self.take_over()
            while True:
                self._wake.clear()
                if stop.is_set():
                    self.settle()
                    return
                self._leadership.check()
                before = self.state.n
                self.turn()
                if self.state.n > before:
                    continue
                self.settle()
                if self._runtime.now() >= self._leadership.renewal_due:
                    self._leadership.renew()
                self._wake.wait(self._rest())
        finally:
            self.close()

    def close(self) -> None:
        """Begin nothing more outside the loop; :meth:`lead` does so at its end."""
        self._worker.close()
        self._fences.close()
        self._orphans.close()
        for name in sorted(self._worker.begun):
            job = self.state.jobs.get(name)
            if job is not None and job.links == "none":  # made perhaps, and nobody has heard of it
                self._late(name, job.spec)

    # Taking over

    def take_over(self) -> None:
        """Become what the log says: replay it, finish what the last leader had begun, and look at what happened since.

        Raises:
            SardonyxError: ``SX-LOG-FORMAT``: written by another version.
            InternalError: ``SX-INTERNAL-LOG-GAP``.
        """
        self._zk.sync()
        found = snapshots.latest(self._zk)
        if found is not None:
            self._snapshot, self._weighs = found[0], len(found[1]) // STATE_AN_ENTRY
            self.state = decode_state(found[1])
            self._forgotten = dict.fromkeys(self.state.purged, 0)
        self._checkpoint, self._moved = journal.read_checkpoint_version(self._zk)
        reached = self._whole = self._checkpoint
        left: dict[Slot, int] = {}
        touched = self._replay(reached, left)
        repaired = self._repair(touched) if self.state.n > reached else 0
        log.info(
            "took over",
            epoch=self._leadership.epoch,
            n=self.state.n,
            snapshot=self._snapshot,
            checkpoint=reached,
            repaired=repaired,
            peers=len(self.state.peers) - len(self.state.by_state["dead"]),
            jobs=len(self.state.names),
        )
        for effect in unfinished(self.state):
            self._begin(self.state.n, effect)
        for slot, n in left.items():
            self._left[slot] = n
            self._begin(n, slot)

    def _replay(self, reached: int, left: dict[Slot, int]) -> set[str]:
        """Replay the log from the snapshot on. Gives the paths whose effects may be missing from the tree, and adds to
        ``left`` the slots that were left so lately that something may still be open there.
        """
        lately = self._runtime.wall() - self._settings.peer.patience
        touched: set[str] = set()
        # Entries before the snapshot are read for their requests only: one may come again that was taken just before it.
        start = min(self.state.n + 1, max(journal.last(self._zk) - RECALLED, journal.begins(self._zk)))
        for n, entry in journal.read_entries(self._zk, start):
            self._watches.remember(entry.request)
            if n <= self.state.n:
                continue
            if n != self.state.n + 1:
                raise _lost(self.state.n + 1)
            slot = self._slot(entry.event)
            if slot is not None and entry.event.at > lately:
                left[slot] = n
            effects = self._decide(n, entry.event)
            if n > reached:
                touched |= {effect.path for effect in effects if isinstance(effect, TreeEffect)}
        if self.state.n < reached:
            raise _lost(self.state.n + 1)
        return touched

    def _repair(self, touched: set[str]) -> int:
        """Make the touched nodes what the state says. Their effects may be there in part, so each is looked at."""
        wanted = project(self.state)
        stands = self._zk.read_many(sorted(touched))
        missing = Merged()
        changes: list[TreeEffect] = []
        for path in sorted(touched):
            before, after = stands.get(path), wanted.get(path)
            if after is None:
                changes += [] if before is None else [Delete(path)]
            elif before is None:
                changes.append(Create(path, after))
            elif before != after:
                changes.append(Set(path, after))
        missing.add(changes)
        self._apply(missing, self.state.n)
        self._applied()
        return len(changes)

    # The way of one decision

    def turn(self) -> None:
        """Take in all that has happened: what peers and clients did, then what was done outside and timers that have run out.

        While some of it is decided the rest is being read and appended already (:meth:`handle`). Timers are asked when all that
        peers and clients did is decided.
        """
        at = self._runtime.wall()
        # Their nodes are known to be gone: who still asked for something of theirs has done so, and is heard in this turn.
        swept = [job for job, n in self._forgotten.items() if n <= self._whole]
        if swept:
            self._watches.ask_for_requests()
        self.handle(self._happened(at))
        self._sweep(swept)
        self.handle(map(Intake, due(self.state, at, self._timers)))

    def _happened(self, at: float) -> Iterator[Intake]:
        """All but timers, in the order in which it is to be decided; what it asks ZooKeeper for is under way meanwhile."""
        done: list[AnyEvent] = []
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._done.get_nowait())
        made = [event.job for event in done if isinstance(event, LinksCreated)]
        steps = zip_longest(
            sentinel_nodes.opening(self._leadership, [job for job in made if job in self.state.plans]),
            sentinel_nodes.closing(self._leadership, [event.job for event in done if isinstance(event, LinksDeleted)]),
        )
        next(steps, None)
        for portion in self._watches.collect(self.state, at):
            yield from portion
            next(steps, None)
        for _ in steps:
            pass
        yield from (Intake(stamped(event, at)) for event in done)
        # Behind the requests: among them may be one that reads the dead letters of such a job.
        yield from map(Intake, surplus(self.state, at, self._timers))

    def handle(self, intakes: Iterable[Intake]) -> None:
        """Log events, decide each, and send the effects of all to the tree; :meth:`settle` waits until they stand there.

        They are asked for some pieces of the log ahead of what is decided. A snapshot is taken in their midst, when it is due.

        Effects are grouped over events to a transaction of a good size; the effects of one event that are too large for one
        go in several, alone, the checkpoint's new number with the last, and the next leader repairs them if this one dies.
        ZooKeeper works meanwhile: while some events are decided, the next ones are being appended, and the effects of those
        before being written. Several of each kind are under way at once, each of which ZooKeeper refuses unless the one before
        it has succeeded; the last effects are left under way, and what is to be done outside is begun when they stand.
        """
        told = log.bind()  # once: what is bound anew for each line costs more than a decision
        merged = Merged()
        for piece in journal.appending(self._leadership, self.state.n + 1, intakes):
            many = _many(piece)
            for n, intake in enumerate(piece, self.state.n + 1):
                slot = self._slot(intake.event)
                effects = self._decide(n, intake.event)
                if slot is not None:
                    self._outer.append((n, slot))
                    self._left[slot] = n
                self._tell(told, n, intake.event, many)
                changes = [effect for effect in effects if isinstance(effect, _OF_THE_TREE)]
                if len(changes) < len(effects):
                    self._outer += ((n, effect) for effect in effects if not isinstance(effect, _OF_THE_TREE))
                # So few are never too many for one transaction, and most events have fewer.
                if merged and len(changes) > _FEW and merged.size + sum(map(weight, changes)) > TRANSACTION_LIMIT:
                    self._apply(merged, n - 1)
                    merged = Merged()
                merged.add(changes)
                if merged.size > PIECE:
                    self._apply(merged, n)
                    merged = Merged()
            if many:
                kinds = Counter(kind_of(intake.event) for intake in piece if type(intake.event) in many)
                log.info("decided many alike", last=self.state.n, **kinds)
            if self._keeping is not None:
                next(self._keeping, None)
            if self._snapshot_due():
                self._apply(merged, self.state.n)
                merged = Merged()
                self._keep()
        if self.state.n > self._checkpoint:
            self._apply(merged, self.state.n)

    def _decide(self, n: int, event: AnyEvent) -> list[Effect]:
        effects = decide(self.state, n, event)
        if isinstance(event, Left):  # it takes its pulse away itself, unless somebody else has said this in its name
            self._watches.look_by(self._runtime.now() + self._timers.revoke_grace)
        if isinstance(event, _FORGETTING) and event.job in self.state.purged:
            self._forgotten[event.job] = n
        return effects

    def settle(self) -> None:
        """Wait until the effects of all events that were handled stand in the tree, and begin what waited for them; a snapshot
        that is being written stands then too.
        """
        self._applied()
        self._kept()

    def _apply(self, merged: Merged, n: int) -> None:
        operations: list[Operation] = [*merged.operations()]
        whole = merged.size <= PIECE + TRANSACTION_LIMIT  # what was gathered, and a few changes more
        chunks = [operations] if whole else list(chunked([operation] for operation in operations))
        for chunk in chunks:
            self._applied(AHEAD)
            failpoint("before-effects")
            if chunk is chunks[-1]:
                self._checkpoint = n
            # Refused, unless all that was sent before it stands.
            chunk.append(journal.checkpoint(self._checkpoint, self._moved))
            self._moved = journal.moved(self._moved)
            self._under_way.append((self._leadership.begin(chunk), self._checkpoint))

    def _applied(self, but: int = 0) -> None:
        """Wait until the effects that are under way stand in the tree, but for the last so many transactions; begin what
        waited for them.
        """
        while len(self._under_way) > but:
            finish, whole = self._under_way.popleft()
            finish()
            self._whole = whole
            failpoint("after-effects")
            while self._outer and self._outer[0][0] <= whole:
                self._begin(*self._outer.popleft())

    def _begin(self, n: int, effect: OuterEffect | Slot) -> None:
        if isinstance(effect, Slot):
            if self._left[effect] > n:  # somebody has been given it since, and has left it too: then is soon enough
                return
            del self._left[effect]
            job = self.state.jobs.get(effect.job)
            # Whoever has been given it meanwhile ends by himself what is open there, by beginning.
            if job is not None and self._vacant(effect):
                self._fences.left(n, effect, job.spec)
        elif isinstance(effect, DeletePulse):
            try:
                self._leadership.commit([Delete(node_paths.pulse(effect.peer))])
            except TransactionFailed as error:  # it has gone by itself
                log.debug("pulse had gone already", n=n, peer=effect.peer, reason=repr(error.reason))
            self._watches.look_again()
        else:
            job = self.state.jobs.get(effect.job)
            if job is not None:  # otherwise it was forgotten within this batch, its links being gone
                self._worker.submit(n, effect, job.spec)

    def _slot(self, event: AnyEvent) -> Slot | None:
        """To be asked before the decision: the slot that the event's peer is at work on, if he may be about to leave it."""
        if not isinstance(event, _LEAVING):
            return None
        peer = self.state.peers.get(event.peer)
        if peer is None or peer.assignment is None or peer.state == "acking":  # who has not begun has nothing open
            return None
        return Slot(peer.assignment.job, peer.assignment.task, peer.assignment.slot)

    def _vacant(self, slot: Slot) -> bool:
        """From any thread."""
        job = self.state.jobs.get(slot.job)
        return job is None or slot.number not in list(job.tasks[slot.task].peers.values())

    def _outer_done(self, event: AnyEvent) -> None:
        """In a thread of the worker."""
        self._done.put(event)
        self._wake.set()

    def _snapshot_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self.state.n - self._snapshot >= max(self._settings.coordinator.snapshot_every, self._weighs)

    def _keep(self) -> None:
        """Begin a snapshot: of the state as it is now, written while others go on."""
        self._kept()
        n, state = self.state.n, encode_state(self.state)
        self._snapshot, self._weighs = n, len(state) // STATE_AN_ENTRY
        # What a snapshot holds is not replayed, and so not repaired.
        self._keeping = snapshots.writing(self._leadership, n, state, lambda: self._whole >= n)
        next(self._keeping)

    def _kept(self) -> None:
        """See the last snapshot through, and drop what lies far behind it. For this many small questions are asked one after the
        other, which are answered at once if nothing else is under way.
        """
        if self._keeping is None:
            return
        self._applied()
        for _ in self._keeping:
            pass
        self._keeping = None
        snapshots.thin(self._leadership)
        removed = snapshots.compact(self._leadership, keep=self._settings.coordinator.keep_log)
        log.debug("snapshot written", n=self._snapshot, entries_removed=removed)

    def _sweep(self, jobs: Collection[str]) -> None:
        """Once after these jobs were forgotten: remove their code, their claims and their dead letters. Those that a redo still
        reads stay until it has ended.
        """
        over = [job for job, reader in self._read.items() if reader not in self.state.plans]
        if not jobs and not over:
            return
        stand = self._zk.children_of((node_paths.CODE, node_paths.REDO))
        used = {job.spec.code for job in self.state.jobs.values() if job.spec.code is not None}
        sweep_code(self._leadership, stand.get(node_paths.CODE, ()), used)
        sweep_claims(self._leadership, stand.get(node_paths.REDO, ()), self.state.jobs)
        gone = [job for job in dict.fromkeys((*jobs, *self._read)) if job not in self.state.jobs]
        readers = readers_of_letters({job: self.state.jobs[job].spec for job in self.state.plans})
        self._read = {job: readers[job] for job in gone if job in readers}
        self._orphans.sweep([job for job in gone if job not in readers])
        for job in jobs:
            del self._forgotten[job]

    def _rest(self) -> float:
        """Seconds until something has to be done, if nothing happens before."""
        now = self._runtime.now()
        rest = self._leadership.renewal_due - now
        look = self._watches.due()
        if look is not None:
            rest = min(rest, look - now)
        if self._forgotten:
            rest = 0.0
        timer = next_due(self.state, self._timers)
        if timer is not None:
            rest = min(rest, timer - self._runtime.wall())
        return max(rest, 0.001)

    def _tell(self, told: structlog.typing.FilteringBoundLogger, n: int, event: AnyEvent, many: set[type]) -> None:
        everyday = isinstance(event, _EVERYDAY) or type(event) in many
        if everyday and not told.is_enabled_for(logging.DEBUG):
            return
        where: dict[str, object] = {"n": n, "kind": kind_of(event)}
        peer, job = getattr(event, "peer", None), getattr(event, "job", None)
        if peer is not None:
            where["peer"] = peer
            place = self.state.peers[peer].assignment if peer in self.state.peers else None
            if place is not None:
                where |= {"job": place.job, "task": place.task}
        if job is not None:
            where["job"] = job
            if job in self.state.jobs:
                where["status"] = self.state.jobs[job].status
        if error := getattr(event, "error", None):
            where |= {"code": error.code, "reason": error.message}
        say = told.debug if everyday else told.info
        say("decided", **where)


def _many(intakes: Sequence[Intake]) -> set[type]:
    """Kinds of which there are so many at once that a line for each would cost more than it tells."""
    if len(intakes) <= ALIKE:
        return set()
    kinds = Counter(type(intake.event) for intake in intakes)
    return {kind for kind in _ALIKE if kinds[kind] > ALIKE}


def _lost(n: int) -> InternalError:
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}, and no snapshot stands for it",
        cause="the tree was edited, or restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a fresh one under another name",
    )
