"""Files that a command reads or writes, with standard input and standard output as files too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sardonyx.core.errors import SardonyxError


@contextlib.contextmanager
def opened(file: str, code: str, fix: str) -> Iterator[IO[bytes]]:
    """The file, or standard input if it is ``-``, while the block runs.

    Raises:
        SardonyxError: of this code and with this fix: the file cannot be read.
    """
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise SardonyxError(code, f"{file} cannot be read", cause=str(error), fix=fix, where={"file": file}) from None
    with source:
        yield source


def write_lines(out: Path | None, lines: Iterator[bytes]) -> None:
    """Write lines to a file, or to standard output if ``out`` is None.

    The first line is made before the file: an error comes before there is a file. A file of that name is always whole,
    since it is written under another name first.

    Raises:
        SardonyxError: ``SX-OUT-FILE``: the file cannot be written.
    """
    first = next(lines, b"")
    if out is None:
        sys.stdout.buffer.write(first)
        sys.stdout.buffer.writelines(lines)
        return
    part = Path(f"{out}.part")
    try:
        with part.open("wb") as file:
            file.write(first)
            file.writelines(lines)
        part.replace(out)
    except OSError as error:
        raise SardonyxError(
            "SX-OUT-FILE",
            f"{out} cannot be written",
            cause=str(error),
            fix="name a file in a folder that exists, in which you may write, on a disk with room",
            where={"file": out},
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
