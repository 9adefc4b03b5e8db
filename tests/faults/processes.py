"""Peers as processes that start in a tenth of a second: the product's own daemon, loop, queues and connectors, without a JVM.

Functions run in the peer's process instead of on Spark's workers; everything else is what ``sardonyx peer`` runs. Starting
Spark takes twenty seconds of a processor, and a fault run kills hundreds of peers. ``spark=True`` starts real ones.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import peer.preparation
import peer.task_loop
import spark_tasks.apply
import spark_tasks.read_splits
from coordinator.daemon import Coordinator
from coordinator.kafka.job_links import KafkaLinks
from peer import gc_policy
from peer.daemon import PeerDaemon
from peer.task_runner import SparkTaskRunner
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.runtime.signals import heard
from spark_tasks.on_demand import SparkOnDemand
from tests.services.light import Actor, _processes, follow


class Process(Protocol):
    """What the harness asks of a process, however it was started."""

    name: str
    pid: int

    @property
    def gone(self) -> bool: ...
    def send(self, number: int) -> None: ...
    def end(self) -> None: ...


class Quick(Actor):
    """Forked off one that has imported everything."""

    @property
    def gone(self) -> bool:
        return self.exit_code is not None

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just died
            super().send(number)

    def end(self) -> None:
        self.kill()


class Real:
    """``sardonyx peer``, as a user starts it."""

    def __init__(self, name: str, keeper: ChildProcess) -> None:
        self.name, self.pid, self._keeper = name, keeper.pid, keeper

    @property
    def gone(self) -> bool:
        return self._keeper.poll() is not None

    def send(self, number: int) -> None:
        self._keeper.signal(number)

    def end(self) -> None:
        self._keeper.kill()


def warm() -> None:
    """Have the process that others are forked off import everything beforehand. Once, before the first is started."""
    modules = ["queues.admin", "sardonyx.connectors.files.output", "sardonyx.connectors.generator", "pandas"]
    _processes.set_forkserver_preload([__name__, *modules])


def coordinator(name: str, folder: Path, settings: Settings, failpoints: Path) -> Process:
    """A coordinator, standing for election."""
    return Quick(name, folder, _coordinate, settings, failpoint=str(failpoints))


def peers(name: str, folder: Path, settings: Settings, failpoints: Path, *, spark: bool = False) -> Process:
    """A peer daemon with as many virtual peers as the settings say.

    Args:
        name: of its log in ``folder``.
        folder: for that.
        settings: of the deployment.
        failpoints: the directory of armed failpoints.
        spark: whether it is a real one.
    """
    if not spark:
        return Quick(name, folder, partial(_serve, folder), settings, failpoint=str(failpoints))
    env = {**settings.environment(), "SARDONYX_FAILPOINT": str(failpoints)}
    command = [sys.executable, "-m", "sardonyx", "peer"]
    return Real(name, start_child(command, name=name, log_path=folder / f"{name}.log", env=env))


# In the process


def _coordinate() -> None:
    follow()
    settings = load_settings()
    configure_logging(settings)
    Coordinator(settings, KafkaLinks(settings)).run()


def _serve(folder: Path) -> None:
    follow()
    faulthandler.register(signal.SIGUSR1)  # where every thread is, into the log: who does not do as told is asked
    settings = load_settings()
    configure_logging(settings)
    gc_policy.seldom()  # as a daemon does when it has imported everything
    with tempfile.TemporaryDirectory(prefix="code-", dir=folder) as cache:
        daemon = PeerDaemon(settings, SparkTaskRunner(settings, SparkOnDemand(Here), Path(cache)))
        with heard([signal.SIGTERM], lambda _: daemon.stop()):
            daemon.run()
    os._exit(0)  # as the daemon does: the destruction of a Kafka client may never end


class Here:
    """What of a Spark session and its context the code asks for, in this very process."""

    defaultParallelism = 1  # noqa: N815 (Spark's name)
    master = "local"
    """So that rows go by shared memory here too."""

    @property
    def sparkContext(self) -> Here:  # noqa: N802 (Spark's name)
        return self

    def setJobDescription(self, _what: str) -> None:  # noqa: N802 (Spark's name)
        pass

    def addFile(self, _path: str) -> None:  # noqa: N802 (Spark's name)
        pass

    def parallelize(self, items: Iterable[Any], _slices: int) -> Items:
        return Items(list(items))


class Items:
    """An RDD that is a list."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def map(self, work: Callable[[Any], Any]) -> Items:
        return Items([work(item) for item in self._items])

    def collect(self) -> list[Any]:
        return self._items


__all__ = ["Process", "coordinator", "peer", "peers", "spark_tasks", "warm"]
