"""The end of a loop: the task that a feedback link leads to proves it, and writes the sentinels that the link lacks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from peer.loops import Loop
from peer.sinks import sentinel_message
from queues.losses import totals_differ
from sardonyx.core.clocks import END
from sardonyx.core.cycles import Standing, inner_links, outer_links, standing
from sardonyx.core.link_counts import Positions
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from peer.task_session import TaskSession

log = structlog.get_logger()

_SOON, _LATER = 0.25, 2.0
"""Seconds between questions to the broker: at first; and while more may come from outside, or after answers that were alike."""
_STILL = 15
"""Answers that are all alike, after which rows may have been lost: a loop that lacks rows would never end."""


class LoopEnd:
    """One peer's part in the end of a loop. Of the peers of a task, the one asks that holds partition 0 of its feedback link.

    A proof stays true, so it does not matter how many peers find it, nor whether one dies after it. Readers elect one of the
    sentinels, as those of any link. From then on the task ends like any other one, and the rest of the loop after it.

    Args:
        session: of the assignment.
        loop: the loop.
    """

    def __init__(self, session: TaskSession, loop: Loop) -> None:
        self._session = session
        self._loop = loop
        stage = session.work.stage
        self._feedback = [link for link in stage.ingress if link.feedback]
        self._first = Partition(self._feedback[0].topic, 0)
        """Its holder asks."""
        inner = inner_links(loop.graph, loop.cycle)
        self._outside = {link.topic for link in stage.ingress if link not in inner}
        self._due = 0.0
        self._wait = _SOON
        self._last: Standing | None = None
        self._alike = 0

    def look(self) -> None:
        """Ask whether the loop has ended, if that can be. Call it when everything that was read is committed.

        Raises:
            InputError: ``SX-LINK-LOSS``, ``SX-LINK-TWICE``: rows in the loop were lost or doubled, so it would never end.
        """
        held = self._session.reader.held
        now = time.monotonic()
        if now < self._due or not self._may_have_ended(held):
            return
        answers = self._session.meanwhile(lambda: self._session.work.loop_positions(self._loop))
        found = standing(self._loop.graph, self._loop.cycle, self._session.work.facts, answers)
        if found.quiescent:
            if self._first in self._session.reader.held and self._session.handle.may_commit:  # still, after the answers
                self._write(answers)
            self._wait = _LATER  # until the sentinels are read
        elif found == self._last:
            self._alike += 1
            self._wait = min(2 * self._wait, _LATER)
            if self._alike % _STILL == 0 and not found.fed:
                self._check_losses(found)
        else:
            self._alike, self._wait = 0, _SOON
        if found.fed:
            self._wait = _LATER
        self._last = found
        self._due = time.monotonic() + self._wait

    def _may_have_ended(self, held: Mapping[Partition, Position | None]) -> bool:
        """Whether it is this peer that asks, and what it knows does not speak against it."""
        if self._first not in held:
            return False
        first = held[self._first]
        return (first is None or first.drained is None) and all(
            position is not None and position.drained is not None
            for partition, position in held.items()
            if partition.topic in self._outside
        )

    def _write(self, answers: Mapping[str, Positions]) -> None:
        """Write a sentinel to each partition of the feedback links, with positions that do not change and fence the writer."""
        session, work = self._session, self._session.work
        drained = [
            (partition, position)
            for link in outer_links(self._loop.graph, self._loop.cycle)
            for partition, position in answers[link.target].items()
            if partition.topic == link.topic and position is not None
        ]
        own = {partition: position for partition, position in session.reader.held.items() if position is not None}
        sentinel = str(uuid.uuid4())
        stopped = work.timed and any(position.clock.value != END for _, position in drained)
        messages = [
            sentinel_message(link, number, sentinel, work.peer, stopped=stopped)
            for link in self._feedback
            for number in range(work.facts[link.name].partitions)
        ]
        failpoint("loop-end")
        session.write(messages, own or {self._first: session.reader.standing[self._first]})
        failpoint("loop-ended")
        log.info("loop_ended", cycle=self._loop.cycle.name, job=work.assignment.job)

    def _check_losses(self, found: Standing) -> None:
        """Nothing has moved for a while: compare what was written with what was read and what stands on the links."""
        work = self._session.work
        if found.uncounted:
            log.warning("loop_rows_unknown", cycle=self._loop.cycle.name, link=found.uncounted[0])
        tallies = self._session.meanwhile(lambda: work.audited(self._loop))
        for link in inner_links(self._loop.graph, self._loop.cycle):
            tally = tallies.get(link.name)
            if tally is not None and tally.written is not None and (tally.lost or tally.twice):
                raise totals_differ(link, tally.written, tally.written - (tally.lost or 0) + (tally.twice or 0))


__all__ = ["LoopEnd"]
