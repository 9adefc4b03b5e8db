"""What is written to Kafka, and what its headers say. Pure: who makes or reads messages needs no client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROWS_HEADER = "sx-rows"
"""On messages of internal links: how many rows they hold."""

DUE_HEADER = "sx-due"
"""On splits of a paced input: from when on they may be read, in seconds since 1970, by the clock of whoever reads."""

SENTINEL_HEADER = "sx-sentinel"
"""On a sentinel: its uuid. Such a message holds no rows."""

WRITER_HEADER = "sx-writer"
"""On messages of internal links and sentinels: the peer that wrote it."""

LINK_HEADER = "sx-link"
"""On a sentinel: the link that ends with it."""


class Outgoing(NamedTuple):
    """One message to be written. ``partition`` -1: Kafka's partitioner chooses by the key."""

    topic: str
    value: bytes | None
    partition: int = -1
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None


class Records(NamedTuple):
    """Many records for one topic of a user's, each with its key, which Kafka's partitioner goes by.

    Apart from :class:`Outgoing` because there are so many of them: an object for each would cost more than sending it.
    """

    topic: str
    records: Sequence[tuple[bytes | None, bytes | None]]
    """Key and value."""
