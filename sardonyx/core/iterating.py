"""What a job says about tasks that work on all their rows in rounds. Pure data."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.core.stores import Store

MOST_ROUNDS = 1_000
"""If a task does not say how many there may be."""
AGGREGATES = "aggregates"
"""The parameter of a function that is given the aggregates."""


class IterateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A function that is called with all rows, round after round. It is first called when all rows are there."""

    state: str | None = None
    """The columns that the function changes from round to round, with their types, such as ``cluster bigint``."""
    aggregate: dict[str, str] = {}
    """By column, how the values of all rows become one after each round: see :data:`~sardonyx.core.graphing.Reducer`."""
    group_by: list[str] = []
    """The columns that say which rows are aggregated together; empty: all."""
    start: list[dict[str, bool | int | float | str | None]] = []
    """The aggregates of the first round: a row for each group."""
    until: str | None = None
    """It ends when this holds of an aggregate, of all groups, such as ``moved <= 1e-3``."""
    max_rounds: int | None = None
    """The rounds after which it ends. None: :data:`MOST_ROUNDS`."""
    results: Literal["rows", "aggregates"] = "rows"
    """What it gives at the end: the rows with their state, or the last aggregates."""
    state_limit: int | None = None
    """The most entries of the state, one for each batch of rows; the job fails at more, and does not fill the memory."""
    store: Store = "memory"
    """Where the rows are kept until all are there: ``memory``, ``rocksdb``, or a database."""

    @property
    def most(self) -> int:
        """The most rounds."""
        return self.max_rounds or MOST_ROUNDS


__all__ = ["AGGREGATES", "MOST_ROUNDS", "IterateSpec"]
