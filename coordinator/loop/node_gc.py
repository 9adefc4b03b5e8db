"""Removes code that no job needs from ``/code``, and claims on the dead letters of purged jobs from ``/redo``. No other part of
Sardonyx removes these nodes.

It also finds the nodes of other programs that lie below nodes which are to be removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Set

import structlog

from coordinator.loop.election import Leadership
from sardonyx.core import node_paths
from sardonyx.core.effects import Delete
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Check

YOUNG = 3600.0
"""Seconds for which code is kept after it was written last, though no job needs it: its job may be on its way. Clients write it
right before they submit, so this must be longer than a request can stay in the inbox of a cluster with a leader."""

SHOWN = 20
"""Nodes of other programs that the log names at once."""

log = structlog.get_logger()


def remove_unused_code(leadership: Leadership, names: Iterable[str], used: Set[str]) -> int:
    """Remove code that no job needs and that no client wrote for an hour. Returns how many bundles were removed.

    Each removal requires that the node still has the version that was checked. A client may write the code at the same
    time.
    If it writes first, the code stays. If it writes later, it finds that the code is gone.

    Args:
        leadership: each write checks its epoch.
        names: of the nodes below ``/code``: the sha256 of each bundle.
        used: names that jobs need.
    """
    zk = leadership.zk
    removed = 0
    for name in names:
        if name in used:
            continue
        path = node_paths.code(name)
        found = zk.last_change(path)
        if found is None or zk.runtime.wall() - found[1] < YOUNG:
            continue
        try:
            leadership.commit([Check(path, found[0]), Delete(path)])
        except TransactionFailed:  # a client wrote it just now
            continue
        removed += 1
        log.info("unused_code_removed", sha256=name)
    return removed


def remove_old_claims(leadership: Leadership, names: Iterable[str], jobs: Container[str]) -> int:
    """Remove the claims on dead letters of purged jobs. Returns how many were removed.

    The transaction that makes a claim checks that its job exists, so no client can make one after this.

    Args:
        leadership: each write checks its epoch.
        names: of the nodes below ``/redo``: ``<job>.<task>``.
        jobs: ids of the jobs that are known.
    """
    removed = 0
    for name in names:
        if name.partition(".")[0] not in jobs:
            with contextlib.suppress(TransactionFailed):
                leadership.commit([Delete(f"{node_paths.REDO}/{name}")])
                removed += 1
    return removed


def foreign_nodes_below(zk: ZooKeeperSession, removed: Set[str]) -> list[Delete]:
    """The removals of all that lies below nodes which are to be removed, and that is not among these: other programs have put it
    there. ZooKeeper deletes no node that has children. As the effects of an entry are written before those of the next one, no
    leader could write any more.

    Args:
        zk: the session of a leader, whose server has caught up.
        removed: paths of the nodes.
    """
    foreign: set[str] = set()
    level = set(removed)
    while level:
        found = zk.children_of(sorted(level))
        level = {f"{path}/{name}" for path, names in found.items() for name in names} - removed
        foreign |= level
    if foreign:
        log.warning("foreign_nodes_removed", count=len(foreign), nodes=sorted(foreign)[:SHOWN])
    return [Delete(path) for path in sorted(foreign)]
