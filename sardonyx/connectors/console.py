"""An output that prints: for looking on while a job is tried out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from sardonyx.connectors import json_text

SHOWN = 20


class Console:
    """Prints the first rows of each batch, an object a line, on standard output of the peer that works on it.

    A batch that is worked on again is printed again: what is printed is not part of any transaction.

    Args:
        options: as they stand in the spec: rows.
        task: the task's name, which is printed before every row.
    """

    def __init__(self, options: dict[str, Any], task: str) -> None:
        self._most: int = options.get("rows", SHOWN)
        self._task = task

    def stage(self, table: pa.Table) -> list[bytes]:
        """Prints; no entries."""
        lines = [f"{self._task}: {row.decode()}" for row in json_text.rows(table.slice(0, self._most))]
        if table.num_rows > self._most:
            more = orjson.dumps({"more": table.num_rows - self._most}).decode()
            lines.append(f"{self._task}: {more}")
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()
        return []

    def publish(self, entries: Sequence[bytes]) -> None:
        """Nothing to do."""

    def seal(self, entries: Sequence[bytes]) -> None:
        """Nothing to do."""
