"""The operations of a ZooKeeper transaction, their sizes, and how effects are combined. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from sardonyx.core.effects import Create, Delete, Set, TreeEffect

ENTRY_LIMIT = 64 * 1024
"""Bytes: the size limit of one request or log entry. Larger data is stored elsewhere and referred to."""
TRANSACTION_LIMIT = 256 * 1024
"""Bytes: the usual size limit of a transaction, far below the 1 MiB at which ZooKeeper drops the connection."""
PIECE = 128 * 1024
"""Bytes: the size of each of many transactions in a row. ZooKeeper works on one while we prepare the next."""
HARD_LIMIT = 900 * 1024
"""Bytes: larger transactions are not sent, because ZooKeeper would drop the connection without an error."""
OPERATION_OVERHEAD = 100
"""Bytes of an operation in addition to path and data: headers, flags, ACL."""


class Check(msgspec.Struct, frozen=True):
    """In a transaction: the node exists and, if ``version`` is not -1, has that version."""

    path: str
    version: int = -1


class SetIf(msgspec.Struct, frozen=True):
    """In a transaction: new data, if the node has that version."""

    path: str
    data: bytes
    version: int


class Append(msgspec.Struct, frozen=True):
    """In a transaction: a new node whose name is ``path`` followed by the next number."""

    path: str
    data: bytes


Operation = Create | Set | Delete | Check | SetIf | Append


def weight(operation: Operation) -> int:
    """About how many bytes the operation takes in a transaction."""
    data = 0 if isinstance(operation, (Delete, Check)) else len(operation.data)
    return OPERATION_OVERHEAD + len(operation.path) + data


def chunked(groups: Iterable[Sequence[Operation]], limit: int = TRANSACTION_LIMIT) -> Iterator[list[Operation]]:
    """Pack groups of operations into transactions of at most ``limit`` bytes. A group stays in one transaction.

    A group that exceeds the limit gets a transaction of its own; then only ``HARD_LIMIT`` bounds its size.
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


class WriteCoalescer:
    """Combines the effects of several events into one operation for each path, with the last value."""

    def __init__(self) -> None:
        self._stood: dict[str, bool] = {}
        self._now: dict[str, bytes | None] = {}
        self.size = 0
        """Bytes of all operations together."""

    def __bool__(self) -> bool:
        return bool(self._now)

    def add(self, effects: Iterable[TreeEffect]) -> None:
        """Add effects, in the order in which they were decided."""
        now = self._now
        for effect in effects:
            path = effect.path
            data = None if isinstance(effect, Delete) else effect.data
            if path in now:
                self.size -= len(now[path] or b"")
            else:
                self._stood[path] = not isinstance(effect, Create)
                self.size += OPERATION_OVERHEAD + len(path)
            if data:
                self.size += len(data)
            now[path] = data

    def operations(self) -> list[TreeEffect]:
        """New nodes first, parents before children; then new data; then removals, children before parents."""
        created: list[Create] = []
        changed: list[TreeEffect] = []
        removed: list[Delete] = []
        for path, data in self._now.items():
            if data is None:
                if self._stood[path]:
                    removed.append(Delete(path))
            elif self._stood[path]:
                changed.append(Set(path, data))
            else:
                created.append(Create(path, data))
        return [*sorted(created, key=_depth), *changed, *sorted(removed, key=_depth, reverse=True)]


def _depth(operation: Create | Delete) -> tuple[int, str]:
    return operation.path.count("/"), operation.path
