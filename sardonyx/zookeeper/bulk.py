"""kazoo's client, with cheap requests for many nodes.

For each operation of a transaction kazoo builds a request object and normalises its path three times; that is ten times the
work of writing the bytes. For reads of many nodes it has no request. Here both are encoded directly.
Results, errors and the connection are kazoo's own.
"""

from __future__ import annotations

import re
import selectors
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.serialization import CheckVersion, Create, Delete, MultiHeader, SetData
from kazoo.protocol.serialization import Transaction as KazooTransaction
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from sardonyx.zookeeper.multiread import MultiRead
from sardonyx.zookeeper.node_acls import NodeAcls

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
"""Results of deletions and of set nodes. Many in a row are the usual case, and are read at once."""


class _Poll:
    """The part of ``selectors`` that kazoo uses. kazoo's default creates, fills and closes an epoll object for each wait, and
    releases the GIL at each step. Beside a busy thread each step may cost a switch interval (5 ms), a dozen per request.
    """

    EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
    DefaultSelector = selectors.PollSelector


class _Result(AsyncResult):  # type: ignore[misc]
    """An answer. An error knows what was asked, because kazoo's errors do not say."""

    asked: Any = None
    """The request."""

    def set_exception(self, exception: BaseException) -> None:
        if self.asked is not None:
            exception.asked = self.asked  # type: ignore[attr-defined]
        super().set_exception(exception)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    def async_result(self) -> _Result:
        return _Result(self)

    def select(self, readable: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """As kazoo's. Over TLS, one record may hold several answers: when the first one is read, the others are here already, and
        no more bytes come that would wake us.
        """
        here = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        if here:
            return here, [], []
        return selector_select(readable, *args, **kwargs, selectors_module=_Poll)


class BulkClient(KazooClient):  # type: ignore[misc]
    """kazoo's client with :class:`MultiRead`, and :class:`Transaction` in place of its own transactions."""

    def __init__(self, acls: NodeAcls | None = None, **settings: Any) -> None:
        super().__init__(handler=_Handler(), **settings)
        self._acls = acls
        self._encoded: dict[int, bytes] = {}
        """By the identity of a list of entries, which :class:`NodeAcls` keeps."""
        self._hears: Callable[[float], None] = lambda _: None
        self.login_refused: Exception | None = None
        """Why ZooKeeper, or the SASL library, did not take our credentials. The client does not try again."""
        self.not_connected = ""
        """Why the last attempt to connect failed."""
        connect = self._connection._connect  # noqa: SLF001
        self._connection._connect = lambda *args: self._log_in(connect, args)  # noqa: SLF001

    def get_many_async(self, paths: Sequence[str], *, names: bool = False) -> IAsyncResult:
        """The data of these nodes, or the names of their children, in the same order:
        :data:`sardonyx.zookeeper.multiread.Answer`.

        The result raises kazoo's errors, and ``UnimplementedError`` if the server is older than 3.6. Such a server also
        closes the connection.
        """
        return self._send(MultiRead([self.chroot + path for path in paths], names=names))

    def create_async(
        self, path: str, value: bytes = b"", acl: Sequence[ACL] | None = None, **options: Any
    ) -> IAsyncResult:
        """As kazoo's, with the rights that the node's path gives to each role, if roles are set."""
        return super().create_async(path, value, acl or self.acl_of(path), **options)

    def acl_of(self, path: str) -> Sequence[ACL] | None:
        """The rights of a new node; None: the default of this client."""
        return self._acls.of(path) if self._acls is not None else self.default_acl

    def encoded_acl(self, path: str) -> bytes:
        """The same, as a request holds it; without any rights of its own everybody may do everything."""
        entries = self.acl_of(path) or OPEN_ACL_UNSAFE
        found = self._encoded.get(id(entries))
        if found is None:
            parts = [_INT.pack(len(entries))]
            for entry in entries:
                parts.append(_INT.pack(entry.perms))
                parts += [_INT.pack(len(word)) + word for word in (entry.id.scheme.encode(), entry.id.id.encode())]
            found = self._encoded[id(entries)] = b"".join(parts)
        return found

    def transaction(self) -> Transaction:
        """An empty transaction."""
        return Transaction(self)

    def tell_timeout(self, hears: Callable[[float], None]) -> None:
        """At each connection call ``hears`` with the session timeout that the server grants, in seconds."""
        self._hears = hears

    def _log_in(self, connect: Callable[..., tuple[float, float]], place: tuple[Any, ...]) -> tuple[float, float]:
        """Connect and log in. On kazoo's own thread.

        After a login that failed kazoo 2.11 may end this thread without a word (python-zk/kazoo pull request 810), or take a
        connection that broke for a refusal. So both are told apart here.
        """
        try:
            read_timeout, connect_timeout = connect(*place)
        except (SessionClosedRequireSaslError, SASLException) as error:
            self.login_refused = error
            raise AuthFailedError(repr(error)) from error
        except AuthFailedError as error:
            if isinstance(error.__cause__, ConnectionDropped):
                raise ConnectionDropped("the connection broke during the login") from error
            self.login_refused = error
            raise
        except Exception as error:
            self.not_connected = str(error)
            raise
        self._hears(read_timeout * 1.5 / 1000)  # kazoo's read timeout is 2/3 of it
        return read_timeout, connect_timeout

    def _call(self, request: Any, async_object: Any) -> Any:
        async_object.asked = request
        return super()._call(request, async_object)

    def _send(self, request: MultiRead | Transaction) -> IAsyncResult:
        result = self.handler.async_result()
        self._call(request, result)
        return result


class Transaction:
    """The part of ``kazoo.client.TransactionRequest`` that we use; also the request as kazoo's connection sends it.

    Paths are not normalised: they must be absolute below the chroot, as :mod:`sardonyx.core.node_paths` makes them. ZooKeeper
    refuses others. Use a transaction once, in one thread.
    """

    type = KazooTransaction.type

    def __init__(self, client: BulkClient) -> None:
        self._client = client
        self._chroot: str = client.chroot
        self._parts: list[bytes] = []

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> None:
        """Create a node: ephemeral, or with a number appended to its name."""
        flags = _EPHEMERAL * ephemeral | _SEQUENCE * sequence
        acl = self._client.encoded_acl(path)
        self._parts += (_CREATE, *self._path(path), _INT.pack(len(value)), value, acl, _INT.pack(flags))

    def delete(self, path: str) -> None:
        """Delete a node of any version."""
        encoded = (self._chroot + path).encode()
        self._parts += (_DELETE, _INT.pack(len(encoded)), encoded, b"\xff\xff\xff\xff")

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        """Set data, if the node has that version; -1: any version."""
        encoded = (self._chroot + path).encode()
        self._parts += (_SET, _INT.pack(len(encoded)), encoded, _INT.pack(len(value)), value, _INT.pack(version))

    def check(self, path: str, version: int) -> None:
        """Require that the node exists and has that version; -1: any version."""
        self._parts += (_CHECK, *self._path(path), _INT.pack(version))

    @property
    def size(self) -> int:
        """Bytes of the operations so far."""
        return sum(map(len, self._parts))

    def commit_async(self) -> IAsyncResult:
        """Send it. The result holds True or an error for each operation; it raises if no answer came."""
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

    def __repr__(self) -> str:
        return f"Transaction({self.size:,} bytes)"
