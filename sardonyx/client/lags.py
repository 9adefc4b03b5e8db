"""What is unread, as clients see it: of a task, a link, a partition; and the rows of a link as they are committed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from queues.backlog import Precision
from sardonyx.core.graph import LinkKind

WEAKEST: tuple[Precision, ...] = ("unknown", "estimate", "at-most", "exact")
"""How well a number of records is known, the least first."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has not read yet."""

    records: int | None = None
    """None: not known."""
    unit: Literal["records", "splits"] = "records"
    """What ``records`` counts. An input that is not a topic counts its splits, the pieces that peers read."""
    precision: Precision = "unknown"
    """How well ``records`` is known; ``at-most``: there may be fewer."""
    seconds: float | None = None
    """How long ago its oldest record was written; 0 if nothing is unread, None: not known."""


class LinkLag(Lag, frozen=True, kw_only=True):
    """What is unread on a link that a task reads."""

    link: str
    reader: str
    kind: LinkKind
    topic: str
    max_backlog: int | None = None
    """How many of its rows may be unread before the task that writes it pauses; None: any number."""
    kept_bytes: int | None = None
    """About how many bytes its topic holds, read or not; None: not known, or a topic of yours."""
    kept_seconds: float | None = None
    """How long ago the oldest record of its topic was written; 0 if it holds none; None as above."""


class PartitionLag(Lag, frozen=True, kw_only=True):
    """What is unread in one partition that a task reads."""

    link: str
    topic: str
    partition: int
    committed: int | None = None
    """The next offset to read, as the task has committed it; None: nothing yet."""
    end: int | None = None
    """The offset after the last record that it is to read, of those that are there."""


class LinkAudit(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a link between two tasks, as committed; None where they are not known."""

    link: str
    writer: str
    reader: str
    written: int | None = None
    """By the task that writes to it."""
    read: int | None = None
    """By the task that reads it."""
    unread: int | None = None
    """Written and not read yet."""
    lost: int | None = None
    """Written, neither read nor there to be read."""
    twice: int | None = None
    """Read or there to be read, and never written."""


def joint_lag(lags: Sequence[LinkLag]) -> Lag:
    """Join the lags of several links of one reader.

    Records add up, and the longest wait counts. The least precise link decides the precision.
    """
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(
        records=sum(records) if len(records) == len(lags) else None,
        unit=lags[0].unit,
        precision=min((lag.precision for lag in lags), key=WEAKEST.index),
        seconds=max(seconds) if len(seconds) == len(lags) else None,
    )
