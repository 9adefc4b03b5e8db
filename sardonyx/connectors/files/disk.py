"""The few changes to a file system that results are made of, each durable before the next, each with a clear error.

They are functions of this module, called through it, so that a test can let the world end after any one of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sardonyx.core.errors import OutputError

_FIXES = {
    errno.ENOSPC: "free space on that disk; the job survives a few such failures, after that run it again",
    errno.EDQUOT: "raise the quota or free space; the job survives a few such failures, after that run it again",
    errno.EACCES: "let the user that runs the peers write there, or name another path",
    errno.EPERM: "let the user that runs the peers write there, or name another path",
    errno.EROFS: "name a path on a file system that can be written to",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of the operating system as OutputError ``SX-OUTPUT-WRITE``, or ``SX-OUTPUT-FULL`` if there is no room."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            "SX-OUTPUT-FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "SX-OUTPUT-WRITE",
            f"cannot write to {path}: {error.strerror or error}",
            cause=f"the operating system says {errno.errorcode.get(error.errno or 0, 'no')} ({error.filename or path})",
            fix=_FIXES.get(error.errno or 0, "check the path: it must be a folder that the peers can write to"),
            where={"path": path},
        ) from error


def make_folder(path: Path) -> None:
    """A folder and those above it, durably; fine if it is there."""
    with explained(path):
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)


def write(path: Path, data: memoryview | bytes) -> None:
    """A new file with its content on disk and its name in the folder. Leaves no file if it fails."""
    with explained(path):
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def rename(source: Path, target: Path) -> bool:
    """A file under its new name, in place of what had it; False if the source is not there. Not durable before a sync."""
    with explained(target):
        try:
            source.rename(target)
        except FileNotFoundError:
            return False
        return True


def sync(folder: Path) -> None:
    """What was renamed or removed in a folder is on disk after this."""
    with explained(folder):
        _sync(folder)


def remove(path: Path) -> None:
    """A file is gone; fine if it was."""
    with explained(path):
        path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> bool:
    """A folder is gone, as nothing was in it or it was gone before; False if something is in it, or it is no folder."""
    with explained(folder):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True


def remove_tree(folder: Path) -> None:
    """A folder and all in it is gone, links in it unfollowed; fine if it was gone."""
    with explained(folder), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
