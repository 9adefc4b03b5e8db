"""kazoo's client, with requests for many nodes that cost little for each.

kazoo builds a request object for each operation of a transaction and brings its path into shape three times, ten
times the work of writing the bytes; for reads it has no request for many nodes at all. Here both are written into
bytes at once. Results, errors and the way of a request through the connection are kazoo's own.
"""

from __future__ import annotations

import re
import selectors
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.serialization import CheckVersion, Create, Delete, MultiHeader, SetData
from kazoo.protocol.serialization import Transaction as KazooTransaction
from kazoo.security import OPEN_ACL_UNSAFE

from sardonyx.zookeeper.multiread import MultiRead

_HEADER = struct.Struct("!iBi")  # type, whether this was the last one, error
_INT = struct.Struct("!i")
_STAT_BYTES = 68
_EPHEMERAL, _SEQUENCE = 1, 2
_CREATE, _DELETE, _SET, _CHECK = (
    MultiHeader(operation.type, done=False, err=-1).serialize() for operation in (Create, Delete, SetData, CheckVersion)
)
_END = MultiHeader(-1, done=True, err=-1).serialize()
_ROWS = (
    (re.compile(rb"(?s:\0\0\0\x02\0{5})+"), _HEADER.size),
    (re.compile(rb"(?s:\0\0\0\x05\0{5}.{68})+"), _HEADER.size + _STAT_BYTES),
)
"""Of nodes that were removed, and of nodes that were set: many in a row, as they mostly come, cost hardly more than one."""


class _Poll:
    """What kazoo takes of ``selectors``. Its default makes, fills and closes an epoll object each time, and lets the interpreter
    go for each of these steps: beside a thread that computes, each may cost a switch interval (5 ms) until it is had again,
    a dozen of them for a request and its answer.
    """

    EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
    DefaultSelector = selectors.PollSelector


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def select(self, *args: Any, **kwargs: Any) -> Any:
        return selector_select(*args, **kwargs, selectors_module=_Poll)


class BulkClient(KazooClient):  # type: ignore[misc]
    """kazoo's client with :class:`MultiRead`, and :class:`Transaction` in place of its own transactions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(handler=_Handler(), **settings)

    def get_many_async(self, paths: Sequence[str], *, names: bool = False) -> IAsyncResult:
        """The data of these nodes, or the names of their children, in the same order:
        :data:`sardonyx.zookeeper.multiread.Answer`.

        The result raises as any of kazoo's does, besides ``UnimplementedError`` if the server is older than 3.6; such a
        server closes the connection as well.
        """
        return self._send(MultiRead([self.chroot + path for path in paths], names=names))

    def transaction(self) -> Transaction:
        """An empty transaction."""
        return Transaction(self)

    def tell_timeout(self, hears: Callable[[float], None]) -> None:
        """Have the session timeout that the server grants told, in seconds, at each connection: kazoo keeps it to itself."""
        connection = self._connection
        connect = connection._connect  # noqa: SLF001

        def telling(*args: Any) -> Any:
            read_timeout, connect_timeout = connect(*args)
            hears(read_timeout * 1.5 / 1000)  # kazoo's read timeout is 2/3 of it
            return read_timeout, connect_timeout

        connection._connect = telling  # noqa: SLF001

    def _send(self, request: MultiRead | Transaction) -> IAsyncResult:
        result = self.handler.async_result()
        self._call(request, result)
        return result


class Transaction:
    """What of ``kazoo.client.TransactionRequest`` we use; also the request, as kazoo's connection sends it.

    Paths are taken as they are: absolute below the chroot, as :mod:`sardonyx.core.node_paths` makes them. ZooKeeper refuses what
    is not one. A transaction is used once and in one thread.
    """

    type = KazooTransaction.type

    def __init__(self, client: BulkClient) -> None:
        self._client = client
        self._chroot: str = client.chroot
        self._parts: list[bytes] = []
        self._acl = b""

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> None:
        """Make a node; ephemeral, or with a number appended to its name."""
        flags = _EPHEMERAL * ephemeral | _SEQUENCE * sequence
        acl = self._acl or self._encoded_acl()
        self._parts += (_CREATE, *self._path(path), _INT.pack(len(value)), value, acl, _INT.pack(flags))

    def delete(self, path: str) -> None:
        """Remove a node, whatever its version."""
        encoded = (self._chroot + path).encode()
        self._parts += (_DELETE, _INT.pack(len(encoded)), encoded, b"\xff\xff\xff\xff")

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        """New data; if the node has that version, unless it is -1."""
        encoded = (self._chroot + path).encode()
        self._parts += (_SET, _INT.pack(len(encoded)), encoded, _INT.pack(len(value)), value, _INT.pack(version))

    def check(self, path: str, version: int) -> None:
        """Go on only if the node is there and, unless it is -1, has that version."""
        self._parts += (_CHECK, *self._path(path), _INT.pack(version))

    @property
    def size(self) -> int:
        """Bytes of what was put into it so far."""
        return sum(map(len, self._parts))

    def commit_async(self) -> IAsyncResult:
        """Send it. The result: for each operation True, or the error; the result itself raises if no answer came."""
        return self._client._send(self)  # noqa: SLF001

    def commit(self) -> list[bool | KazooException]:
        """Send it and wait for the result."""
        results: list[bool | KazooException] = self.commit_async().get()
        return results

    def serialize(self) -> bytes:
        return b"".join((*self._parts, _END))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[bool | KazooException]:
        """The results, in the order of the operations."""
        results: list[bool | KazooException] = []
        while True:
            for row, size in _ROWS:
                if found := row.match(data, offset):
                    results += [True] * ((found.end() - offset) // size)
                    offset = found.end()
            kind, done, _ = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if done:
                return results
            if kind == -1:
                results.append(EXCEPTIONS[_INT.unpack_from(data, offset)[0]]())
                offset += _INT.size
                continue
            results.append(True)
            if kind == SetData.type:
                offset += _STAT_BYTES
            elif kind == Create.type:
                offset += _INT.size + _INT.unpack_from(data, offset)[0]

    def _path(self, path: str) -> tuple[bytes, bytes]:
        encoded = (self._chroot + path).encode()
        return _INT.pack(len(encoded)), encoded

    def _encoded_acl(self) -> bytes:
        """Who may do what with the nodes that are made: the client's default, or anybody."""
        entries = self._client.default_acl or OPEN_ACL_UNSAFE
        parts = [_INT.pack(len(entries))]
        for entry in entries:
            parts.append(_INT.pack(entry.perms))
            parts += [_INT.pack(len(word)) + word for word in (entry.id.scheme.encode(), entry.id.id.encode())]
        self._acl = b"".join(parts)
        return self._acl

    def __repr__(self) -> str:
        return f"Transaction({self.size:,} bytes)"
