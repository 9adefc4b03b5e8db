"""Child processes that end with this process, even if it is killed with SIGKILL.

A *supervisor* starts each child: a small Python process that holds the reading end of a pipe from us. However this process
ends, the system closes our end of the pipe. The supervisor then reads end-of-file and kills the child's whole process group.
On Linux the child also asks the kernel to kill it when its supervisor dies.

This file is also the supervisor's script. It uses only the standard library, so a supervisor costs about 10 MB and 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_CANNOT_START = 127
SIGNALLED = 128
"""An exit code above this says which signal has ended a child."""


class ChildProcess:
    """A running child and its supervisor. Made by :func:`start_child`; a context manager."""

    def __init__(
        self, name: str, supervisor: subprocess.Popen[bytes], orders: int, pid: int, log_path: Path | None
    ) -> None:
        self.name = name
        self.pid = pid
        """Process id of the child itself, not of its supervisor."""
        self.log_path = log_path
        self._supervisor = supervisor
        self._orders: int | None = orders

    def poll(self) -> int | None:
        """The child's exit code (128 + signal when a signal ended it), or None while it runs."""
        return self._supervisor.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the child's end. Raises ``TimeoutError`` after so many seconds."""
        rest = timeout
        if sys.platform == "linux" and timeout is not None and self.poll() is None:
            _wait_for_end(self._supervisor.pid, timeout)
            rest = 0
        try:
            return self._supervisor.wait(rest)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} (pid {self.pid}) still runs after {timeout:g} s") from None

    def signal(self, number: int) -> None:
        """Send the child a signal. The supervisor sends it, and only while the child lives, so it cannot hit another process."""
        if self._orders is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._orders, bytes([number]))

    def stop(self, grace: float = 10.0) -> int:
        """SIGTERM; after ``grace`` seconds SIGKILL to its whole process group. Gives the exit code; may be repeated."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            self.wait(grace)
        return self.kill()

    def kill(self) -> int:
        """SIGKILL to the child's whole process group, at once. Gives the exit code; may be repeated."""
        if self._orders is not None:
            os.close(self._orders)
            self._orders = None
        return self.wait()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that the child wrote."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-lines:])

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _wait_for_end(pid: int, timeout: float) -> None:
    """Wait until this child has ended, at most so many seconds. Linux says so at once; ``Popen.wait`` looks each 50 ms."""
    with contextlib.suppress(ProcessLookupError):  # another thread has taken its exit code meanwhile
        end = os.pidfd_open(pid)
        try:
            waits = select.poll()
            waits.register(end, select.POLLIN)
            waits.poll(timeout * 1000)
        finally:
            os.close(end)


def revived(dead: ChildProcess, again: ChildProcess) -> str:
    """The words for a child that has ended, and that runs again."""
    code = dead.wait()
    code = code if code >= 0 else SIGNALLED - code  # its supervisor was killed, and so took it along
    known = {SIGNALLED + each: f"was ended by {each.name}" for each in signal.Signals}
    return f"{dead.name} (process {dead.pid}) {known.get(code, f'ended with exit code {code}')}: it runs again as {again.pid}"


def start_child(
    command: Sequence[str | Path],
    *,
    name: str,
    log_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> ChildProcess:
    """Start a process that ends with this one, at the latest.

    Args:
        command: program and arguments.
        name: for messages.
        log_path: file that takes its output (appended); None lets it write where we write.
        env: variables in addition to ours.
        cwd: its working directory; ours if not given.
        stdin: a descriptor that it reads as its standard input; nothing is there if not given.

    Raises:
        OSError: when the program cannot be started.
    """
    read_orders, orders = os.pipe()
    report, write_report = os.pipe()
    log: IO[bytes] | None = None
    try:
        log = log_path.open("ab") if log_path is not None else None
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(read_orders), str(write_report), *map(str, command)],
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=(read_orders, write_report),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,  # Ctrl-C in a terminal is for us; we tell our children
        )
    except BaseException:
        os.close(orders)
        os.close(report)
        raise
    finally:
        os.close(read_orders)
        os.close(write_report)
        if log is not None:
            log.close()
    with os.fdopen(report, "r", encoding="utf-8") as lines:
        said = lines.read()
    if not said.isdecimal():
        os.close(orders)
        supervisor.wait()
        raise OSError(said or f"the supervisor of {name} did not start")
    return ChildProcess(name, supervisor, orders, int(said), log_path)


def _die_with_parent(parent: int) -> None:
    """In the child, before it becomes the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(_CANNOT_START)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says so of a group that is only zombies
        os.killpg(child.pid, signal.SIGKILL)


def _supervise(orders: int, report: int, command: Sequence[str]) -> None:
    os.set_inheritable(orders, False)
    os.set_inheritable(report, False)
    me = os.getpid()
    try:
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: _die_with_parent(me))  # noqa: PLW1509
    except OSError as error:
        os.write(report, str(error).encode())
        sys.exit(_CANNOT_START)

    def end_with_child() -> None:
        code = child.wait()
        _kill_group(child)  # what it may have left behind
        os._exit(code if code >= 0 else 128 - code)

    def end_by_signal(*_: Any) -> None:
        _kill_group(child)

    signal.signal(signal.SIGTERM, end_by_signal)
    os.write(report, str(child.pid).encode())
    os.close(report)
    waiter = threading.Thread(target=end_with_child)
    waiter.start()
    while order := os.read(orders, 1):
        child.send_signal(order[0])
    _kill_group(child)
    waiter.join()


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
