"""Which process follows the state of a task, so that it can take it over at once. Pure.

The coordinator and all peer daemons rank the processes of a deployment for each task, in the same order, without asking each
other. (The idea is rendezvous hashing, Thaler and Ravishankar 1998.) The first one of the order follows the shards of the task
that it does not hold itself; if it holds some, the second one follows, too. The coordinator gives a slot to the first one that
has an idle peer, unless the process that had it last has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

MOST = 1
"""The most processes that may follow a task's state for each of its shards."""


def ranked(job: str, task: str, homes: Iterable[str]) -> list[str]:
    """Processes in the order in which they are to stand by for a task.

    Args:
        job: its id.
        task: the name of the task.
        homes: ``host:pid`` of each (:attr:`coordinator.core.state.Peer.home`).
    """
    return sorted(homes, key=lambda home: (_rank(job, task, home), home))


def followers(job: str, task: str, homes: Iterable[str], holders: Collection[str]) -> list[str]:
    """The processes that follow the state of a task: for each shard one that does not hold it, if there are two.

    Args:
        job: its id.
        task: the name of the task.
        homes: of all processes that can run the task.
        holders: of those that have a peer on it.
    """
    order = ranked(job, task, homes)
    return order[:2] if order and order[0] in holders else order[:1]


def _rank(job: str, task: str, home: str) -> bytes:
    return hashlib.blake2b(f"{job}/{task}/{home}".encode(), digest_size=8).digest()


__all__ = ["MOST", "followers", "ranked"]
