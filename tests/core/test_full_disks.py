"""A disk without room: the error says which, and the task waits for room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sardonyx.core.errors import OutputError, SardonyxError, SetupError
from sardonyx.runtime.full_disks import without_room
from spark_tasks.code import CodeBundle


def full(path: str | None = None, number: int = errno.ENOSPC) -> OSError:
    return OSError(number, os.strerror(number), path)


def with_cause(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        full("/data/tmp/state"),
        full("/data/tmp/state", errno.EDQUOT),
        with_cause(RuntimeError("it broke"), full("/data/tmp/state")),
    ],
)
def test_the_folder_that_the_system_names_is_told(error: Exception):
    found = without_room(error)
    assert isinstance(found, SetupError)
    assert (found.code, found.where) == ("SX-DISK-FULL", {"path": "/data/tmp"})
    assert found.message == "the disk of /data/tmp is full"


@pytest.mark.parametrize(
    "error",
    [
        full(),
        FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/t', '/tmp']"),
        RuntimeError("java.io.IOException: No space left on device"),
        SetupError("SX-SPARK-START", "Spark did not start", cause="java.io.IOException: No space left on device"),
    ],
)
def test_without_a_name_a_folder_without_room_is_told(error: Exception, monkeypatch: pytest.MonkeyPatch):
    """A write that fails names no file, and neither does a JVM: the folders for temporary files are looked at."""
    monkeypatch.setenv("TMPDIR", "/t")

    def disk(folder: str) -> SimpleNamespace:
        room = 0 if folder == "/t" else 1 << 20
        return SimpleNamespace(f_bavail=room, f_frsize=4096, f_files=10, f_favail=5)

    monkeypatch.setattr(os, "statvfs", disk)
    found = without_room(error)
    assert isinstance(found, SardonyxError)
    assert (found.code, found.where) == ("SX-DISK-FULL", {"path": "/t"})
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=9, f_frsize=1 << 20, f_files=0, f_favail=0))
    assert str(without_room(error)).startswith("SX-DISK-FULL: a disk of this machine is full")


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "no", "/data"),
        OutputError("SX-OUTPUT-FULL", "No space left on device"),
        SetupError("SX-SPARK-START", "Spark did not start", cause="no such master"),
        KeyError("x"),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception):
    assert without_room(error) is error


def test_code_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each attempt would leave another file on the disk that is full."""
    import hashlib
    import io
    import zipfile

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("shop.py", "")
    content = zipped.getvalue()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(full()))
    with pytest.raises(OSError, match="No space left"):
        CodeBundle.open(content, hashlib.sha256(content).hexdigest(), tmp_path)
    assert list(tmp_path.iterdir()) == []
