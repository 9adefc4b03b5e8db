"""How long windows and the like take rows, and what an earlier version of the job had closed by then. Pure.

Another version of a job may have another ``grace`` or ``allowed_lateness``. With a longer one, windows would be open again that
have given their final results, and a late row would give such a window a second one, of a few of its rows. So a shard notes by
which lengths it goes. A version that finds other lengths there than its own notes up to which time all has closed by them. That
stays closed, whatever this version and later ones say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.base import KEY
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import KEPT, KEPT_END, WAITS
from sardonyx.state.kinds import less
from sardonyx.state.overlay import Overlay
from sardonyx.state.packed import forget, opened
from sardonyx.state.planned import Piece
from sardonyx.state.row_pack import DONE, TIMES
from sardonyx.state.row_pack import ROWS as PACKED
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece

_GRACE, _KEPT, _CLOSED, _FORGOTTEN = (WAITS + name for name in (b"g", b"k", b"c", b"f"))
RELATION_WAITS = b"g"
"""The key of the entry of a join and the like: the grace, and of either side the time before which rows are late anyway."""


class Waits(NamedTuple):
    """How long windows take rows after their end, in microseconds (on an ordinal time, rows); and what has closed anyway."""

    grace: int = 0
    kept: int = 0
    """``grace`` and ``allowed_lateness`` together."""
    closed: int = NEVER
    """Windows that ended at this time or before had closed when the lengths became these."""
    forgotten: int = NEVER
    """Those that ended at this time or before were not kept for late rows any more."""

    def closing(self, clock: int) -> int:
        """Windows that end at this time or before have closed by a clock."""
        return max(less(clock, self.grace), self.closed)

    def forgetting(self, clock: int) -> int:
        """Windows that end at this time or before are not kept for late rows any more by a clock."""
        return max(less(clock, self.kept), self.forgotten)

    def after(self, before: Waits, clock: int, more: int) -> Waits:
        """These lengths in place of others.

        Args:
            before: the others, and what had closed before them.
            clock: by which windows have closed last with these.
            more: windows that end at this time or before have closed in any case.
        """
        closed = max(before.closing(clock), more)
        return self._replace(closed=closed, forgotten=before.forgetting(clock) if self.kept > self.grace else closed)

    @classmethod
    def read(cls, entries: Mapping[bytes, int]) -> Waits | None:
        """Read what a shard has noted; None: it has not, as a release before noted nothing."""
        grace = entries.get(_GRACE)
        if grace is None:
            return None
        closed = entries.get(_CLOSED, NEVER)
        return cls(grace, entries.get(_KEPT, grace), closed, entries.get(_FORGOTTEN, closed))

    def noted(self) -> dict[bytes, int]:
        """Make the entries to note: what follows from others is left out."""
        found = {_GRACE: self.grace}
        if self.kept != self.grace:
            found[_KEPT] = self.kept
        if self.closed != NEVER:
            found[_CLOSED] = self.closed
        if self.forgotten != self.closed:
            found[_FORGOTTEN] = self.forgotten
        return found


def together(of_shards: Sequence[Mapping[bytes, int]]) -> dict[bytes, int]:
    """The entries of a shard that takes keys of several ones: what had closed in any of them stays closed. One that has yet to
    close windows by an earlier version's lengths makes all go by these once more.
    """
    found = [waits for each in of_shards if (waits := Waits.read(each)) is not None]
    if not found:
        return {}
    grace, kept, closed, forgotten = zip(*found, strict=True)
    return Waits(min(grace), min(kept), max(closed), max(forgotten)).noted()


class WindowWaits:
    """Tells how long the windows of a shard take rows, and notes it there.

    Args:
        window: the windows.

    Attributes:
        now: how long they take rows in the plan at hand.
    """

    def __init__(self, window: WindowSpec) -> None:
        grace = length(window.grace) if window.by_time else 0
        self._own = Waits(grace, grace + length(window.allowed_lateness) if window.by_time else 0)
        self._settled = not window.by_time
        """Whether ``now`` stays as it is: the shard has noted these lengths, or windows like these note nothing."""
        self.now = self._own

    def begin(
        self, state: Overlay, pieces: Sequence[Piece], clock: int, more: Callable[[Overlay], int] = lambda _: NEVER
    ) -> None:
        """Begin a plan: find out how long they take rows in it.

        Args:
            state: of the plan, before it has changed anything.
            pieces: of the plan.
            clock: after them.
            more: gives a time: windows that end at it or before have closed, also if no clock says so.
        """
        if not self._settled:
            self.now = self._of(state, pieces, clock, more)

    def _of(self, state: Overlay, pieces: Sequence[Piece], clock: int, more: Callable[[Overlay], int]) -> Waits:
        noted = state.scan(WAITS, WAITS + b"\xff")
        entries = dict(zip(noted[KEY].to_pylist(), noted[ROWS].to_pylist(), strict=True))
        before = Waits.read(entries)
        if before is not None and before[:2] == self._own[:2]:
            self._settled = True  # it changes with the version of the job only
            return before
        in_force = pieces[0].in_force if pieces else clock
        if before is None and not any(piece.rows.num_rows for piece in pieces):
            return self._own
        if before is None or in_force >= END:  # all has closed then, but the next job's clock begins before
            waits = self._own if before is None else self._own._replace(closed=before.closed, forgotten=before.closed)
        else:
            waits = self._own.after(before, in_force, more(state))
        if before is not None and self._own.kept == self._own.grace:
            forget(state, KEPT, KEPT_END)
        self._note(state, entries, waits.noted())
        return waits

    def _note(self, state: Overlay, old: Mapping[bytes, int], new: Mapping[bytes, int]) -> None:
        gone = [key for key in old if key not in new]
        if gone:
            state.remove(pa.array(gone, pa.binary()))
        columns = {KEY: list(new), ROWS: list(new.values())}
        state.put(
            pa.table(
                [pa.array(columns.get(field.name, [None] * len(new)), field.type) for field in state.schema],
                schema=state.schema,
            )
        )


class RelationWaits:
    """Tells before which time the rows of either side are late, whatever their clock, and notes the grace of a join and the like.

    A row that is late by the grace of an earlier version may have lost its partners, its value or its twin: they were forgotten.

    Args:
        relation: which.
    """

    def __init__(self, relation: RelationSpec) -> None:
        self._grace = length(relation.grace)
        self._known: tuple[int, int] | None = None

    def of(self, state: Overlay, pieces: Sequence[SidedPiece], clocks: Sequence[int]) -> tuple[int, int]:
        """The times of the left and of the right side in a plan.

        Args:
            state: of the plan, before it has changed anything.
            pieces: of the plan.
            clocks: after them, of each side.
        """
        if self._known is not None:
            return self._known
        noted = opened(state.read(pa.array([RELATION_WAITS], pa.binary()))[1]).times.tolist()
        if noted and noted[0] == self._grace:
            self._known = noted[1], noted[2]
            return self._known
        if not noted and not any(piece.rows.num_rows for piece in pieces):
            return NEVER, NEVER
        left, right = NEVER, NEVER
        if noted:
            starts = (_in_force(pieces, side, clocks[min(side, len(clocks) - 1)]) for side in (LEFT, RIGHT))
            left, right = (
                max(before, NEVER if clock >= END else less(clock, noted[0]))
                for before, clock in zip(noted[1:], starts, strict=True)
            )
        state.put(pa.Table.from_pylist([relation_entry(self._grace, left, right)], schema=state.schema))
        return left, right


def relation_entry(grace: int, left: int, right: int) -> dict[str, object]:
    """The entry in which the shard of a join and the like notes its grace."""
    return {KEY: RELATION_WAITS, TIMES: [grace, left, right], PACKED: [b""] * 3, DONE: [False] * 3}


def _in_force(pieces: Sequence[SidedPiece], side: int, clock: int) -> int:
    """The clock before the first row of a side; ``clock``: if it has none."""
    for piece in pieces:
        if piece.side == side and piece.rows.num_rows:
            return piece.in_force if isinstance(piece.in_force, int) else int(piece.in_force[0])
    return clock


__all__ = ["RELATION_WAITS", "RelationWaits", "Waits", "WindowWaits", "relation_entry", "together"]
