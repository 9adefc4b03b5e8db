"""Results that go to a file or to standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path


def write_lines(out: Path | None, lines: Iterator[bytes]) -> None:
    """Write lines to a file, or to standard output if ``out`` is None.

    The first line is made before the file: an error comes before there is a file. A file of that name is always whole,
    since it is written under another name first.
    """
    first = next(lines, b"")
    if out is None:
        sys.stdout.buffer.write(first)
        sys.stdout.buffer.writelines(lines)
        return
    part = out.with_name(out.name + ".part")
    with part.open("wb") as file:
        file.write(first)
        file.writelines(lines)
    part.replace(out)
