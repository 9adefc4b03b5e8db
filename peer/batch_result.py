"""What a batch makes, and the positions that are committed with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from peer.shard_plans import Planned
from queues.batch import Batch
from queues.messages import Outgoing, Records, rows_over, rows_to
from sardonyx.core.clocks import END, SourceClock
from sardonyx.core.errors import Failure
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.going_back import MINUTE, begins_after
from sardonyx.core.graph import Stage
from sardonyx.core.link_counts import places, with_told
from sardonyx.core.positions import Partition, Position, add
from sardonyx.state.times import NOT_KNOWN, InForce


class BatchDropped(Exception):
    """The batch must not be committed here: its partitions are another peer's. That peer reads its records again."""


@dataclass(frozen=True)
class Result:
    """The outcome of a batch of messages."""

    table: pa.Table
    rows_in: int
    skipped: int = 0
    first_error: Failure | None = None
    """The failure of the first record that is skipped or becomes a dead letter."""
    failed: pa.Table | None = None
    """The failed records for the task's failed edges, as rows with the columns of ``peer.sinks.FAILED``."""
    letters: Sequence[Outgoing] = ()
    """Dead letters, for the batch's transaction."""
    clocks: Mapping[Partition, SourceClock] = field(default_factory=dict)
    """Of partitions of the user's topics, after the batch."""
    in_force: InForce = NOT_KNOWN
    """The clock before the rows of ``table``."""
    planned: Planned | None = None
    """What the task's shards have made of the batch, if it has state."""

    @property
    def size(self) -> int:
        """Bytes that it has in memory, with what is written beside it: dead letters and changes of a state."""
        beside = [*self.letters, *(() if self.planned is None else self.planned.messages)]
        return int(self.table.nbytes) + sum(len(message.value or b"") for message in beside)


def positions_after(
    stage: Stage,
    batch: Batch,
    result: Result,
    messages: Sequence[Outgoing | Records],
    facts: Mapping[str, LinkFacts] = MappingProxyType({}),
    every: int | None = None,
) -> dict[Partition, Position]:
    """The batch's positions with the counts after it.

    What is known of the whole batch only counts on one partition, so that the sum is exact. The rows of internal links are
    known for each partition. ``facts``: of the job's links. ``every``: how far its checkpoints are apart, if it has any.
    """
    positions = dict(batch.positions)
    sent = rows_over(messages, {link.name for link in stage.in_place})
    if result.planned is not None:
        first = _positions_of_shards(stage, positions, result, result.planned, sent)
    else:
        first = _positions_of_rows(stage, positions, batch, result, every, sent)
    written = [rows_to(messages, link.topic) for link in stage.counted]
    numbers = places(stage, facts)
    for partition, before in batch.positions.items():
        if positions[partition].counts != before.counts or (partition == first and any(written)):
            told = with_told(before, written if partition == first else [0] * len(written), numbers).told
            positions[partition] = positions[partition]._replace(told=told)
    return positions


def _positions_of_rows(
    stage: Stage,
    positions: dict[Partition, Position],
    batch: Batch,
    result: Result,
    every: int | None,
    sent: dict[str, int],
) -> Partition | None:
    """Count the rows of a batch. Returns the partition that what is written counts on; None: nothing is."""
    exact = {link.topic for link in stage.ingress if link.kind == "internal"}
    if sum(batch.rows.values()) == result.rows_in:
        read = batch.rows
    else:
        read = {partition: rows for partition, rows in batch.rows.items() if partition.topic in exact}
    first = next((p for p in batch.rows if p.topic not in exact), next(iter(batch.rows), None))
    for partition in batch.rows:
        made = Counts(read.get(partition, 0), sent={})
        if partition == first:
            rest = result.rows_in - sum(read.values())
            made = add(made, Counts(rest, result.table.num_rows, result.skipped, len(result.letters), sent=sent))
        positions[partition] = _counted(positions[partition], made)
    if every is None and any(link.time is not None and link.time.kind == "column" for link in stage.ingress):
        every = MINUTE
    for partition, clock in result.clocks.items():
        position = positions[partition]
        ends = position.clock.value == END  # with this batch
        begins = position.begins
        if every is not None:
            began, before = batch.started[partition], batch.clocks[partition].seen
            begins = begins if began is None else begins_after(begins, began, (before, clock.seen), every)
        positions[partition] = position._replace(clock=clock.ended() if ends else clock, begins=begins)
    return first


def _positions_of_shards(
    stage: Stage, positions: dict[Partition, Position], result: Result, planned: Planned, sent: dict[str, int]
) -> Partition | None:
    """The same for a task with state. A partition is not drained before all that is due at its end is out. How far a shard has
    come stands with all its partitions: what a task states is the least of all.
    """
    for partition, rows in planned.rows_in.items():
        positions[partition] = _counted(positions[partition], Counts(rows, sent={}))
    for shard in planned.shards:
        for partition in {Partition(link.topic, shard.partition.number) for link in stage.ingress} & positions.keys():
            position = positions[partition]
            positions[partition] = position._replace(clock=position.clock._replace(seen=shard.closed))
        position = positions[shard.partition]
        positions[shard.partition] = position._replace(
            state=(shard.mark.seq, shard.mark.low, shard.mark.base) if shard.mark.seq else None,
            checkpoints=shard.checkpoints,
            drained=position.drained if shard.done else None,
            held=shard.held,
            waits=_waiting(position, shard.waits, planned.rows_in.get(shard.partition, 0)),
        )
    if not planned.shards:
        return None
    first = planned.shards[0].partition
    made = Counts(0, result.table.num_rows, result.skipped, len(result.letters), planned.dropped, sent)
    positions[first] = _counted(positions[first], made)
    return first


def _counted(position: Position, made: Counts) -> Position:
    """A batch that has made nothing changes nothing."""
    return position if made == Counts(sent={}) else position._replace(counts=add(position.counts, made))


def _waiting(position: Position, more: int | None, rows: int) -> int | None:
    """How many rows wait in a shard; None: none ever do, or how many did before is not known.

    Args:
        position: before the batch, but with the rows that it has read.
        more: how many rows more wait now.
        rows: that the batch has read.
    """
    known = position.waits
    if known is None and position.state is None and position.counts.rows_in == rows:
        known = 0
    return None if known is None or more is None else known + more
