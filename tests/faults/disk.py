"""A small disk of a test's own, which can be full: a file system in memory, seen by all processes of the same user.

A helper process mounts it in a mount namespace of its own, which needs no root. Others reach it by way of
``/proc/PID/root``. The helper ends when the process that started it does.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size="$2" small "$1" && echo mounted && exec cat'


def _start(folder: Path, size: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh", str(folder), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


@functools.cache
def can_mount() -> bool:
    """Whether this machine lets us."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    with _start(Path("/mnt"), 4096) as helper:
        return helper.communicate()[0] == b"mounted\n"


class SmallDisk:
    """A disk of ``size`` bytes for as long as the ``with`` block runs.

    Args:
        folder: an empty folder, over which it is mounted. Who looks there without :attr:`path` sees the empty folder.
        size: in bytes.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._size = size
        self._helper = _start(folder, size)
        assert self._helper.stdout is not None
        if self._helper.stdout.readline() != b"mounted\n":
            raise OSError("a small disk cannot be mounted here")
        self.path = Path(f"/proc/{self._helper.pid}/root{folder}")

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No byte more finds room there meanwhile."""
        ballast = self.path / "ballast"
        try:
            ballast.write_bytes(bytes(self._size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            yield
        finally:
            ballast.unlink()

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._helper.kill()
        self._helper.communicate()
