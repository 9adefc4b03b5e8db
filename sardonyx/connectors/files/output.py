"""Files as output, exactly once. A file is staged, listed in the batch's transaction, and renamed after the commit.

The steps, each durable before the next:

1. ``stage`` writes a file and its name to disk before the transaction gets its entry.
2. The transaction commits the entry together with the read positions. This does not happen here.
3. ``publish`` renames only the files that a commit lists to where readers see them.
4. ``seal`` puts all committed files in place before it removes any older file. It writes ``_SUCCESS`` last.

Steps 3 and 4 may be interrupted anywhere. Any peer that has the entries can repeat them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import structlog

from sardonyx.connectors import json_text
from sardonyx.connectors.files import disk, one_schema
from sardonyx.connectors.files.roll import Entry, decode
from sardonyx.core.errors import InternalError, OutputError
from sardonyx.core.wire_types import ready_for_threads
from sardonyx.runtime.failpoints import failpoint

STAGING = "_sardonyx"
SUCCESS = "_SUCCESS"

_SUFFIXES = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}
_CODECS = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "json": (*_SUFFIXES, "none"),
    "csv": (*_SUFFIXES, "none"),
}

_log = structlog.get_logger()


@ready_for_threads
class Success(msgspec.Struct, frozen=True):
    """The content of ``_SUCCESS``: which job completed the folder."""

    job: str
    task: str
    files: int
    rows: int


class FilesOutput:
    """A folder of result files.

    Args:
        options: as in the spec: path (absolute), format, mode, header, compression.
        job: the job's id.
        task: the task's name.

    Raises:
        OutputError: ``SX-OUTPUT-CODEC``, the format has no such compression.
    """

    def __init__(self, options: dict[str, Any], job: str, task: str) -> None:
        self._folder = Path(options["path"])
        self._format: str = options["format"]
        self._overwrite = options.get("mode") == "overwrite"
        self._header: bool = options.get("header", True)
        self._codec: str | None = options.get("compression")
        self._job, self._task = job, task
        self._staging = self._folder / STAGING / job / task
        self._has_staged = False
        """Whether this has staged files, and has not removed them since: the folder of staged files is there then."""
        if self._codec is not None and self._codec not in _CODECS[self._format]:
            raise OutputError(
                "SX-OUTPUT-CODEC",
                f"{self._format} files cannot be compressed with {self._codec!r}",
                fix=f"name one of {', '.join(_CODECS[self._format])}, or leave compression out",
            )

    def stage(self, table: pa.Table) -> list[bytes]:
        """Write one file with these rows to disk, where readers do not see it. Write nothing if there are no rows.

        Raises:
            OutputError: ``SX-OUTPUT-WRITE`` if the operating system refuses; ``SX-OUTPUT-AWAY`` if the share is not mounted any
                more; ``SX-OUTPUT-TYPE`` or ``SX-OUTPUT-SCHEMA`` if the format cannot hold the rows.
        """
        if not table.num_rows:
            return []
        json_text.check_names(table.column_names)
        name = f"part-{uuid.uuid4().hex}{self._suffix(self._codec)}"
        data = self._encoded(table)
        with disk.explained(self._folder):
            self._check_no_link()
        if self._has_staged:
            self._require_staging()  # else the file would go to the disk below the mount point
        disk.make_folder(self._staging)
        self._has_staged = True
        disk.write(self._staging / name, data)
        return [msgspec.json.encode(self._listed(name, table, data))]

    def publish(self, entries: Sequence[bytes]) -> None:
        """Make committed files visible. With ``overwrite`` only the seal does so; the earlier files stay until then.

        Raises:
            OutputError: ``SX-OUTPUT-LOST`` if a committed file is neither staged nor published; ``SX-OUTPUT-WRITE``.
        """
        if not self._overwrite:
            self._publish([_entry(data) for data in entries])

    def publish_left(self, entries: Sequence[bytes]) -> None:
        """Make those committed files visible that are still staged: their writers may have died before they did so.

        Raises:
            OutputError: ``SX-OUTPUT-AWAY``: the share is not mounted; ``SX-OUTPUT-WRITE`` and the like.
        """
        listed = [_entry(data) for data in entries]
        with disk.explained(self._staging):
            there = self._staging.is_dir()
            staged = {path.name for path in self._staging.iterdir()} if there else set()
        # A peer that has sealed leaves a `_SUCCESS`, and one that has begun to leaves the files, unless readers have moved them.
        placed = (self._folder / name for name in (SUCCESS, *(entry.final for entry in listed)))
        if listed and not there and not any(map(disk.exists, placed)):
            self._require_staging()
        if not self._overwrite:
            self._publish_staged([entry for entry in listed if entry.staged in staged])

    def unstage(self, entries: Sequence[bytes]) -> None:
        """Remove staged files of which it is known that they are not committed. What cannot be removed now goes with the seal."""
        try:
            for data in entries:
                if isinstance(entry := decode(data), Entry):
                    disk.remove(self._staging / entry.staged)
        except OutputError as error:
            _log.warning("staged_files_left", path=str(self._staging), code=error.code, error=error.message)

    @property
    def unsettled(self) -> bool:
        """Whether files of this task are still staged. Raises OutputError ``SX-OUTPUT-AWAY``, ``SX-OUTPUT-WRITE``."""
        return disk.exists(self._staging)

    def settle(self, entries: Sequence[bytes]) -> None:
        """Put committed files in place and remove all other staged files, once no peer works on the ended job.

        Without a seal there is no ``_SUCCESS``, and with ``overwrite`` the earlier files stay. It may be repeated after readers
        have moved what an interrupted call had put in place. So a file that is not there does not keep back the others.

        Raises:
            OutputError: ``SX-OUTPUT-WRITE``, ``SX-OUTPUT-FULL``.
        """
        with disk.explained(self._folder):
            if not self._overwrite:
                self._settle([_entry(data) for data in entries])
            self._remove_all_staged()

    def seal(self, entries: Sequence[bytes]) -> None:
        """Make the folder the complete result of all entries. The body numbers the steps.

        Raises:
            OutputError: as ``publish``; ``SX-OUTPUT-SCHEMA`` if the files cannot be read as one table.
        """
        with disk.explained(self._folder):
            self._seal([_entry(data) for data in entries])

    def _seal(self, listed: list[Entry]) -> None:
        done = Success(self._job, self._task, len(listed), sum(entry.rows for entry in listed))
        if self._done(done, listed):
            return
        disk.make_folder(self._folder)
        self._make_one(listed)  # 1. every file has the same columns, wherever it is by now
        old: list[Path] = []
        if self._overwrite:
            keep = {self._folder / entry.final for entry in listed}
            old = [path for path in _visible_files(self._folder) if path not in keep]
            disk.remove(self._folder / SUCCESS)  # 2. from here to 6 the folder is not whole, and says so
        self._publish(listed)  # 3. all that was committed is in place ...
        if self._overwrite:
            self._remove(old)  # 4. ... before what it replaces goes: what was seen before 3, so nothing that came since
        failpoint("in-seal")
        self._remove_staging()  # 5. what no commit lists is gone too, or goes when the job has ended
        self._succeed(done)  # 6. the last step

    def _succeed(self, done: Success) -> None:
        name = f".{SUCCESS}-{self._job}-{self._task}-"
        # A name of its own: another peer that seals, too, may not have heard that the task is not its any more.
        new = self._folder / f"{name}{uuid.uuid4().hex}"
        disk.write(new, msgspec.json.encode(done))
        disk.rename(new, self._folder / SUCCESS)
        with disk.explained(self._folder):
            left = list(self._folder.glob(name + "?" * 32))  # by sealers that were killed here
        for path in left:
            disk.remove(path)
        disk.sync(self._folder)
        _log.info("output_sealed", path=str(self._folder), files=done.files, rows=done.rows)

    def _require_staging(self) -> None:
        """Raise if the folder of staged files is not there. The first file that is staged makes it, and it stays until the task
        is sealed. So a file that is not there was not published, and moved on by a reader.
        """
        if not disk.exists(self._staging):
            raise OutputError(
                "SX-OUTPUT-AWAY",
                f"{self._staging} is not there, and the task has staged files in it",
                cause="the share is not mounted on this machine, or another program has removed the folder",
                fix="mount the share again; the task pauses and is tried again until then",
                where={"path": self._staging},
            )

    # --- Writing ------------------------------------------------------------------------------------------------------

    def _listed(self, name: str, table: pa.Table, data: memoryview) -> Entry:  # noqa: ARG002 (for a subclass)
        """How the transaction lists a staged file."""
        return Entry(name, name, table.num_rows, _digest(table.column_names) if self._format == "csv" else "")

    def _suffix(self, codec: str | None) -> str:
        if self._format == "parquet":
            return ".parquet"
        return f".{self._format}{_SUFFIXES.get(codec or '', '')}"

    def _encoded(self, table: pa.Table) -> memoryview:
        if self._format == "parquet":
            return one_schema.encode(one_schema.writable(table), self._codec or "snappy")
        sink = pa.BufferOutputStream()
        if self._codec in (None, "none"):
            self._write_text(table, sink)
        else:
            with pa.CompressedOutputStream(sink, self._codec) as out:
                self._write_text(table, out)
        return memoryview(sink.getvalue())

    def _write_text(self, table: pa.Table, out: pa.NativeFile) -> None:
        if self._format == "json":
            out.write(b"\n".join(json_text.rows(table)) + b"\n")
            return
        texts = {
            name: json_text.column_texts(column, name)
            if json_text.is_text(column.type) or pa.types.is_nested(column.type) or pa.types.is_string_view(column.type)
            else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        pacsv.write_csv(pa.table(texts), out, pacsv.WriteOptions(include_header=self._header))

    def _check_no_link(self) -> None:
        """Raise if a link replaces one of our own folders, so that nothing is written or removed through it."""
        for folder in (self._folder / STAGING, self._folder / STAGING / self._job, self._staging):
            if folder.is_symlink():
                raise OutputError(
                    "SX-OUTPUT-WRITE",
                    f"{folder} is a link, and results are staged only within the output folder itself",
                    fix="remove the link",
                    where={"path": folder},
                )

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def _publish(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            target = self._folder / entry.final
            if not disk.rename(self._staging / entry.staged, target) and not disk.exists(target):
                raise self._lost(entry)
            failpoint("in-publish")
        if entries:
            disk.sync(self._folder)

    def _publish_staged(self, entries: Sequence[Entry]) -> int:
        """Publish the files that are still staged. Others have been published before, and may have been moved on since.

        Returns: how many are neither staged nor in the output folder.
        """
        missing = 0
        for entry in entries:
            target = self._folder / entry.final
            if not disk.rename(self._staging / entry.staged, target) and not disk.exists(target):
                missing += 1
            failpoint("in-publish")
        if entries:
            disk.sync(self._folder)
        return missing

    def _settle(self, entries: Sequence[Entry]) -> None:
        if missing := self._publish_staged(entries):
            _log.warning(
                "committed_files_missing", path=str(self._folder), job=self._job, task=self._task, count=missing
            )

    def _lost(self, entry: Entry) -> OutputError:
        return OutputError(
            "SX-OUTPUT-LOST",
            f"{entry.final} with {entry.rows} rows is lost: it was committed, but it is neither in {self._folder} nor staged",
            cause="another program removed or renamed it while the job ran, or the path differs between machines",
            fix="keep files of a running job where they are, use a path that all peers share, and run the job again",
            where={"path": self._folder / entry.final},
        )

    # --- Sealing ------------------------------------------------------------------------------------------------------

    def _done(self, done: Success, entries: Sequence[Entry]) -> bool:
        """Whether this seal was completed before, perhaps so long ago that a later job has written here since."""
        path = self._folder / SUCCESS
        try:
            if msgspec.json.decode(path.read_bytes(), type=Success) == done:
                return True
        except (OSError, msgspec.DecodeError):
            pass  # none, or one that Spark wrote
        # With overwrite, step 2 comes before 3. If our files are no longer staged, a _SUCCESS of another job is later.
        staged = any((self._staging / entry.staged).exists() for entry in entries)
        return self._overwrite and bool(entries) and not staged and path.exists()

    def _make_one(self, entries: Sequence[Entry]) -> None:
        if self._format == "csv":
            self._check_columns(entries)
        if self._format != "parquet" or not entries:
            return
        schema, others = one_schema.unified([self._place(entry) for entry in entries])
        for path in others:
            data = one_schema.encode(one_schema.fitted(path, schema), self._codec or "snappy")
            self._check_no_link()
            disk.make_folder(self._staging)
            new = self._staging / f"{path.name}.{uuid.uuid4().hex}.anew"  # of its own, as in _succeed
            disk.write(new, data)
            disk.rename(new, path)
        if others:
            _log.info("files_rewritten", path=str(self._folder), count=len(others))

    def _place(self, entry: Entry) -> Path:
        """Return where a file is now."""
        for path in (self._staging / entry.staged, self._folder / entry.final):
            if path.is_file():
                return path
        raise self._lost(entry)

    def _check_columns(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.columns != entries[0].columns:
                raise OutputError(
                    "SX-OUTPUT-SCHEMA",
                    f"the result cannot be read as one table: {entry.final} has other columns than {entries[0].final}",
                    cause="the function returned batches with different columns, and CSV has columns by position",
                    fix="give every record the same columns in the same order in the task before",
                    where={"path": self._folder / entry.final},
                )

    def _remove(self, old: Sequence[Path]) -> None:
        """Remove the files that the result replaces, and the folders that this leaves empty."""
        for path in old:
            disk.remove(path)
        for folder in _visible_folders(self._folder):
            disk.remove_empty(folder)
        disk.sync(self._folder)

    def _remove_staging(self) -> bool:
        """Remove what is staged. False: a peer that has lost the task, and has not heard of it yet, still writes there."""
        self._check_no_link()
        if not disk.remove_tree(self._staging):
            _log.warning("staged_files_left", path=str(self._staging), job=self._job, task=self._task)
            return False
        self._has_staged = False
        for folder in (self._staging.parent, self._folder / STAGING):
            if not disk.remove_empty(folder):
                break
        return True

    def _remove_all_staged(self) -> None:
        """The same, for a caller that tries again."""
        if not self._remove_staging():
            raise OutputError(
                "SX-OUTPUT-WRITE",
                f"{self._staging} cannot be removed: another process still writes or reads there",
                fix="wait; if it stays, end the process that has files open there",
                where={"path": self._staging},
            )


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files in a folder and below. Skip links and hidden names."""
    for path in _visible(folder):
        if path.is_symlink():
            _log.warning("link_ignored", path=str(path))
        elif path.is_dir():
            yield from _visible_files(path)
        elif path.is_file():
            yield path


def _visible_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders below a folder, inner ones first."""
    for path in _visible(folder):
        if path.is_dir() and not path.is_symlink():
            yield from _visible_folders(path)
            yield path


def _visible(folder: Path) -> list[Path]:
    with disk.explained(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def _entry(data: bytes) -> Entry:
    entry = decode(data)
    if not isinstance(entry, Entry):
        raise InternalError("SX-BUG-ENTRY", f"the listing of an output without roll holds a merge: {entry}")
    return entry


def _digest(columns: list[str]) -> str:
    return hashlib.blake2b("\0".join(columns).encode(), digest_size=8).hexdigest()
