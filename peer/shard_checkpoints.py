"""What a batch means for the checkpoints of a shard: see :mod:`sardonyx.core.checkpoints`.

While a time Tc is pending, the operator plans the rows before Tc a second time, with the state as the checkpoint has it and with
the clock stopped at Tc. The results of that plan are dropped. What it changes otherwise than the first one goes into the undo of
Tc, which the state log gets in the transaction of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import structlog

from peer.operators import Answer, Asked, Operator, Read, Stores
from peer.window_split import row_times
from sardonyx.core.checkpoints import Bookmark, Checkpoints, Due, Given, due, keep, quiet
from sardonyx.core.clocks import END
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import Link
from sardonyx.state.base import Store
from sardonyx.state.columns import SLICE
from sardonyx.state.groups import Numbers, numpy, one
from sardonyx.state.messages import Mark
from sardonyx.state.undo import ShadowStore, Undo, UndoChange, after

log = structlog.get_logger()


@dataclass
class ShardCheckpoints:
    """Of one shard, after its last commit."""

    known: Checkpoints = field(default_factory=Checkpoints)
    undo: dict[int, Undo] = field(default_factory=dict)
    """Of the times that are pending."""

    def as_committed(self, known: Checkpoints) -> ShardCheckpoints:
        """The same with what the position says of them."""
        return ShardCheckpoints(known, {time: self.undo.get(time, {}) for time in known.pending})


class PlannedCheckpoints(NamedTuple):
    """What a batch makes of them."""

    due: Due
    every: int
    whole: dict[int, Undo]
    """The undo of each time, pending or passed, after the batch."""
    changed: dict[int, Undo]
    passed: range
    """Times of which the state after the batch is the checkpoint."""
    given_up: frozenset[int]
    clock: int
    more: bool
    """Whether a further batch gives what is due by the clock: what the checkpoint counts as given would be lost with this job."""

    @property
    def undo(self) -> UndoChange:
        return UndoChange(self.changed, self.whole)

    def after(self, mark: Mark, *, complete: bool = True) -> ShardCheckpoints:
        """What stands once the batch is committed with this mark. ``complete``: the log holds all of the state. Otherwise the
        times that have passed have no checkpoint.
        """
        passed = [time for time in self.due.times if time <= self.clock and time not in self.given_up]
        waits = {*self.due.after.pending, *(passed if self.more else ())} - self.given_up
        left = tuple(sorted(waits))
        new = [
            Bookmark(time, time, *mark, any(table.num_rows for table in self.whole[time].values()))
            for time in passed
            if not self.more
        ]
        if self.passed:
            new.append(Bookmark(self.passed[0], self.passed[-1], *mark))
        new = new if complete else []
        kept = keep(self.due.after.kept, new, self.every, self.due.step) if new else self.due.after.kept
        undo = {time: self.whole[time] for time in left}
        return ShardCheckpoints(self.due.after._replace(pending=left, kept=kept), undo)


class CheckpointPlans:
    """Plans the checkpoints of the shards of a task.

    Args:
        operator: of the task.
        links: that it reads.
        every: the interval, in microseconds.
    """

    def __init__(self, operator: Operator, links: Sequence[Link], every: int) -> None:
        self._operator = operator
        self._links = links
        self._every = every

    def plan(self, shard: ShardCheckpoints, asked: Asked, answer: Answer, before: int) -> PlannedCheckpoints:
        """What a batch means for the checkpoints of a shard. It changes nothing.

        Args:
            shard: what stands after the commit before.
            asked: what the operator was asked.
            answer: what it answered.
            before: the clock of the shard before the batch.
        """
        reads = [read for read in asked.reads if read.piece.rows.num_rows]
        times = [self._times(read) for read in reads]
        clock = asked.before_end if asked.clock >= END else asked.clock
        least = min((int(each.min()) for each in times), default=None)
        greatest = max((int(each.max()) for each in times), default=None)
        given, passed = Given(least, greatest, before, clock), range(0)
        changes = any(table.num_rows for table in answer.changes.values())
        if not reads and not changes and not answer.more:
            found, passed = quiet(shard.known, self._every, given)
        else:
            found = due(shard.known, self._every, given)
        whole: dict[int, Undo] = {}
        changed: dict[int, Undo] = {}
        given_up: set[int] = set()
        for time in found.times:
            undo = shard.undo.get(time, {})
            try:
                came = zip(reads, times, strict=True) if time > before else ()  # what comes after Tc is not in it
                changed[time] = self._differs(time, undo, asked, answer, list(came))
            except FunctionError as error:  # for rows that it took in the order in which they came
                log.warning("checkpoint_given_up", at=time, partition=asked.number, error=str(error))
                given_up.add(time)
                continue
            whole[time] = {**undo, **{name: after(undo.get(name), new) for name, new in changed[time].items()}}
        given_up_ = frozenset(given_up)
        return PlannedCheckpoints(found, self._every, whole, changed, passed, given_up_, asked.clock, answer.more)

    def _differs(
        self, time: int, undo: Undo, asked: Asked, answer: Answer, reads: Sequence[tuple[Read, Numbers]]
    ) -> dict[str, pa.Table]:
        """What is new in the undo of a time."""
        shadows: dict[str, ShadowStore] = {}
        stores = Stores(partial(_shadow, asked.stores, undo, shadows))
        for name, store in asked.stores.all.items():
            stores.open(name, store.schema)
        work = asked._replace(
            stores=stores,
            reads=[part for read, times in reads if (part := _before(read, times, time)) is not None],
            clock=min(asked.clock, time),
            before_end=min(asked.before_end, time),
            clocks=[min(clock, time) for clock in asked.clocks],
        )
        more = True
        while more:
            (found,) = self._operator.plan([work])
            for name, changes in found.changes.items():
                stores.all[name].apply(changes)
            work, more = work._replace(reads=()), found.more
        return {name: shadow.differs(answer.changes.get(name)) for name, shadow in shadows.items()}

    def _times(self, read: Read) -> Numbers:
        rows, link = read.piece.rows, self._links[read.link]
        if SLICE in rows.column_names:  # combined only where no slice holds rows before and after a checkpoint
            found: Numbers = numpy(one(rows[SLICE]))
            return found
        assert link.row_time is not None  # noqa: S101 (for the type checker: a job with checkpoints has times)
        return row_times(rows, link.row_time, link.source)


def _shadow(stores: Stores, undo: Undo, made: dict[str, ShadowStore], name: str, schema: pa.Schema) -> Store:
    shadow = made[name] = ShadowStore(stores.open(name, schema), undo.get(name))
    return shadow


def _before(read: Read, times: Numbers, time: int) -> Read | None:
    """The rows of a block that belong to a checkpoint: before its time, and not behind a clock that has passed it."""
    mine = times < time
    piece, clocks = read.piece, read.clocks
    if piece.clocks is not None:
        mine &= piece.clocks < time
    if piece.in_force >= time or not mine.any():
        return None
    stated = min(read.stated, time)
    if not mine.all():
        clocks = None if clocks is None else clocks[mine]
        own = None if piece.clocks is None else piece.clocks[mine]
        piece = piece._replace(rows=piece.rows.filter(pa.array(mine)), clocks=own)
    return read._replace(piece=piece, stated=stated, clocks=clocks)


__all__ = ["CheckpointPlans", "PlannedCheckpoints", "ShardCheckpoints"]
