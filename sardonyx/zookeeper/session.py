"""The deployment's nodes in ZooKeeper: reads, writes, requests and transactions.

Coordinators, peers and clients reach ZooKeeper through this class. Underneath, :mod:`sardonyx.zookeeper.connection` holds the
session and repeats calls, :mod:`sardonyx.zookeeper.read_ahead` reads many nodes at once, :mod:`sardonyx.zookeeper.commit` does
transactions, and :mod:`sardonyx.zookeeper.bulk` is the kazoo client itself.

A create that is sent again after a lost reply would make a second node. :meth:`ZooKeeperSession.create_sequential` searches
for its node before it repeats, and :meth:`ZooKeeperSession.create` recognises its own node.

All paths are relative to the deployment's root. Many threads may use one session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from kazoo.exceptions import (
    NodeExistsError,
    NoNodeError,
)
from kazoo.protocol.states import WatchedEvent

from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError
from sardonyx.core.events import Request, encode_event, kind_of
from sardonyx.core.names import request_id
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper import commit, errors, read_ahead
from sardonyx.zookeeper.bulk import BulkClient
from sardonyx.zookeeper.connection import Connection
from sardonyx.zookeeper.connectivity import client_arguments
from sardonyx.zookeeper.multiread import MOST_COUNT
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, HARD_LIMIT, Operation

_LOST = object()
_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0, "ignore_expire": False}

Watch = Callable[[WatchedEvent], None]
"""Called once, in kazoo's thread, when what was read has changed or the session has: it may only signal."""

log = structlog.get_logger()


class ZooKeeperSession(Connection):
    """One session with ZooKeeper, for the nodes of one deployment. :meth:`connect` opens it."""

    @classmethod
    def connect(
        cls,
        settings: Settings,
        *,
        listener: Callable[[str], None] | None = None,
        survive_expiry: bool = False,
        timeout: float | None = None,
        make_top: bool = True,
    ) -> ZooKeeperSession:
        """Open a session, and create the deployment's top nodes if they do not exist yet.

        Args:
            settings: address, timeouts, credentials and deployment.
            listener: called with ``CONNECTED``, ``SUSPENDED`` or ``LOST`` on the connection's own thread; it must
                return at once and must not call ZooKeeper.
            survive_expiry: go on in a new session when this one expires. For clients and tools, which own no nodes;
                coordinators and peers must stop instead.
            timeout: seconds to wait for the connection; ``zookeeper.connect_timeout`` if not given.
            make_top: if false, create nothing: for read-only tools.

        Raises:
            SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-ADDRESS``, ``SX-ZOOKEEPER-UNREACHABLE``,
                ``SX-ZOOKEEPER-DENIED`` or ``SX-ZOOKEEPER-CHROOT``.
        """
        settings.require("zookeeper")
        hosts = settings.zookeeper.hosts
        waits = settings.zookeeper.connect_timeout if timeout is None else timeout
        try:
            client = BulkClient(connection_retry=dict(_RECONNECT), **client_arguments(settings.zookeeper))
        except ValueError as error:
            raise errors.no_address(str(hosts), error) from error
        zk = cls(client, settings, survive_expiry=survive_expiry)
        client.tell_timeout(zk._negotiated)
        try:
            return zk.open(waits, listener, make_top=make_top)
        except errors.NotConnected as error:
            raise errors.unreachable(settings, error.waited, client.not_connected) from error

    def open(
        self, timeout: float, listener: Callable[[str], None] | None = None, *, make_top: bool = True
    ) -> ZooKeeperSession:
        """Begin the session for :meth:`connect`. If it raises, nothing stays open."""
        if listener is not None:
            self.client.add_listener(listener)
        began = self.runtime.now()
        self.client.start_async()
        try:
            if not self.wait_connected(timeout):
                raise errors.NotConnected(self.hosts, self.runtime.now() - began)
            if make_top:
                self._make_top()
            elif self._zookeeper.auth.sasl:  # the login comes after the connection
                self.call(lambda: self.client.exists_async("/"))
        except BaseException:
            self.close()
            raise
        return self

    # Reading

    def read(self, path: str, watch: Watch | None = None) -> bytes | None:
        """A node's data; None if the node does not exist. A watch also fires when the node appears."""
        found = self.read_version(path, watch)
        return None if found is None else found[0]

    def last_change(self, path: str) -> tuple[int, float] | None:
        """A node's version, and when it was last written (ZooKeeper's clock, seconds since 1970); None if it does not exist."""
        stat = self.call(lambda: self.client.exists_async(self.path(path)))
        return None if stat is None else (int(stat.version), stat.mtime / 1000)

    def creation(self, path: str) -> tuple[int, int] | None:
        """What tells a node from others that were, or will be, at its path; None if it does not exist.

        It is the transaction that created the node, and when (ZooKeeper's clock, milliseconds since 1970). ZooKeeper counts its
        transactions anew once its data is deleted, so the first alone would not do.
        """
        stat = self.call(lambda: self.client.exists_async(self.path(path)))
        return None if stat is None else (int(stat.czxid), int(stat.ctime))

    def read_version(self, path: str, watch: Watch | None = None) -> tuple[bytes, int] | None:
        """Like :meth:`read`, with the version for :class:`SetIf` and :class:`Check`."""
        while True:
            try:
                data, stat = self.call(lambda: self._get(path, watch))
                return bytes(data), int(stat.version)
            except NoNodeError:
                # Only "exists" sets a watch on a node that does not exist.
                if watch is None or self.call(lambda: self.client.exists_async(self.path(path), watch=watch)) is None:
                    return None

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The data of many nodes, many to a request. Nodes that do not exist are left out."""
        return {path: data for _, found in self.read_ahead(list(paths)) for path, data in found.items()}

    def read_ahead(
        self, paths: Sequence[str], *, most: int = MOST_COUNT
    ) -> Iterator[tuple[Sequence[str], dict[str, bytes]]]:
        """Like :meth:`read_many` in portions of at most ``most`` nodes: each portion's paths, and the data of those that
        exist. The next portion is being read while the caller works on one.
        """
        return read_ahead.portions(self, paths, most, self._get, names=False)

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children, sorted; none if the node does not exist."""
        while True:
            try:
                return sorted(self.call(partial(self._list, path, watch)))
            except NoNodeError:
                if watch is None or self.call(lambda: self.client.exists_async(self.path(path), watch=watch)) is None:
                    return []

    def children_of(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """The same for many nodes, asked for at once. Nodes that do not exist are left out."""
        return self.begin_children_of(paths)()

    def begin_children_of(self, paths: Iterable[str]) -> Callable[[], dict[str, list[str]]]:
        """Send the request of :meth:`children_of`. The returned function waits for the answer; call it once."""
        portions = read_ahead.portions(self, list(paths), MOST_COUNT, self._list, names=True)
        next(portions, None)  # sends the first request
        return lambda: {path: sorted(names) for _, found in portions for path, names in found.items()}

    def lists(self, watches: Mapping[str, Watch]) -> list[list[str]]:
        """:meth:`children` of some nodes, each with its watch, and read no earlier than the one before it. Asked for at once."""
        sent = self.runtime.now()
        found: list[list[str]] = []
        for path, answer in [(path, self._list(path, watch)) for path, watch in watches.items()]:
            try:
                names = self.call(partial(self._list, path, watches[path]), first=(answer, sent), instead=lambda: _LOST)
            except NoNodeError:
                names = _LOST
            if names is _LOST:  # over a new connection those behind it may have been answered before it is asked again
                return [self.children(path, watch) for path, watch in watches.items()]
            found.append(sorted(names))
        return found

    def deployments(self) -> list[str]:
        """The names of all deployments in this ZooKeeper, sorted. Raises ``SX-ZOOKEEPER-CHROOT``."""
        try:
            return sorted(self.call(lambda: self.client.get_children_async(self.root.rpartition("/")[0])))
        except NoNodeError as error:
            if self.client.chroot and self.call(lambda: self.client.exists_async("/")) is None:
                raise errors.no_chroot(self.client.chroot, self.hosts) from error
            return []

    def sync(self) -> None:
        """Let our server catch up with all earlier writes. Needed before a read on which a decision depends."""
        self.call(lambda: self.client.sync_async(self.root))

    # Writing without a transaction (the coordinator writes by `commit`)

    def create(self, path: str, data: bytes = b"", ephemeral: bool = False) -> bool:
        """Create a node. Returns False if another session or call had created it.

        True also if only the reply was lost: of this call, or for an ephemeral node of an earlier call that gave up.

        Raises:
            ParentMissing: the parent node does not exist.
        """
        self._fits(path, data, HARD_LIMIT)
        repeated = False

        def send() -> Any:
            return self.client.create_async(self.path(path), data, ephemeral=ephemeral)

        def note() -> None:
            nonlocal repeated
            repeated = True

        try:
            self.call(send, instead=note)
            return True
        except NoNodeError as error:
            raise errors.ParentMissing("SX-INTERNAL-PARENT-MISSING", f"the parent of {path} does not exist") from error
        except NodeExistsError:
            return (repeated or ephemeral) and self._is_ours(path, data, ephemeral=ephemeral)

    def delete(self, path: str) -> None:
        """Remove a node that has no children. Does nothing if the node does not exist."""
        try:
            self.call(lambda: self.client.delete_async(self.path(path)))
        except NoNodeError:
            return

    def request(self, event: Request, token: str = "") -> None:
        """Put an event into the inbox exactly once, even if the reply is lost and the event is sent again.

        The node's name holds a fresh uuid. After a lost reply we search the inbox for it before we send again. If the leader
        has taken the request meanwhile, the leader recognises the repetition by the uuid, which it keeps in its log.

        Args:
            event: what is asked.
            token: letters and digits that this request has whenever it is made again; empty: it is never made again.

        Raises:
            SardonyxError: ``SX-REQUEST-TOO-LARGE``: over 64 KiB.
            ZooKeeperAway: ZooKeeper did not answer in time; the request may be taken or not.
            SessionLost: the session ended; the request may be taken or not.
        """
        data = encode_event(event)
        if len(data) > ENTRY_LIMIT:
            raise errors.request_too_large(kind_of(event), len(data), ENTRY_LIMIT)
        uuid = request_id(getattr(event, "by", ""), token or self.runtime.token())
        self.create_sequential(node_paths.inbox_prefix(kind_of(event), uuid), data)

    def create_sequential(self, prefix: str, data: bytes, *, ephemeral: bool = False) -> str:
        """Create a node whose name ends in the next number of its parent; returns the name. Never makes two nodes.

        ``prefix`` must be unique to the call (it holds a uuid): after a lost reply we find our node by it.
        """
        parent, _, start = prefix.rpartition("/")
        replies_lost = 0

        def send() -> Any:
            return self.client.create_async(self.path(prefix), data, ephemeral=ephemeral, sequence=True)

        def search() -> str | None:
            nonlocal replies_lost
            replies_lost += 1
            self.sync()
            return next((f"{parent}/{child}" for child in self.children(parent) if child.startswith(start)), None)

        made = str(self.call(send, instead=search))
        if replies_lost:
            log.info("node_created_after_lost_reply", node=start, replies_lost=replies_lost)
        return made.rpartition("/")[2]

    # Transactions

    def commit(self, operations: Iterable[Operation], *, epoch_version: int | None = None) -> None:
        """Carry out all operations in one ZooKeeper transaction, or none of them.

        Args:
            operations: in this order.
            epoch_version: the version of ``/epoch`` under which the writer leads; the transaction checks it first.

        Raises:
            Deposed: ``/epoch`` has another version.
            TransactionFailed: an operation was refused (it says which); nothing was done.
            OutcomeUnknown: the reply was lost. The leader must stop leading; its successor reads what happened.
            SessionLost: the session had ended before.
        """
        self.begin(operations, epoch_version=epoch_version)()

    def begin(self, operations: Iterable[Operation], *, epoch_version: int | None = None) -> Callable[[], None]:
        """Send the transaction of :meth:`commit`. The returned function waits for the outcome and raises the errors."""
        return commit.begin(self, operations, epoch_version=epoch_version)

    # Underneath

    def _get(self, path: str, watch: Watch | None = None) -> Any:
        return self.client.get_async(self.path(path), watch=watch)

    def _list(self, path: str, watch: Watch | None = None) -> Any:
        return self.client.get_children_async(self.path(path), watch=watch)

    def _is_ours(self, path: str, data: bytes, *, ephemeral: bool) -> bool:
        try:
            found, stat = self.call(lambda: self._get(path))
        except NoNodeError:
            return False
        session = self.client.client_id
        return found == data and (not ephemeral or (session is not None and stat.ephemeralOwner == session[0]))

    def _fits(self, path: str, data: bytes, limit: int) -> None:
        if len(data) > limit:
            raise InternalError("SX-INTERNAL-NODE-SIZE", f"{path}: {len(data):,} bytes; {limit:,} is the most")

    def _make_top(self) -> None:
        """Create the deployment's top nodes. Several processes may do so at once."""
        if set(self.children("")) >= {path.removeprefix("/") for path in node_paths.TOP}:
            return
        levels = ["/" + "/".join(self.root.split("/")[1:depth]) for depth in (2, 3)]
        if self.client.chroot:
            levels.insert(0, "/")
        for level in [*levels, *map(self.path, node_paths.TOP)]:
            try:
                self.call(partial(self.client.create_async, level))
            except NodeExistsError:
                continue
            except NoNodeError as error:
                raise errors.no_chroot(self.client.chroot, self.hosts) from error
