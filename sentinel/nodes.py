"""The transactions that create and delete the nodes below which peers elect the leading sentinel of each link. Pure.

Only the leading coordinator creates and deletes these nodes, so no peer can vote once a job's node is gone: it is created before
the job runs, and deleted before the log says that the job's links are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete
from sardonyx.zookeeper.transactions import Operation, chunked


def opening(jobs: Iterable[str]) -> list[list[Operation]]:
    """The transactions that create the nodes of these jobs."""
    return list(chunked([Create(path)] for path in dict.fromkeys(map(node_paths.sentinels, jobs))))


def closing(votes: Mapping[str, Iterable[str]]) -> list[list[Operation]]:
    """The transactions that delete the nodes of some jobs, with all votes below them.

    Args:
        votes: by the path of a job's node, the names of the nodes below it.
    """
    return list(chunked([*(Delete(f"{path}/{name}") for name in names), Delete(path)] for path, names in votes.items()))
