"""Finds the rows that a function raises for. The search cuts parts that raise until each bad row is alone.

This module does not depend on Spark.

One bad row among ``n`` costs about ``1.5 * log2(n)`` runs. If the first of two halves is fine, the search need not try
the second half as a whole. Every good row is in exactly one run that succeeds. If many rows are bad, two halves would
usually both be bad again. So the search estimates from the bad rows found so far how many there are, and cuts a part
into pieces with about one bad row each.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from sardonyx.core.errors import FunctionError

Result = TypeVar("Result")

MOST_PIECES = 16
"""The search cuts a part into at most this many pieces at once. So a wrong guess does not cost too many runs."""


class DataFault(Exception):
    """A user's function raised for some rows; the other rows may still succeed.

    Args:
        raised: the exception that it raised.
        tell: makes the error that users see. We call it only if we need it, because a traceback is slow to write.
    """

    def __init__(self, raised: BaseException, tell: Callable[[], FunctionError]) -> None:
        super().__init__(str(raised))
        self._tell = tell

    @cached_property
    def error(self) -> FunctionError:
        """The error that users see."""
        return self._tell()


class Culprit(NamedTuple):
    """A row that raises by itself."""

    row: int
    fault: DataFault
    attempts: int
    """How many runs with this row raised."""


@dataclass
class Found(Generic[Result]):
    """The result of a search."""

    results: list[Result] = field(default_factory=list)
    """The results of all runs that succeeded, in the order of their rows."""
    bad: list[Culprit] = field(default_factory=list)
    """The bad rows, in the order of the rows."""
    runs: int = 0


class _Part(NamedTuple):
    start: int
    stop: int
    raised: int
    """How many runs with its rows have raised so far."""
    sure: bool
    """Whether it must contain a bad row, because all other parts are fine."""
    following: tuple[tuple[int, int], ...] = ()
    """The parts that the search looks at after it. All parts before it are fine."""


def search(
    rows: int,
    run: Callable[[int, int], Result],
    *,
    raised: int = 1,
    thread: Callable[..., threading.Thread] = threading.Thread,
    threads: int = 1,
) -> Found[Result]:
    """Find the bad rows of a batch that raised as a whole.

    Args:
        rows: how many rows the batch has.
        run: ``run(start, stop)`` applies the function to these rows. It raises :class:`DataFault` if the function
            raises for them. Any other exception ends the search.
        raised: how many runs of the whole batch have raised.
        thread: makes a thread.
        threads: how many runs may happen at a time. With one bad row only one run at a time is useful. With many bad
            rows all are useful.
    """
    state = _Search(rows, run, raised)
    if threads == 1:
        state.work()
    else:
        crew = [thread(target=state.work, daemon=True) for _ in range(threads - 1)]
        for each in crew:
            each.start()
        state.work()
        for each in crew:
            each.join()
    if state.failed is not None:
        raise state.failed
    results = [result for _, result in sorted(state.results.items())]
    return Found(results, sorted(state.bad), state.runs)


class _Search(Generic[Result]):
    """The parts that the search has yet to look at, the newest part first.

    This order finds bad rows early, and they help to estimate how many bad rows there are.
    """

    def __init__(self, rows: int, run: Callable[[int, int], Result], raised: int) -> None:
        self._run = run
        self._waiting = [_Part(0, rows, raised, sure=True)] if rows else []
        self._busy = 0
        self._changed = threading.Condition()
        self._settled = 0
        self.results: dict[int, Result] = {}
        self.bad: list[Culprit] = []
        self.runs = 0
        self.failed: BaseException | None = None

    def work(self) -> None:
        """Look at parts until none is left. Several threads may call this at a time."""
        while (part := self._next()) is not None:
            try:
                self._look(part)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that began the search
                with self._changed:
                    self.failed = self.failed or error
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _next(self) -> _Part | None:
        with self._changed:
            while not self._waiting and self._busy and self.failed is None:
                self._changed.wait()
            if not self._waiting or self.failed is not None:
                return None
            self._busy += 1
            return self._waiting.pop()

    def _look(self, part: _Part) -> None:
        rows = part.stop - part.start
        if part.sure and rows > 1:
            with self._changed:
                self._cut(part, part.raised)
            return
        try:
            result = self._run(part.start, part.stop)
        except DataFault as fault:
            with self._changed:
                self._raised(part, fault)
            return
        with self._changed:
            self.runs += 1
            self._settled += rows
            self.results[part.start] = result
            if part.following:
                (start, stop), *rest = part.following
                self._waiting.append(_Part(start, stop, part.raised, sure=not rest, following=tuple(rest)))
                self._changed.notify()

    def _raised(self, part: _Part, fault: DataFault) -> None:
        self.runs += 1
        for start, stop in reversed(part.following):
            self._waiting.append(_Part(start, stop, part.raised, sure=False))
        if part.stop - part.start > 1:
            self._cut(part, part.raised + 1)
        else:
            self._settled += 1
            self.bad.append(Culprit(part.start, fault, part.raised + 1))
        self._changed.notify_all()

    def _cut(self, part: _Part, raised: int) -> None:
        rows = part.stop - part.start
        expected = rows * len(self.bad) // max(self._settled, 1)
        pieces = min(max(2, expected), MOST_PIECES, rows)
        edges = [part.start + rows * n // pieces for n in range(pieces + 1)]
        (start, stop), *rest = itertools.pairwise(edges)
        self._waiting.append(_Part(start, stop, raised, sure=False, following=tuple(rest)))
        self._changed.notify()
