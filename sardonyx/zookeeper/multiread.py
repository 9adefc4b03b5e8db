"""The data of many nodes, or the names of their children, in one request: ZooKeeper's multiRead (3.6 or later).

kazoo lacks it. It makes a future for each request, so reading many nodes takes thirty times as long. The wire form is that of a
transaction: a header with the type comes before each ``getData`` or ``getChildren``, and before each answer. An error has type -1
and holds its number. Unlike in a transaction, one answer does not depend on the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import GetChildren, GetData, MultiHeader

REQUEST_LIMIT = 256 * 1024
"""Bytes: the size limit of one request, a quarter of what a server accepts."""
ANSWER_LIMIT = 1024 * 1024
"""Bytes: the size that one answer should have. Servers send more, but both sides hold an answer in memory."""
FIRST_COUNT, MOST_COUNT = 64, 1024
"""Nodes in the first request, when their sizes are unknown, and in any request at most."""
GROWTH = 8
"""A request asks for at most this many times the nodes of the one before, since sizes differ."""

_OPCODE = 22
_HEADER = struct.Struct("!iBi")  # type, whether this was the last one, error
_INT = struct.Struct("!i")
_STAT_BYTES = 68
_DATA, _NAMES = (MultiHeader(kind.type, done=False, err=-1).serialize() for kind in (GetData, GetChildren))
_END = MultiHeader(-1, done=True, err=-1).serialize()

Answer = Any
"""A node's data (bytes), the names of its children (a list), or one of kazoo's errors (which have no types)."""


class MultiRead:
    """The request as kazoo's connection sends it: a type, bytes, and a function that reads the answer.

    Args:
        paths: whole paths, the chroot included.
        names: read the names of the nodes' children in place of their data.
    """

    type = _OPCODE

    def __init__(self, paths: Sequence[str], *, names: bool = False) -> None:
        self._paths = paths
        self._each = _NAMES if names else _DATA

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for path in self._paths:
            encoded = path.encode()
            parts += (self._each, _INT.pack(len(encoded)), encoded, b"\0")  # the last byte: no watch
        parts.append(_END)
        return b"".join(parts)

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Answer]:
        """The answers, in the order of the paths."""
        answers: list[Answer] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return answers
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == GetData.type:
                length = max(number, 0)  # -1: a node that was created without data
                answers.append(data[offset : offset + length])
                offset += length + _STAT_BYTES
            elif kind == GetChildren.type:
                names: list[str] = []
                for _ in range(number):
                    (length,) = _INT.unpack_from(data, offset)
                    offset += _INT.size
                    names.append(data[offset : offset + length].decode())
                    offset += length
                answers.append(names)
            else:
                answers.append(EXCEPTIONS[number]())

    def __repr__(self) -> str:
        return f"MultiRead({len(self._paths)} paths)"


class Chunks:
    """Splits paths into requests. Learns from earlier answers how many nodes fit into one answer."""

    def __init__(self, paths: Sequence[str], *, prefix: int, most: int = MOST_COUNT) -> None:
        self._paths = paths
        self._prefix = prefix
        self._most = most
        self.count = FIRST_COUNT
        """Nodes in the next request."""

    def __iter__(self) -> Iterator[Sequence[str]]:
        at = 0
        while at < len(self._paths):
            count, filled = 0, 0
            for path in self._paths[at : at + self.count]:
                filled += self._prefix + len(path.encode()) + 14
                if count and filled > REQUEST_LIMIT:
                    break
                count += 1
            yield self._paths[at : at + count]
            at += count

    def answered(self, answers: Sequence[Answer]) -> None:
        """Adapt the number of nodes in the next request to the size of these answers."""
        size = sum(map(_size, answers)) + 80 * len(answers)
        fits = ANSWER_LIMIT * len(answers) // size
        self.count = max(1, min(fits, GROWTH * len(answers), self._most))


def _size(answer: Answer) -> int:
    if isinstance(answer, bytes):
        return len(answer)
    return sum(map(len, answer)) + _INT.size * len(answer) if isinstance(answer, list) else 0
