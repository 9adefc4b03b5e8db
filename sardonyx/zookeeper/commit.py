"""One ZooKeeper transaction: sent, awaited, and every one of its results inspected.

kazoo's ``commit()`` does not raise when a transaction fails; it returns the errors among the results. Nothing else in Sardonyx
calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.errors import InternalError
from sardonyx.zookeeper import errors
from sardonyx.zookeeper.connection import LOST_REPLY, Connection
from sardonyx.zookeeper.transactions import HARD_LIMIT, Append, Check, Operation, SetIf

_VERBS = {
    "Create": "create",
    "Append": "create",
    "Set": "write",
    "SetIf": "write",
    "Delete": "delete",
    "Check": "look at",
}


def begin(zk: Connection, operations: Iterable[Operation], *, epoch_version: int | None = None) -> Callable[[], None]:
    """Send a transaction; the function that this returns waits for its outcome. Arguments and errors as
    :meth:`sardonyx.zookeeper.session.ZooKeeperSession.commit`.
    """
    wanted = list(operations)
    if epoch_version is not None:
        wanted.insert(0, Check(node_paths.EPOCH, epoch_version))
    transaction = zk.client.transaction()
    for operation in wanted:
        _add(zk, transaction, operation)
    if transaction.size > HARD_LIMIT:
        raise InternalError(
            "SX-INTERNAL-TRANSACTION-SIZE",
            f"a transaction of {len(wanted)} operations has {transaction.size:,} bytes; {HARD_LIMIT:,} is the most",
            cause="ZooKeeper drops connections that send more than 1 MiB",
            where={"first": wanted[-1].path},
        )
    zk.require_alive()
    sent = zk.runtime.now()
    return partial(_finish, zk, transaction.commit_async(), sent, wanted, fenced=epoch_version is not None)


def _finish(zk: Connection, under_way: Any, sent: float, wanted: list[Operation], *, fenced: bool) -> None:
    try:
        results = under_way.get(timeout=max(sent + zk.session_timeout - zk.runtime.now(), 0.001))
    except LOST_REPLY as error:
        raise errors.outcome_unknown(zk.hosts) from error
    except KazooException as error:
        raise zk.translated(error) from error
    zk.answered(sent)
    _inspect(zk, wanted, results, fenced=fenced)


def _add(zk: Connection, transaction: Any, operation: Operation) -> None:
    path = zk.root + operation.path
    if isinstance(operation, Delete):  # the most frequent one first
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


def _inspect(zk: Connection, operations: list[Operation], results: list[Any], *, fenced: bool) -> None:
    done = results.count(True) == len(results)  # the usual case needs no look at each result
    failed = [] if done else [(at, result) for at, result in enumerate(results) if isinstance(result, Exception)]
    if not failed and len(results) == len(operations):
        return
    # ZooKeeper rolls back the operations before the failed one, and does not try those after it.
    told = [(at, e) for at, e in failed if not isinstance(e, (RolledBackError, RuntimeInconsistency))]
    if not told:
        raise InternalError("SX-INTERNAL-TRANSACTION", f"ZooKeeper answered a transaction with {results!r}")
    at, reason = told[0]
    if isinstance(reason, NoAuthError):
        kind = type(operations[at]).__name__
        raise zk.denied(_VERBS.get(kind, kind), operations[at].path) from reason
    if fenced and at == 0 and isinstance(reason, (BadVersionError, NoNodeError)):
        raise errors.deposed()
    raise errors.TransactionFailed(operations[at], reason)
