"""Fault scripts: kill or pause a daemon at a named failpoint, then start or resume it as a supervisor would."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from sardonyx.runtime.child_process import ChildProcess
from sardonyx.runtime.failpoints import VARIABLE

_KILLED = 128 + signal.SIGKILL
_TICK = 0.05
"""Seconds between looks at a daemon."""


@dataclass(frozen=True)
class Fault:
    """What happens to a daemon, and where. Made by :func:`kill_at` and :func:`pause_at`."""

    point: str
    """A failpoint; ``docs/testing.md`` lists them."""
    count: int
    pause: float | None
    """Seconds that the daemon is paused; None: it is killed."""

    def __str__(self) -> str:
        what = "killed" if self.pause is None else f"stopped for {self.pause:g} s"
        return f"{what} when it passes {self.point!r} for the {self.count}. time"

    @property
    def environment(self) -> dict[str, str]:
        """The variable that arms the failpoint in a process that is started with it."""
        return {VARIABLE: f"{self.point}:{self.count}:{'kill' if self.pause is None else 'stop'}"}


def kill_at(point: str, count: int = 1) -> Fault:
    """Kill the daemon (SIGKILL) when it passes a failpoint for the ``count``-th time, and start it again.

    ``kill_at("committed", 3)``: die after commit 3, before the daemon can report it.
    """
    return Fault(point, count, None)


def pause_at(point: str, seconds: float, count: int = 1) -> Fault:
    """Stop the daemon (SIGSTOP) there, and let it go on after ``seconds``, still believing that it owns its work."""
    return Fault(point, count, seconds)


class Daemon:
    """A daemon of a test's cluster, with its fault script. Made by :class:`sardonyx.testing.Cluster`.

    Args:
        start: starts the daemon, with these variables in its environment.
        script: faults in order, each in a new process of the daemon; after the last one the daemon runs on.
    """

    def __init__(self, start: Callable[[dict[str, str]], ChildProcess], script: Sequence[Fault] = ()) -> None:
        self._start = start
        self._left = list(script)
        self._closing = threading.Event()
        self.happened: list[Fault] = []
        """The faults that have occurred so far; a pause counts from its beginning."""
        self.processes: list[ChildProcess] = [start(self._left[0].environment if self._left else {})]
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="fault script")
        if self._left:
            self._watcher.start()

    @property
    def missing(self) -> list[Fault]:
        """The faults of the script that have not occurred yet."""
        return list(self._left)

    @property
    def process(self) -> ChildProcess:
        """The daemon's present process, or its last one."""
        return self.processes[-1]

    @property
    def ended(self) -> bool:
        """Whether it ended by itself: neither by the script, after which it is started again, nor because it was stopped."""
        return not self._closing.is_set() and self.process.poll() is not None and not self._watcher.is_alive()

    def stop(self, grace: float = 20.0) -> None:
        """Drain it, and kill it if it takes longer than ``grace`` seconds."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if self._left and self._has_occurred(self._left[0]):  # after the watcher's last look
            self._over(self._left[0])
        self.process.signal(signal.SIGCONT)
        self.process.stop(grace)

    def _watch(self) -> None:
        while self._left and not self._closing.wait(_TICK):
            fault, process = self._left[0], self.process
            if fault.pause is None:
                code = process.poll()
                if code is None:
                    continue
                if code != _KILLED:  # it ended for another reason: `ended` reports that to the test
                    return
                self._over(fault)
                self.processes.append(self._start(self._left[0].environment if self._left else {}))
            elif _is_stopped(process.pid):
                self._over(fault)  # the fault has occurred, even if the cluster is closed before the pause is over
                self._closing.wait(fault.pause)
                process.signal(signal.SIGCONT)
                if self._left:  # a failpoint is armed when a process starts, so the next fault takes a new one
                    process.stop()
                    self.processes.append(self._start(self._left[0].environment))

    def _has_occurred(self, fault: Fault) -> bool:
        return self.process.poll() == _KILLED if fault.pause is None else _is_stopped(self.process.pid)

    def _over(self, fault: Fault) -> None:
        self.happened.append(fault)
        self._left.pop(0)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
