"""The state of one assignment: a shard for each partition number that this peer holds, planned in a batch, applied after it.

A shard belongs to the holder of its partitions. It is made again from the state log when this peer gets them, unless the peer
still has it as the position says. What its rows become is the task's operator (:mod:`peer.operators`). A plan changes nothing.
Its changes go into the state log, in the transaction of the batch. After the commit they are applied. So a shard is never ahead
of what is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

from peer.failed_records import Failed, refused
from peer.operators import Answer, Asked, Operator, Read, Stores
from peer.provenance import Provenance, ShardOrigin
from peer.shard_checkpoints import CheckpointPlans, PlannedCheckpoints, ShardCheckpoints
from peer.shard_plans import Planned, ShardCommit
from peer.shard_stores import discard, empty_stores, growth
from peer.state_keeper import ShardKeeper, StateKeeper, TopicKeeper
from peer.store_setup import NO_SETUP, StoreSetup
from peer.window_split import row_times, rows_in
from queues import block
from queues.batch import Batch
from queues.messages import Outgoing
from sardonyx.core.checkpoints import Checkpoints
from sardonyx.core.clocks import SourceClock
from sardonyx.core.column_types import together
from sardonyx.core.errors import FunctionError
from sardonyx.core.fronts import Held, least
from sardonyx.core.graph import Link, Stage
from sardonyx.core.positions import Partition
from sardonyx.core.source_fronts import HeldRows, Sources
from sardonyx.core.stores import is_own
from sardonyx.state.columns import SLICE
from sardonyx.state.messages import Mark
from sardonyx.state.planned import Piece
from sardonyx.state.times import Times

log = structlog.get_logger()


@dataclass
class _Shard:
    """The state of one partition number."""

    log: ShardKeeper
    stores: Stores
    folder: Path | None = None
    """Of stores on disk."""
    more: bool = False
    """Something remains to be done by the clock that was planned last."""
    wake: int | None = None
    """When it is due by the machine's clock."""
    incarnation: int | None = None
    """Of its first partition, when it was last compared with the position."""
    held: HeldRows = field(default_factory=HeldRows)
    """If the job keeps its lineage: what it holds after its last commit."""
    checkpoints: ShardCheckpoints = field(default_factory=ShardCheckpoints)
    """If the job has checkpoints."""

    @property
    def mark(self) -> Mark:
        """Of its last commit."""
        return self.log.mark

    def discard(self) -> None:
        """Give back what it holds."""
        discard(self.stores, self.folder)


class Shards:
    """All shards of an assignment.

    Args:
        stage: a task with state.
        operator: what it does with its rows.
        keeper: where the truth about its state is.
        setup: what the process has for its stores.
        now: the machine's clock, in microseconds since 1970.
        sources: of the job, if it keeps its lineage.
        every: if the job has checkpoints, how far they are apart, in microseconds.
        since: if the job goes on from a checkpoint, its time: the state holds all rows before it, and they are left out.
    """

    def __init__(
        self,
        stage: Stage,
        operator: Operator,
        keeper: StateKeeper,
        setup: StoreSetup = NO_SETUP,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
        sources: Sources | None = None,
        every: int | None = None,
        since: int | None = None,
    ) -> None:
        self._operator = operator
        self._checkpoints = None if every is None else CheckpointPlans(operator, stage.ingress, every)
        # A store of the user's own is not kept: its code may hold anything, such as a folder that ends with the assignment.
        self._kept = None if is_own(operator.store) else setup.kept
        self._standby = setup.standby if stage.task.standby else None
        self._holding: set[int] = set()
        """The numbers of the shards that this peer has, as the standby knows them."""
        self._is_sound = True
        """Whether the last plan and the last commit went well."""
        self._links = stage.ingress
        self._keeper = keeper
        self._since = since
        self._setup = setup
        self._now = now
        self._shards: dict[int, _Shard] = {}
        self._sources = sources
        self._planned: dict[int, tuple[_Shard, Answer, HeldRows, ShardCheckpoints | None]] = {}
        self.restoring = 0.0
        """Seconds that the last plan took to make shards again from their log."""

    # --- on the thread of the task ---

    def due(self, incarnations: Mapping[Partition, int]) -> set[Partition]:
        """The partitions that need a batch although nothing is read: their shard is not there yet, or has something left to do.

        Args:
            incarnations: of the partitions that the peer holds.
        """
        first = {p.number: (p, n) for p, n in incarnations.items() if p.topic == self._links[0].topic}
        for number in self._shards.keys() - first.keys():
            self._shards[number].incarnation = None
        self._let_go(self._holding - first.keys())
        return {
            partition
            for number, (partition, incarnation) in first.items()
            if number not in self._shards or self._is_due(self._shards[number], incarnation)
        }

    def _is_due(self, shard: _Shard, incarnation: int) -> bool:
        if shard.more or shard.incarnation != incarnation:
            return True
        return shard.wake is not None and shard.wake <= self._now()

    def together(self, partitions: Iterable[Partition]) -> set[Partition]:
        """All partitions of the shards that these partitions belong to: what a batch that touches them must commit."""
        return {each for partition in partitions for each in self._partitions(partition.number)}

    def committed(self) -> None:
        """The transaction with what was planned has committed."""
        self._is_sound = False
        for shard, answer, held, checkpoints in self._planned.values():
            # Stores first: a shard whose store has failed must not pass for one that has this commit.
            for name, changes in answer.changes.items():
                if changes.num_rows:
                    shard.stores.all[name].apply(changes)
            shard.log.committed()
            shard.held = held
            if checkpoints is not None:
                shard.checkpoints = checkpoints
            shard.more, shard.wake = answer.more or shard.log.moves, self._operator.wake(shard.stores)
            if held.without_end and not self._operator.is_open(shard.stores):
                shard.held, shard.more = HeldRows(), True  # a further batch says so in the position
        self._planned.clear()
        self._is_sound = True

    def dropped(self) -> None:
        """What was planned is not committed, or it is not known. What was is read from the positions."""
        for shard, *_ in self._planned.values():
            shard.log.dropped()
            shard.incarnation = None
        self._planned.clear()

    # --- on the background thread ---

    def plan(self, batch: Batch) -> Planned:
        """What a batch makes of the shards that it touches. Makes shards again from their log if need be.

        Raises:
            FunctionError: rows do not fit the operator, or the user's function raises.
            InputError: the state log is torn, or its positions are gone.
        """
        self.dropped()
        self._is_sound = False
        self.restoring = 0.0
        found = Planned(pa.table({}), None, 0, {}, [], [], Provenance(), Provenance())
        failed: list[Failed] = []
        reads = self._reads(batch, found.rows_in, failed)
        now = self._now()
        touched = sorted({partition.number for partition in batch.positions})
        shards = {number: self._shard(number, batch) for number in touched}
        asked = [self._asked(number, shards[number], reads.get(number, ()), batch, now) for number in touched]
        results: list[pa.Table] = []
        lates: list[pa.Table] = []
        late_rows = 0
        since: dict[int, tuple[int, ...]] = {}
        for each, answer in zip(asked, self._operator.plan(asked), strict=True):
            shard = shards[each.number]
            self._check_limit(each, answer.changes)
            if answer.results.num_rows:
                results.append(answer.results)
                found.origins.add([each.origin], [answer.results.num_rows])
            late_rows += answer.late_rows
            for message, rows in answer.late:
                lates.append(rows)
                found.late_from.add([message], [rows.num_rows])
            failed += answer.failed
            found.messages.extend(answer.sent)
            if (before_it := shard.held.merged) is not None:
                since[each.number] = before_it.since
            logged, commit = self._commit_of(shard, each, answer, batch)
            found.messages.extend(logged)
            found.shards.append(commit)
        table = together(results) if results else pa.table({})
        late = together(lates) if lates else None
        self._is_sound = True
        return found._replace(results=table, late=late, late_rows=late_rows, failed=failed, since=since)

    def _asked(self, number: int, shard: _Shard, reads: Sequence[Read], batch: Batch, now: int) -> Asked:
        """What the operator is to plan for a shard in a batch."""
        partitions = self._partitions(number)
        clocks = [batch.positions[each].clock.value for each in partitions]
        return Asked(
            number=number,
            stores=shard.stores,
            reads=reads,
            clock=min(clocks),
            before_end=min(batch.stated.get(each, clock) for each, clock in zip(partitions, clocks, strict=True)),
            now=now,
            clocks=clocks,
            origin=ShardOrigin(partitions[0], batch.positions[partitions[0]].offset),
        )

    def _commit_of(
        self, shard: _Shard, asked: Asked, answer: Answer, batch: Batch
    ) -> tuple[list[Outgoing], ShardCommit]:
        """What the transaction of a batch commits for a shard: messages for its log, and what goes into the position. Keeps what
        is to be applied after the commit.
        """
        checkpoint_plan = self._checkpoint_plan(shard, asked, answer, batch)
        undo = None if checkpoint_plan is None else checkpoint_plan.undo
        messages = [
            Outgoing(self._keeper.topic, made.value, asked.number, headers=list(made.headers))
            for made in shard.log.messages(answer.changes, shard.stores.all, undo)
        ]
        first, mark = self._partitions(asked.number)[0], shard.log.planned
        closed = batch.clocks.get(first, SourceClock()).seen if answer.more else asked.clock
        held = self._held(shard, asked, batch, closed)
        # What another job would begin with must stand in the log of this one, before a checkpoint or the end.
        complete = not shard.log.moves or mark.base > 0
        checkpoints = None if checkpoint_plan is None else checkpoint_plan.after(mark, complete=complete)
        self._planned[asked.number] = shard, answer, held, checkpoints
        return messages, ShardCommit(
            partition=first,
            mark=mark,
            closed=closed,
            done=complete and not answer.more,
            held=held.merged,
            checkpoints=None if checkpoints is None else checkpoints.known,
            waits=None if shard.log.moves else answer.waits,
        )

    def close(self) -> None:
        """The assignment is over: leave the shards to the process for a moment, or give memory and files back. After an error
        they are not kept: its cause may lie in a store. Nor is one that another peer may have gone on with.
        """
        self._let_go(self._holding)
        stale = {number for number, shard in self._shards.items() if shard.incarnation is None}
        self.dropped()
        for number, shard in self._shards.items():
            keeps = self._kept is not None and self._is_sound and number not in stale
            memory = _memory(shard) if keeps else None
            if self._kept is None or memory is None:
                shard.discard()
            else:
                self._kept.put(self._place(number), shard, memory, _Shard.discard)
        self._shards.clear()

    def _let_go(self, numbers: Iterable[int]) -> None:
        """Other processes may have these shards now, and this one may follow them."""
        for number in list(numbers):
            self._holding.discard(number)
            if self._standby is not None:
                self._standby.let_go(self._place(number))

    def _place(self, number: int) -> Partition:
        return Partition(self._keeper.topic, number)

    def _held(self, shard: _Shard, asked: Asked, batch: Batch, closed: int) -> HeldRows:
        """What a shard holds after a batch, if the job keeps its lineage. Its rows are not older than what was stated before."""
        sources = self._sources
        if sources is None:
            return shard.held
        came: Held | None = None
        until = self._operator.until(asked) if asked.reads else None
        if until is not None:
            places = {Partition(self._links[read.link].topic, asked.number) for read in asked.reads}
            fronts = [sources.stated_in(place.topic, batch.before[place]) for place in places]
            since = tuple(batch.started[place] or 0 for place in self._partitions(asked.number))
            came = Held(until, least(fronts, len(sources)), since)
        return shard.held.after(came, closed)

    def _checkpoint_plan(self, shard: _Shard, asked: Asked, answer: Answer, batch: Batch) -> PlannedCheckpoints | None:
        """What a batch means for the checkpoints of a shard, if the job has any."""
        if self._checkpoints is None:
            return None
        before = min(batch.clocks.get(each, SourceClock()).value for each in self._partitions(asked.number))
        return self._checkpoints.plan(shard.checkpoints, asked, answer, before)

    def _partitions(self, number: int) -> list[Partition]:
        return [Partition(link.topic, number) for link in self._links]

    def _reads(self, batch: Batch, counts: dict[Partition, int], failed: list[Failed]) -> dict[int, list[Read]]:
        """The blocks of a batch by partition number, in the order of the log, each with its message. Rows that their writer
        has refused are among the failed ones.

        Of several links, how their blocks lie to each other is decided by when they were read. There the clock in force is that
        of the shard before the batch.
        """
        found: dict[int, list[Read]] = {}
        for number, link in enumerate(self._links):
            messages = iter(batch.messages.get(link.name, ()))
            clocks = iter(batch.in_force.get(link.name, ()))
            for partition, count in batch.spans.get(link.name, ()):
                for _ in range(count):
                    message, stated = next(messages), next(clocks)
                    if (bad := refused(message)) is not None:
                        counts[partition] = counts.get(partition, 0) + 1
                        failed.append(bad)
                        continue
                    written, own = block.decode_clocked(message.value())
                    rows, own = self._not_before(written, own, link)
                    own = None if own is None else np.maximum(own, stated)
                    alone = len(self._links) == 1
                    clock = stated if alone else min(batch.clocks[p].value for p in self._partitions(partition.number))
                    piece = Piece(rows, clock, own if alone else None)
                    counts[partition] = counts.get(partition, 0) + rows_in(written)  # it has read all that was written
                    found.setdefault(partition.number, []).append(Read(number, piece, message, stated, own))
        return found

    def _not_before(self, rows: pa.Table, clocks: Times | None, link: Link) -> tuple[pa.Table, Times | None]:
        """Rows of a link, without those that are in the checkpoint that the job goes on from."""
        if self._since is None or link.row_time is None or not rows.num_rows or SLICE in rows.column_names:
            return rows, clocks
        stay = row_times(rows, link.row_time, link.source) >= self._since
        return (rows, clocks) if stay.all() else (rows.filter(pa.array(stay)), None if clocks is None else clocks[stay])

    def _shard(self, number: int, batch: Batch) -> _Shard:
        """The shard as the position says: the one at hand, or made again from the log."""
        first = Partition(self._links[0].topic, number)
        shard, incarnation = self._shards.get(number), batch.incarnations[first]
        if shard is not None and shard.incarnation == incarnation:
            return shard
        position = batch.positions[first]
        mark = None if position.state is None else Mark(*position.state)
        if shard is None or shard.log.mark != (mark or Mark()):
            if shard is not None:
                del self._shards[number]
                shard.discard()
            known = batch.started[first] is not None
            shard = self._left(number, mark or Mark()) if known else None
            if shard is None and known and mark is not None:
                shard = self._followed(number, mark)
            if shard is None:
                shard = self._restored(number, mark if known else None)
            self._shards[number] = shard
        if self._sources is not None:
            shard.held = HeldRows.committed(batch.before[first])
        if self._checkpoints is not None:
            shard.checkpoints = shard.checkpoints.as_committed(position.checkpoints or self._nothing_before())
        if self._standby is not None and number not in self._holding:
            self._standby.hold(self._place(number))
            self._holding.add(number)
        shard.incarnation = incarnation
        shard.more = True  # a former holder may have left something to do
        return shard

    def _nothing_before(self) -> Checkpoints:
        """The checkpoints of a shard that has committed nothing: none, and later none at a time before it began."""
        begun = self._keeper.begun
        return Checkpoints() if begun is None else Checkpoints(begun, begun)

    def _left(self, number: int, mark: Mark) -> _Shard | None:
        """The shard as an earlier assignment of this process left it, if it still is what the position says."""
        shard = self._kept.take(self._place(number), mark) if self._kept is not None else None
        if shard is not None and shard.mark.seq:
            log.info("state_kept", partition=number, count=len(shard.stores))
        return shard

    def _followed(self, number: int, mark: Mark) -> _Shard | None:
        """The shard as this process has followed it, with the rest of its log; None: the log must be read from its beginning."""
        keeper, began = self._keeper, time.monotonic()
        if self._standby is None or not isinstance(keeper, TopicKeeper):
            return None
        found = self._standby.take(self._place(number), partial(keeper.end, number))
        if found is None:
            return None
        kept = keeper.goes_on(number, mark, found.restore) if self._fits(found.stores) else None
        if kept is None:
            discard(found.stores, found.folder)
            return None
        spent = time.monotonic() - began
        self.restoring += spent
        log.info("state_followed", partition=number, count=len(found.stores), seconds=round(spent, 3))
        return _Shard(kept, found.stores, found.folder, checkpoints=ShardCheckpoints(undo=dict(kept.undo)))

    def may_follow(self, mark: Mark) -> bool:
        """Whether the log of a shard holds all of its state, so that it can be followed."""
        return not isinstance(self._keeper, TopicKeeper) or self._keeper.may_follow(mark)

    def _fits(self, stores: Stores) -> bool:
        """Whether stores were made for this version of the task."""
        return all(stores.made(name, schema).schema.equals(schema) for name, schema in self._operator.schemas().items())

    def _restored(self, number: int, mark: Mark | None) -> _Shard:
        began = time.monotonic()
        stores, folder = self.empty()
        try:
            keeper = self._keeper.restored(number, mark, stores, self._operator.by_rows)
            shard = _Shard(keeper, stores, folder, checkpoints=ShardCheckpoints(undo=dict(keeper.undo)))
        except BaseException:
            discard(stores, folder)
            raise
        spent = time.monotonic() - began
        self.restoring += spent
        if shard.log.mark.seq:
            log.info("state_restored", partition=number, count=len(shard.stores), seconds=round(spent, 3))
        return shard

    def empty(self) -> tuple[Stores, Path | None]:
        """The stores of a shard without entries, and their folder."""
        return empty_stores(self._operator, self._setup.folder, self._setup.load)

    @property
    def by_rows(self) -> Collection[str]:
        """The names of the stores whose columns follow from the rows."""
        return self._operator.by_rows

    def _check_limit(self, asked: Asked, changes: Mapping[str, pa.Table]) -> None:
        limit, stores = self._operator.state_limit, asked.stores
        if limit is None or len(stores) + sum(table.num_rows for table in changes.values()) <= limit:
            return
        entries = len(stores) + sum(growth(stores.all[name], table) for name, table in changes.items())
        if entries > limit:
            raise FunctionError(
                "SX-STATE-LIMIT",
                f"the state of partition {asked.number} would have {entries:,} entries, and `state_limit` is {limit:,}",
                cause=self._operator.entries,
                fix="raise `state_limit=`, give the job more `partitions=`, or keep less: shorter windows, a `ttl=`, fewer keys",
            )


def _memory(shard: _Shard) -> int | None:
    """Bytes that a shard takes; None: a store cannot tell, so it is broken."""
    try:
        return shard.stores.memory
    except Exception as error:  # noqa: BLE001 - what it held is in the log
        log.warning("state_not_kept", error=str(error))
        return None


__all__ = ["Shards"]
