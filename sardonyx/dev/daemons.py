"""A coordinator and a peer daemon on this machine, as child processes for as long as a block runs."""

from __future__ import annotations

import contextlib
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


class Daemons:
    """One coordinator and one peer daemon, which die with us. Made by :func:`local_daemons`."""

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
        """Stop both, peers first, so that they can still tell the coordinator. May be repeated."""
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


@contextlib.contextmanager
def local_daemons(
    settings: Settings, folder: Path, *, virtual_peers: int | Literal["auto"], telling: bool = False
) -> Iterator[Daemons]:
    """Run both for as long as the block runs; then peers first, so that they can still tell the coordinator.

    Args:
        settings: what both are given, by environment: with the addresses of running services.
        folder: where ``coordinator.log`` and ``peer.log`` are written.
        virtual_peers: of the peer daemon, as in the setting.
        telling: whether it tells about its batches, unless the settings say otherwise: the pages show them.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``: said here, and not by way of a daemon that dies of it.
    """
    find_java()
    if telling and "metrics.telemetry" not in settings.origins:
        settings = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"telemetry": True})})
    daemons = Daemons()
    commands = [("coordinator", []), ("peer", ["--virtual-peers", str(virtual_peers)])]
    try:
        for name, arguments in commands:
            daemons.start(
                partial(
                    start_child,
                    [sys.executable, "-m", "sardonyx", name, *arguments],
                    name=name,
                    log_path=folder / f"{name}.log",
                    env=settings.environment(),
                )
            )
        yield daemons
    finally:
        daemons.stop()
