"""The function of a task as its peer calls it, and what it makes of one batch. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from sardonyx.connectors.base import Split, SplitInput
from sardonyx.core.errors import Failure
from spark_tasks.failures import Bad


class Applied(NamedTuple):
    """The result of a function for one batch."""

    table: pa.Table | None
    """None if the function returned no rows. Then we do not even know the columns."""
    bad: Sequence[Bad] = ()
    """The records that the function raises for, in order. They are not in ``table``."""
    bad_rows: pa.Table | None = None
    """Those records, as rows in the same order; None if there are none."""
    worked: float = 0.0
    """How many seconds it ran on the slowest worker, over all attempts; 0 if we do not know (DataFrames)."""
    origins: Sequence[int] | None = None
    """For each row of ``table`` the index of the record that it was made of, if it was asked for, and functions take records."""

    @property
    def skipped(self) -> int:
        """How many records are bad."""
        return len(self.bad)

    @property
    def first_error(self) -> Failure | None:
        """Why the first bad record is bad."""
        return self.bad[0].failure if self.bad else None


class ReadAndApplied(NamedTuple):
    """The result of a function for splits that the workers read where the function ran."""

    applied: Applied
    rows: Sequence[int]
    """How many rows each split contained."""
    schema: pa.Schema
    """The schema of the rows that the workers read."""
    seconds: float
    """How many seconds reading took on the slowest worker. ``applied.worked`` does not include them."""


class Function(Protocol):
    """The function of a task, as :class:`spark_tasks.apply.TaskFunction` runs it."""

    def give(self, more: Mapping[str, Any]) -> None:
        """Further arguments, from the lifecycle."""
        ...

    def apply(self, table: pa.Table, *, traced: bool = False) -> Applied:
        """Apply it to one batch. ``traced``: :attr:`Applied.origins` is asked for."""
        ...

    def read_and_apply(
        self, connector: SplitInput, splits: Sequence[Split], now: float, *, of_calendar: bool = False
    ) -> ReadAndApplied | None:
        """Read splits where it is applied; None: they are to be read first. ``of_calendar``: whether times that no calendar has
        are bad.
        """
        ...

    def abandon(self) -> None:
        """The result is not needed."""
        ...


class NoFunction:
    """Of a task without a function: its rows pass."""

    def give(self, more: Mapping[str, Any]) -> None:
        pass

    def apply(self, table: pa.Table, *, traced: bool = False) -> Applied:  # noqa: ARG002
        return Applied(table)

    def read_and_apply(
        self,
        connector: SplitInput,  # noqa: ARG002
        splits: Sequence[Split],  # noqa: ARG002
        now: float,  # noqa: ARG002
        *,
        of_calendar: bool = False,  # noqa: ARG002
    ) -> None:
        return None

    def abandon(self) -> None:
        pass
