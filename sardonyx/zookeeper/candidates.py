"""The coordinators that stand for election, the one that leads among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.core import node_paths
from sardonyx.core.notes import CandidateNote

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


def candidates(zk: ZooKeeperSession) -> list[CandidateNote]:
    """What each of them says of itself."""
    found = zk.read_many(f"{node_paths.ELECTION}/{name}" for name in zk.children(node_paths.ELECTION))
    return [CandidateNote.read(data) for data in found.values()]


def all_know(zk: ZooKeeperSession, rules: int) -> bool:
    """Whether there are any, and all of them know these rules."""
    found = candidates(zk)
    return bool(found) and all(note.rules >= rules for note in found)
