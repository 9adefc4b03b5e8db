"""Coordinators and peer daemons as processes of their own, as a user starts them, that a test can kill."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from sardonyx.client.client import Client, JobHandle
from sardonyx.client.views import JobView
from sardonyx.core import node_paths
from sardonyx.core.notes import EpochNote
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.waiting import PATIENCE, until


class Crew(contextlib.ExitStack):
    """The processes of one deployment; leaving it stops them all.

    Args:
        settings: of the deployment.
        folder: where their logs go.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        super().__init__()
        self.settings = settings
        self._folder = folder
        self._number = itertools.count()
        self.processes: list[ChildProcess] = []
        self.client = self.enter_context(Client(settings=settings))

    def coordinator(self, failpoint: str = "", settings: Settings | None = None) -> ChildProcess:
        """One more coordinator, standing for election. ``failpoint``: see :mod:`sardonyx.runtime.failpoints`.

        ``settings``: of its own, such as other credentials.
        """
        return self._start("coordinator", failpoint=failpoint, settings=settings)

    def peers(
        self,
        virtual_peers: int = 4,
        *,
        wait: bool = True,
        failpoint: str = "",
        settings: Settings | None = None,
    ) -> ChildProcess:
        """One more peer daemon; by default waits until its virtual peers are registered."""
        daemon = self._start("peer", "--virtual-peers", str(virtual_peers), failpoint=failpoint, settings=settings)
        if wait:
            self.until(lambda: self._registered(daemon) == virtual_peers, "the peers to register")
        return daemon

    def leader(self) -> ChildProcess:
        """The coordinator that leads."""

        def leading() -> ChildProcess | None:
            with contextlib.closing(ZooKeeperSession.connect(self.settings)) as zk:
                data = zk.read(node_paths.EPOCH)
            pid = msgspec.json.decode(data, type=EpochNote).leader.rpartition(":")[2] if data else ""
            return next((process for process in self.processes if str(process.pid) == pid), None)

        return self.until(leading, "a coordinator that leads")

    def completed(self, handle: JobHandle, timeout: float = 300) -> JobView:
        """Wait for the job's end, which must be a good one."""
        view = handle.await_completion(timeout)
        assert view.status == "completed", view
        return view

    def until(self, condition: Callable, what: str, timeout: float = PATIENCE):
        """As :func:`tests.waiting.until`; when it never comes, with the ends of all logs."""
        try:
            return until(condition, what=what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def logs(self, lines: int = 40) -> str:
        """What every process said last."""
        return "\n".join(f"--- {p.name} (exit {p.poll()})\n{p.log_tail(lines)}" for p in self.processes)

    def _registered(self, daemon: ChildProcess) -> int:
        return sum(peer.pid == daemon.pid for peer in self.client.peers())

    def _start(self, *arguments: str, failpoint: str = "", settings: Settings | None = None) -> ChildProcess:
        name = f"{arguments[0]}-{next(self._number)}"
        env = {**(settings or self.settings).environment(), **({"SARDONYX_FAILPOINT": failpoint} if failpoint else {})}
        command = [sys.executable, "-m", "sardonyx", *arguments]
        process = start_child(command, name=name, log_path=self._folder / f"{name}.log", env=env)
        self.processes.append(self.enter_context(process))
        return process
