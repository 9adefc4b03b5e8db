"""A coordinator and a peer daemon as our own child processes, for ``run`` and ``dev``; and how we are told to stop."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sardonyx.errors import SetupError
from sardonyx.java import find_java
from sardonyx.keeper import Keeper, start_child

if TYPE_CHECKING:
    from sardonyx.config import Settings

DRAIN = 20.0
"""Seconds that a daemon has to finish its batch after SIGTERM before it is killed."""


class Daemons:
    """One coordinator and one peer daemon, which die with us. Made by :func:`local_daemons`."""

    def __init__(self, children: list[Keeper]) -> None:
        self._children = children

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
                    fix="the cause stands in the lines above; `sardonyx doctor` checks what it needs",
                    where={"log": child.log_path},
                )


@contextlib.contextmanager
def local_daemons(settings: Settings, folder: Path, *, virtual_peers: int) -> Iterator[Daemons]:
    """Run both for as long as the block runs; then peers first, so that they can still tell the coordinator.

    Args:
        settings: what both are given, by environment: with the addresses of running services.
        folder: where ``coordinator.log`` and ``peer.log`` are written.
        virtual_peers: of the peer daemon.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``: said here, and not by way of a daemon that dies of it.
    """
    find_java()
    children: list[Keeper] = []
    commands = [("coordinator", []), ("peer", ["--virtual-peers", str(virtual_peers)])]
    try:
        for name, arguments in commands:
            children.append(
                start_child(
                    [sys.executable, "-m", "sardonyx", name, *arguments],
                    name=name,
                    log_path=folder / f"{name}.log",
                    env=settings.environment(),
                )
            )
        yield Daemons(children)
        for child in reversed(children):
            child.stop(DRAIN)
    except KeyboardInterrupt:  # asked for the second time: nothing is waited for any more
        raise
    except BaseException:
        for child in reversed(children):
            child.stop(DRAIN)
        raise
    finally:
        for child in children:
            child.kill()


class StopRequest:
    """Ctrl-C or SIGTERM, noted instead of obeyed at once. The second one is obeyed."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, most: float) -> bool:
        """Wait for the request so many seconds; whether it has come."""
        return self._asked.wait(most)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch Ctrl-C and SIGTERM for as long as the block runs."""
    request = StopRequest()
    before = {number: signal.signal(number, request._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}  # noqa: SLF001
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
