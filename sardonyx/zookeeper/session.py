"""The tree in ZooKeeper: reads, writes, requests and transactions. The only module that talks kazoo for them.

kazoo's defaults are not safe for us, and each of its traps is closed here once:

- a transaction's ``commit()`` does not raise when the transaction fails: :meth:`ZooKeeperSession.commit` looks at every result;
- a create that is sent again after a lost reply makes a second node: :meth:`ZooKeeperSession.request` searches before it repeats,
  and :meth:`ZooKeeperSession.create` recognises its own node;
- after an expired session kazoo goes on in a new one, in which what we owned is gone: a tree is one session, and every
  call after its end raises :class:`sardonyx.zookeeper.errors.SessionLost` (unless it was opened with ``survive_expiry``);
- a reply can fail to come for ever: every call has a deadline.

All paths are relative to the deployment's root. A tree may be used by many threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import structlog
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, WatchedEvent

from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError, SardonyxError
from sardonyx.core.events import Create, Delete, Request, Set, encode_event, kind_of
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper import errors
from sardonyx.zookeeper.bulk import BulkClient
from sardonyx.zookeeper.connectivity import client_arguments
from sardonyx.zookeeper.multiread import MOST_COUNT, Chunks
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, HARD_LIMIT, Append, Check, Operation, SetIf

WINDOW = 200
"""Reads under way at a time where each needs a request of its own. kazoo rings for each by a byte in a socket that takes a few
hundred, and waits without end for one more while there is no connection.
"""

READ_AHEAD = 4
"""Requests for many nodes that are under way while what one of them gave is worked on: each waits behind the writes of the
session that were sent before it."""

_LOST_REPLY = (ConnectionLoss, OperationTimeoutError, KazooTimeoutError)
_LOST = object()
_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0, "ignore_expire": False}

Watch = Callable[[WatchedEvent], None]
"""Called once, in kazoo's thread, when what was read has changed or the session has: it may only signal."""

log = structlog.get_logger()


class ZooKeeperSession:
    """One session with ZooKeeper, and the tree of one deployment. Made by :meth:`connect`."""

    def __init__(
        self, client: BulkClient, settings: Settings, *, survive_expiry: bool = False, runtime: Runtime = REAL
    ) -> None:
        self.client = client
        self.runtime = runtime
        """Whoever uses this session takes time and threads from here."""
        self.root = node_paths.root(settings.deployment)
        self.hosts = str(settings.zookeeper.hosts)
        self.patience = max(settings.zookeeper.connect_timeout, settings.zookeeper.session_timeout)
        """Seconds that a call waits for ZooKeeper before it raises."""
        self.session_timeout = settings.zookeeper.session_timeout
        """Seconds after which ZooKeeper ends a silent session, as negotiated with the server."""
        self.last_answer = runtime.now()
        """When the latest request that was answered had been *sent*, by the monotonic clock: the session lived then."""
        self._survive_expiry = survive_expiry
        self._connected = runtime.signal()
        self._lost = False
        self._many_at_once = hasattr(client, "get_many_async")
        client.add_listener(self._on_state)

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
        """Open a session, and make the deployment's top nodes if nobody has yet.

        Args:
            settings: address, timeouts, credentials and deployment.
            listener: called with ``CONNECTED``, ``SUSPENDED`` or ``LOST`` on the connection's own thread; it must
                return at once and must not call ZooKeeper.
            survive_expiry: go on in a new session when this one expires. For clients and tools that own nothing;
                coordinators and peers must stop instead.
            timeout: seconds to wait for the connection; ``zookeeper.connect_timeout`` if not given.
            make_top: make nothing if false: for those who only look.

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
            raise errors.unreachable(settings, error.waited) from error

    def open(
        self, timeout: float, listener: Callable[[str], None] | None = None, *, make_top: bool = True
    ) -> ZooKeeperSession:
        """Begin the session, as :meth:`connect` does. Raises its errors, and then leaves nothing open."""
        if listener is not None:
            self.client.add_listener(listener)
        began = self.runtime.now()
        self.client.start_async()
        try:
            if not self.wait_connected(timeout):
                raise errors.NotConnected(self.hosts, self.runtime.now() - began)
            if make_top:
                self._make_top()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once, or when the session times out if ZooKeeper is away."""
        try:
            self.client.stop()
            self.client.close()
        except KazooException as error:  # it was on its way to a server that does not answer, and is left to it
            log.warning("session with ZooKeeper could not be closed", zookeeper=self.hosts, reason=repr(error))

    @property
    def connected(self) -> bool:
        """Whether the session stands and is connected now, as far as this side knows."""
        return self._connected.is_set() and (self._survive_expiry or not self._lost)

    def wait_connected(self, timeout: float) -> bool:
        """Wait until the connection stands, at most so many seconds. Whether it does."""
        return self._connected.wait(max(timeout, 0))

    def path(self, path: str) -> str:
        """The whole path in ZooKeeper of a path below the deployment's root."""
        return self.root + path

    # Reading

    def read(self, path: str, watch: Watch | None = None) -> bytes | None:
        """A node's data; None if there is no such node. A watch also tells when the node appears."""
        found = self.read_version(path, watch)
        return None if found is None else found[0]

    def last_change(self, path: str) -> tuple[int, float] | None:
        """A node's version, and when its data was written last (ZooKeeper's clock, seconds since 1970); None if it is not."""
        stat = self._ask(lambda: self.client.exists_async(self.path(path)))
        return None if stat is None else (int(stat.version), stat.mtime / 1000)

    def read_version(self, path: str, watch: Watch | None = None) -> tuple[bytes, int] | None:
        """Like :meth:`read`, with the version for :class:`SetIf` and :class:`Check`."""
        while True:
            try:
                data, stat = self._ask(lambda: self._get(path, watch))
                return bytes(data), int(stat.version)
            except NoNodeError:
                # Only "exists" leaves a watch on a node that is not there.
                if watch is None or self._ask(lambda: self.client.exists_async(self.path(path), watch=watch)) is None:
                    return None

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The data of many nodes, many to a request; those that are not there are left out."""
        return {path: data for _, found in self.read_ahead(list(paths)) for path, data in found.items()}

    def read_ahead(
        self, paths: Sequence[str], *, most: int = MOST_COUNT
    ) -> Iterator[tuple[Sequence[str], dict[str, bytes]]]:
        """Like :meth:`read_many` in portions, of at most ``most`` nodes: each portion's paths, and the data of those that
        are there. While the caller works on one, the next one is under way.
        """
        return self._portions(paths, most, self._get, names=False)

    def _portions(
        self, paths: Sequence[str], most: int, each: Callable[[str], Any], *, names: bool
    ) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
        """What :meth:`read_ahead` gives, or the names of children in place of data; ``each`` asks a server before 3.6. An empty
        portion comes first, when the first request has been sent.
        """
        done = 0
        if self._many_at_once:
            try:
                for chunk, found in self._in_chunks(Chunks(paths, prefix=len(self.root), most=most), names=names):
                    done += len(chunk)
                    yield chunk, found
            except UnimplementedError:
                self._many_at_once = False
        else:
            yield (), {}
        for at in range(done, len(paths), WINDOW):
            window = paths[at : at + WINDOW]
            answers = self._each(window, each)
            yield window, {path: answer if names else bytes(answer[0]) for path, answer in answers}

    def _in_chunks(self, chunks: Chunks, *, names: bool) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
        """A request a chunk. Those behind are sent before one is given out."""

        def sent(chunk: Sequence[str]) -> Callable[[], Any]:
            return partial(self.client.get_many_async, [self.root + path for path in chunk], names=names)

        waiting = iter(chunks)
        under_way: deque[tuple[Sequence[str], Callable[[], Any], tuple[Any, float]]] = deque()

        def send(most: int) -> None:
            for chunk in islice(waiting, most):
                call, since = sent(chunk), self.runtime.now()
                under_way.append((chunk, call, (call(), since)))

        send(1)
        yield (), {}
        while under_way:
            chunk, call, first = under_way.popleft()
            answers = self._ask(call, first=first)
            found: dict[str, Any] = {}
            for path, answer in zip(chunk, answers, strict=True):
                if isinstance(answer, bytes | list):
                    found[path] = answer
                elif not isinstance(answer, NoNodeError):
                    raise self._translated(answer) from answer
            chunks.answered(answers)
            ahead = READ_AHEAD if len(chunk) >= chunks.count else 1  # not while it is still being learnt how many fit
            send(max(ahead - len(under_way), 0))
            yield chunk, found

    def _each(self, paths: Sequence[str], call: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        """The answers about the nodes that are there: a request a node, all sent without waiting between."""
        sent = self.runtime.now()
        for path, answer in [(path, call(path)) for path in paths]:
            try:
                found = self._ask(partial(call, path), first=(answer, sent))
            except NoNodeError:
                continue
            yield path, found

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The names of a node's children, sorted; none if there is no such node."""
        while True:
            try:
                return sorted(self._ask(partial(self._list, path, watch)))
            except NoNodeError:
                if watch is None or self._ask(lambda: self.client.exists_async(self.path(path), watch=watch)) is None:
                    return []

    def children_of(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """The same of many nodes, asked for at once; those that are not there are left out."""
        return self.begin_children_of(paths)()

    def begin_children_of(self, paths: Iterable[str]) -> Callable[[], dict[str, list[str]]]:
        """Like :meth:`children_of`, without waiting: what it gives waits, once, and raises what :meth:`children_of` raises."""
        portions = self._portions(list(paths), MOST_COUNT, self._list, names=True)
        next(portions, None)  # sends the first request
        return lambda: {path: sorted(names) for _, found in portions for path, names in found.items()}

    def lists(self, watches: Mapping[str, Watch]) -> list[list[str]]:
        """:meth:`children` of some nodes, each with its watch, and read no earlier than the one before it. Asked for at once."""
        sent = self.runtime.now()
        found: list[list[str]] = []
        for path, answer in [(path, self._list(path, watch)) for path, watch in watches.items()]:
            try:
                names = self._ask(partial(self._list, path, watches[path]), first=(answer, sent), instead=lambda: _LOST)
            except NoNodeError:
                names = _LOST
            if names is _LOST:  # over a new connection those behind it may have been answered before it is asked again
                return [self.children(path, watch) for path, watch in watches.items()]
            found.append(sorted(names))
        return found

    def deployments(self) -> list[str]:
        """The names of all deployments in this ZooKeeper, sorted. Raises ``SX-ZOOKEEPER-CHROOT``."""
        try:
            return sorted(self._ask(lambda: self.client.get_children_async(self.root.rpartition("/")[0])))
        except NoNodeError as error:
            if self.client.chroot and self._ask(lambda: self.client.exists_async("/")) is None:
                raise errors.no_chroot(self.client.chroot, self.hosts) from error
            return []

    def sync(self) -> None:
        """Let the server that we read from catch up with all writes that were done before: for reads that decide."""
        self._ask(lambda: self.client.sync_async(self.root))

    # Writing by one's own right (the coordinator writes by `commit`)

    def create(self, path: str, data: bytes = b"", ephemeral: bool = False) -> bool:
        """Make a node. False if it stood already; True also if it was we who had made it and only the reply was lost, whether of
        this call or, for an ephemeral one, of an earlier one that gave up.

        Raises ``ParentMissing`` if there is nothing that it could stand below.
        """
        self._fits(path, data, HARD_LIMIT)
        repeated = False

        def send() -> Any:
            return self.client.create_async(self.path(path), data, ephemeral=ephemeral)

        def note() -> None:
            nonlocal repeated
            repeated = True

        try:
            self._ask(send, instead=note)
            return True
        except NoNodeError as error:
            raise errors.ParentMissing("SX-INTERNAL-PARENT-MISSING", f"nothing stands above {path}") from error
        except NodeExistsError:
            return (repeated or ephemeral) and self._is_ours(path, data, ephemeral=ephemeral)

    def delete(self, path: str) -> None:
        """Remove a node that has no children; nothing happens if it is not there."""
        try:
            self._ask(lambda: self.client.delete_async(self.path(path)))
        except NoNodeError:
            return

    def request(self, event: Request) -> None:
        """Put an event into the inbox: once, also when the reply is lost and it has to be sent again.

        Its name holds a fresh uuid. After a lost reply the inbox is searched for it before the request is sent again; a
        request that the leader has taken meanwhile is recognised by the leader, which keeps the uuids in its log.

        Raises:
            SardonyxError: ``SX-REQUEST-TOO-LARGE``: over 64 KiB.
            ZooKeeperAway: ZooKeeper did not answer in time; the request may be taken or not.
            SessionLost: the session ended; the request may be taken or not.
        """
        data = encode_event(event)
        if len(data) > ENTRY_LIMIT:
            raise errors.request_too_large(kind_of(event), len(data), ENTRY_LIMIT)
        self.create_sequential(node_paths.inbox_prefix(kind_of(event), self.runtime.token()), data)

    def create_sequential(self, prefix: str, data: bytes, *, ephemeral: bool = False) -> str:
        """Make a node whose name ends in the next number of its parent; gives the name. One node, whatever gets lost.

        ``prefix`` is a path that no other call uses (it holds a uuid): that is how a node is found whose reply was lost.
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

        made = str(self._ask(send, instead=search))
        if replies_lost:
            log.info("node created in spite of a lost connection", node=start, replies_lost=replies_lost)
        return made.rpartition("/")[2]

    # Transactions

    def commit(self, operations: Iterable[Operation], *, epoch_version: int | None = None) -> None:
        """Do all operations in one ZooKeeper transaction, or none of them.

        Args:
            operations: in this order.
            epoch_version: the version of ``/epoch`` that the writer leads under; it comes first in the transaction.

        Raises:
            Deposed: ``/epoch`` has another version.
            TransactionFailed: an operation was refused (it says which); nothing was done.
            OutcomeUnknown: the reply was lost. Whoever leads must stop leading; its successor finds out.
            SessionLost: the session had ended before.
        """
        self.begin(operations, epoch_version=epoch_version)()

    def begin(self, operations: Iterable[Operation], *, epoch_version: int | None = None) -> Callable[[], None]:
        """Like :meth:`commit`, without waiting: what it gives waits, and raises what :meth:`commit` raises."""
        wanted = list(operations)
        if epoch_version is not None:
            wanted.insert(0, Check(node_paths.EPOCH, epoch_version))
        transaction = self.client.transaction()
        for operation in wanted:
            self._add(transaction, operation)
        if transaction.size > HARD_LIMIT:
            raise InternalError(
                "SX-INTERNAL-TRANSACTION-SIZE",
                f"a transaction of {len(wanted)} operations has {transaction.size:,} bytes; {HARD_LIMIT:,} is the most",
                cause="ZooKeeper drops connections that send more than 1 MiB",
                where={"first": wanted[-1].path},
            )
        self._alive()
        sent = self.runtime.now()
        return partial(self._finish, transaction.commit_async(), sent, wanted, fenced=epoch_version is not None)

    def _finish(self, under_way: Any, sent: float, wanted: list[Operation], *, fenced: bool) -> None:
        try:
            results = under_way.get(timeout=max(sent + self.session_timeout - self.runtime.now(), 0.001))
        except _LOST_REPLY as error:
            raise errors.outcome_unknown(self.hosts) from error
        except KazooException as error:
            raise self._translated(error) from error
        self._answered(sent)
        self._inspect(wanted, results, fenced=fenced)

    def _add(self, transaction: Any, operation: Operation) -> None:
        path = self.root + operation.path
        if isinstance(operation, Delete):  # the commonest first
            transaction.delete(path)
        elif isinstance(operation, Set):
            transaction.set_data(path, operation.data)
        elif isinstance(operation, Create):
            transaction.create(path, operation.data)
        elif isinstance(operation, SetIf):
            transaction.set_data(path, operation.data, operation.version)
        elif isinstance(operation, Append):
            transaction.create(path, operation.data, sequence=True)
        else:
            transaction.check(path, operation.version)

    def _inspect(self, operations: list[Operation], results: list[Any], *, fenced: bool) -> None:
        done = results.count(True) == len(results)  # as it mostly is, and then need not be looked at one by one
        failed = [] if done else [(at, result) for at, result in enumerate(results) if isinstance(result, Exception)]
        if not failed and len(results) == len(operations):
            return
        # Operations before the one that failed were rolled back; those behind it were never tried.
        told = [(at, e) for at, e in failed if not isinstance(e, (RolledBackError, RuntimeInconsistency))]
        if not told:
            raise InternalError("SX-INTERNAL-TRANSACTION", f"ZooKeeper answered a transaction with {results!r}")
        at, reason = told[0]
        if isinstance(reason, NoAuthError):
            raise self._translated(reason) from reason
        if fenced and at == 0 and isinstance(reason, (BadVersionError, NoNodeError)):
            raise errors.deposed()
        raise errors.TransactionFailed(operations[at], reason)

    # Underneath

    def _get(self, path: str, watch: Watch | None = None) -> Any:
        return self.client.get_async(self.path(path), watch=watch)

    def _list(self, path: str, watch: Watch | None = None) -> Any:
        return self.client.get_children_async(self.path(path), watch=watch)

    def _ask(
        self,
        call: Callable[[], Any],
        *,
        first: tuple[Any, float] | None = None,
        instead: Callable[[], Any] = lambda: None,
    ) -> Any:
        """The answer to a call, which is sent again after a lost reply until ``patience`` ends.

        ``first`` is the call if it is under way already, and since when. After a lost reply ``instead`` is asked whether
        the call was done after all: what it gives, if not None, is the answer.
        """
        until = self.runtime.now() + self.patience
        while True:
            self._alive()
            asked, sent = first or (None, self.runtime.now())
            try:
                answering = call() if asked is None else asked
                answer = answering.get(timeout=max(until - self.runtime.now(), 0.001))
            except (NoNodeError, NodeExistsError, UnimplementedError):
                self._answered(sent)
                raise
            except (*_LOST_REPLY, SessionExpiredError) as error:
                closed = isinstance(error, ConnectionClosedError)
                if closed or (isinstance(error, SessionExpiredError) and not self._survive_expiry):
                    raise self._session_lost() from error
                if not self.wait_connected(until - self.runtime.now()) or self.runtime.now() >= until:
                    raise errors.away(self.hosts, self.patience) from error
                done = instead()
                if done is not None:
                    return done
            except KazooException as error:
                raise self._translated(error) from error
            else:
                self._answered(sent)
                return answer
            first = None

    def _answered(self, sent: float) -> None:
        self.last_answer = max(self.last_answer, sent)

    def _alive(self) -> None:
        if self._lost and not self._survive_expiry:
            raise self._session_lost()

    def _session_lost(self) -> errors.SessionLost:
        return errors.session_lost(self.hosts, self.session_timeout)

    def _translated(self, error: Exception) -> SardonyxError:
        """A kazoo error as one of ours."""
        return errors.refused(error, self.hosts, self.root, self.session_timeout)

    def _is_ours(self, path: str, data: bytes, *, ephemeral: bool) -> bool:
        try:
            found, stat = self._ask(lambda: self._get(path))
        except NoNodeError:
            return False
        session = self.client.client_id
        return found == data and (not ephemeral or (session is not None and stat.ephemeralOwner == session[0]))

    def _fits(self, path: str, data: bytes, limit: int) -> None:
        if len(data) > limit:
            raise InternalError("SX-INTERNAL-NODE-SIZE", f"{path}: {len(data):,} bytes; {limit:,} is the most")

    def _make_top(self) -> None:
        """The nodes that stand from the first start on, each made by whoever comes first."""
        if set(self.children("")) >= {path.removeprefix("/") for path in node_paths.TOP}:
            return
        levels = ["/" + "/".join(self.root.split("/")[1:depth]) for depth in (2, 3)]
        if self.client.chroot:
            levels.insert(0, "/")
        for level in [*levels, *map(self.path, node_paths.TOP)]:
            try:
                self._ask(partial(self.client.create_async, level))
            except NodeExistsError:
                continue
            except NoNodeError as error:
                raise errors.no_chroot(self.client.chroot, self.hosts) from error

    def _on_state(self, state: str) -> None:
        """On the connection's own thread: may only note."""
        if state == KazooState.CONNECTED:
            self._connected.set()
            return
        self._connected.clear()
        if state == KazooState.LOST:
            self._lost = True

    def _negotiated(self, timeout: float) -> None:
        self.session_timeout = timeout
