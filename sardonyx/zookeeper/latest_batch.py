"""The end of the coordinators' log, for all who may read it: which rules are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.wire_types import ready_for_threads

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


@ready_for_threads
class _Batch(msgspec.Struct):
    rules: int = 0


def latest_batch(zk: ZooKeeperSession) -> tuple[int, bytes] | None:
    """The last node of the log: the number of its first entry, and its data; None if the log is empty."""
    for bucket in reversed(zk.children(node_paths.LOG)):
        batches = zk.children(f"{node_paths.LOG}/{bucket}")
        data = zk.read(f"{node_paths.LOG}/{bucket}/{batches[-1]}") if batches else None
        if data is not None:
            return int(batches[-1]), data
    return None


def rules_in_force(zk: ZooKeeperSession) -> int:
    """The rules by which the log goes on: no coordinator can lead that does not know them. 0: the log is empty."""
    found = latest_batch(zk)
    return 0 if found is None else msgspec.json.decode(found[1], type=_Batch).rules


__all__ = ["latest_batch", "rules_in_force"]
