"""A coordinator and a peer daemon as child processes of ``run`` and ``dev``; and the request to stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from sardonyx.core.errors import SetupError
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.java import find_java

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended."""
_SHOW_CURSOR = b"\x1b[?25h\n"  # live bars hide it

DRAIN = 20.0
"""Seconds that a daemon has to finish its batch after SIGTERM before it is killed."""


class Daemons:
    """One coordinator and one peer daemon, which die with us. Made by :func:`local_daemons`."""

    def __init__(self, children: list[ChildProcess]) -> None:
        self._children = children

    def stop(self) -> None:
        """Stop both, peers first, so that they can still tell the coordinator. May be repeated."""
        for child in reversed(self._children):
            child.stop(DRAIN)

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
def local_daemons(settings: Settings, folder: Path, *, virtual_peers: int | Literal["auto"]) -> Iterator[Daemons]:
    """Run both for as long as the block runs; then peers first, so that they can still tell the coordinator.

    Args:
        settings: what both are given, by environment: with the addresses of running services.
        folder: where ``coordinator.log`` and ``peer.log`` are written.
        virtual_peers: of the peer daemon, as in the setting.

    Raises:
        SetupError: ``SX-JAVA-MISSING``, ``SX-JAVA-OLD``: said here, and not by way of a daemon that dies of it.
    """
    find_java()
    children: list[ChildProcess] = []
    daemons = Daemons(children)
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
        yield daemons
    finally:
        daemons.stop()


class StopRequest:
    """Ctrl-C or SIGTERM, noted instead of obeyed at once. The second one is obeyed: our children die with us."""

    def __init__(self) -> None:
        self.asked = False
        self._told, self._tell = os.pipe()

    def wait(self, most: float) -> bool:
        """Wait for the request so many seconds; whether it has come."""
        select.select([self._told], [], [], most)
        return self.asked

    def close(self) -> None:
        os.close(self._told)
        os.close(self._tell)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Runs in the midst of whatever the main thread does, so it takes no locks (a ``threading.Event`` has one)."""
        if self.asked:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED)
        self.asked = True
        os.write(self._tell, b"!")


@contextlib.contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Catch Ctrl-C and SIGTERM for as long as the block runs."""
    request = StopRequest()
    before = {number: signal.signal(number, request.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        request.close()
