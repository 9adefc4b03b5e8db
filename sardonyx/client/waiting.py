"""Waits for what a coordinator is to write in ZooKeeper, and tells which requests it has not processed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sardonyx.core import node_paths
from sardonyx.core.errors import Interrupted
from sardonyx.core.names import numbered
from sardonyx.core.units import seconds

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

REREAD = 5.0
"""Seconds after which a node is read again although its watch did not fire."""


def await_node(
    zk: ZooKeeperSession,
    path: str,
    done: Callable[[bytes | None], bool],
    timeout: float | str | None,
    late: Interrupted | None,
) -> None:
    """Wait until a node's data (None: it is gone) are as they are to be. If they are not in time, raise ``late``, if any."""
    changed = threading.Event()
    deadline = math.inf if timeout is None else time.monotonic() + seconds(timeout)

    def wake(_event: object) -> None:  # one and the same each time: kazoo keeps every watch that is another one
        changed.set()

    while True:
        changed.clear()
        if done(zk.read(path, watch=wake)):
            return
        left = deadline - time.monotonic()
        if left <= 0:
            if late is None:
                return
            raise late
        changed.wait(min(left, REREAD))


def requests_waiting(zk: ZooKeeperSession) -> tuple[int, str | None]:
    """How many requests no coordinator has processed, and the path of the one that has waited longest; None: none waits. Names
    begin with what is asked for, so their order says nothing of when.
    """
    names = zk.children(node_paths.INBOX)
    first = min(names, key=numbered, default=None)
    return len(names), None if first is None else f"{node_paths.INBOX}/{first}"
