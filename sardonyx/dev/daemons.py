"""A coordinator and a peer daemon on this machine, as child processes for as long as a block runs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sardonyx.core.errors import SetupError
from sardonyx.runtime.child_process import SIGNALLED, ChildProcess, revived, start_child
from sardonyx.runtime.java import find_java

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings

DRAIN = 20.0
"""Seconds that a daemon has to finish its batch after SIGTERM before it is killed."""

_SOON = 30.0
"""Seconds. A daemon that fails sooner after its start does so because of something that is still there."""


_HEARTBEAT = 0.2
"""Seconds between two signs of life of the few peers of this machine. With the next one a peer hears that another one joins its
task, or leaves it; until then the other one waits."""


class Daemons:
    """Daemons that die with us."""

    def __init__(self) -> None:
        self._starts: list[tuple[Callable[[], ChildProcess], float]] = []
        self._children: list[ChildProcess] = []

    def start(self, begin: Callable[[], ChildProcess]) -> ChildProcess:
        """Start one. ``begin`` may be called again, if it is killed."""
        child = begin()
        self._starts.append((begin, time.monotonic()))
        self._children.append(child)
        return child

    def stop(self) -> None:
        """Stop them, the last one first. May be repeated."""
        for child in reversed(self._children):
            child.stop(DRAIN)

    def revive(self) -> list[str]:
        """Start again what has ended, and give the words for it.

        Raises:
            SetupError: ``SX-DAEMON-DIED``: one has failed by itself soon after its start. It would do so again.
        """
        found = []
        for place, child in enumerate(self._children):
            code, (begin, since) = child.poll(), self._starts[place]
            if code is None:
                continue
            if 0 < code < SIGNALLED and time.monotonic() - since < _SOON:
                self.check()
            self._starts[place] = begin, time.monotonic()
            self._children[place] = begin()
            found.append(revived(child, self._children[place]))
        return found

    def check(self) -> None:
        """Raises ``SX-DAEMON-DIED``, with its last lines, if one of them has ended by itself."""
        for child in self._children:
            code = child.poll()
            if code is not None:
                tail = child.log_tail(30)
                raise SetupError(
                    "SX-DAEMON-DIED",
                    f"the local {child.name} ended with exit code {code}",
                    cause=f"its last lines were:\n{tail}" if tail else "it wrote nothing",
                    fix="look for the cause in the lines above; `sardonyx doctor` checks what a daemon needs",
                    where={"log": child.log_path},
                )


class LocalDaemons(Daemons):
    """A coordinator and a peer daemon. Made by :func:`starting_daemons`."""

    def __init__(self, folder: Path, *, virtual_peers: int | Literal["auto"], telling: bool) -> None:
        super().__init__()
        self._folder = folder
        self._telling = telling
        self._settings: bytes | None = None
        self.useless = False
        """Whether the services end with the daemons, and so does all that the coordinator would still do: it is killed."""
        self._waiting: list[int] = []
        """Where to write to those that wait for their settings."""
        try:
            self.start(partial(self._begin, "coordinator"))
            self.start(partial(self._begin, "peer", "--virtual-peers", str(virtual_peers)))
        except BaseException:
            self.stop()
            raise

    def connect(self, settings: Settings) -> None:
        """Let them begin: ZooKeeper answers now where these settings say, and Kafka does or is starting. The daemons read the
        settings from a pipe. May be repeated with other settings: then they begin anew.
        """
        if self._telling and "metrics.telemetry" not in settings.origins:
            metrics = settings.metrics.model_copy(update={"telemetry": True})
            settings = settings.model_copy(update={"metrics": metrics})
        if "peer.heartbeat" not in settings.origins:
            peer = settings.peer.model_copy(update={"heartbeat": _HEARTBEAT})
            settings = settings.model_copy(update={"peer": peer})
        before, self._settings = self._settings, json.dumps(settings.environment()).encode()
        if before not in (None, self._settings):
            for child in self._children:
                child.kill()
            self.revive()
        self._tell()

    def stop(self) -> None:
        """Stop both, peers first, so that they can still tell the coordinator. May be repeated."""
        while self._waiting:
            os.close(self._waiting.pop())
        if self.useless:
            for child in self._children[1:]:
                child.stop(DRAIN)
            self._children[0].kill()
        super().stop()

    def _begin(self, name: str, *arguments: str) -> ChildProcess:
        read, write = os.pipe()
        self._waiting.append(write)
        try:
            child = start_child(
                # It lies in a layer above this one, so it is named here and not imported.
                [sys.executable, "-m", "sardonyx.cli.early_daemon", name, *arguments],
                name=name,
                log_path=self._folder / f"{name}.log",
                stdin=read,
            )
        finally:
            os.close(read)
        if self._settings is not None:  # it is started again
            self._tell()
        return child

    def _tell(self) -> None:
        while self._waiting:
            with contextlib.suppress(BrokenPipeError), os.fdopen(self._waiting.pop(), "wb") as pipe:
                pipe.write(self._settings or b"")  # to one that has ended, of which `check` tells


@contextlib.contextmanager
def starting_daemons(
    folder: Path, *, virtual_peers: int | Literal["auto"], telling: bool = False
) -> Iterator[LocalDaemons]:
    """Start both for as long as the block runs. They import their code, which takes a second, and then wait for
    :meth:`LocalDaemons.connect`. In the end peers stop first, so that they can still tell the coordinator.

    Args:
        folder: where ``coordinator.log`` and ``peer.log`` are written.
        virtual_peers: of the peer daemon, as in the setting.
        telling: whether it tells about its batches, unless the settings say otherwise: the pages show them.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``: said here, and not by way of a daemon that dies of it.
    """
    find_java()
    daemons = LocalDaemons(folder, virtual_peers=virtual_peers, telling=telling)
    try:
        yield daemons
    finally:
        daemons.stop()


@contextlib.contextmanager
def local_daemons(settings: Settings, folder: Path, *, virtual_peers: int | Literal["auto"]) -> Iterator[LocalDaemons]:
    """Like :func:`starting_daemons`, for services that answer already.

    Args:
        settings: what both are given: with the addresses of the services.
        folder: as there.
        virtual_peers: as there.
    """
    with starting_daemons(folder, virtual_peers=virtual_peers) as daemons:
        daemons.connect(settings)
        yield daemons
