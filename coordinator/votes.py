"""Where the peers of a job vote on its sentinels: made before the job runs, removed before its links are known to be gone.

Only a leader makes and removes these nodes: where one is gone nobody can vote. What earlier leaders did with them it has seen
since it took over (:meth:`coordinator.leader.Leader.take_over` lets its server catch up).
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator import layout
from coordinator.events import Create, Delete
from coordinator.leadership import Leadership
from coordinator.operations import chunked
from coordinator.outcomes import TransactionFailed

CLOSE_ATTEMPTS = 100
"""Times that the removal of a job's votes is begun; each time somebody has cast another one meanwhile."""

log = structlog.get_logger()


def open_for(leadership: Leadership, jobs: Sequence[str]) -> None:
    """To be called before it is logged that the links of these jobs stand."""
    paths = dict.fromkeys(map(layout.sentinels, jobs))
    if not paths:
        return
    stand = leadership.tree.read_many(paths)
    for chunk in chunked([Create(path)] for path in paths if path not in stand):
        leadership.commit(chunk)


def close_for(leadership: Leadership, jobs: Sequence[str]) -> None:
    """To be called before it is logged that the links of these jobs are gone, so that it is done again if we die before."""
    tree, paths = leadership.tree, [layout.sentinels(job) for job in jobs]
    for _ in range(CLOSE_ATTEMPTS if jobs else 0):
        votes = tree.children_of(paths)
        paths = list(votes)
        gone = ([*(Delete(f"{path}/{name}") for name in cast), Delete(path)] for path, cast in votes.items())
        try:
            for chunk in chunked(gone):
                leadership.commit(chunk)
            return
        except TransactionFailed as error:  # a late peer has voted meanwhile; it does so once for each link
            log.debug("votes of an ended job came late", job=jobs, reason=error.message)
            tree.sync()  # the server that we read from may not have heard of it
    if paths:
        log.warning("votes of an ended job stay", job=jobs, node=paths)
