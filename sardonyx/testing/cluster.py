"""A deployment of its own for a test: a coordinator and peers as processes, on real ZooKeeper and Kafka."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from queues import topics
from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.views import JobView
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.job.builder import Job
from sardonyx.job.load import LoadedJob
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import load_settings
from sardonyx.testing.faults import Daemon, Fault

_REGISTER = 90.0
"""Seconds that a peer daemon may take to start Spark and to be seen by the coordinator."""


class Addresses(NamedTuple):
    """Where ZooKeeper and Kafka serve, ``host:port``, and how one logs in."""

    zookeeper: str
    kafka: str
    login: Mapping[str, Any] = {}
    """Settings by dotted key; empty if they ask for no login."""

    def __repr__(self) -> str:
        """Without the password, because pytest shows the arguments of a test that fails."""
        return f"Addresses(zookeeper={self.zookeeper!r}, kafka={self.kafka!r})"


class Cluster(contextlib.ExitStack):
    """A coordinator and as many peers as the test starts; the end of the ``with`` block stops them all.

        with Cluster(services, folder) as cluster:
            cluster.peers(1, faults=[kill_at("committed", 3)])
            view = cluster.run(job)

    Args:
        services: where ZooKeeper and Kafka are, and how one logs in.
        folder: where the daemons' logs and temporary files go.
        settings: more settings for all of them, by name: ``{"peer.session_timeout": "5 s"}``.
    """

    def __init__(self, services: Addresses, folder: Path, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        given = {"deployment": f"test-{uuid.uuid4().hex[:10]}", **services.login, **(settings or {})}
        addresses = {"zookeeper.hosts": services.zookeeper, "kafka.bootstrap_servers": services.kafka}
        self.services = services
        self.settings = load_settings(**{**given, **addresses})
        self.folder = folder
        self.daemons: list[Daemon] = []
        self.temporary = folder / "tmp"
        """``TMPDIR`` of the daemons, so that what a killed daemon leaves goes with the test's own folder."""
        self.temporary.mkdir()
        self._number = itertools.count()
        self.client = self.enter_context(Client(settings=self.settings))
        self.coordinator()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        swallowed = super().__exit__(kind, error, where)
        missing = [
            fault for daemon in self.daemons for fault in daemon.missing
        ]  # a fault may occur while they are stopped
        if error is None and missing:
            raise AssertionError(f"a fault of the script has not occurred: {missing[0]}\n{self.logs()}")
        return bool(swallowed)

    # --- daemons -------------------------------------------------------------------------------------------------

    def coordinator(self, faults: Sequence[Fault] = ()) -> Daemon:
        """Start another coordinator; one leads, the others are standbys."""
        return self._daemon("coordinator", [], faults)

    def peers(self, virtual_peers: int | Literal["auto"] = 2, faults: Sequence[Fault] = ()) -> Daemon:
        """Start another peer daemon, and wait until its virtual peers are registered.

        Args:
            virtual_peers: how many; ``auto``: as many as jobs need. Then one of them is waited for.
            faults: its fault script; after each fault the daemon is started again. The end of the cluster raises
                ``AssertionError`` if a fault has not occurred.
        """
        least = 1 if virtual_peers == "auto" else virtual_peers
        daemon = self._daemon("peer", ["--virtual-peers", str(virtual_peers)], faults)

        def registered() -> bool:
            # By process: peers of a daemon that stopped a moment ago may still be listed.
            every = {process.pid for process in daemon.processes}
            return sum(peer.pid in every for peer in self.client.peers()) >= least

        self._until(registered, "the peers to register", _REGISTER)
        return daemon

    def logs(self, lines: int = 30) -> str:
        """The last lines of every process."""
        every = [process for daemon in self.daemons for process in daemon.processes]
        return "\n".join(f"--- {p.name} (exit {p.poll()})\n{p.log_tail(lines)}" for p in every)

    def _daemon(self, name: str, arguments: list[str], faults: Sequence[Fault]) -> Daemon:
        def start(failpoint: dict[str, str]) -> ChildProcess:
            called = f"{name}-{next(self._number)}"
            return start_child(
                [sys.executable, "-m", "sardonyx", name, *arguments],
                name=called,
                log_path=self.folder / f"{called}.log",
                env={**self.settings.environment(), "TMPDIR": str(self.temporary), **failpoint},
            )

        daemon = Daemon(start, faults)
        self.daemons.append(daemon)
        self.callback(daemon.stop)
        return daemon

    # --- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, job: Job | LoadedJob | str | os.PathLike[str]) -> JobHandle:
        """Submit a job, as :meth:`sardonyx.client.client.Client.submit`."""
        return self.client.submit(job)

    def run(self, job: Job | LoadedJob | str | os.PathLike[str], timeout: float | str = "2 min") -> JobView:
        """Submit a job and wait until it has completed. An error comes with the last lines of the daemons.

        Raises:
            JobFailed, Interrupted: as :meth:`sardonyx.client.job_handle.JobHandle.await_completion`.
        """
        handle = self.submit(job)
        try:
            return handle.await_completion(timeout)
        except SardonyxError as error:
            error.add_note(self.logs())
            raise

    # --- topics --------------------------------------------------------------------------------------------------

    def topic(self, name: str, records: Iterable[Any] = (), partitions: int = 2) -> str:
        """Make a topic that only this cluster uses, and fill it.

        Args:
            name: the end of its name.
            records: written round robin over the partitions: bytes as they are, all else as JSON.
            partitions: how many.

        Returns:
            its full name, for the job.
        """
        topic = f"{self.settings.deployment}-{name}"
        topics.create(self.settings, topic, partitions)
        self.fill(topic, records, partitions)
        return topic

    def fill(self, topic: str, records: Iterable[Any], partitions: int = 2) -> None:
        """Write records to a topic, round robin over its partitions; see :meth:`topic`."""
        values = (record if isinstance(record, bytes) else json.dumps(record).encode() for record in records)
        topics.write(self.settings, topic, values, partitions)

    def records(self, topic: str) -> list[Any]:
        """The committed JSON records of a topic, partition by partition; a record that is not JSON as raw bytes."""
        return [_plain(value) for _, value in topics.read_committed(self.settings, topic)]

    # --- underneath ----------------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline or any(daemon.ended for daemon in self.daemons):
                raise SetupError(
                    "SX-TEST-CLUSTER",
                    f"waited {timeout:g} s for {what}, or until a daemon ended",
                    cause=f"their last lines were:\n{self.logs()}",
                    fix="read the lines above; `sardonyx doctor` checks what the daemons need",
                )
            time.sleep(0.05)


def _plain(value: bytes | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value
