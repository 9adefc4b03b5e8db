"""Temporary directories: gone with their owner, or with the next of its kind."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sardonyx.runtime.temp_dirs import locked, temp_dir

OWNER = """
import sys
from sardonyx.runtime.temp_dirs import temp_dir
with temp_dir("kind-") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_after_the_block(temporary: Path) -> None:
    """With all that is in it, also if the block raises."""

    def work() -> None:
        with temp_dir("kind-") as folder:
            assert folder.parent == temporary
            (folder / "sub").mkdir()
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_owner_left_goes_with_the_next_of_its_kind(temporary: Path) -> None:
    """Not while the owner lives, and nothing of another kind."""
    (temporary / "other-1").mkdir()
    env = {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen([sys.executable, "-c", OWNER], **pipes) as owner:
        left = Path(owner.stdout.readline().strip())
        with temp_dir("kind-"):
            assert (left / "file").exists()
        owner.send_signal(signal.SIGKILL)
    assert (left / "file").exists()
    with temp_dir("kind-") as folder:
        assert sorted(path.name for path in temporary.iterdir()) == sorted([folder.name, "other-1"])


def test_a_directory_that_somebody_else_made_stays(temporary: Path) -> None:
    """One of the same prefix by chance: it has no lock file, and none is put there."""
    mine = temporary / "kind-mine"
    mine.mkdir()
    (mine / "thesis").write_text("x")
    with temp_dir("kind-"):
        pass
    assert [path.name for path in mine.iterdir()] == ["thesis"]


def test_a_directory_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    """The second owner gets an error, and the lock is free again after the block."""
    with locked(tmp_path) as first, locked(tmp_path) as second:
        assert first
        assert not second
    with locked(tmp_path) as again:
        assert again
