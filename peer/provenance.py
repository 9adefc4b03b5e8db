"""Where the rows of a batch came from: asked for the few that fail, kept for all. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


class Provenance:
    """Where the rows of a batch came from. It costs next to nothing until it is read."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, Sequence[Any], Sequence[int] | None]] = []
        self._rows = 0

    def add(self, messages: Sequence[Any], rows: Sequence[int] | None) -> None:
        """The next rows of the batch are those of these messages.

        Args:
            messages: of Kafka, in order.
            rows: how many rows each gave; None: one each.
        """
        self._spans.append((self._rows, messages, rows))
        self._rows += len(messages) if rows is None else sum(rows)

    def message(self, row: int) -> tuple[Any, int | None]:
        """The message that carried a row of the batch, and the row's index within it where it may hold several."""
        start, messages, rows = self._spans[bisect_right(self._spans, row, key=lambda span: span[0]) - 1]
        if rows is None:
            return messages[row - start], None
        ends = list(itertools.accumulate(rows))
        at = bisect_right(ends, row - start)
        return messages[at], row - start - (ends[at] - rows[at])
