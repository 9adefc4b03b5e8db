"""Results that go to a file or to standard output."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from sardonyx.core.errors import SardonyxError


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
