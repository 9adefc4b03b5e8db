"""One leadership: the one loop in which everything is decided.

What must be durable before what (:meth:`Leader.handle`):

1. events are in the log, and the requests they came from are gone, before anything is decided about them;
2. the effects of an event are in the tree, with the checkpoint, before anything outside ZooKeeper is done about it;
3. a side effect that is done becomes an event of its own, so a leader that finds no such event in the log does it again.

Any failure in the loop ends the leadership. The next leader, which may be this process again, starts from the log. If it cannot
decide about an entry, it sets that aside (:meth:`Leader._set_aside`) and takes over anew.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog

from coordinator.core.decide import Undecided, decide, unfinished
from coordinator.core.projection import project, repairs
from coordinator.core.setting_aside import set_aside
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import expired_jobs
from coordinator.loop import event_log, snapshots
from coordinator.loop.decision_log import DecisionLog
from coordinator.loop.due_timers import DueTimers, timers_of
from coordinator.loop.effects_writer import EffectsWriter
from coordinator.loop.election import RENEW, Leadership, known_rules
from coordinator.loop.intake import Intake, stamped
from coordinator.loop.job_gc import JobCollector
from coordinator.loop.leader_metrics import (
    DECIDE_SECONDS,
    DECIDED,
    SET_ASIDE,
    TAKEOVER_SECONDS,
    TAKEOVERS,
    TURN_SECONDS,
)
from coordinator.loop.limits import DEFAULT, Limits
from coordinator.loop.link_auditor import LinkAuditor
from coordinator.loop.link_trimmer import LinkTrimmer
from coordinator.loop.log_archive import Write
from coordinator.loop.log_writer import Appended, LogTransaction, LogWriter, PendingEntry
from coordinator.loop.node_gc import foreign_nodes_below
from coordinator.loop.sentinel_nodes import SentinelNodes
from coordinator.loop.side_effect_queue import SideEffectQueue, is_vacant, slot_left_by
from coordinator.loop.side_effects import LinksWorker, SideEffects, for_rules_3
from coordinator.loop.slot_fencing import SlotFencer
from coordinator.loop.topic_gc import TopicCollector
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Effect, Set, TreeEffect
from sardonyx.core.events import RULES, AnyEvent, JobPurged, Left, LinksCreated, LinksDeleted, RulesRaised, happened
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import Signal
from sardonyx.runtime.settings import Settings

RECALLED = 20_000
"""Entries before the snapshot that a new leader reads for their requests."""

_PURGING = (JobPurged, LinksDeleted)
"""Events by which a job may be purged."""

_ON_THE_TREE = (Create, Set, Delete)
"""A check against this tuple takes a third of the time of a check against the union."""

log = structlog.get_logger()


class Leader:
    """One leadership, from taking over to its end. Everything but setting ``wake`` happens in one thread.

    Args:
        leadership: the epoch that was won.
        settings: timers, deployment, how often to take snapshots.
        side_effects: how topics are created and deleted.
        wake: set whenever there is something to read.
        abandoned: called with jobs whose links were still being created when the leadership ended.
        limits: how much is read and written at a time.
        archive: writes entries of the log to a file before they are removed; None: they are removed.
    """

    def __init__(
        self,
        leadership: Leadership,
        settings: Settings,
        side_effects: SideEffects,
        *,
        wake: Signal,
        abandoned: Callable[[str, JobSpec], None] = lambda _job, _spec: None,
        limits: Limits = DEFAULT,
        archive: Write | None = None,
    ) -> None:
        self._leadership = leadership
        self._zk = leadership.zk
        self._settings = settings
        self._wake = wake
        self._runtime = runtime = leadership.zk.runtime
        self._limits = limits
        self._abandoned = abandoned
        self._timers = timers_of(settings.coordinator)
        self._due = DueTimers(self._timers)
        self.state: State = new_state(settings.deployment)
        self.turned_at: float | None = None
        """Wall clock of the end of the last turn; None before the first one."""
        self._intake = Intake(leadership, wake=wake.set, limits=limits)
        self._done: queue.SimpleQueue[AnyEvent] = queue.SimpleQueue()
        """Side effects that are done, each as an event that is still to be logged."""
        # The way of an event: into the log, decided, into the tree, outside.
        self._log = LogWriter(leadership, limits=limits)
        self._appended: deque[Appended] = deque()
        """Entries on their way into the log, which are not decided yet."""
        self._effects = EffectsWriter(leadership, limits=limits)
        self._published_missing = 0
        self._rules_due = 0.0
        """When to look next whether all coordinators know newer rules; however busy this one is."""
        self._links = LinksWorker(side_effects, self._side_effect_done, abandoned, runtime)
        self._fencer = SlotFencer(
            side_effects, lambda slot: is_vacant(self.state, slot), settings.peer.patience, runtime
        )
        self.outside = SideEffectQueue(leadership, self._links, self._fencer, self._intake.read_again)
        # Beside it.
        self.snapshots = snapshots.SnapshotSchedule(leadership, settings.coordinator, archive)
        self._topics = TopicCollector(side_effects.forget, runtime)
        self._garbage = JobCollector(leadership, self._topics)
        every = settings.coordinator.trim_every
        self._trimmer = LinkTrimmer(
            side_effects.trim_links, every, lambda: self.state, self._deposed, self._side_effect_done, runtime
        )
        every = settings.coordinator.audit_every
        self._auditor = LinkAuditor(side_effects.audit_link, self._side_effect_done, every, runtime)

    def lead(self, stop: Signal) -> None:
        """Take over and lead until ``stop`` is set (set ``wake`` after it). Raises whatever ends the leadership."""
        began = self._runtime.now()
        try:
            self.take_over()
            TAKEOVERS.add()
            TAKEOVER_SECONDS.observe(self._runtime.now() - began)
            while True:
                self._wake.clear()
                if stop.is_set():
                    self.settle()
                    return
                self._leadership.check()
                before, began = self.state.n, self._runtime.now()
                self.turn()
                TURN_SECONDS.observe(self._runtime.now() - began)
                self.turned_at = self._runtime.wall()
                self._raise_rules()
                if self.state.n == before:
                    self._idle()
        finally:
            self.close()

    @property
    def epoch(self) -> int:
        """The number of the leadership."""
        return self._leadership.epoch

    @property
    def checkpoint(self) -> int:
        """The entry up to which all effects are in the tree."""
        return self._effects.durable

    @property
    def left_in_inbox(self) -> set[str]:
        """Requests that the leader has read and could not remove. Another thread may ask for them."""
        return self._intake.left.copy()

    def close(self) -> None:
        """Begin no side effects any more; :meth:`lead` does so at its end."""
        self._links.close()
        self._fencer.close()
        self._topics.close()
        self._trimmer.close()
        self._auditor.close()
        for name in sorted(self._links.begun):
            job = self.state.jobs.get(name)
            if job is not None and job.links == "none":  # created perhaps, and not logged
                self._abandoned(name, job.spec)

    def _idle(self) -> None:
        """Wait until something happens or is due."""
        self.settle()
        if self._runtime.now() >= self._leadership.renewal_due:
            self._leadership.renew()
        self._wake.wait(self._seconds_to_wait())

    def _deposed(self) -> bool:
        """Whether the next one may have decided something. Any thread may ask."""
        return self._runtime.now() > self._leadership.deadline

    def _seconds_to_wait(self) -> float:
        now = self._runtime.now()
        seconds = min(self._leadership.renewal_due, self._trimmer.due, self._auditor.due) - now
        read = self._intake.due()
        if read is not None:
            seconds = min(seconds, read - now)
        if self._garbage.waiting:
            seconds = 0.0
        timer = self._due.next(self.state)
        if timer is not None:
            seconds = min(seconds, timer - self._runtime.wall())
        return max(seconds, 0.001)

    # One turn

    def turn(self) -> None:
        """Handle all that has happened: what peers and clients did, then side effects that are done, then timers that ran out.

        Timers are asked last, when all that peers and clients did is decided: a peer that answered in time is not late.
        """
        at = self._runtime.wall()
        purged = self._garbage.ready(self._effects.durable)
        if purged:  # whatever was asked of these jobs before their nodes were gone is decided in this turn
            self._intake.read_requests_again()
        self._handle_requests(at)
        self._garbage.collect(self.state, purged)
        self._trimmer.trim({job: self.state.jobs[job].spec for job in self.state.plans})
        if self.state.rules > 3:  # the release before does not know what it finds
            self._auditor.look(self.state)
        self.handle([PendingEntry(event) for event in self._due.events(self.state, at)])

    def _handle_requests(self, at: float) -> None:
        """While some requests are decided, the next ones are read and appended, and nodes of sentinels created and deleted."""
        done = [self._done.get() for _ in range(self._done.qsize())]
        created = [
            event.job
            for event in done
            if isinstance(event, LinksCreated) and not event.revision and event.job in self.state.plans
        ]
        deleted = [event.job for event in done if isinstance(event, LinksDeleted)]
        sentinels = SentinelNodes(self._leadership, opened=created, closed=deleted)
        scan = self._intake.begin(self.state, at)
        while entries := scan.read(self.state):
            self._append(entries)
            sentinels.advance()
        sentinels.finish()  # before it is logged that the links of these jobs are created or deleted
        self._append([PendingEntry(stamped(event, at)) for event in done])
        # After the requests: one of them may submit a job that reads the dead letters of such a job.
        self._append([PendingEntry(event) for event in expired_jobs(self.state, at, self._timers)])
        self._decide_appended()

    def handle(self, entries: Iterable[PendingEntry]) -> None:
        """Log events, decide each, and send the effects of all to the tree. :meth:`settle` waits until these are durable."""
        self._append(entries)
        self._decide_appended()

    # The way of an event: 1. into the log

    def _append(self, entries: Iterable[PendingEntry]) -> None:
        """Send entries to the log, a full transaction at a time."""
        if self._log.rules < 4:
            entries = [msgspec.structs.replace(entry, event=for_rules_3(entry.event)) for entry in entries]
        self._submit(self._log.add(entries))

    def _submit(self, transactions: Iterable[LogTransaction]) -> None:
        """Send transactions to the log. While too many are on their way there, decides the oldest."""
        for transaction in transactions:
            while self._log.full:
                self._decide_oldest()
            self._appended.append(self._log.submit(transaction))

    def _decide_appended(self) -> None:
        """Send the last entries to the log, decide all, each when it is there, and send their effects to the tree."""
        self._submit(self._log.rest())
        while self._appended:
            self._decide_oldest()
        self._effects.flush()
        self._begin_side_effects()

    # 2. decided

    def _decide_oldest(self) -> None:
        entries = self._appended.popleft().wait()
        lines, seconds = DecisionLog(entries), 0.0
        for n, entry in enumerate(entries, self.state.n + 1):
            slot = slot_left_by(self.state, happened(entry.event))
            began = self._runtime.now()
            effects = self._decide(n, entry.event)
            seconds += self._runtime.now() - began
            DECIDED[type(entry.event)] += 1
            lines.decided(self.state, n, entry.event)
            self._take_effects(n, effects, slot)
        DECIDE_SECONDS.add(seconds)
        self._publish_missing()
        lines.summary(self.state.n)
        self._begin_side_effects()
        self._write_snapshot()

    def _decide(self, n: int, event: AnyEvent) -> list[Effect]:
        effects = decide(self.state, n, event)
        event = happened(event)
        if isinstance(event, Left):  # the peer deletes its pulse itself, unless another client sent this in its name
            self._intake.read_pulses_by(self._runtime.now() + self._timers.revoke_grace)
        if isinstance(event, _PURGING) and event.job in self.state.purged:
            self._garbage.purged(event.job, n)
        return effects

    # 3. in the tree

    def _take_effects(self, n: int, effects: Sequence[Effect], slot: Slot | None) -> None:
        if slot is not None:
            self.outside.add_slot(n, slot)
        changes = [effect for effect in effects if isinstance(effect, _ON_THE_TREE)]
        if len(changes) < len(effects):
            self.outside.add(n, [effect for effect in effects if not isinstance(effect, _ON_THE_TREE)])
        self._effects.add(n, changes)

    def _publish_missing(self) -> None:
        """Tell the daemons how many virtual peers jobs wait for. It follows from the log, and nothing is decided by it."""
        if self.state.missing != self._published_missing:
            self._published_missing = self.state.missing
            told = str(self.state.missing).encode() if self.state.missing else b""
            self._effects.add(self.state.n, [Set(node_paths.JOB, told)])

    # 4. outside

    def _begin_side_effects(self) -> None:
        self.outside.begin(self.state, self._effects.durable)

    def settle(self) -> None:
        """Wait until the effects of all decided events are in the tree, begin their side effects, and finish the snapshot that is
        being written.
        """
        self._effects.drain()
        self._begin_side_effects()
        self.snapshots.finish(self._effects.durable)

    def _side_effect_done(self, event: AnyEvent) -> None:
        """Called in any thread."""
        self._done.put(event)
        self._wake.set()

    # Beside it

    def _write_snapshot(self) -> None:
        """Go on with the snapshot that is being written; begin one of the state as it is now, if it is due."""
        self.snapshots.advance(self._effects.durable)
        if self.snapshots.due(self.state.n):
            self._effects.flush()
            if self.snapshots.writing:
                self.settle()
            self.snapshots.begin(self.state.n, encode_state(self.state))

    # Taking over

    def take_over(self) -> None:
        """Become what the log says: replay it, finish what the last leader had begun, and read what happened since.

        Raises:
            SardonyxError: ``SX-LOG-FORMAT``: written by another version. ``SX-RESTORE-UNFINISHED``.
            InternalError: ``SX-INTERNAL-LOG-GAP``: an entry is missing.
        """
        self._zk.sync()
        if self._zk.read(node_paths.RESTORE) is not None:
            raise event_log.restore_unfinished(self._settings.deployment)
        checkpoint, version = event_log.read_checkpoint_version(self._zk)
        while True:
            left: dict[Slot, int] = {}
            snapshot, size = self._begin_with_snapshot()
            try:
                touched = self._replay(checkpoint, left)
                break
            except Undecided as undecided:
                self._set_aside(undecided, checkpoint)
        self.snapshots.started(snapshot, size)
        self._log = LogWriter(self._leadership, self.state.n, self._limits, rules=self.state.rules)
        self._effects = EffectsWriter(self._leadership, checkpoint, version, self._limits)
        repaired = self._repair(touched) if self.state.n > checkpoint else 0
        log.info(
            "took_over",
            epoch=self._leadership.epoch,
            n=self.state.n,
            snapshot=snapshot,
            checkpoint=checkpoint,
            repaired=repaired,
            peers=len(self.state.peers) - len(self.state.by_state["dead"]),
            jobs=len(self.state.names),
        )
        self.outside.add(self.state.n, unfinished(self.state))
        for slot, n in left.items():
            self.outside.add_slot(n, slot)
        if self.state.n:
            self._published_missing = -1  # what the last leader had told is not known
            self._publish_missing()
            self._effects.flush()
        self._begin_side_effects()
        self._raise_rules()

    def _begin_with_snapshot(self) -> tuple[int, int]:
        """Go back to the latest snapshot, or to the beginning. Returns its entry and its size."""
        found = snapshots.latest(self._zk)
        if found is None:
            rules = event_log.first_rules(self._zk) or known_rules(self._zk)
            self.state = new_state(self._settings.deployment, rules)
            return 0, 0
        self.state = decode_state(found[1])
        for job in self.state.purged:
            self._garbage.purged(job, 0)
        return found[0], len(found[1])

    def _set_aside(self, undecided: Undecided, checkpoint: int) -> None:
        """Put into the log, in the place of an entry about which nothing can be decided, which job fails because of it. No effect
        of a later entry is in the tree, so nothing has followed from the entry.

        Raises:
            Undecided: effects are in the tree already, of another release; or nothing helps.
        """
        n = undecided.n
        found = None
        if n > checkpoint:
            self._begin_with_snapshot()
            for number, event in event_log.read_log(self._zk, self.state.n + 1):
                if number == n:
                    break
                decide(self.state, number, event)
            found = set_aside(encode_state(self.state), undecided)
        if found is None:
            log.error(
                "event_cannot_be_set_aside",
                **undecided.where,
                decided_by_another_release=n <= checkpoint,
                consequence="no event is decided until a release without the defect leads",
            )
            raise undecided
        self._leadership.commit([event_log.replaced(self._zk, n, found)])
        SET_ASIDE.add()
        log.error(
            "event_set_aside",
            **undecided.where,
            job=found.job,
            decided_without_the_job=found.decided,
            error=found.error.message,
            exc_info=undecided.__cause__,
            consequence="the job fails, all others go on; please report it",
        )

    def _raise_rules(self) -> None:
        """Decide by newer rules from now on, if all coordinators that stand know them."""
        now = self._runtime.now()
        if self.state.rules == RULES or now < self._rules_due:
            return
        self._rules_due = now + RENEW * self._zk.session_timeout
        if (known := known_rules(self._zk)) > self.state.rules:
            self._log.rules = known
            self.handle([PendingEntry(RulesRaised(at=self._runtime.wall(), rules=known))])
            log.info("rules_raised", rules=known, n=self.state.n)

    def _replay(self, checkpoint: int, left: dict[Slot, int]) -> set[str]:
        """Replay the log from the snapshot on. Returns the paths whose effects may be missing from the tree, and adds to
        ``left`` the slots that were left so lately that something may still be open there.
        """
        lately = self._runtime.wall() - self._settings.peer.patience
        touched: set[str] = set()
        # Entries before the snapshot are read for their requests only: one may come again that was taken just before it.
        latest, self.snapshots.log_begins = event_log.last(self._zk), event_log.begins(self._zk)
        start = min(self.state.n + 1, max(latest - RECALLED, self.snapshots.log_begins))
        for n, entry in event_log.read_entries(self._zk, start):
            self._intake.remember(entry.request)
            if n <= self.state.n:
                continue
            if n != self.state.n + 1:
                raise event_log.gap(self.state.n + 1)
            slot = slot_left_by(self.state, happened(entry.event))
            if slot is not None and entry.event.at > lately:
                left[slot] = n
            effects = self._decide(n, entry.event)
            if n > checkpoint:
                touched |= {effect.path for effect in effects if isinstance(effect, TreeEffect)}
        if self.state.n < checkpoint:
            raise event_log.gap(self.state.n + 1)
        return touched

    def _repair(self, touched: set[str]) -> int:
        """Make the touched nodes what the state says; returns how many changes that took. Their effects may be there in part, so
        each node is read. With those that are to go, all goes that other programs have put below them.
        """
        paths = sorted(touched)
        changes = repairs(paths, self._zk.read_many(paths), project(self.state))
        changes += foreign_nodes_below(self._zk, {change.path for change in changes if isinstance(change, Delete)})
        self._effects.add(self.state.n, changes)
        self._effects.flush()
        self._effects.drain()
        return len(changes)
