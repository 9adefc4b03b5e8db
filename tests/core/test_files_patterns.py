"""What paths and patterns stand for, and shares that cannot be read: no file is passed over without a word."""

import errno
import gzip
import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_files_input import connectors, read

from sardonyx.connectors.files.input import files_of
from sardonyx.core.errors import InputError


def test_paths_folders_globs_and_lists(tmp_path):
    """Folders with subfolders, hidden names left out; globs; lists in their order; each file once."""
    for name in ("b.txt", "a.txt", "_hidden.txt", ".hidden.txt", "sub/c.txt", "_sub/d.txt", "lost+found/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sub" / "again").symlink_to(tmp_path / "sub")

    def name(*paths: str) -> list[str]:
        return [str(Path(one).relative_to(tmp_path)) for one in files_of([str(tmp_path / path) for path in paths])]

    assert name("") == ["a.txt", "b.txt", "sub/c.txt"]
    assert name("*.txt") == ["a.txt", "b.txt"]
    assert name("s*/*.txt") == ["sub/c.txt"]
    assert name("*") == ["a.txt", "b.txt", "sub/c.txt"]
    assert name("_sub/*.txt") == ["_sub/d.txt"]
    assert name("b.txt", "*.txt", "sub") == ["b.txt", "a.txt", "sub/c.txt"]


@pytest.mark.parametrize("path", ["", "sub", "*/*.txt", "**/*.txt", "s*/*/*.txt"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, path, number, monkeypatch):
    """For want of a right, or because the server of a share is away: its rows would be missing, and no user would know."""
    bad = tmp_path / "sub"
    (bad / "in").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt", "sub/in/c.txt"):
        (tmp_path / name).touch()
    listed = os.scandir

    def scandir(folder):
        if str(folder) == str(bad):
            raise OSError(number, os.strerror(number), str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError) as caught:
        files_of([str(tmp_path / path)])
    assert caught.value.code == ("SX-INPUT-AWAY" if number == errno.ESTALE else "SX-INPUT-UNREADABLE")
    assert caught.value.where == {"path": str(bad)}


@pytest.mark.parametrize("path", ["*/b.txt", "*/in/c.txt", "*/in/*.txt"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_folder_that_cannot_be_looked_into_is_an_error(tmp_path, path, number, monkeypatch):
    """Also where a pattern names what it looks for there."""
    bad = tmp_path / "sub"
    (bad / "in").mkdir(parents=True)
    (tmp_path / "other" / "in").mkdir(parents=True)
    for name in ("sub/b.txt", "sub/in/c.txt", "other/b.txt", "other/in/c.txt"):
        (tmp_path / name).touch()
    assert len(files_of([str(tmp_path / path)])) == 2
    looked = os.lstat

    def refused(where, *, dir_fd=None):
        if str(where).startswith(f"{bad}/"):
            raise OSError(number, os.strerror(number), str(where))
        return looked(where, dir_fd=dir_fd)

    monkeypatch.setattr(os, "lstat", refused)
    with pytest.raises(InputError) as caught:
        files_of([str(tmp_path / path)])
    assert caught.value.code == ("SX-INPUT-AWAY" if number == errno.ESTALE else "SX-INPUT-UNREADABLE")


@pytest.mark.parametrize("form", ["text", "parquet", "csv.gz"])
def test_a_share_that_is_away_while_a_file_is_read_is_waited_for(tmp_path, form, monkeypatch):
    """The file itself may be fine, so this has a code of its own."""
    path = tmp_path / f"a.{form}"
    table = pa.table({"a": list(range(1000))})
    if form == "parquet":
        pq.write_table(table, path)
    else:
        path.write_bytes(gzip.compress(b"a\n1\n") if form == "csv.gz" else b"a\n1\n")
    connector = connectors(path, format=form.split(".")[0])
    (split,) = connector.splits()
    opened = Path.open

    class Gone(io.FileIO):
        def readinto(self, room):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def read(self, size=-1):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "open", lambda self, mode: Gone(str(self)) if self == path else opened(self, mode))
    if form == "csv.gz":
        monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: Gone(descriptor))
    with pytest.raises(InputError) as caught:
        connector.read(split.data)
    assert caught.value.code == "SX-INPUT-AWAY"


def test_a_path_that_cannot_be_looked_at_is_an_error(tmp_path):
    with pytest.raises(InputError, match="SX-INPUT-UNREADABLE"):
        files_of([str(tmp_path / ("a" * 300))])


@pytest.mark.parametrize("path", ["nothing.csv", "*.csv", "no/such/folder"])
def test_a_path_that_stands_for_nothing_is_an_error(tmp_path, path):
    """It names the path, also if it is just one of several."""
    with pytest.raises(InputError, match=r"was not found") as caught:
        read(tmp_path / path, format="csv", header=True)
    assert caught.value.code == "SX-INPUT-MISSING"
    assert caught.value.where == {"path": str(tmp_path / path)}
