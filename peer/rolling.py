"""Roll the files of an output: one peer of the task merges what all its peers have staged, and cuts the listing.

The peer that holds the first partition of the task's first link does so: there is at most one. It commits each merge in a
transaction of its own, as a member of the task's group. The transaction carries the position from which the ``parts`` link is
still needed. A peer that has lost the partition belongs to an earlier generation of the group, so the broker refuses its
transaction. What it left is a merge that is committed, which the next peer finishes, or one that is not, which it removes.

A sealing peer waits until everything is merged (``settled``). So no two peers ever merge the same chunks.
"""

from __future__ import annotations

import time

import msgspec
import structlog

from peer.made_from import saying, worked_by
from peer.rolling_sink import RollingSink
from peer.task_session import TaskSession
from queues.messages import Outgoing, Records
from queues.reader import Reader
from queues.tail import Tail
from sardonyx.connectors.files.roll import Chunk, Listing, Rolled
from sardonyx.connectors.files.rolling import Merged, RollingFiles
from sardonyx.core.batch_origins import Origin
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.failpoints import failpoint
from sentinel import rules

log = structlog.get_logger()

_ASK_AGAIN = 0.25
"""Seconds between questions to the broker about partitions that other peers hold."""
_TIDY_AGAIN = 3600.0
"""Seconds between looks for chunks that no commit lists: batches whose transaction was aborted leave them."""


class Roller:
    """One peer's part in the rolling of its task's files. Does nothing for other tasks.

    Args:
        session: of the assignment.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session
        self._sink = next((sink for sink in session.work.sinks if isinstance(sink, RollingSink)), None)
        self._lead: tuple[Reader, int] | None = None
        """The reader, and the assignment of the partition, by which this peer merges."""
        self._tail: Tail | None = None
        self._listing = Listing()
        self._needed: Position | None = None
        """The committed position on the ``parts`` link: what is listed before it may be trimmed."""
        self._taken_over = False
        self._tidy_at = 0.0
        self._ask_at = 0.0

    def look(self) -> None:
        """Merge what is due, if this peer is the one to do so.

        Raises:
            TransactionAborted: and the other errors of a transaction; another peer may merge by now.
            OutputError: files cannot be written.
        """
        sink = self._sink
        if sink is None:
            return
        lead = self._held()
        if lead != self._lead:
            self.close()
            self._lead = lead
        if lead is None or not self._session.handle.may_commit:
            return
        try:
            self._follow(sink, lead[0])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Forget what is known: another peer may merge now."""
        tail, self._tail, self._lead = self._tail, None, None
        if tail is not None:
            tail.close()

    def _held(self) -> tuple[Reader, int] | None:
        reader = self._session.reader
        incarnation = reader.incarnation(Partition(self._session.work.stage.ingress[0].topic, 0))
        return None if incarnation is None else (reader, incarnation)

    def _follow(self, sink: RollingSink, reader: Reader) -> None:
        if self._tail is None:
            # In this order: the answer waits for a predecessor's transaction, and later ones are refused. So what a predecessor
            # has committed was written before the tail's end.
            self._needed = reader.committed_at(sink.parts)
            self._listing, self._taken_over = Listing(), False
            self._tail = Tail(self._session.work.settings, sink.parts.topic, self._needed and self._needed.offset)
        for message in self._tail.read():
            self._listing.add(message.value, message.offset, message.since)
        if not self._tail.caught_up:
            return
        if not self._taken_over:
            self._session.meanwhile(lambda: self._take_over(sink.files))
            self._taken_over, self._tidy_at = True, time.monotonic() + _TIDY_AGAIN
        elif time.monotonic() > self._tidy_at:
            self._session.meanwhile(lambda: sink.files.tidy(self._listing))
            self._tidy_at = time.monotonic() + _TIDY_AGAIN
        ended = bool(self._listing.pending) and self._ended(reader)
        chunks = self._listing.due(sink.files.roll, time.time(), ended=ended)
        if chunks:
            self._roll(sink, chunks)

    def _take_over(self, files: RollingFiles) -> None:
        """Finish what a predecessor committed, and remove what it did not commit."""
        if self._listing.last is not None:
            files.finish(self._listing.last, self._listing.merged, again=True)
        files.tidy(self._listing)

    def _ended(self, reader: Reader) -> bool:
        """Whether all peers of the task have committed that everything is drained, so that it is about to be sealed."""
        own = all(position is not None and position.drained is not None for position in reader.held.values())
        if not (own and reader.idle) or time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + _ASK_AGAIN
        return rules.sealable({p: position and position.drained for p, position in reader.all_committed().items()})

    def _roll(self, sink: RollingSink, chunks: list[Chunk]) -> None:
        session, files, first = self._session, sink.files, Position(chunks[0].offset)
        failpoint("roll")
        try:
            merged = session.meanwhile(lambda: files.merge([chunk.entry for chunk in chunks]))
        except OutputError:
            # A peer that took over unnoticed may have removed the chunks. Then this transaction is refused. Its position must not
            # move: before the first chunk that is not merged may come the merge that holds the totals.
            session.write([], {sink.parts: self._needed or first})
            if self._held() != self._lead:
                self.close()
                return
            raise
        failpoint("merged")
        session.handle.check()
        if self._held() != self._lead or not session.handle.may_commit:
            self.close()
            return
        rolled = self._rolled(merged, chunks)
        entry: list[Outgoing | Records] = [Outgoing(sink.parts.topic, msgspec.json.encode(rolled), 0)]
        if session.work.sources is not None:  # no record comes into the listing by it
            entry = saying(
                entry, session.work.stage, Origin(0, worked_by(session.work), {}), session.work.assignment.job
            )
        session.write(entry, {sink.parts: first})
        failpoint("rolled")
        self._needed = first
        self._listing.roll(rolled)
        done = self._listing.merged
        session.meanwhile(lambda: files.finish(rolled, done))
        log.info("files_rolled", file=rolled.file, count=merged.chunks, rows=rolled.rows)

    def _rolled(self, merged: Merged, chunks: list[Chunk]) -> Rolled:
        files, rows = self._listing.totals()
        taken = [chunk.entry for chunk in chunks[: merged.chunks]]
        rows += sum(entry.rows for entry in taken)
        return Rolled(merged.file, taken[-1].staged, files + merged.files, rows)
