"""What is said when a disk of this machine has no room: which folder lies on it. Outputs and states say so themselves."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sardonyx.core.errors import SardonyxError, SetupError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SAID = ("No space left on device", "Disk quota exceeded", "No usable temporary directory")
"""By the operating system, also through a JVM; and by Python, of all the folders that it has tried."""
_OF_SPARK = "SX-SPARK-START"
_LITTLE = 1 << 20
"""Bytes: a disk with less than this has no room."""


def without_room(error: Exception) -> Exception:
    """``SX-DISK-FULL``, if the error says that a disk has no room and has no code of its own for that; else the error itself."""
    is_spark = isinstance(error, SardonyxError) and error.code == _OF_SPARK and _says_so(error.cause)
    if not is_spark and (isinstance(error, SardonyxError) or not _is_no_room(error)):
        return error
    folder = _named(error) or next(_full(), None)
    where = {} if folder is None else {"path": folder}
    found = SetupError(
        "SX-DISK-FULL",
        "a disk of this machine is full" if folder is None else f"the disk of {folder} is full",
        cause=error.cause if isinstance(error, SardonyxError) else f"{type(error).__name__}: {error}",
        fix="free space on that disk, or start the peer daemon with `TMPDIR` set to a folder on another one; the task pauses and "
        "is tried again until there is room",
        where=where,
    )
    found.__cause__ = error
    return found


def _is_no_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        if _says_so(str(error)):
            return True
        error = error.__cause__
    return False


def _says_so(text: str) -> bool:
    return any(said in text for said in _SAID)


def _named(error: BaseException | None) -> Path | None:
    """The folder of the file that the operating system has named."""
    while error is not None:
        name = getattr(error, "filename", None)
        if isinstance(error, OSError) and isinstance(name, str) and Path(name).is_absolute():
            return Path(name).parent
        error = error.__cause__
    return None


def _full() -> Iterator[Path]:
    """The folders for temporary files, and of this process, whose disk has no room now."""
    given = [os.environ[name] for name in ("TMPDIR", "SPARK_LOCAL_DIRS") if os.environ.get(name)]
    for folder in (*given, tempfile.tempdir or "/tmp", "/dev/shm", os.curdir):  # noqa: S108 (looked at only)
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            if disk.f_bavail * disk.f_frsize < _LITTLE or (disk.f_files and not disk.f_favail):
                yield Path(folder).absolute()


__all__ = ["without_room"]
