"""The log of one shard: its changes as messages, and restatement, which keeps it short. Pure.

A commit takes two steps. :meth:`ShardLog.messages` makes the messages of a batch. The caller writes them, and the mark, in the
transaction of the batch. Then it calls :meth:`ShardLog.committed`, or :meth:`ShardLog.dropped`.

Restatement: if the log has more than twice as many rows as the shard has entries, a *round* begins. Each later commit carries
some entries more, in the order of their keys, whether changed or not. Once the last one is written, what is older than the
round is not needed. The log then begins where the round began. A round outlives its peer: how far it has come stands in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from queues.block import MAX_BYTES
from sardonyx.core.errors import InternalError
from sardonyx.state.base import GONE, Store
from sardonyx.state.messages import About, Mark, Message, Place, headers, last_key, values
from sardonyx.state.shape import shape_of
from sardonyx.state.undo import Undo, UndoChange

SPARE = 10_000
"""Rows that the log may have beyond twice the entries before a round begins."""
PIECE = 1_000
"""Entries that a commit restates at least while a round is under way."""
MOVED = 50_000
"""The same while the state of an earlier job is brought into the log: no rows are waited for then."""
_GONE = pa.field(GONE, pa.bool_(), nullable=False)


class Round(NamedTuple):
    """A round of restatement under way."""

    place: Place
    """Where the log will begin when it is through."""
    rows: int = 0
    """Rows that were written since it began."""
    store: str = ""
    """The store that it has come to. The stores are restated in the order of their names."""
    after: bytes | None = None
    """The last key that was restated there."""


class LogState(NamedTuple):
    """How a shard's log stands after a commit."""

    mark: Mark = Mark()
    rows: int = 0
    """Rows from ``mark.low`` on."""
    round: Round | None = None


class ShardLog:
    """Writes the log of one shard.

    Args:
        end: asks for the offset after the last record of the shard's partition, open transactions included.
        state: how the log stands, as a restore gives it; None: at the beginning.
        max_bytes: largest value of a message.
        spare: see :data:`SPARE`.
        piece: see :data:`PIECE`.
        undo: what the log says of checkpoints, as a restore gives it.
        adopted: the state was that of an earlier job: the first round of restatement brings it into this log.
    """

    def __init__(
        self,
        end: Callable[[], int],
        state: LogState | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        spare: int = SPARE,
        piece: int = PIECE,
        undo: Mapping[int, Undo] | None = None,
        adopted: bool = False,
    ) -> None:
        self._adopted = adopted
        self._end = end
        self._max_bytes = max_bytes
        self._spare = spare
        self._piece = piece
        self._planned: LogState | None = None
        self.undo: Mapping[int, Undo] = undo or {}
        """What leads back to checkpoints, when the log was read."""
        self.state = state or LogState()
        """As it is after the last commit."""

    @property
    def mark(self) -> Mark:
        """The mark of the last commit. Nothing needs the log before ``mark.low``: it may be deleted."""
        return self.state.mark

    @property
    def moves(self) -> bool:
        """Whether the state is that of an earlier job, and this log does not hold all of it yet."""
        return self._adopted and self.mark.base == 0

    @property
    def planned(self) -> Mark:
        """The mark to commit with the messages that were made last."""
        return (self._planned or self.state).mark

    def messages(
        self, changes: Mapping[str, pa.Table], stores: Mapping[str, Store], undo: UndoChange | None = None
    ) -> list[Message]:
        """The messages of a batch's commit, in the order in which they must be written; none if nothing has changed.

        Args:
            changes: tables of changes, by the name of the store. They are not applied yet.
            stores: all stores of the shard, as they are after the last commit.
            undo: of checkpoints that are pending.

        Raises:
            OutputError: ``SX-STATE-ENTRY-LARGE``.
            SetupError: what ``end`` raises. Nothing is planned then.
        """
        if self._planned is not None:
            raise InternalError(
                "SX-STATE-PENDING", "A commit of a state log was planned before the last one was decided."
            )
        changed = {name: table for name, table in sorted(changes.items()) if table.num_rows}
        undone = [] if undo is None else list(_undo_tables(undo.changed))
        if not changed and not undone and not self.moves:
            return []
        rows = sum(table.num_rows for table in changed.values())
        seq = self.mark.seq + 1
        begun = self.state.round or self._new_round(sum(len(store) for store in stores.values()))
        made: list[tuple[About, bytes]] = []
        restated, under_way, count = 0, begun, self._to_restate(rows)
        if begun is not None:
            for name, entries in self._next_entries(begun, stores, count):
                made += self._encoded("again", seq, name, entries, begun.place)
                restated += entries.num_rows
                under_way = begun._replace(store=name, after=last_key(entries))
            if restated < count:
                under_way = None
        for name, table in changed.items():
            made += self._encoded("delta", seq, name, table, None)
        # A round ends here. The log then begins after what it said of the undo, so all of that is written again.
        if undo is not None and begun is not None and under_way is None:
            undone = list(_undo_tables(undo.whole))
        for time, name, table in undone:
            made += self._encoded("undo", seq, name, table, None, time)
            rows += table.num_rows
        # A commit without a message has no number of its own: it ends a round whose last entry was in the commit before.
        self._planned = self._after(seq if made else self.mark.seq, rows + restated, begun, under_way)
        return [
            Message(headers(about._replace(number=number, of=len(made))), value)
            for number, (about, value) in enumerate(made, start=1)
        ]

    def committed(self) -> None:
        """The transaction with the messages is committed. The caller now applies the changes to the stores."""
        self.state = self._planned or self.state
        self._planned = None

    def dropped(self) -> None:
        """The transaction was aborted, or never begun."""
        self._planned = None

    def _new_round(self, entries: int) -> Round | None:
        if self.state.rows <= 2 * entries + self._spare:
            return None
        return Round(Place(self._end(), self.mark.seq))

    def _to_restate(self, changed: int) -> int:
        """How many entries a commit restates that changes so many rows: a round is through before the log has doubled."""
        return max(MOVED if self.moves else self._piece, 2 * changed)

    def _next_entries(self, begun: Round, stores: Mapping[str, Store], count: int) -> Iterator[tuple[str, pa.Table]]:
        """The next entries to restate, by store; fewer than ``count`` in all if these are the last ones."""
        for name in sorted(name for name in stores if name >= begun.store):
            resumed = name == begun.store and begun.after is not None
            entries = stores[name].scan((begun.after or b"") + b"\0" if resumed else b"", None, count)
            count -= entries.num_rows
            if entries.num_rows:
                yield name, entries.append_column(_GONE, pa.repeat(False, entries.num_rows))
            if count <= 0:
                return

    def _encoded(
        self, kind: str, seq: int, store: str, table: pa.Table, place: Place | None, at: int | None = None
    ) -> Iterator[tuple[About, bytes]]:
        shape = shape_of(table.schema.remove(len(table.schema) - 1))
        return values(About(kind, seq, 0, 0, store, shape, place, at), table, self._max_bytes)

    def _after(self, seq: int, rows: int, begun: Round | None, under_way: Round | None) -> LogState:
        low, base = self.mark.low, self.mark.base
        if begun is not None and under_way is None:  # it is through
            return LogState(Mark(seq, *begun.place), begun.rows + rows)
        if under_way is not None:
            under_way = under_way._replace(rows=under_way.rows + rows)
        return LogState(Mark(seq, low, base), self.state.rows + rows, under_way)


def _undo_tables(undo: Mapping[int, Undo]) -> Iterator[tuple[int, str, pa.Table]]:
    for time, tables in sorted(undo.items()):
        for name, table in sorted(tables.items()):
            if table.num_rows:
                yield time, name, table


__all__ = ["PIECE", "SPARE", "LogState", "Round", "ShardLog"]
