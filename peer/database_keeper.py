"""A task whose state is in a database: there state, positions and what is owed to Kafka are committed as one.

A batch is of one shard, and so is each commit. Commits of a shard are numbered; Kafka's positions say up to which one Kafka has
what they owed (:mod:`sardonyx.state.owed`, docs/design/sql_state.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from peer.operators import Stores
from peer.outbox import pack, unpack
from queues.batch import Recovered
from queues.messages import Outgoing, Records
from sardonyx.connectors.sql.state import ShardCommit, ShardRow
from sardonyx.core.errors import InputError, InternalError
from sardonyx.core.positions import Partition, Position
from sardonyx.state.base import Store
from sardonyx.state.messages import Mark, Message
from sardonyx.state.owed import Standing, standing
from sardonyx.state.shape import refuse_other_shape, unknown_store
from sardonyx.state.undo import Undo, UndoChange


class Database(Protocol):
    """See :class:`sardonyx.connectors.sql.state.StateDatabase`."""

    def shards(self, shards: Collection[int]) -> Mapping[int, ShardRow]: ...
    def load(self, shard: int, number: int, store: Callable[[str, pa.Schema], Store]) -> None: ...
    def begin(self, commit: ShardCommit) -> None: ...
    def commit(self) -> None: ...
    def abandon(self) -> None: ...
    def seal(self) -> None: ...
    def reach(self) -> None: ...


class DatabaseShard:
    """The commits of one shard: takes the place of a :class:`sardonyx.state.log.ShardLog`.

    Args:
        number: of the last commit.
    """

    def __init__(self, number: int = 0) -> None:
        self.mark = Mark(number)
        """Of the last commit."""
        self.planned = Mark(number)
        """The next one, if the batch changes the state."""
        self.changes: Mapping[str, pa.Table] = {}
        self.schemas: Mapping[str, pa.Schema] = {}
        self.undo: Mapping[int, Undo] = {}
        self.moves = False

    def messages(
        self,
        changes: Mapping[str, pa.Table],
        stores: Mapping[str, Store],
        undo: UndoChange | None = None,  # noqa: ARG002 - a job with checkpoints keeps no state in a database
    ) -> list[Message]:
        """Keep the changes for the commit of the batch. There is no log to write them to."""
        self.changes = {name: table for name, table in changes.items() if table.num_rows}
        self.schemas = {name: store.schema for name, store in stores.items()}
        if self.changes:
            self.planned = Mark(self.mark.seq + 1)
        return []

    def committed(self) -> None:
        """What was planned is committed."""
        self.mark = self.planned
        self.changes = {}

    def dropped(self) -> None:
        """It is not, or that is not known."""
        self.planned = self.mark
        self.changes = {}


class DatabaseKeeper:
    """Keeps the state and the positions of a task: a :class:`~peer.position_keeper.PositionKeeper` and a
    :class:`~peer.state_keeper.StateKeeper`.

    Args:
        database: of the task.
        topic: of the first link that the task reads. With its partitions goes what is owed.
        confirm: raises an error, which makes this peer begin anew, unless Kafka's positions are still these.
    """

    publishes_first = True
    topic = ""
    """There is no log."""
    begun: int | None = None
    """No job goes on with a state in a database."""

    def __init__(
        self, database: Database, topic: str, confirm: Callable[[Mapping[Partition, Position | None]], None]
    ) -> None:
        self._database = database
        self._first = topic
        self._confirm = confirm
        self._shards: dict[int, DatabaseShard] = {}
        self.reached = False

    # --- Positions ----------------------------------------------------------------------------------------------------

    def recover(self, committed: Mapping[Partition, Position | None]) -> dict[Partition, Recovered]:
        """See :meth:`peer.position_keeper.PositionKeeper.recover`.

        Raises:
            InputError: ``SX-STATE-DATABASE-LOST``, ``SX-STATE-POSITIONS-LOST``. It also raises whatever the database raises.
        """
        rows = self._database.shards({partition.number for partition in committed})
        self.reached = True
        found: dict[Partition, Recovered] = {}
        for partition, position in committed.items():
            row = rows.get(partition.number)
            kafka, database = _number(position), 0 if row is None else row.number
            stands = standing(kafka, database)
            if stands is Standing.OWED and row is not None:
                owed = unpack(row.owed) if partition.topic == self._first else []
                found[partition] = Recovered(row.positions[partition], owed)
            elif stands is Standing.LOST:
                self._confirm(committed)  # else this peer has lost the partition, and another one has gone on
                raise _lost(partition, kafka, database)
        return found

    def numbered(self, positions: dict[Partition, Position]) -> dict[Partition, Position]:
        """The positions with the number of the commit that they are of."""
        number = self._shard_of(positions).mark.seq + 1
        return {partition: position._replace(state=(number, 0, 0)) for partition, position in positions.items()}

    def begin(
        self,
        started: Mapping[Partition, int | None],  # noqa: ARG002 - the numbers are compared
        positions: Mapping[Partition, Position],
        outbox: Sequence[Outgoing | Records],
    ) -> None:
        """See :meth:`peer.position_keeper.PositionKeeper.begin`. The positions are those of one shard."""
        shard = self._shard_of(positions)
        number = next(iter(positions.values())).state
        assert number is not None  # noqa: S101 (for the type checker: they are numbered)
        shard.planned = Mark(number[0])
        place = next(iter(positions)).number
        self._database.begin(
            ShardCommit(place, number[0], positions, pack(outbox), dict(shard.changes), dict(shard.schemas))
        )

    def commit(self) -> None:
        self._database.commit()

    def abandon(self) -> None:
        self._database.abandon()

    def reach(self) -> None:
        self._database.reach()

    def sealed(self) -> None:
        """The task has ended. Idempotent."""
        self._database.seal()

    def _shard_of(self, positions: Mapping[Partition, Position]) -> DatabaseShard:
        numbers = {partition.number for partition in positions}
        if len(numbers) != 1:
            raise InternalError("SX-STATE-SHARDS", f"A commit of state in a database is of shards {sorted(numbers)}.")
        return self._shards[numbers.pop()]

    # --- State --------------------------------------------------------------------------------------------------------

    def restored(self, number: int, mark: Mark | None, stores: Stores, by_rows: Collection[str]) -> DatabaseShard:
        """See :meth:`peer.state_keeper.StateKeeper.restored`.

        Raises:
            PositionsMoved: another peer has gone on.
            InputError: ``SX-STATE-SHAPE``.
        """

        def store(name: str, schema: pa.Schema) -> Store:
            known = stores.get(name)
            if known is None and name not in by_rows:
                raise unknown_store(name, [*stores.all, *by_rows], {"partition": number})
            if known is not None:
                refuse_other_shape(name, schema, known.schema, {"partition": number})
            return known or stores.open(name, schema)

        last = 0 if mark is None else mark.seq
        self._database.load(number, last, store)
        self._shards[number] = DatabaseShard(last)
        return self._shards[number]


def _number(position: Position | None) -> int:
    return 0 if position is None or position.state is None else position.state[0]


def _lost(partition: Partition, kafka: int, database: int) -> InputError:
    where: dict[str, object] = {"topic": partition.topic, "partition": partition.number}
    if kafka > database:
        return InputError(
            "SX-STATE-DATABASE-LOST",
            f"the database has lost state of {partition.topic}[{partition.number}]",
            cause=f"its last commit is {database}, and Kafka has what commit {kafka} gave",
            fix="leave the tables sardonyx_shards and sardonyx_state alone while a job runs, and let no replica take over that "
            "lacks commits; submit the job again",
            where=where,
        )
    return InputError(
        "SX-STATE-POSITIONS-LOST",
        f"the brokers have forgotten how far the task had read {partition.topic}[{partition.number}]",
        cause=f"they know commit {kafka}, and the database has commit {database}",
        fix="submit the job again; set `offsets.retention.minutes` longer than a job may be without peers",
        where=where,
    )


__all__ = ["Database", "DatabaseKeeper", "DatabaseShard"]
