"""The peer daemon: one ZooKeeper session, one Spark session, N virtual peers."""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog

from coordinator.tree import SessionLost, Tree
from peer.virtual_peer import VirtualPeer
from sardonyx.config import Settings
from sardonyx.errors import SetupError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

log = structlog.get_logger()

_SAY_AGAIN = 10.0
"""Seconds between lines that say what the daemon waits for."""

_BROKEN_PAUSE = 1.0
"""Seconds before a new session is begun because a virtual peer could not go on in the last."""

_LAST_STEPS = 30.0
"""Seconds that draining may take beyond a transaction's longest life: leaving the group, goodbyes, the end of Spark."""


class PeerDaemon:
    """Virtual peers for as long as the process lives, over any number of ZooKeeper sessions.

    When a session ends everything it owned is gone: all virtual peers stop without committing, and come back under new
    ids in a new session.
    """

    def __init__(self, settings: Settings, spark: SparkSession, code_cache: Path) -> None:
        self._settings = settings
        self._spark = spark
        self._code_cache = code_cache
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What happens to the session that is served now. Each has a queue of its own, since one that ends may still speak."""
        self._stopping = False

    def stop(self) -> None:
        """Drain: every virtual peer finishes its batch and leaves."""
        self._stopping = True
        self._news.put("STOP")

    def run(self) -> None:
        """Until :meth:`stop`.

        Raises:
            SetupError: ZooKeeper could not be reached at the start.
        """
        tree: Tree | None = self._connect()
        while tree is not None:
            self._session(tree)
            tree = None if self._stopping else self._reconnect()

    def _connect(self) -> Tree:
        self._news = queue.SimpleQueue()
        return Tree.connect(self._settings, listener=self._news.put)

    def _session(self, tree: Tree) -> None:
        """One ZooKeeper session, from its first pulse to its end."""
        news = self._news
        name = f"{_host()}-{secrets.token_hex(2)}"
        about: dict[str, str | int] = {"daemon": name, "host": socket.gethostname(), "pid": os.getpid()}
        peers = [
            VirtualPeer(
                self._settings,
                tree,
                self._spark,
                f"{name}-{index}",
                about,
                self._code_cache,
                broke=lambda: news.put("BROKE"),
            )
            for index in range(self._settings.peer.virtual_peers)
        ]
        log.info("peer daemon serves", daemon=name, virtual_peers=len(peers), deployment=self._settings.deployment)
        for peer in peers:
            peer.start()
        try:
            while not self._stopping:
                heard = news.get()
                if heard in ("LOST", "BROKE"):
                    log.warning("the ZooKeeper session is over: all virtual peers begin afresh", reason=heard.lower())
                    for peer in peers:
                        peer.lose()
                    if heard == "BROKE":  # it may break again at once
                        time.sleep(_BROKEN_PAUSE)
                    break
                if heard == "CONNECTED":
                    for peer in peers:
                        peer.look()
                elif heard == "SUSPENDED":
                    log.warning("ZooKeeper is away: nothing is committed until it is back", zookeeper=tree.hosts)
            if self._stopping:
                log.info("draining: every virtual peer finishes its batch")
                for peer in peers:
                    peer.leave()
            for peer in peers:
                peer.thread.join()
        finally:
            tree.close()

    def _reconnect(self) -> Tree | None:
        since = time.monotonic()
        said = 0.0
        while not self._stopping:
            try:
                return self._connect()
            except (SetupError, SessionLost) as error:
                if time.monotonic() - said > _SAY_AGAIN:
                    said = time.monotonic()
                    log.warning("waits for ZooKeeper", since_s=round(said - since), reason=error.message)
        return None


def main(settings: Settings) -> NoReturn:
    """What ``sardonyx peer`` runs. SIGTERM drains, a second one stops at once. Ends the process, unless it raises.

    Draining is bounded, whatever hangs: the system ends the process (SIGALRM) when it should have ended long ago. All that
    was committed stands, and the rest is the next peer's.

    Raises SetupError if something that it needs is missing at the start.
    """
    settings.require("zookeeper", "kafka")
    from sardonyx.reachable import check_reachable
    from spark_tasks.session import start_session, stop_session

    check_reachable(settings)
    # Spark before the first pulse: a peer that is offered a task must be able to answer at once.
    spark = start_session(settings.spark)
    with tempfile.TemporaryDirectory(prefix="sardonyx-code-") as code_cache:
        daemon = PeerDaemon(settings, spark, Path(code_cache))

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            if daemon._stopping:  # noqa: SLF001 (one object, two doors)
                os._exit(130)
            daemon.stop()
            signal.alarm(math.ceil(settings.peer.transaction_timeout + _LAST_STEPS))

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        try:
            daemon.run()
        finally:
            stop_session(spark)
    # Not by the interpreter's own end: that waits for threads and destroys Kafka clients, either of which can take for
    # ever when the broker went away in the middle of something.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _host() -> str:
    name = socket.gethostname().split(".")[0]
    return "".join(c if c.isalnum() or c == "-" else "-" for c in name) or "host"
