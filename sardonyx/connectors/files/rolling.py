"""Files of about a given size or age as output, exactly once: the rows of several batches become one file.

The steps, each durable before the next:

1. Each batch stages a chunk, and its transaction lists it, as in :mod:`sardonyx.connectors.files.output`.
2. ``merge`` writes a file with the rows of the oldest chunks, where readers do not see it.
3. A transaction lists the merge. Only one peer at a time can commit it (:mod:`peer.rolling`). This does not happen here.
4. ``finish`` renames the file to where readers see it, and then removes the chunks.

Step 4 may be interrupted anywhere, and any peer that has the listing can repeat it. A merge whose transaction does not commit
leaves a file that no reader sees, and its chunks as they were. Readers see the rename only, so no row is ever seen twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from sardonyx.connectors.files import disk, one_schema
from sardonyx.connectors.files.output import FilesOutput, Success
from sardonyx.connectors.files.roll import Entry, Listing, Roll, Rolled
from sardonyx.core.errors import OutputError
from sardonyx.runtime.failpoints import failpoint

_MERGED = "merged-"
"""How the staged name of a merged file begins."""

_ABANDONED = 86_400.0
"""Seconds after which a chunk that no commit lists is removed. A batch ends within minutes, so its writer is long dead."""

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
"""Rows, and bytes in memory, of a row group in a merged Parquet file, at most."""

_log = structlog.get_logger()


class Merged(NamedTuple):
    """What :meth:`RollingFiles.merge` has made."""

    file: str
    """The name that it gets in the output folder; empty if there is no file to publish."""
    chunks: int
    """How many of the chunks are in it: the first ones."""
    files: int
    """How many files of the output folder hold these chunks."""


class RollingFiles(FilesOutput):
    """A folder of result files, each with the rows of several batches.

    Args:
        options: as in the spec: path (absolute), format, header, compression.
        job: the job's id.
        task: the task's name.
        roll: when a file is complete.

    Raises:
        OutputError: ``SX-OUTPUT-CODEC``, the format has no such compression.
    """

    def __init__(self, options: dict[str, Any], job: str, task: str, roll: Roll) -> None:
        super().__init__(options, job, task)
        self.roll = roll
        self._compression = self._codec
        self._joins_bytes = roll.merges and self._format != "parquet"
        if self._joins_bytes:
            self._codec = None  # of chunks: merging joins their bytes, and compresses them once

    # --- What each peer does ------------------------------------------------------------------------------------------

    def _listed(self, name: str, table: pa.Table, data: memoryview) -> Entry:
        plain = super()._listed(name, table, data)
        if not self.roll.merges:
            return plain
        header = len(self._encoded(table.slice(0, 0))) if self._format == "csv" and self._header else 0
        return Entry(name, name, table.num_rows, plain.columns, len(data), header)

    def publish(self, entries: Sequence[bytes]) -> None:
        """Make a batch's file visible, if batches have files of their own. Otherwise :meth:`finish` does so later."""
        if not self.roll.merges:
            self._publish_while_running(_pending(Listing(entries)))

    def settle(self, entries: Sequence[bytes]) -> None:
        """Publish what is committed, and remove all other staged files, once no peer works on the ended job.

        Chunks that are not merged become files of their own: that needs no commit to be exactly once.

        Raises:
            OutputError: as :meth:`FilesOutput.settle`.
        """
        listing = Listing(entries)
        with disk.explained(self._folder):
            if listing.last is not None:
                self.finish(listing.last, listing.merged, again=True)
            self._settle(_pending(listing))
            self._remove_all_staged()

    def out_of_sight(self, entries: Sequence[bytes]) -> int:
        """How many committed chunks are not published yet, if this machine sees none of them: staged or published."""
        waiting = [entry for entry in _pending(Listing(entries)) if entry.size]
        seen = any(
            disk.exists(path)
            for entry in waiting
            for path in (self._staging / entry.staged, self._folder / entry.final)
        )
        return 0 if seen else len(waiting)

    def seal(self, entries: Sequence[bytes]) -> None:
        """Make the folder the complete result. ``entries`` are those that the listing still holds.

        Files that were published earlier stay as they are, so two of them may have different types.
        """
        listing = Listing(entries)
        files, rows = listing.totals()
        left = _pending(listing)
        done = Success(self._job, self._task, files + len(left), rows + sum(entry.rows for entry in left))
        with disk.explained(self._folder):
            if self._done(done, ()):
                return
            disk.make_folder(self._folder)
            self._put_in_place(listing)
            failpoint("in-seal")
            self._remove_staging()
            self._succeed(done)

    def _put_in_place(self, listing: Listing) -> None:
        if listing.last is not None:
            self.finish(listing.last, listing.merged, again=True)
        if self.roll.merges:
            self._publish(_pending(listing))
        else:
            self._publish_staged(_pending(listing))

    # --- What one peer does -------------------------------------------------------------------------------------------

    def merge(self, chunks: Sequence[Entry]) -> Merged:
        """Write a file with the rows of committed chunks to disk, where readers do not see it. Take as many as fit together.

        What is a file of its own is published here: that needs no further commit, and may be repeated. Such are the files of
        peers of the release before, which publish them themselves after their commit, unless they die. Text in them has its
        header, and is compressed.

        Raises:
            OutputError: ``SX-OUTPUT-LOST`` if a chunk is not staged; ``SX-OUTPUT-WRITE``.
        """
        if whole := [entry for entry in chunks if not self._is_chunk(entry)]:
            self._publish_while_running(whole)
        taken = len(chunks)
        while True:
            joined = [entry for entry in chunks[:taken] if self._is_chunk(entry)]
            alone = taken - len(joined)
            if not joined:
                return Merged("", taken, alone)
            try:
                return Merged(self._write_merged(joined), taken, 1 + alone)
            except OutputError as error:  # types that do not go together go into files of their own
                if error.code != "SX-OUTPUT-SCHEMA" or taken == 1:
                    raise
                taken //= 2

    def _is_chunk(self, entry: Entry) -> bool:
        """Whether a staged file is part of a file to come. A release without roll does not say its size."""
        return self.roll.merges and entry.size > 0

    def _write_merged(self, staged: Sequence[Entry]) -> str:
        for entry in staged:
            if not disk.exists(self._staging / entry.staged):
                raise self._lost(entry)
        if self._format == "csv":
            self._check_columns(staged)
        name = f"part-{uuid.uuid4().hex}{self._suffix(self._compression)}"
        with disk.explained(self._folder):
            self._check_no_link()
        with disk.writing(self._staging / f"{_MERGED}{name}") as file:
            if self._joins_bytes:
                self._join(staged, file)
            else:
                self._join_parquet([self._staging / entry.staged for entry in staged], file)
        return name

    def finish(self, rolled: Rolled, chunks: Sequence[Entry], *, again: bool = False) -> None:
        """Make a committed merge visible, then remove its chunks. May be repeated, and by several peers at a time.

        Args:
            rolled: the merge.
            chunks: what is in it.
            again: whether others may have done so, and sealed the task, which removes the folder of staged files.

        Raises:
            OutputError: ``SX-OUTPUT-AWAY``: the share is not mounted; ``SX-OUTPUT-WRITE`` and the like.
        """
        if not rolled.file:
            return
        # A file that is not staged was published before, and may have been moved on by those who read the folder.
        if not disk.rename(self._staging / f"{_MERGED}{rolled.file}", self._folder / rolled.file) and not again:
            self._require_staging()
        disk.sync(self._folder)
        failpoint("roll-published")
        for entry in chunks:
            disk.remove(self._staging / entry.staged)
        failpoint("roll-finished")

    def tidy(self, listing: Listing) -> None:
        """Remove what killed peers left: merges that were not committed, and old chunks that no commit lists.

        Only the peer that merges may call it, after :meth:`finish`, while it has no merge under way.
        """
        listed = {chunk.entry.staged for chunk in listing.pending}
        with disk.explained(self._staging):
            found = list(self._staging.iterdir()) if self._staging.is_dir() else []
        for path in found:
            if path.name.startswith(_MERGED) or (path.name not in listed and _age(path) > _ABANDONED):
                _log.info("abandoned_file_removed", path=str(path))
                disk.remove(path)

    def _publish_while_running(self, entries: Sequence[Entry]) -> None:
        if self._publish_staged(entries):
            self._require_staging()

    # --- Merging ------------------------------------------------------------------------------------------------------

    def _join(self, staged: Sequence[Entry], file: IO[bytes]) -> None:
        with self._compressed(file) as out:
            for number, entry in enumerate(staged):
                with self._reading(entry) as chunk:
                    chunk.seek(entry.header if number else 0)
                    shutil.copyfileobj(chunk, out, 1 << 20)

    def _compressed(self, file: IO[bytes]) -> Any:
        if self._compression in (None, "none"):
            return contextlib.nullcontext(file)
        # The stream closes what it writes to, and the file must stay open until it is durable.
        other = os.fdopen(os.dup(file.fileno()), "wb")
        return pa.CompressedOutputStream(pa.PythonFile(other, "w"), self._compression)

    def _reading(self, entry: Entry) -> IO[bytes]:
        try:
            return (self._staging / entry.staged).open("rb")
        except FileNotFoundError:
            raise self._lost(entry) from None

    def _join_parquet(self, paths: Sequence[Path], file: IO[bytes]) -> None:
        schema, others = one_schema.unified(paths)
        different = set(others)
        with pq.ParquetWriter(file, schema, compression=self._compression or "snappy") as writer:
            waiting: list[pa.Table] = []
            for path in paths:
                table = one_schema.fitted(path, schema) if path in different else pq.read_table(path, partitioning=None)
                waiting.append(table.replace_schema_metadata(None))
                if sum(map(len, waiting)) >= _GROUP_ROWS or sum(each.nbytes for each in waiting) >= _GROUP_BYTES:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))


def _pending(listing: Listing) -> list[Entry]:
    return [chunk.entry for chunk in listing.pending]


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
