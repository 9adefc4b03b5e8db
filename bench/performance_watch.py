"""Our side, looked at while it runs: daemons started one by one, what each batch commits, and the memory they take."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import psutil
from performance_track import Track

from sardonyx.client.client import Client
from sardonyx.dev.daemons import DRAIN
from sardonyx.runtime.child_process import ChildProcess, start_child

PRODUCT = ("-m", "sardonyx")
"""What Python is given to be the product."""


class Commits(NamedTuple):
    """What a task has committed, batch by batch, by the daemons' own clock."""

    at: np.ndarray
    """When, in seconds since 1970, sorted."""
    rows: np.ndarray
    """Rows read, of all batches up to then."""

    @property
    def steady(self) -> float:
        """Rows a second between the commits by which a tenth and nine tenths of all rows had been read."""
        first, last = np.searchsorted(self.rows, self.rows[-1] * np.array([0.1, 0.9]))
        return float((self.rows[last] - self.rows[first]) / (self.at[last] - self.at[first]))


@dataclass(frozen=True)
class Daemons:
    """A coordinator and peer daemons of our own."""

    client: Client
    peers: list[ChildProcess]

    def commits(self, task: str) -> Commits:
        """Of all peers together, read out of their logs: a curve needs the time of each."""
        found = sorted((batch["timestamp"], batch["rows_in"]) for batch in self.batches(task))
        at = np.array([datetime.fromisoformat(moment).timestamp() for moment, _ in found])
        return Commits(at, np.cumsum([rows for _, rows in found]))

    def begun(self, *tasks: str) -> float:
        """When the first batch of these tasks had been read, in seconds since 1970."""
        return min(
            datetime.fromisoformat(str(batch["timestamp"])).timestamp()
            - sum(float(spent) for step, spent in batch.items() if step.endswith("_ms") and step != "wait_ms") / 1000
            for task in tasks
            for batch in self.batches(task)
        )

    def processor_seconds(self) -> float:
        """What the peer daemons and their child processes have taken so far, in their own code and in the system's."""
        spent = 0.0
        for peer in self.peers:
            daemon = psutil.Process(peer.pid)
            for each in (daemon, *daemon.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    times = each.cpu_times()
                    spent += times.user + times.system
        return spent

    def batches(self, task: str) -> list[dict[str, str | int]]:
        """Their log lines."""
        lines = [line for peer in self.peers for line in str(peer.log_path and peer.log_path.read_text()).splitlines()]
        told = [msgspec.json.decode(line) for line in lines if '"batch_committed"' in line]
        return [batch for batch in told if batch["task"] == task]


@contextlib.contextmanager
def daemons(
    track: Track,
    virtual: int,
    *,
    count: int = 1,
    program: Sequence[str | Path] = PRODUCT,
    master: str | None = None,
    quiet: bool = False,
) -> Iterator[Daemons]:
    """Run them as long as the block runs, from when all their virtual peers are there.

    Args:
        track: where.
        virtual: virtual peers of each daemon.
        count: peer daemons.
        program: what Python is given to be a peer daemon.
        master: Spark's; None: as configured.
        quiet: whether their logs do without a line for each batch.
    """
    folder = Path(tempfile.mkdtemp(dir=track.folder))
    # Each committed batch is a line of the log then.
    spoken = track.settings.log.model_copy(update={"level": "debug", "format": "json"})
    settings = track.settings if quiet else track.settings.model_copy(update={"log": spoken})
    if master is not None:
        settings = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": master})})
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str | Path) -> ChildProcess:
            log = folder / f"{name}.log"
            child = start_child([sys.executable, *command], name=name, log_path=log, env=settings.environment())
            stack.callback(child.stop, DRAIN)
            return child

        start("coordinator", *PRODUCT, "coordinator")
        peers = [start(f"peer-{n}", *program, "peer", "--virtual-peers", str(virtual)) for n in range(count)]
        client = stack.enter_context(Client(settings=settings))
        while len(client.peers()) < count * virtual:
            for peer in peers:
                assert peer.poll() is None, peer.log_tail()
            time.sleep(0.1)
        yield Daemons(client, peers)


class Memory:
    """What a peer daemon's processes hold of the machine's memory (RSS, in MiB), each second: itself, its JVM, and Spark's
    Python workers together, of which pages that they share count for each.
    """

    OF = ("a peer daemon", "its JVM", "its Python workers")

    def __init__(self, pid: int) -> None:
        self.samples: list[tuple[float, ...]] = []
        """Seconds since 1970, and one for each of :data:`OF`."""
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            held = [float(self._process.memory_info().rss), 0.0, 0.0]
            for child in self._process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has just ended
                    held[1 if child.name() == "java" else 2] += child.memory_info().rss
            self.samples.append((time.time(), *(size / 2**20 for size in held)))
