"""Temporary directories of processes that may be killed, and locks on directories.

A killed process leaves its directory behind. The next process that makes one with the same prefix removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_LOCK = ".in-use"
_UNNAMED = ".new-"


@contextlib.contextmanager
def temp_dir(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory for as long as the block runs.

    Directories of the same prefix whose owner was killed are removed first: no process holds their lock any more.

    Args:
        prefix: how the directory's name begins; it says what kind of process owns the directory.
        parent: where to make it. None: where the system keeps temporary files (``TMPDIR``).
    """
    parent = parent or Path(tempfile.gettempdir())
    _sweep(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=_UNNAMED + prefix, dir=parent))
    with locked(new):
        # It gets its name only now. So a directory of this name that is not locked has lost its owner.
        folder = new.rename(parent / new.name.removeprefix(_UNNAMED))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a directory for as long as the block runs; it ends with the process, too.

    Returns: False if another process holds it.

    Raises:
        OSError: the lock file cannot be written.
    """
    with (folder / _LOCK).open("w") as lock:
        yield _hold(lock)


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another process removes it at the same time, or it is not ours to remove
            if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:  # must exist: a directory without it is not one of ours
                if _hold(lock):
                    shutil.rmtree(folder, ignore_errors=True)


def _hold(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
