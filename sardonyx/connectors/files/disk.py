"""The few changes to the file system that writing results needs.

Each change is durable before the next one, and each raises a clear error.

They are functions of this module, and callers reach them through it. A test can therefore stop everything after any one
of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sardonyx.core.errors import OutputError

AWAY = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    getattr(errno, "EREMOTEIO", errno.EIO),  # Linux only
}
"""What the operating system says of a share whose server does not answer, or of a disk that does not."""

_IN_USE = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}
"""What is said of a folder in which a file was made after it was listed; and over NFS of one with a file that is open."""

_ATTEMPTS = 10
_PAUSE = 0.05
"""How often, and seconds after which, something is tried again that another process is in the way of."""

_SHARE = "bring the share back, or mount it again; the task pauses and is tried again until then"

_FIXES = {
    errno.ENOSPC: "free space on that disk; the task pauses and is tried again until there is room",
    errno.EDQUOT: "raise the quota or free space; the task pauses and is tried again until there is room",
    **dict.fromkeys(AWAY, _SHARE),
    errno.EACCES: "let the user that runs the peers write there, or name another path",
    errno.EPERM: "let the user that runs the peers write there, or name another path",
    errno.EROFS: "name a path on a file system that can be written to",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into OutputError ``SX-OUTPUT-WRITE``.

    Those that may pass have codes of their own: ``SX-OUTPUT-FULL`` for no space, ``SX-OUTPUT-AWAY`` for a share that is away.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            _code(error.errno),
            f"cannot write to {path}: {error.strerror or error}",
            cause=f"the operating system says {errno.errorcode.get(error.errno or 0, 'no')} ({error.filename or path})",
            fix=_FIXES.get(error.errno or 0, "check the path: it must be a folder that the peers can write to"),
            where={"path": path},
        ) from error


def _code(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "SX-OUTPUT-FULL"
    return "SX-OUTPUT-AWAY" if number in AWAY else "SX-OUTPUT-WRITE"


def make_folder(path: Path) -> None:
    """Create a folder and its parents durably. Do nothing if it exists. Others may remove empty parents meanwhile."""
    with explained(path):
        for attempt in range(_ATTEMPTS):
            try:
                _make_missing(path)
                return
            except FileNotFoundError:  # a parent that was there, or had just been made
                if attempt == _ATTEMPTS - 1:
                    raise


def _make_missing(path: Path) -> None:
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def write(path: Path, data: memoryview | bytes) -> None:
    """Write a new file, and make its content and its name durable. If this fails, it leaves no file."""
    with writing(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file to write into. Make its content and its name durable at the end. If this fails, it leaves no file."""
    with explained(path):
        try:
            with path.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def exists(path: Path) -> bool:
    """Whether there is a file or a folder of this name."""
    with explained(path):
        return path.exists()


def rename(source: Path, target: Path) -> bool:
    """Rename a file, and replace any file that has the new name. Return False if the source does not exist.

    The change is only durable after a sync.
    """
    with explained(target):
        try:
            source.rename(target)
        except FileNotFoundError:
            return False
        return True


def sync(folder: Path) -> None:
    """Make all renames and removals in a folder durable."""
    with explained(folder):
        _sync(folder)


def remove(path: Path) -> None:
    """Remove a file. Do nothing if it does not exist."""
    with explained(path):
        path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> bool:
    """Remove a folder if it is empty. Return True if the folder no longer exists, whether or not it existed before.

    Return False if it is not empty or is not a folder.
    """
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


def remove_tree(folder: Path) -> bool:
    """Remove a folder and everything in it, without following links. Another process may do the same meanwhile.

    Do nothing if it does not exist. Return False if something is left, since another process still writes or reads there.
    """
    with explained(folder):
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            try:
                if sys.version_info >= (3, 12):
                    shutil.rmtree(folder, onexc=lambda _function, _path, error: _unless_gone(error))
                else:
                    shutil.rmtree(folder, onerror=lambda _function, _path, raised: _unless_gone(raised[1]))
            except OSError as error:
                if error.errno not in _IN_USE:
                    raise
            else:
                return True
        return False


def _unless_gone(error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
