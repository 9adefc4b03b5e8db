"""How a pipeline cuts the rows of its sources: all of them, so many rows, or so much time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sardonyx.job.windowing import Clock, Windows, event_time, everything, ordinal, tumbling

ROW_NUMBER = "row_number"
"""The column that :meth:`Window.size` adds to the rows of a source."""


@dataclass(frozen=True)
class Window:
    """The windows of a source: for ``window=`` of :meth:`Pipeline.source`. What is aggregated after it has the same ones."""

    kind: Literal["all", "size", "time"]
    windows: Windows
    """For ``job.window``."""
    clock: Clock | None = None
    """For ``time=`` of ``job.input``."""

    @classmethod
    def all(cls) -> Window:
        """All rows of the source are one window, and each result comes once, at the end: a batch. The source must have an end."""
        return cls("all", everything())

    @classmethod
    def size(cls, n: int, column: str = ROW_NUMBER) -> Window:
        """So many rows of each partition of a Kafka topic are a window: micro-batches.

        Args:
            n: how many rows.
            column: the name of the column with a row's number, which is added to the rows. Functions must keep it.
        """
        return cls("size", tumbling(n), ordinal(column))

    @classmethod
    def time(cls, length: str, by: str | Clock) -> Window:
        """The rows of so much event time are a window.

        Args:
            length: such as ``"1 min"``.
            by: the column with a row's time, if rows are in the order of their times; or ``event_time(...)``,
                ``kafka_time(...)`` or ``wall(...)``, which say how far rows may be out of order, and when a partition is idle.
                Functions must keep the column.
        """
        return cls("time", tumbling(length), event_time(by) if isinstance(by, str) else by)


__all__ = ["ROW_NUMBER", "Window"]
