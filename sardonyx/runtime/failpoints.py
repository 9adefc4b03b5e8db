"""Named points in the code at which a fault test lets a real process die or stop. Pure, and nothing at all by default.

``SARDONYX_FAILPOINT="after-append:3:kill"`` kills this process with SIGKILL when it passes the point ``after-append`` for the
third time; ``stop`` instead of ``kill`` sends SIGSTOP, the long pause out of which a process wakes up believing that it still
owns what it owned. Points are named where they stand: ``failpoint("after-append")``.

With the absolute path of a directory as its value, points are armed while processes run: a file there named as a point holds
``kill``, ``stop`` or ``pass``, which does nothing but say that a process was there. The first of all processes that share the
directory to pass that point takes the file, by giving it the name ``point.pid``, and is the one that dies or stops.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

VARIABLE = "SARDONYX_FAILPOINT"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "pass": 0}


class Failpoints:
    """Counts how often a point is passed, and does what the value of ``SARDONYX_FAILPOINT`` says.

    Raises ``ValueError`` for a value that is neither ``point:count:action`` nor an absolute path.
    """

    def __init__(self, value: str) -> None:
        self._folder = Path(value) if value.startswith("/") else None
        self._point, _, rest = ("", "", "") if self._folder else value.partition(":")
        count, _, action = rest.partition(":")
        if value and not self._folder and not (self._point and count.isdigit() and action in ("kill", "stop")):
            raise ValueError(
                f'{VARIABLE}={value!r} must be "point:count:action", with action kill or stop, or a directory'
            )
        self._signal = _SIGNALS.get(action)
        self._left = int(count or 0)
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        """Pass the point of that name."""
        if self._folder is not None:
            self._look(self._folder / point)
            return
        if self._signal is None or point != self._point:
            return
        with self._lock:
            self._left -= 1
            now = self._left == 0
        if now:
            _strike(self._signal)

    def _look(self, armed: Path) -> None:
        taken = armed.with_name(f"{armed.name}.{os.getpid()}")
        mine = armed.with_name(f".{taken.name}.{threading.get_ident()}")
        try:
            # Before it is read: a process may sleep here, and another file may stand there when it wakes up.
            armed.rename(mine)
        except FileNotFoundError:
            return
        action = mine.read_text("utf-8")
        mine.rename(taken)  # from here on others know, and may remove it
        _strike(_SIGNALS[action])


def _strike(number: int) -> None:
    """To this very thread (0: nothing): a SIGSTOP to the process may let it go on for a moment while another is stopped."""
    signal.pthread_kill(threading.get_ident(), number)


failpoint = Failpoints(os.environ.get(VARIABLE, ""))
