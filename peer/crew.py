"""How many virtual peers a peer daemon has in a session: as many as it was told to, or as jobs wait for."""

from __future__ import annotations

import itertools
import math
import os
import socket
from collections import Counter
from typing import Literal

import psutil
import structlog

from peer.virtual_peer import TaskRunner, VirtualPeer
from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT
from sardonyx.core.notes import PulseNote
from sardonyx.core.version import VERSION
from sardonyx.runtime.clock import Post
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

_AT_LEAST = 4
"""Virtual peers of a daemon that was not told how many."""

_MEMORY = 256 * 2**20
"""Bytes of the machine's memory for each virtual peer that such a daemon may start."""

_LOOK_EVERY = 5.0
"""Seconds between two looks of such a daemon at whether its virtual peers are too few, or too many."""

_IDLE = 60.0
"""Seconds that a virtual peer which such a daemon has added may be idle before it is removed."""


class Crew:
    """The virtual peers of one session. Their number follows what jobs wait for, between ``least`` and ``most``.

    The leader says how many peers all jobs wait for. Every daemon starts its share of them, and more as long as jobs still wait:
    other daemons may not start any. Peers that turn out to be too many help with tasks that take more than one, or leave after a
    while.
    None leaves while any job waits: a job may need more than this daemon has, and would wait for the same peers again.
    """

    def __init__(
        self,
        settings: Settings,
        zk: ZooKeeperSession,
        runner: TaskRunner,
        news: Post,
        between: tuple[int, int],
        metrics: str,
    ) -> None:
        self._settings, self._zk, self._runner, self._news = settings, zk, runner, news
        self._least, self._most = between
        self._runtime = zk.runtime
        self._name = f"{_host()}-{self._runtime.token()[:12]}"
        tags = tuple(settings.peer.tags)
        self.about = PulseNote(self._name, socket.gethostname(), os.getpid(), VERSION, FORMAT, tags, metrics)
        self._numbers = itertools.count()
        self._peers: list[VirtualPeer] = []
        self._over = self._runtime.signal()
        self._is_demand_known = False
        self._missing = 0
        self._daemons = 1
        self._grow(self._least)
        log.info("peer_daemon_started", daemon=self._name, virtual_peers=self._least, deployment=settings.deployment)
        if self._most > self._least:
            self._runtime.spawn(f"idle-{self._name}", self._tick)

    def follow_demand(self) -> None:
        """Start peers if jobs wait for more, and remove some that have been idle for long if none does."""
        if self._most == self._least:
            return
        if not self._is_demand_known:
            self._is_demand_known = True  # before it is read: the watch may tell of a change at once
            try:
                self._missing = int(self._zk.read(node_paths.JOB, watch=self._on_demand) or 0)
                if self._missing:
                    pulses = self._zk.children(node_paths.PULSE)
                    self._daemons = len({self._name, *(pulse.rpartition("-")[0] for pulse in pulses)})
            except (ZooKeeperAway, SessionLost):
                self._is_demand_known = False
                return  # the session's listener says when it is back, or over
        self._peers = [peer for peer in self._peers if not peer.ended]
        # The leader has not counted those that it has not noticed yet.
        wanted = math.ceil(self._missing / self._daemons) - sum(not peer.noticed for peer in self._peers)
        wanted = min(wanted, self._most - len(self._peers))
        if wanted > 0:
            self._grow(wanted)
            log.info("virtual_peers_added", added=wanted, jobs_wait_for=self._missing, virtual_peers=len(self._peers))
        elif not self._missing:
            self._shrink()

    def _on_demand(self, _event: object) -> None:
        self._is_demand_known = False
        self._news.put("DEMAND")

    def _tick(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            self._news.put("TICK")

    def _grow(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            peer = VirtualPeer(
                self._settings,
                self._zk,
                self._runner,
                f"{self._name}-{number}",
                self.about,
                broke=lambda: self._news.put("BROKE"),
            )
            peer.start()
            self._peers.append(peer)

    def _shrink(self) -> None:
        idle = [peer for peer in reversed(self._peers) if peer.idle_for > _IDLE]
        for peer in idle[: len(self._peers) - self._least]:
            log.info("virtual_peer_removed", idle_s=round(peer.idle_for))
            peer.leave()

    def states(self) -> dict[tuple[str, ...], float]:
        """How many virtual peers there are in each state. Called in any thread."""
        return dict(Counter((peer.state,) for peer in list(self._peers) if not peer.ended))

    def look(self) -> None:
        """The connection is back, and watches did not outlive its loss."""
        self._is_demand_known = False
        for peer in self._peers:
            peer.look()

    def lose(self) -> None:
        """The session has ended."""
        for peer in self._peers:
            peer.lose()

    def leave(self) -> None:
        for peer in self._peers:
            peer.leave()

    def join(self) -> None:
        self._over.set()
        for peer in self._peers:
            peer.join()


def peers_between(wanted: int | Literal["auto"], given: tuple[int, int] | None) -> tuple[int, int]:
    """How many virtual peers a daemon has at least and at most.

    Args:
        wanted: as in the setting.
        given: both, for one to which the setting leaves the number. None: four, and as many as this machine bears.
    """
    return (wanted, wanted) if wanted != "auto" else given or (_AT_LEAST, most_peers())


def most_peers() -> int:
    """How many virtual peers this machine bears: each has clients of Kafka, threads and buffers, and most of them wait."""
    cores = os.cpu_count() or 1
    return max(_AT_LEAST, min(max(32, 8 * cores), psutil.virtual_memory().total // _MEMORY))


def _host() -> str:
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name) or "host"


__all__ = ["Crew", "most_peers", "peers_between"]
