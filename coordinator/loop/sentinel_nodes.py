"""Where the peers of a job vote on its sentinels: made before the job runs, removed before its links are known to be gone.

Only a leader makes and removes these nodes: where one is gone nobody can vote. What earlier leaders did with them it has seen
since it took over (:meth:`coordinator.loop.leader.Leader.take_over` lets its server catch up).

Both are done in steps: each asks ZooKeeper for something, and the next one waits for it, so that others can work in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from coordinator.loop.election import Leadership
from sardonyx.core import node_paths
from sardonyx.core.events import Create, Delete
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.transactions import chunked

CLOSE_ATTEMPTS = 100
"""Times that the removal of a job's votes is begun; each time somebody has cast another one meanwhile."""

log = structlog.get_logger()


def opening(leadership: Leadership, jobs: Sequence[str]) -> Iterator[None]:
    """To be done before it is logged that the links of these jobs stand."""
    paths = dict.fromkeys(map(node_paths.sentinels, jobs))
    try:
        yield from leadership.committing(chunked([Create(path)] for path in paths), "votes-opened")
    except TransactionFailed as error:  # a leader before us had made some of them
        log.debug("votes stand already", reason=error.message)
        stand = leadership.zk.read_many(paths)  # behind what is still under way
        for chunk in chunked([Create(path)] for path in paths if path not in stand):
            leadership.commit(chunk)


def closing(leadership: Leadership, jobs: Sequence[str]) -> Iterator[None]:
    """To be done before it is logged that the links of these jobs are gone, so that it is done again if we die before."""
    zk, paths = leadership.zk, [node_paths.sentinels(job) for job in jobs]
    for _ in range(CLOSE_ATTEMPTS if jobs else 0):
        asked = zk.begin_children_of(paths)
        yield
        votes = asked()
        paths = list(votes)
        gone = ([*(Delete(f"{path}/{name}") for name in cast), Delete(path)] for path, cast in votes.items())
        try:
            yield from leadership.committing(chunked(gone), "votes-closed")
            return
        except TransactionFailed as error:  # a late peer has voted meanwhile; it does so once for each link
            log.debug("votes of an ended job came late", job=jobs, reason=error.message)
            zk.sync()  # the server that we read from may not have heard of it
    if paths:
        log.warning("votes of an ended job stay", job=jobs, node=paths)
