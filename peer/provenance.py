"""Where the rows of a batch came from: asked for the few that fail, kept for all. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.core.positions import Partition


class Provenance:
    """Where the rows of a batch came from. It costs next to nothing until it is read."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, Sequence[Any], Sequence[int] | None, Sequence[int]]] = []
        self._rows = 0

    def add(self, messages: Sequence[Any], rows: Sequence[int] | None, without: Sequence[int] = ()) -> None:
        """The next rows of the batch are those of these messages.

        Args:
            messages: of Kafka, in order.
            rows: how many rows each gave; None: one each.
            without: the numbers of rows among these, from 0 and rising, that did not come into the batch.
        """
        self._spans.append((self._rows, messages, rows, without))
        self._rows += (len(messages) if rows is None else sum(rows)) - len(without)

    def message(self, row: int) -> tuple[Any, int | None]:
        """The message that carried a row of the batch, and the row's index within it where it may hold several."""
        start, messages, rows, without = self._spans[bisect_right(self._spans, row, key=lambda span: span[0]) - 1]
        number = row - start
        number += bisect_right(range(len(without)), number, key=lambda n: without[n] - n)
        if rows is None:
            return messages[number], None
        ends = list(itertools.accumulate(rows))
        at = bisect_right(ends, number)
        return messages[at], number - (ends[at] - rows[at])


@dataclass(frozen=True)
class ShardOrigin:
    """Where the results of a shard came from, as a message says it of itself."""

    place: Partition
    reached: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.number

    def offset(self) -> int:
        return self.reached

    def headers(self) -> None:
        return None
