"""What one ZooKeeper transaction is made of, and how large it may be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from coordinator.events import Create, Delete, Set

ENTRY_LIMIT = 64 * 1024
"""Bytes of one request or log entry. What is larger travels by reference."""
TRANSACTION_LIMIT = 256 * 1024
"""Bytes that callers chunk their transactions to, far from the 1 MiB at which ZooKeeper cuts the connection."""
HARD_LIMIT = 900 * 1024
"""Bytes over which nothing is sent at all: ZooKeeper would drop the connection without saying why."""
OPERATION_OVERHEAD = 100
"""Bytes of one operation besides its path and data: headers, flags, ACL."""


class Check(msgspec.Struct, frozen=True):
    """In a transaction: the node exists and, if ``version`` is not -1, has that version."""

    path: str
    version: int = -1


class SetIf(msgspec.Struct, frozen=True):
    """In a transaction: new data, if the node has that version."""

    path: str
    data: bytes
    version: int


Operation = Create | Set | Delete | Check | SetIf


def weight(operation: Operation) -> int:
    """About how many bytes the operation takes in a transaction."""
    return OPERATION_OVERHEAD + len(operation.path) + len(getattr(operation, "data", b""))


def chunked(groups: Iterable[Sequence[Operation]], limit: int = TRANSACTION_LIMIT) -> Iterator[list[Operation]]:
    """Transactions of at most ``limit`` bytes out of groups that stay together.

    A group that is over the limit by itself comes alone; the next check on size is ZooKeeper's own (``HARD_LIMIT``).
    """
    chunk: list[Operation] = []
    filled = 0
    for group in groups:
        size = sum(map(weight, group))
        if chunk and filled + size > limit:
            yield chunk
            chunk, filled = [], 0
        chunk.extend(group)
        filled += size
    if chunk:
        yield chunk
