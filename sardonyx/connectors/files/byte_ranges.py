"""Bytes of input files. They are the same at every read, and are cut into ranges that cover each line exactly once.

The rule for ranges: a range owns the lines that BEGIN in it. If a range starts in the middle of a line, its reader
skips the rest of that line. The reader also reads past the end of the range to finish the last line that it owns. A
line ends with a line feed. A carriage return before the line feed belongs to the ending.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import pyarrow as pa

from sardonyx.connectors.files.disk import AWAY
from sardonyx.core.errors import InputError

MOST_BYTES = 1 << 30
"""The most bytes to read at once. They are held in memory, and Arrow counts its blocks in 32 bits."""

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
_FOREIGN = (".zip", ".7z", ".rar", ".tar", ".tgz", ".xz", ".snappy", ".lzo")
_BOM = codecs.BOM_UTF8
_AT_ONCE = 1 << 16
"""Compressed bytes that are read at once."""


def version(path: str) -> dict[str, int]:
    """Return what identifies the content of a file: its size in bytes and the time of its last change.

    Raises:
        InputError: ``SX-INPUT-MISSING``, ``SX-INPUT-AWAY``, ``SX-INPUT-UNREADABLE``.
    """
    with explained(path):
        found = Path(path).stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


@contextmanager
def unchanged(path: str, known: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """Open a file for reading. Check before and after that it is the version that ``known`` describes.

    Another peer may read a batch again, and must then get the same rows. A changed file is therefore refused.

    Raises:
        InputError: ``SX-INPUT-CHANGED``, ``SX-INPUT-MISSING``, ``SX-INPUT-AWAY``, ``SX-INPUT-UNREADABLE``.
    """
    with explained(path), Path(path).open("rb") as file:
        _check_version(file, path, known)
        try:
            yield file
        except Exception as error:
            if not (isinstance(error, OSError) and error.errno in AWAY):
                _check_version(file, path, known)  # what cannot be read may be the change
            raise
        _check_version(file, path, known)


def _check_version(file: BinaryIO, path: str, known: Mapping[str, Any]) -> None:
    found = os.fstat(file.fileno())
    if (found.st_size, found.st_mtime_ns) == (known["size"], known["mtime_ns"]):
        return
    raise InputError(
        "SX-INPUT-CHANGED",
        f"{path} was changed while the job was reading it",
        cause=f"it had {known['size']} bytes when the job began and has {found.st_size} now, or its time of change is another",
        fix="run the job again on files that do not change: write new files elsewhere and move them into place",
        where={"path": path},
    )


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn errors of the operating system into ours: ``SX-INPUT-MISSING``, ``SX-INPUT-AWAY``, ``SX-INPUT-UNREADABLE``."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, pa.ArrowException) as error:  # the latter from a codec
        if isinstance(error, OSError) and error.errno in AWAY:
            raise away(path, error) from error
        raise InputError(
            "SX-INPUT-UNREADABLE",
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            fix="check the path and its permissions on the machines that run peers and Spark workers",
            where={"path": path},
        ) from error


def away(path: str, error: OSError) -> InputError:
    """Return the error for a share whose server does not answer, or a disk that does not: the task waits for it."""
    return InputError(
        "SX-INPUT-AWAY",
        f"{path} cannot be read now: {error.strerror or error}",
        cause=f"the operating system says {errno.errorcode.get(error.errno or 0, 'no')}",
        fix="bring the share back, or mount it again; the task pauses and is tried again until then",
        where={"path": path},
    )


def missing(path: str) -> InputError:
    """Return the error for a path or glob that matches nothing."""
    return InputError(
        "SX-INPUT-MISSING",
        f"{path} was not found",
        cause="there is no such file, folder or match on this machine",
        fix="check the path; it must be the same on every machine that runs peers or Spark workers",
        where={"path": path},
    )


def owned(file: BinaryIO, start: int, end: int) -> tuple[bytes, int]:
    """Return all lines that begin in ``[start, end)``, complete, and the offset of the first one.

    The lines of all ranges of a file, concatenated, give the file again, byte for byte.
    """
    before = 1 if start else 0  # the byte before start shows whether a line begins there
    file.seek(start - before)
    found = file.read(end - start + before)
    if found and not found.endswith(b"\n"):
        inside = len(found)
        found += file.readline(MOST_BYTES)
    else:
        inside = len(found) - 1
    if not before:
        return found, 0
    newline = found.find(b"\n", 0, inside)
    if newline < 0:
        return b"", end
    return found[newline + 1 :], start + newline


def codec(path: str) -> str | None:
    """Return the compression that a file's name shows, or None if there is none.

    Raises:
        InputError: ``SX-INPUT-UNREADABLE`` if Sardonyx does not know the compression, or the file is an archive.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix in _FOREIGN:
        raise InputError(
            "SX-INPUT-UNREADABLE",
            f"{path} cannot be read: Sardonyx does not know {suffix} files",
            fix=f"unpack it, or compress it as one of {', '.join(_CODECS)}",
            where={"path": path},
        )
    return _CODECS.get(suffix)


def plain(file: BinaryIO, path: str) -> BinaryIO:
    """Return the content of the file, decompressed if its name says that it is compressed."""
    name = codec(path)
    if name is None:
        return file
    twin = os.fdopen(os.dup(file.fileno()), "rb")  # Arrow closes the file it reads, but the caller still needs its own
    return io.BufferedReader(
        _Bzip2(twin) if name == "bz2" else pa.CompressedInputStream(pa.PythonFile(twin, "r"), name)
    )


class _Bzip2(io.RawIOBase):
    """Decompresses a file of bzip2, member by member. Arrow refuses empty members, and Python's module ignores damaged ones."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member: bz2.BZ2Decompressor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        room = memoryview(room)
        while True:
            if self._member is None or self._member.eof:
                given = b"" if self._member is None else self._member.unused_data
                given = given or self._file.read(_AT_ONCE)
                if not given:
                    return 0
                self._member = bz2.BZ2Decompressor()
            else:
                given = self._file.read(_AT_ONCE) if self._member.needs_input else b""
                if self._member.needs_input and not given:
                    raise OSError("it ends within a member")
            if found := self._member.decompress(given, len(room)):
                room[: len(found)] = found
                return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def whole(file: BinaryIO, path: str) -> bytes:
    """Read a whole file, decompressed.

    Raises:
        InputError: ``SX-INPUT-LARGE`` if the file does not fit into one batch.
    """
    found = plain(file, path).read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise InputError(
            "SX-INPUT-LARGE",
            f"{path} holds more than {MOST_BYTES >> 30} GiB and can only be read as a whole",
            cause="a file that is compressed, has values over several lines or is in UTF-16 cannot be split",
            fix="uncompress it, or make several smaller files of it",
            where={"path": path},
        )
    return found


def cuttable(encoding: str) -> bool:
    """Whether lines can be found in the bytes of a text in this encoding. In UTF-16, for example, they cannot.

    Raises:
        InputError: ``SX-INPUT-ENCODING`` if the encoding is unknown.
    """
    try:
        return "\n".encode(encoding) == b"\n"
    except LookupError:
        raise InputError(
            "SX-INPUT-ENCODING",
            f"there is no encoding {encoding!r}",
            fix="name one that Python knows, such as UTF-8, ISO-8859-1, windows-1252 or UTF-16",
        ) from None


def utf8(data: bytes, encoding: str) -> bytes:
    """Return the same text in UTF-8. Raises ``UnicodeDecodeError`` at the first byte that does not fit the encoding."""
    text = data.decode(encoding)
    return data if codecs.lookup(encoding).name == "utf-8" else text.encode()


def without_mark(data: bytes) -> bytes:
    """Return the beginning of a file without the byte order mark that some writers put there."""
    return data.removeprefix(_BOM)


def lines_before(file: BinaryIO, end: int) -> int:
    """Count the lines that end before a byte. This reads the file, so it is only used for error messages."""
    file.seek(0)
    count = 0
    while end > 0:
        piece = file.read(min(end, 1 << 20))
        if not piece:
            break
        count += piece.count(b"\n")
        end -= len(piece)
    return count
