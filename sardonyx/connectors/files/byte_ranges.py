"""Bytes of input files: the same at every read, cut into ranges that cover each line exactly once.

The rule for ranges: a range owns the lines that BEGIN in it. A reader therefore skips the line that it begins in the middle
of, and reads past its end to finish the last line that is its own. A line ends with a line feed; a carriage return before
it belongs to the ending.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import pyarrow as pa

from sardonyx.core.errors import InputError

MOST_BYTES = 1 << 30
"""What is read at once is held in memory, by Arrow in blocks that are counted in 32 bits."""

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
_FOREIGN = (".zip", ".7z", ".rar", ".tar", ".tgz", ".xz", ".snappy", ".lzo")
_BOM = codecs.BOM_UTF8


def version(path: str) -> dict[str, int]:
    """What a file's content is known by: size in bytes and time of its last change.

    Raises:
        InputError: ``SX-INPUT-MISSING``, ``SX-INPUT-UNREADABLE``.
    """
    with _explained(path):
        found = Path(path).stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


@contextmanager
def unchanged(path: str, known: Mapping[str, Any]) -> Iterator[BinaryIO]:
    """A file opened for reading that is, before and after, the version that ``known`` tells.

    A batch may be read again, by another peer, and must then be the same; so a file that was changed is refused.

    Raises:
        InputError: ``SX-INPUT-CHANGED``, ``SX-INPUT-MISSING``, ``SX-INPUT-UNREADABLE``.
    """
    with _explained(path), Path(path).open("rb") as file:
        _check_version(file, path, known)
        yield file
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
def _explained(path: str) -> Iterator[None]:
    """Errors of the operating system as ours."""
    try:
        yield
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise InputError(
            "SX-INPUT-UNREADABLE",
            f"{path} cannot be read: {error.strerror or error}",
            fix="check the file and its permissions on the machines that run peers and Spark workers",
            where={"path": path},
        ) from error


def missing(path: str) -> InputError:
    """The error for a path or glob that matches nothing."""
    return InputError(
        "SX-INPUT-MISSING",
        f"{path} was not found",
        cause="there is no such file, folder or match on this machine",
        fix="check the path; it must be the same on every machine that runs peers or Spark workers",
        where={"path": path},
    )


def owned(file: BinaryIO, start: int, end: int) -> tuple[bytes, int]:
    """The lines that begin in ``[start, end)``, whole, and the offset of the first of them.

    The lines of all ranges of a file, concatenated, are the file again, byte for byte.
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
    """The compression that a file's name tells; None: none.

    Raises:
        InputError: ``SX-INPUT-UNREADABLE``, one that cannot be undone here, or an archive.
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
    """The file's content, decompressed if its name says that it is compressed."""
    name = codec(path)
    if name is None:
        return file
    twin = os.fdopen(os.dup(file.fileno()), "rb")  # Arrow closes what it reads from, and the caller still needs its own
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(twin, "r"), name))


def whole(file: BinaryIO, path: str) -> bytes:
    """All of a file, decompressed.

    Raises:
        InputError: ``SX-INPUT-LARGE``, it does not fit into one batch.
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
    """Whether lines can be found in the bytes of a text in this encoding; not so in UTF-16, for one.

    Raises:
        InputError: ``SX-INPUT-ENCODING``, the encoding is unknown.
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
    """The same text in UTF-8. Raises ``UnicodeDecodeError`` at the first byte that is none."""
    text = data.decode(encoding)
    return data if codecs.lookup(encoding).name == "utf-8" else text.encode()


def without_mark(data: bytes) -> bytes:
    """The beginning of a file without the byte order mark that some writers put there."""
    return data.removeprefix(_BOM)


def lines_before(file: BinaryIO, end: int) -> int:
    """How many lines end before a byte. Only errors are worth reading a file for that."""
    file.seek(0)
    count = 0
    while end > 0:
        piece = file.read(min(end, 1 << 20))
        if not piece:
            break
        count += piece.count(b"\n")
        end -= len(piece)
    return count
