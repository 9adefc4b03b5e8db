"""The process of an opponent: what it says, and how it ends, also if it hangs. Pure, for every opponent the same."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator

import psutil

LONGEST = 900.0
"""Seconds that a run may take, as a run of ours: an opponent that has lost a record may wait for it without end."""
PATIENCE = 30.0
"""Seconds in which what a process has started may end by itself, as a JVM does at the end of its input."""


@contextlib.contextmanager
def ending(process: subprocess.Popen[str], longest: float = LONGEST, patience: float = PATIENCE) -> Iterator[None]:
    """Within it the process may run, but no longer than ``longest`` seconds. After it, nothing of it runs."""
    timer = threading.Timer(longest, end, (process, 0.0))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end(process, patience)


def end(process: subprocess.Popen[str], patience: float = PATIENCE) -> None:
    """Kill a process. What it has started ends by itself within ``patience`` seconds, or is killed then."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(started, patience)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, patience)


def said_by(process: subprocess.Popen[str]) -> list[str]:
    """What it says of ``ready`` and ``done``, until it is done or has ended."""
    said: list[str] = []
    while said[-1:] != ["done"] and (line := process.stdout.readline() if process.stdout else ""):
        said += [line.strip()] if line.strip() in ("ready", "done") else []
    return said


__all__ = ["LONGEST", "PATIENCE", "end", "ending", "said_by"]
