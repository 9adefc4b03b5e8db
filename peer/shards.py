"""The windows of one assignment: a shard for each partition number that this peer holds, planned in a batch, applied after it.

A shard belongs to the holder of its partitions. It is made again from the state log when this peer gets them, unless the peer
still has it as the position says. A plan changes nothing. Its changes go into the state log, in the transaction of the batch.
After the commit they are applied. So a shard is never ahead of what is committed.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from peer.provenance import Provenance
from peer.window_split import late_in, row_times, rows_in
from queues import block
from queues.batch import Batch
from queues.messages import Logged, Outgoing
from sardonyx.core.clocks import SourceClock
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import Stage
from sardonyx.core.positions import Partition
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.columns import SLICE
from sardonyx.state.kinds import ordinal
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark
from sardonyx.state.planned import INSTANT
from sardonyx.state.planned import Planned as WindowsPlanned
from sardonyx.state.restore import Restore
from sardonyx.state.times import Times
from sardonyx.state.windows import Piece, WindowShard, entry_schema

log = structlog.get_logger()

LATE_PREFIX = "sx_late:"
"""Of the columns that say what a late row is too late for. They are apart from those of the row."""

_STORE = "windows"
"""The name of the store in the state log."""


class StateTopic(Protocol):
    """The log of a task's state; see :mod:`queues.state_topics`."""

    def end(self, partition: int) -> int:
        """The offset after the last record, open transactions included."""
        ...

    def read(self, partition: int, start: int, end: int) -> Iterable[Logged]:
        """All committed messages from one offset to another."""
        ...


@dataclass
class _Shard:
    """The state of one partition number."""

    log: ShardLog
    store: Store | None = None
    """None: there never was a row, so the columns are not known."""
    windows: WindowShard | None = None
    folder: Path | None = None
    """Of a store on disk."""
    more: bool = False
    """Windows remain to be closed by the clock that was planned last."""
    incarnation: int | None = None
    """Of its first partition, when it was last compared with the position."""


class _Read(NamedTuple):
    """A block, and the message that it came with."""

    piece: Piece
    message: Any


@dataclass(frozen=True)
class _Origin:
    """Where results of windows came from, as a message says it of itself."""

    place: Partition
    reached: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.number

    def offset(self) -> int:
        return self.reached

    def headers(self) -> None:
        return None


class ShardCommit(NamedTuple):
    """What a batch commits for one shard."""

    partition: Partition
    """Whose position the shard's mark rides with."""
    mark: Mark
    closed: int
    """The clock up to which all windows have closed, and their results are out."""
    done: bool
    """Whether all windows are closed that the clock of the batch closes."""


class Planned(NamedTuple):
    """What the windows make of a batch."""

    results: pa.Table
    late: pa.Table | None
    """Late rows, if the task keeps them; with the last window that each would be in, in columns with :data:`LATE_PREFIX`."""
    late_rows: int
    rows_in: dict[Partition, int]
    """Rows that went in, by partition; those of combined rows are counted one by one."""
    messages: list[Outgoing]
    shards: list[ShardCommit]
    late_from: Provenance
    """Where the late rows came from."""
    origins: Provenance
    """Where the results came from: a partition, up to an offset."""

    @property
    def late_results(self) -> pa.Table | None:
        """The late rows as the edges of late rows give them: with ``window_start``, ``window_end`` and ``late_by``."""
        if self.late is None:
            return None
        about = [name for name in self.late.column_names if name.startswith(LATE_PREFIX)]
        public = [name.removeprefix(LATE_PREFIX) for name in about]
        rows = self.late.drop_columns([*about, *(name for name in public if name in self.late.column_names)])
        for name, column in zip(public, about, strict=True):
            rows = rows.append_column(name, self.late[column])
        return rows

    @property
    def dropped(self) -> int:
        """Late rows that nothing takes."""
        return self.late_rows - (0 if self.late is None else self.late.num_rows)


class Shards:
    """All shards of an assignment.

    Args:
        stage: a task with windows.
        topic: the log of its state.
        most: about the most results of a batch.
        folder: for stores on disk. They are copies of the log, so nothing in it outlives the assignment.
    """

    def __init__(self, stage: Stage, topic: StateTopic, most: int, folder: Path | None = None) -> None:
        assert stage.task.window is not None  # noqa: S101 (for the type checker: the caller asks)
        self._window = stage.task.window
        self._keys = list(stage.task.group_by or ())
        self._links = stage.ingress
        self._state = next(link for link in stage.egress if link.kind == "state")
        self._topic = topic
        self._most = most
        self._folder = folder
        self._shards: dict[int, _Shard] = {}
        self._planned: dict[int, tuple[_Shard, pa.Table | None, bool]] = {}

    # --- on the thread of the task ---

    def due(self, incarnations: Mapping[Partition, int]) -> set[Partition]:
        """The partitions that need a batch although nothing is read: their shard is not there yet, or has windows left to close.

        Args:
            incarnations: of the partitions that the peer holds.
        """
        first = {p.number: (p, n) for p, n in incarnations.items() if p.topic == self._links[0].topic}
        for number in self._shards.keys() - first.keys():
            self._shards[number].incarnation = None
        return {
            partition
            for number, (partition, incarnation) in first.items()
            if number not in self._shards
            or self._shards[number].more
            or self._shards[number].incarnation != incarnation
        }

    def together(self, partitions: Iterable[Partition]) -> set[Partition]:
        """All partitions of the shards that these partitions belong to: what a batch that touches them must commit."""
        return {each for partition in partitions for each in self._partitions(partition.number)}

    def committed(self) -> None:
        """The transaction with what was planned has committed."""
        for shard, changes, more in self._planned.values():
            if changes is not None and changes.num_rows and shard.store is not None:
                shard.store.apply(
                    changes
                )  # first: a shard whose store has failed must not pass for one that has this commit
            shard.log.committed()
            shard.more = more
        self._planned.clear()

    def dropped(self) -> None:
        """What was planned is not committed, or it is not known. What was is read from the positions."""
        for shard, _, _ in self._planned.values():
            shard.log.dropped()
            shard.incarnation = None
        self._planned.clear()

    # --- on the background thread ---

    def plan(self, batch: Batch) -> Planned:
        """What a batch makes of the shards that it touches. Makes shards again from their log if need be.

        Raises:
            FunctionError: rows do not fit the windows.
            InputError: the state log is torn, or its positions are gone.
        """
        self.dropped()
        results: list[pa.Table] = []
        lates: list[pa.Table] = []
        found = Planned(pa.table({}), None, 0, {}, [], [], Provenance(), Provenance())
        late_rows = 0
        pieces = self._pieces(batch, found.rows_in)
        for number in sorted({partition.number for partition in batch.positions}):
            partitions = self._partitions(number)
            shard = self._shard(number, batch)
            own = pieces.get(number, [])
            clock = min(batch.positions[partition].clock.value for partition in partitions)
            planned = self._plan(shard, [read.piece for read in own], clock)
            if planned is None:
                changes, more = None, False
            else:
                changes, more = planned.changes, planned.more
                self._check_limit(number, _of(shard.store), changes)
                if planned.results.num_rows:
                    results.append(planned.results)
                    origin = _Origin(partitions[0], batch.positions[partitions[0]].offset)
                    found.origins.add([origin], [planned.results.num_rows])
                late_rows += late_in(planned.late, [read.piece.rows for read in own])
                if planned.late.num_rows and self._window.late != "drop":
                    lates.append(self._kept(planned.late, own, found.late_from))
                for message in shard.log.messages({_STORE: changes}, {_STORE: _of(shard.store)}):
                    found.messages.append(
                        Outgoing(self._state.topic, message.value, number, headers=list(message.headers))
                    )
            first = partitions[0]
            before = batch.clocks.get(first, SourceClock()).seen
            found.shards.append(ShardCommit(first, shard.log.planned, before if more else clock, not more))
            self._planned[number] = shard, changes, more
        table = block.concat(results) if results else pa.table({})
        return found._replace(results=table, late=block.concat(lates) if lates else None, late_rows=late_rows)

    def close(self) -> None:
        """The assignment is over: give memory and files back."""
        for shard in self._shards.values():
            _discard(shard)
        self._shards.clear()

    def _partitions(self, number: int) -> list[Partition]:
        return [Partition(link.topic, number) for link in self._links]

    def _pieces(self, batch: Batch, counts: dict[Partition, int]) -> dict[int, list[_Read]]:
        """The blocks of a batch by partition number, in the order of the log, each with its message.

        Of several links, how their blocks lie to each other is decided by when they were read. There the clock in force is that
        of the shard before the batch.
        """
        found: dict[int, list[_Read]] = {}
        for link in self._links:
            messages = iter(batch.messages.get(link.name, ()))
            clocks = iter(batch.in_force.get(link.name, ()))
            for partition, count in batch.spans.get(link.name, ()):
                for _ in range(count):
                    message, clock = next(messages), next(clocks)
                    rows = block.decode([message.value()])
                    if len(self._links) > 1:
                        clock = min(batch.clocks[each].value for each in self._partitions(partition.number))
                    counts[partition] = counts.get(partition, 0) + rows_in(rows)
                    found.setdefault(partition.number, []).append(_Read(Piece(rows, clock), message))
        return found

    def _plan(self, shard: _Shard, pieces: list[Piece], clock: int) -> WindowsPlanned | None:
        """None: the shard never had a row."""
        if shard.windows is None:
            if not pieces:
                return None
            self._furnish(shard, entry_schema(self._window, self._keys, pieces[0].rows.schema))
        assert shard.windows is not None  # noqa: S101 (for the type checker: furnished)
        return shard.windows.plan(pieces, clock, self._most)

    def _kept(self, late: pa.Table, own: list[_Read], provenance: Provenance) -> pa.Table:
        """The late rows of a shard as they were given, with the window that each is too late for."""
        tables: list[pa.Table] = []
        for index, read in enumerate(own):
            here = late.filter(pc.equal(late["piece"], index))
            if not here.num_rows:
                continue
            rows = read.piece.rows.take(here["row"])
            if SLICE in rows.column_names:  # combined: such rows are dropped and counted
                continue
            for name in ("window_start", "window_end"):
                rows = rows.append_column(LATE_PREFIX + name, self._instants(here[name]))
            tables.append(rows.append_column(LATE_PREFIX + "late_by", here["late_by"]))
            provenance.add([read.message], [rows.num_rows])
        return block.concat(tables) if tables else pa.table({})

    def _instants(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        return times if ordinal(self._window) else times.cast(INSTANT)

    # --- shards ---

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
                _discard(shard)
            shard = self._restored(number, mark if batch.started[first] is not None else None)
            self._shards[number] = shard
        shard.incarnation = incarnation
        shard.more = True  # a former holder may have left windows to close
        return shard

    def _restored(self, number: int, mark: Mark | None) -> _Shard:
        began = time.monotonic()
        end = self._topic.end(number)  # after the position was asked for: see `queues.state_topics`
        shard = _Shard(ShardLog(partial(self._topic.end, number)))
        stores: dict[str, Store] = {}
        messages = iter(self._topic.read(number, (mark or Mark()).low, end))
        found = next(messages, None)
        try:
            if found is not None:
                self._furnish(shard, block.decode([found.value]).drop_columns([GONE]).schema)
                stores[_STORE] = _of(shard.store)
            restore = Restore(mark, stores, topic=self._state.topic, partition=number)
            restore.read(itertools.chain(() if found is None else (found,), messages))
            shard.log = ShardLog(partial(self._topic.end, number), restore.finish())
        except BaseException:
            _discard(shard)
            raise
        if found is not None:
            spent = round(time.monotonic() - began, 3)
            log.info("state_restored", partition=number, count=len(_of(shard.store)), seconds=spent)
        return shard

    def _furnish(self, shard: _Shard, schema: pa.Schema) -> None:
        """Give a shard its store. The first rows say which columns it has."""
        shard.store = MemoryStore(schema) if self._window.store == "memory" else self._on_disk(shard, schema)
        shard.windows = WindowShard(self._window, self._keys, shard.store, self._times)

    def _on_disk(self, shard: _Shard, schema: pa.Schema) -> Store:
        from sardonyx.state.rocks import RocksStore  # needs an extra, and only here

        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        shard.folder = Path(tempfile.mkdtemp(prefix="state-", dir=self._folder))
        return RocksStore(schema, shard.folder)

    def _check_limit(self, number: int, store: Store, changes: pa.Table) -> None:
        limit = self._window.state_limit
        if limit is None or len(store) + changes.num_rows <= limit:
            return
        gone = changes[GONE].combine_chunks()
        puts, removed = changes.filter(pc.invert(gone))[KEY], changes.filter(gone)[KEY]
        known = len(store.read(puts.combine_chunks())[0])
        entries = len(store) + len(puts) - known - len(store.read(removed.combine_chunks())[0])
        if entries > limit:
            raise FunctionError(
                "SX-STATE-LIMIT",
                f"the state of partition {number} would have {entries:,} entries, and `state_limit` is {limit:,}",
                cause="a window has an entry for each key, as long as it is open",
                fix="raise `state_limit=`, give the job more `partitions=`, or let windows be shorter or keys fewer",
            )

    def _times(self, rows: pa.Table) -> Times | None:
        where = next((link.row_time for link in self._links if link.row_time is not None), None)
        return None if where is None else row_times(rows, where, self._links[0].source)


def _discard(shard: _Shard) -> None:
    if shard.store is not None:
        shard.store.close()
    if shard.folder is not None:
        shutil.rmtree(shard.folder, ignore_errors=True)


def _of(store: Store | None) -> Store:
    assert store is not None  # noqa: S101 (for the type checker: there are rows)
    return store
