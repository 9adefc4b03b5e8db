"""The end of a bounded task: ask the coordinator whether to seal when everything is read, and seal when told to."""

from __future__ import annotations

import time
import uuid

import structlog
from msgspec.structs import replace

from peer.database_keeper import DatabaseKeeper
from peer.loop_end import LoopEnd
from peer.peer_metrics import SEAL_SECONDS
from peer.sinks import TopicSink
from peer.slot_clients import sealing_writer
from peer.task_session import TaskSession
from queues.losses import totals_differ
from queues.messages import Outgoing
from queues.transaction import TransactionalWriter
from sardonyx.core import link_counts
from sardonyx.core.clocks import END
from sardonyx.core.events import Completed, Exhausted, encode_event
from sardonyx.core.positions import Partition, Position, of_inputs, total
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.latest_batch import rules_in_force
from sardonyx.zookeeper.transactions import ENTRY_LIMIT
from sentinel import rules

log = structlog.get_logger()

_ASK_AGAIN = 0.25
"""Seconds between questions to the broker about partitions that other peers hold."""


_FIRST_RULES = 4
"""By these rules, and later ones, the log holds rows by edge."""

_LOOKS = 4
"""Times that the rows of a link may differ from those that were written to it, before that is a loss."""


class Sealing:
    """One peer's part in the end of its task.

    What must be durable first: the drained positions before "seal?", and the sentinels before "complete!".

    Args:
        session: of the assignment.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session
        self._asked_coordinator = False
        self._told_at: float | None = None
        """When it was told to seal."""
        self._sealed = False
        self._asked_broker_at = 0.0
        self._differed = 0
        loop = session.work.loop
        self._loop_end = LoopEnd(session, loop) if loop is not None and loop.begins_with(session.work.stage) else None

    def look(self) -> None:
        """Go on towards the end, if everything that was read is committed."""
        session = self._session
        if self._sealed or not (session.reader.idle and session.reader.member and session.handle.may_commit):
            return
        if self._loop_end is not None:
            self._loop_end.look()
        if session.handle.state == "sealing":
            self._told_at = self._told_at or time.monotonic()
            if committed := self._all_committed():
                self._seal(committed)
        elif not self._asked_coordinator and self._is_exhausted():
            failpoint("exhausted")
            session.zk.request(Exhausted(peer=session.work.peer, assignment=session.work.assignment.id))
            self._asked_coordinator = True
            log.info("task_exhausted")

    def _is_exhausted(self) -> bool:
        held = self._session.reader.held
        committed = None if held else self._all_committed()
        return rules.exhausted(
            (_drained(position) for position in held.values()),
            None if committed is None else {p: _drained(position) for p, position in committed.items()},
        )

    def _all_committed(self) -> dict[Partition, Position | None] | None:
        """What the group has committed everywhere; None if that was asked a moment ago."""
        if time.monotonic() - self._asked_broker_at < _ASK_AGAIN:
            return None
        committed = self._session.reader.all_committed()
        self._asked_broker_at = time.monotonic()
        return committed

    def _seal(self, committed: dict[Partition, Position | None]) -> None:
        """Write the sentinels, if everything is drained; otherwise go on working until it is."""
        session = self._session
        if not rules.sealable({p: _drained(position) for p, position in committed.items()}):
            return
        session.reader.check_partitions()
        if not session.meanwhile(self._settled):
            return
        left = session.reader.all_left()
        if not self._totals_agree(committed | left):
            return
        if session.work.stage.marks:
            with sealing_writer(session.work) as writer:
                session.handle.confirm()
                # Only now: an earlier sealer may have written its seal since the first look, and cannot any more.
                committed = session.reader.all_committed()
                if not rules.sealable({p: _drained(position) for p, position in committed.items()}):
                    return
                self._write(committed, writer)
        else:
            self._write(committed)
        self._complete(committed, left)

    def _totals_agree(self, committed: dict[Partition, Position | None]) -> bool:
        """Compare what was written to the task's links with what it has read: chains do not show that the end of one is lost.

        Raises:
            InputError: ``SX-LINK-LOSS``, ``SX-LINK-TWICE``: they differ, and have not come to agree.
        """
        ingress = self._session.work.stage.ingress
        links = [link for link in ingress if link.kind == "internal" and not link.feedback]
        written = self._session.meanwhile(self._session.work.written) if links else {}
        for link in links:
            rows, read = written.get(link.name), link_counts.read(link, committed)
            if rows is None:
                log.info("link_totals_unknown", link=link.name, rows_in=read)
            elif rows != read:
                self._differed += 1
                log.warning("link_totals_differ", link=link.name, rows_in=read, rows_out=rows, attempt=self._differed)
                if self._differed >= _LOOKS:
                    raise totals_differ(link, rows, read)
                return False
        return True

    def _write(self, committed: dict[Partition, Position | None], writer: TransactionalWriter | None = None) -> None:
        """The transaction of the seal.

        It always carries positions, which fence a sealer that is not in the group. A peer that holds no partition sends those of
        others, unchanged. Readers drop a second sentinel. A second end marker would end the next run at its beginning, so it is
        written once.
        """
        session, work = self._session, self._session.work
        drained = {p: position for p, position in committed.items() if position is not None}
        own = {p: position for p, position in drained.items() if p in session.reader.held}
        positions = own or drained
        sentinel = str(uuid.uuid4())
        stopped = work.timed and any(position.clock.value != END for position in drained.values())
        messages = [message for sink in work.sinks for message in sink.sentinels(sentinel, stopped=stopped)]
        if not any(position.marked for position in drained.values()) and (markers := self._end_markers(sentinel)):
            messages += markers
            positions = {partition: position._replace(marked=True) for partition, position in positions.items()}
        failpoint("seal")
        session.write(messages, positions, writer)
        failpoint("sealed")

    def _complete(self, committed: dict[Partition, Position | None], left: dict[Partition, Position | None]) -> None:
        """Finish the outputs, and tell the coordinator. ``left``: what was committed in partitions that are not used any more."""
        session, work = self._session, self._session.work
        session.meanwhile(self._seal_sinks)
        counts = total((committed | left).values())
        if rules_in_force(session.zk) < _FIRST_RULES:  # a coordinator of the release before would ignore the answer
            counts = replace(counts, sent=None)
        done = Completed(
            peer=work.peer, assignment=work.assignment.id, counts=counts, positions=of_inputs(work.stage, committed)
        )
        if len(encode_event(done)) > ENTRY_LIMIT:  # some ten thousand partitions
            log.warning("positions_not_kept", limit=ENTRY_LIMIT)
            done = replace(done, positions={})
        failpoint("complete")
        session.zk.request(done)
        failpoint("completed")
        self._sealed = True
        if self._told_at is not None:
            SEAL_SECONDS.observe(time.monotonic() - self._told_at)
        log.info(
            "task_sealed",
            rows_in=counts.rows_in,
            rows_out=counts.rows_out,
            skipped=counts.skipped,
            dead=counts.dead,
            late=counts.late,
        )

    def _end_markers(self, uuid: str) -> list[Outgoing]:
        sinks = [sink for sink in self._session.work.sinks if isinstance(sink, TopicSink)]
        return [message for sink in sinks for message in sink.end_markers(uuid)]

    def _settled(self) -> bool:
        return all(sink.settled() for sink in self._session.work.sinks)

    def _seal_sinks(self) -> None:
        for sink in self._session.work.sinks:
            sink.sealed()
        if isinstance(self._session.store, DatabaseKeeper):
            self._session.store.sealed()


def _drained(position: Position | None) -> str | None:
    return None if position is None else position.drained
