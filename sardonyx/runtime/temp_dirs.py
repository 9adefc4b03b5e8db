"""Temporary directories of processes that may be killed: what one leaves behind, the next of its kind removes."""

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
    """A directory for as long as the block runs, where the system keeps temporary files (``TMPDIR``), or in ``parent``.

    Those of the same prefix whose owner was killed are removed first: nobody holds their lock any more.

    Args:
        prefix: what the directory's name begins with; names what kind of process owns it.
        parent: where it is made.
    """
    parent = parent or Path(tempfile.gettempdir())
    _sweep(parent, prefix)
    new = Path(tempfile.mkdtemp(prefix=_UNNAMED + prefix, dir=parent))
    with (new / _LOCK).open("w") as lock:
        _hold(lock)
        # It has its name only now: whoever finds one that is not locked can be sure that its owner is gone.
        folder = new.rename(parent / new.name.removeprefix(_UNNAMED))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # somebody else is at it, or it is not ours to remove
            if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:  # must be there: one without it was made by somebody else
                if _hold(lock):
                    shutil.rmtree(folder, ignore_errors=True)


def _hold(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
