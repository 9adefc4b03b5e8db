"""Which daemons serve metrics, as Prometheus' HTTP service discovery asks for it.

Daemons say in their notes in ZooKeeper where they serve them. A note never changes, so that of a daemon is read once.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.addresses import is_loopback
from sardonyx.core.errors import SardonyxError
from sardonyx.core.notes import CandidateNote, PulseNote

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


class Target(msgspec.Struct, frozen=True):
    """A daemon, in the form of Prometheus."""

    targets: list[str]
    labels: dict[str, str]


class Targets:
    """The daemons of a deployment that serve metrics. Thread-safe.

    Args:
        zk: a session with the deployment.
        deployment: its name.
        here: the name of this machine.
    """

    def __init__(self, zk: ZooKeeperSession, deployment: str, here: str = "") -> None:
        self._zk = zk
        self._deployment = deployment
        self._here = here or socket.gethostname()
        self._lock = threading.Lock()
        self._known: dict[str, Target | None] = {}
        """By the daemon's name, or the coordinator's election node: how to reach it; None if it serves nothing to others."""

    def now(self) -> list[Target]:
        """Those that live now, by address.

        Raises:
            SardonyxError: ZooKeeper does not answer. Then we do not repeat what we knew: Prometheus keeps the last answer.
        """
        with self._lock:
            standing = {node: f"{node_paths.ELECTION}/{node}" for node in self._zk.children(node_paths.ELECTION)}
            peers = {peer.rpartition("-")[0]: node_paths.pulse(peer) for peer in self._zk.children(node_paths.PULSE)}
            found = self._told(standing, self._coordinator) | self._told(peers, self._peer)
            self._known = found
        return sorted((each for each in found.values() if each is not None), key=lambda each: each.targets)

    def _told(self, nodes: dict[str, str], read: Callable[[bytes], Target | None]) -> dict[str, Target | None]:
        new = self._zk.read_many(_unknown(nodes, self._known))
        return {
            name: self._known[name] if name in self._known else read(new[path])
            for name, path in nodes.items()
            if name in self._known or path in new
        }

    def _coordinator(self, data: bytes) -> Target | None:
        note = CandidateNote.read(data)
        return self._target("coordinator", note.metrics, note.name.rpartition(":")[0], note.version)

    def _peer(self, data: bytes) -> Target | None:
        note = PulseNote.read(data)
        return None if note is None else self._target("peer", note.metrics, note.host, note.version)

    def _target(self, daemon: str, place: str, host: str, version: str) -> Target | None:
        if not place or (is_loopback(place) and host != self._here):
            return None
        told = {"daemon": daemon, "deployment": self._deployment, "host": host, "version": version}
        return Target([place], {f"__meta_sardonyx_{label}": value for label, value in told.items()})


def _unknown(nodes: dict[str, str], known: dict[str, Target | None]) -> Iterable[str]:
    return [path for name, path in nodes.items() if name not in known]


def no_targets(why: str) -> SardonyxError:
    """The error where there are no daemons to be found."""
    return SardonyxError(
        "SX-WEB-PATH",
        "there are no daemons to scrape",
        cause=why,
        fix="ask a `sardonyx web` that shows a running deployment",
    )
