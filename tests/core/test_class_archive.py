"""Archives of the classes of embedded servers, in the cache."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sardonyx.dev import class_archive
from sardonyx.dev.class_archive import ClassArchive
from sardonyx.runtime.java import Java

SIZE = 100_000


def test_an_archive_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half of itself: each end of a server would leave another half on a full disk. With room, it is kept."""
    cache, home = tmp_path / "cache", tmp_path / "home"
    cache.mkdir()
    home.mkdir()
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(cache))
    (home / "classes.jsa").write_bytes(bytes(SIZE))
    archive = ClassArchive(Java(tmp_path / "bin" / "java", 17), "kafka", str(tmp_path), home)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, before[1]))
    try:
        archive.keep()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(cache.iterdir()) == []
    archive.keep()
    assert archive.exists
    assert list(cache.iterdir()) == [archive.path]


def test_what_killed_processes_left_goes_with_archives_that_nothing_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a month. What another process is writing now stays."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path))
    names = ("kafka-0123456789abcdef.jsa", "kafka-0123456789abcdef.00112233445566778899aabbccddeeff.jsa")
    for name in names:
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "kafka-fedcba9876543210.00112233445566778899aabbccddeeff.jsa").write_bytes(b"x")
    home = tmp_path / "home"
    home.mkdir()
    (home / "classes.jsa").write_bytes(b"x")
    archive = ClassArchive(Java(tmp_path / "bin" / "java", 17), "kafka", str(home), home)
    copies: list[str] = []
    copied = class_archive.shutil.copyfile

    def copies_it(source: Path, target: Path) -> None:
        copies.append(target.name)
        copied(source, target)

    monkeypatch.setattr(class_archive.shutil, "copyfile", copies_it)
    archive.keep()
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert left == sorted(["kafka-fedcba9876543210.00112233445566778899aabbccddeeff.jsa", archive.path.name])
    assert [name.endswith(".jsa") for name in copies] == [True], "so it is found if the process is killed meanwhile"
