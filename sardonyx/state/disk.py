"""What is said when the disk of a task's state has no room, or cannot be used."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sardonyx.core.errors import OutputError, SardonyxError, SetupError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def full(path: Path, said: str) -> SardonyxError:
    """``SX-STATE-FULL``: a task waits until there is room again."""
    return OutputError(
        "SX-STATE-FULL",
        f"the disk of a task's state is full: {path}",
        cause=said,
        fix="free space on that disk; the task pauses and is tried again until there is room",
        where={"path": path},
    )


def unusable(path: Path, said: str) -> SardonyxError:
    """``SX-STATE-DISK``."""
    return SetupError(
        "SX-STATE-DISK",
        f"the folder of a task's state cannot be used: {path}",
        cause=said,
        fix="let the user that runs the peers write there, or start the peer daemon with `TMPDIR` set to another folder",
        where={"path": path},
    )


@contextmanager
def folders_below(path: Path) -> Iterator[None]:
    """Within it, folders are made below ``path``.

    Raises:
        OutputError: ``SX-STATE-FULL``.
        SetupError: ``SX-STATE-DISK``.
    """
    try:
        yield
    except OSError as error:
        raise (full if error.errno in _NO_ROOM else unusable)(path, str(error)) from error
