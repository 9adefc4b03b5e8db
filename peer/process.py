"""What a peer daemon is in its deployment."""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.core.notes import PulseNote
from sardonyx.zookeeper.session import ZooKeeperSession


class Process(NamedTuple):
    """A daemon in one session with ZooKeeper."""

    zk: ZooKeeperSession
    about: PulseNote
