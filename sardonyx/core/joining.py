"""What a job says about tasks that relate rows to other rows: joins, lookups, distinct rows, latest rows. Pure data."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.core.stores import Store

RelationKind = Literal["join", "lookup", "distinct", "latest"]

JOIN_TIME = "join_time"
"""The column with the time of a joined row: the later of the times of its two rows; of a row without a partner, its own."""


class RelationSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """How a task relates rows. Lengths are durations such as "1 min"; on an ``ordinal`` time they are numbers of rows.

    The key is the ``group_by`` of the task.
    """

    kind: RelationKind
    left: str | None = None
    """``join``, ``lookup``: the task with the rows of the left side. A lookup gives one result for each of them."""
    right: str | None = None
    """``join``, ``lookup``: the task with the rows of the right side; of a lookup, the table."""
    right_on: list[str] | None = None
    """``join``, ``lookup``: the columns of the key in the rows of the right side; None: they have the names in ``group_by``."""
    how: Literal["inner", "left"] | None = None
    """``join``, ``lookup``: whether a left row without a partner gives a result, too. None: ``inner`` for a join, ``left`` for
    a lookup."""
    within: list[str | int] | str | int | None = None
    """``join``: how far the time of the right row may be from that of the left row: at most so far before or after, or from the
    first to the second; a length may begin with a minus. ``lookup``: how old a value of the table may be. ``distinct``: rows
    with equal keys that are not further apart are repeats. ``latest``: a key is forgotten after so long without a row. None:
    for all time."""
    prefix: str | None = None
    """``join``, ``lookup``: of the columns of the right side that have the name of a column of the left side. None: the name of
    the right task and ``_``."""
    wait: str | int | None = None
    """``lookup``: a row waits no longer than until the clock of its own side is so far after its time. None: until the clock of
    the table has passed its time."""
    emit: str = "changes"
    """``latest``: ``changes``: each row that is newer than those of its key before it. ``every 10 s``: the newest rows of the
    keys that have had one, each time that the clock has gone on by so much. ``final``: at the end of the input."""
    time: str | None = None
    """``distinct``, ``latest``: the column with a row's time; None: that of the inputs."""
    grace: str | int = 0
    """By how much a row may be older than the clock of its side and still count."""
    late: Literal["drop", "dead_letter", "edge"] = "drop"
    """What happens to a row that is older: it is counted and dropped, is a dead letter, or goes over the edges that take late
    rows."""
    state_limit: int | None = None
    """The most entries of one partition's state; the job fails at more, and does not fill the memory."""
    store: Store = "memory"
    """Where the state is kept: ``memory``, ``rocksdb``, or a database."""

    @property
    def two_sided(self) -> bool:
        """Whether it reads two streams of different rows."""
        return self.kind in ("join", "lookup")

    @property
    def timed(self) -> bool:
        """Whether it needs the times of rows."""
        return self.two_sided or self.within is not None or self.emit.startswith("every")

    @property
    def keeps_unmatched(self) -> bool:
        """Whether a left row without a partner gives a result."""
        return self.how == "left" or (self.how is None and self.kind == "lookup")

    @property
    def right_prefix(self) -> str:
        """What columns of the right side begin with if the left side has theirs."""
        return self.prefix if self.prefix is not None else f"{self.right}_".replace("-", "_")


__all__ = ["JOIN_TIME", "RelationKind", "RelationSpec"]
