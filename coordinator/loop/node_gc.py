"""Code that no job names any more is removed from ``/code``, and claims on dead letters of forgotten jobs from ``/redo``;
nothing else ever removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Set

import structlog

from coordinator.loop.election import Leadership
from sardonyx.core import node_paths
from sardonyx.core.events import Delete
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.transactions import Check

YOUNG = 3600.0
"""Seconds after its last touch in which code is kept though no job names it: its job may be on its way. Clients touch it
right before they submit, so this must be longer than a request can lie in the inbox of a cluster that is led."""

log = structlog.get_logger()


def sweep_code(leadership: Leadership, names: Iterable[str], used: Set[str]) -> int:
    """Of the code bundles of these names (their sha256) remove those that are not in ``used`` and have not been touched for an
    hour; how many.

    Each goes together with the check that it still is as it was looked at: a client that touches it now is before us or
    behind us, and in both cases finds out.
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
        except TransactionFailed:  # touched at this very moment
            continue
        removed += 1
        log.info("code that no job uses is removed", sha256=name)
    return removed


def sweep_claims(leadership: Leadership, names: Iterable[str], jobs: Container[str]) -> int:
    """Of the claims on dead letters remove those of jobs that are not known any more; how many.

    A claim is only ever made in a transaction that checks that its job stands, so none comes behind us.
    """
    removed = 0
    for name in names:
        if name.partition(".")[0] not in jobs:
            with contextlib.suppress(TransactionFailed):
                leadership.commit([Delete(f"{node_paths.REDO}/{name}")])
                removed += 1
    return removed
