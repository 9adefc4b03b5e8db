"""Makes the stores of a shard again from its log. Pure.

The caller reads the position of the partition, *stable*: open transactions that would move it are decided. Then it asks for the
end of the log, open transactions included, and reads all that is committed up to there. Each commit after the mark's ``base``
must be there, whole. A store is never silently empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import pyarrow as pa

from queues import block
from queues.messages import Logged
from sardonyx.core.column_types import as_schema, together
from sardonyx.core.errors import InputError
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.log import LogState, Round
from sardonyx.state.memory import key_list
from sardonyx.state.messages import About, Mark, Place, about, last_key
from sardonyx.state.roomy import holds, roomy, shown
from sardonyx.state.shape import refuse_other_shape, shape_of, unknown_store
from sardonyx.state.undo import after

_TOGETHER = 30_000
"""Rows that are applied at once: small commits cost as little as large ones."""


class Restore:
    """Reads a shard's log into its stores.

    Args:
        mark: what the position holds. None: the group has no position for the partition.
        stores: the stores of the shard, by name.
        topic: that of the log.
        partition: its number.
        others: names of further stores, which are there only if the log holds them.
        make: makes such a store, with the schema that the log says.
        begun: the stores hold what another log left, and this one goes on from there: how it stands then. None: the stores are
            cleared, and read from this log.
        takes: what of the changes of a store goes into it; None: all.
    """

    def __init__(
        self,
        mark: Mark | None,
        stores: Mapping[str, Store],
        *,
        topic: str,
        partition: int,
        others: Collection[str] = (),
        make: Callable[[str, pa.Schema], Store] | None = None,
        begun: LogState | None = None,
        takes: Callable[[pa.Table], pa.Table] | None = None,
    ) -> None:
        self._takes = takes
        self._without_position = mark is None
        self._mark = mark or Mark()
        self._stores = dict(stores)
        self._others, self._make = others, make
        self._where: dict[str, object] = {"topic": topic, "partition": partition}
        self._shapes = {name: shape_of(store.schema) for name, store in stores.items()}
        if begun is None:
            for store in stores.values():
                store.clear()
        self._known = begun or LogState(Mark(self._mark.base))
        self.start = self._mark.low
        """The offset to read from."""
        self._first = self._seq = self._known.mark.seq
        """The last commit that is whole."""
        self._parts: list[tuple[About, pa.Table]] = []
        """Of the commit at hand."""
        self._begun: list[bytes] = []
        """Of an entry that is larger than a message: what has come of it."""
        self._waiting: dict[str, list[pa.Table]] = {}
        self._rows: Counter[int] = Counter()
        """By commit."""
        self._last_again: Round | None = None
        self._undo: dict[int, dict[str, list[pa.Table]]] = {}
        self._undo_seq: dict[int, int] = {}
        """By time, the last commit that said something of it."""
        self._follows = False

    def follow(self, messages: Iterable[Logged]) -> None:
        """Take messages of a log that goes on, also beyond the mark, and apply all commits that are whole. To finish, say for
        which mark: :meth:`ends_at`. It raises what :meth:`read` raises, but not ``SX-STATE-AHEAD``.
        """
        self._follows = True
        self.read(messages)
        self.apply()

    def ends_at(self, mark: Mark) -> bool:
        """Of a log that was followed: it is read for this mark now, which is a later one than that before.

        Returns:
            False: more was read than the mark has, or it does not begin where the mark does. The log must be read again.
        """
        fits = not self._without_position and self._seq <= mark.seq and self._first <= mark.base
        self._mark, self._follows = mark, False
        return fits

    def read(self, messages: Iterable[Logged]) -> None:
        """Take messages of the log, in order. It may be called several times.

        Raises:
            InputError: ``SX-STATE-TORN``, a part of the log is missing; ``SX-STATE-AHEAD``, it goes beyond the position;
                ``SX-STATE-POSITIONS-LOST``; ``SX-STATE-SHAPE``, the columns of a store have changed; ``SX-STATE-FOREIGN``.
            SetupError: ``SX-BLOCK-FORMAT``.
        """
        for message in messages:
            self._take(message, about(message, self._where))

    @property
    def reached(self) -> bool:
        """Whether the commit of the position has come, whole."""
        return not self._parts and self._seq >= self._mark.seq

    def finish(self) -> LogState:
        """All is read: apply what waits, and check that nothing is missing at the end.

        Returns:
            How the log stands: to make a :class:`~sardonyx.state.log.ShardLog` from.

        Raises:
            InputError: ``SX-STATE-TORN``.
        """
        if not self.reached:
            raise self._torn(f"it ends after commit {self._seq}", None)
        self.apply()
        again = self._last_again or self._known.round
        under_way = again is not None and again.place.low > self._mark.low
        return LogState(
            self._mark,
            self._rows_after(self._mark.base),
            again._replace(rows=self._rows_after(again.place.base)) if again is not None and under_way else None,
        )

    @property
    def undo(self) -> dict[int, dict[str, pa.Table]]:
        """What the log says of checkpoints: by their times, by store, the entries that differ (:mod:`sardonyx.state.undo`)."""
        return {time: {name: _merged(tables) for name, tables in stores.items()} for time, stores in self._undo.items()}

    def _take(self, message: Logged, said: About) -> None:
        if self._without_position:
            raise self._positions_lost(message)
        if said.seq <= self._first == self._seq and not self._parts:
            return  # the log begins in the middle of what is not needed
        expected = (self._seq + 1, len(self._parts) + 1)
        if (said.seq, said.number) != expected or (self._parts and said.of != self._parts[0][0].of):
            raise self._torn(
                f"part {said.number} of {said.of} of commit {said.seq:,} comes where part {expected[1]} of commit "
                f"{expected[0]:,} should",
                message.offset,
            )
        if said.seq > self._mark.seq and not self._follows:
            raise self._ahead(message, said)
        self._parts.append((said, self._entries(message, said)))
        if said.number == said.of:
            self._whole()

    def _entries(self, message: Logged, said: About) -> pa.Table:
        if said.kind == "part":
            self._begun.append(message.value)
            return pa.table({})
        value = b"".join([*self._begun, message.value])
        self._begun = []
        where = {**self._where, "offset": message.offset}
        entries = block.decode([value])
        if said.store not in self._stores:
            self._add(said.store, entries.schema, where)
        if said.shape != self._shapes[said.store]:
            self._widen(said.store, entries, where)
        return entries

    def _widen(self, name: str, entries: pa.Table, where: dict[str, object]) -> None:
        """Entries of a store were written with other types: a state takes wider ones when its rows do."""
        if name in self._waiting:
            self._apply(name)
        store = self._stores[name]
        written = shown(entries.drop_columns([GONE]))
        if written.names != store.schema.names:
            refuse_other_shape(name, entries.schema, store.schema, where)
        wide = roomy(store, written)
        may_widen = self._make is not None and name in self._others
        if not holds(wide, written) or (wide != store.schema and not may_widen):
            refuse_other_shape(name, entries.schema, store.schema, where)
        if wide != store.schema and self._make is not None:
            self._stores[name] = self._make(name, wide)
            self._shapes[name] = shape_of(wide)

    def _add(self, name: str, schema: pa.Schema, where: dict[str, object]) -> None:
        if self._make is None or name not in self._others:
            raise unknown_store(name, [*self._stores, *self._others], where)
        store = self._stores[name] = self._make(name, schema.remove(schema.get_field_index(GONE)))
        self._shapes[name] = shape_of(store.schema)

    def _whole(self) -> None:
        """The last message of a commit has come."""
        self._seq += 1
        for said, entries in self._parts:
            self._rows[self._seq] += entries.num_rows
            if said.kind == "again" and said.round is not None:
                self._begin_round(said.round)
                self._last_again = Round(said.round, 0, said.store, last_key(entries))
            if said.kind == "undo":
                if said.at is not None:
                    self._undo.setdefault(said.at, {}).setdefault(said.store, []).append(entries)
                    self._undo_seq[said.at] = self._seq
            elif said.kind != "part":
                self._waiting.setdefault(said.store, []).append(entries)
        self._parts = []
        for name, tables in list(self._waiting.items()):
            if sum(table.num_rows for table in tables) >= _TOGETHER:
                self._apply(name)

    def _begin_round(self, place: Place) -> None:
        """A round that follows another one: that one is through, so a later mark begins there at the earliest."""
        before = self._last_again
        if self._follows and before is not None and before.place != place:
            for seq in [seq for seq in self._rows if seq <= before.place.base]:
                del self._rows[seq]
            # The commit that ended it said again what is pending.
            for time in [time for time, seq in self._undo_seq.items() if seq <= before.place.base]:
                del self._undo_seq[time], self._undo[time]

    def apply(self) -> None:
        """Apply what waits: commits that are whole."""
        for name in list(self._waiting):
            self._apply(name)

    def _apply(self, name: str) -> None:
        store = self._stores[name]
        for every in _newest(self._waiting.pop(name)):
            changes = every if self._takes is None else self._takes(every)
            store.apply(as_schema(changes, store.schema.append(changes.schema.field(GONE))))

    def _rows_after(self, base: int) -> int:
        """The rows of the log after this commit."""
        read = sum(rows for seq, rows in self._rows.items() if seq > base)
        known = self._known
        if base >= self._first:
            return read
        if known.round is not None and base == known.round.place.base:
            return read + known.round.rows
        return read + known.rows

    def _torn(self, cause: str, offset: int | None) -> InputError:
        mark = self._mark
        return InputError(
            "SX-STATE-TORN",
            "a part of a task's state log is missing, so its state cannot be made again",
            cause=f"commits {self._first + 1:,} to {mark.seq:,} should stand whole from offset {self.start:,} on: {cause}",
            fix="Kafka has lost records of a transaction, or they were deleted by another program; submit the job again. "
            "Kafka 4.3.0 to 4.4.0 lose such records: use another release",
            where={**self._where, "offset": self.start if offset is None else offset},
        )

    def _ahead(self, message: Logged, said: About) -> InputError:
        return InputError(
            "SX-STATE-AHEAD",
            "a task's state log goes beyond the task's position",
            cause=f"the position is of commit {self._mark.seq:,}, and commit {said.seq:,} stands in the log: the positions of "
            "the consumer group were set back, or Kafka has lost a part of a transaction",
            fix="do not reset the consumer groups of a deployment; submit the job again",
            where={**self._where, "offset": message.offset},
        )

    def _positions_lost(self, message: Logged) -> InputError:
        return InputError(
            "SX-STATE-POSITIONS-LOST",
            "the brokers have forgotten how far a task had read, and its state log is not empty",
            cause="its consumer group has no position in this partition, though state was committed with one: the positions have "
            "expired, or were deleted",
            fix="if `sardonyx job checkpoints JOB` lists any, go back to the last one: `sardonyx job submit SPEC --resume "
            "JOB@TIME`; otherwise submit the job again. Set `offsets.retention.minutes` longer than a job may be without peers",
            where={**self._where, "offset": message.offset},
        )


def _merged(tables: list[pa.Table]) -> pa.Table:
    found: pa.Table | None = None
    for table in tables:
        found = after(found, table)
    return found


def _newest(tables: list[pa.Table]) -> list[pa.Table]:
    """Tables of changes as tables to apply in turn, in each of which a key stands once."""
    if len(tables) == 1:
        return tables
    changes = together(tables).combine_chunks()
    keys = key_list(changes.column(KEY))
    last = dict(zip(keys, range(len(keys)), strict=True))
    return [changes if len(last) == len(keys) else changes.take(pa.array(list(last.values()), pa.int64()))]


__all__ = ["Restore"]
