"""Which releases the coordinators of a deployment are of: during a rolling upgrade there are two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT, RULES
from sardonyx.core.notes import CandidateNote


class Nodes(Protocol):
    """What is asked of a session here."""

    def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted."""

    def read(self, path: str) -> bytes | None:
        """A node's data; None if it does not exist."""

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The data of nodes, without those that do not exist."""


class InForce(msgspec.Struct, frozen=True):
    """What a coordinator must be able to read, and to decide by, to lead. Both are 0 while the log is empty."""

    format: int = 0
    rules: int = 0


class Understood(NamedTuple):
    """What the coordinators of a deployment understand now."""

    known: int = FORMAT
    """The newest format that each coordinator reads which leads, or can lead next."""
    oldest: int = FORMAT
    """The newest format that each coordinator reads which stands for election. As long as it is older than :attr:`known`,
    decisions follow the rules of the release before."""
    lasting: bool = False
    """Whether no coordinator of an older release can lead any more, and decisions follow the rules of this one."""


def understood(zk: Nodes) -> Understood:
    """What the coordinators understand. Costs three reads; five as long as it can change."""
    batch = latest_batch(zk)
    found = InForce()
    if batch is not None:
        try:
            found = msgspec.json.decode(batch[1], type=InForce)
        except (msgspec.DecodeError, RecursionError):
            return Understood()  # it is not a log, and who reads it says so
    if found.format >= FORMAT and found.rules >= RULES:
        return Understood(lasting=True)
    places = zk.read_many(f"{node_paths.ELECTION}/{name}" for name in zk.children(node_paths.ELECTION))
    standing = min((CandidateNote.read(data).format for data in places.values()), default=found.format or FORMAT)
    oldest = min(standing, FORMAT)
    return Understood(FORMAT if found.format >= FORMAT else oldest, oldest)


def latest_batch(zk: Nodes) -> tuple[int, bytes] | None:
    """The last node of the log: the number of its first entry, and its data; None if the log is empty."""
    for bucket in reversed(zk.children(node_paths.LOG)):
        batches = zk.children(f"{node_paths.LOG}/{bucket}")
        data = zk.read(f"{node_paths.LOG}/{bucket}/{batches[-1]}") if batches else None
        if data is not None:
            return int(batches[-1]), data
    return None
