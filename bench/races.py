"""Two sides or more in turns, and what came of it as a table: pure, for every part the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import comb
from typing import TypeVar

T = TypeVar("T")
DOUBT = 0.05
"""How often the median of more and more runs may lie outside of :func:`interval`."""


@dataclass
class Row:
    """One line of the table. A ratio above 1 says that we are better: of rates ours to theirs, of times theirs to ours."""

    bench: str
    against: str
    goal: float | None
    """None: it is only reported."""
    unit: str = "records/s"
    fine: bool = False
    """Whether neighbouring runs differ by more than what the goal is about. It is met, or missed, if all of the :func:`interval`
    of the median says so."""
    ratios: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    gone: str = ""
    """Why there are no figures, or no more: the opponent is `left out`, or has `failed`."""

    @property
    def met(self) -> bool | None:
        """None: there is no goal, or the runs do not decide it."""
        if self.goal is None or self.gone or not self.ratios:
            return None
        if not self.fine:
            return statistics.median(self.ratios) >= self.goal
        least, most = interval(self.ratios)
        return None if least < self.goal <= most else least >= self.goal

    @property
    def verdict(self) -> str:
        """A word or two about the goal."""
        if self.gone or self.goal is None:
            return self.gone
        return {None: "cannot be told", True: "met", False: "missed"}[self.met]

    def cells(self) -> list[str]:
        """Of its line, in the order of :data:`HEAD`."""
        return [
            self.bench,
            self.against,
            "" if self.goal is None else f"{self.goal:g} x",
            *(self._figures() if self.ratios else ("", "")),
            self.verdict,
        ]

    def _figures(self) -> tuple[str, str]:
        middle = statistics.median
        least, most = interval(self.ratios) if self.fine else (min(self.ratios), max(self.ratios))
        digits = 3 if self.fine else 2
        found = f"{middle(self.ratios):.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"
        digits = 0 if middle(self.ours) > 100 else 1
        return found, f"{middle(self.ours):,.{digits}f} beside {middle(self.theirs):,.{digits}f} {self.unit}"

    def line(self) -> str:
        return " | ".join(self.cells())


HEAD = ["what", "beside what", "goal", "times as good", "ours and theirs", "verdict"]


def table(rows: Sequence[Row]) -> str:
    """All lines, those with a goal first, and how many goals were met."""
    aimed = [row for row in rows if row.goal is not None]
    lines = [HEAD, *(row.cells() for row in [*aimed, *(row for row in rows if row.goal is None)])]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    drawn = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    drawn.insert(1, "-|-".join("-" * width for width in widths))
    said = [row.verdict for row in aimed]
    drawn.append(f"Of {len(said)} goals: " + ", ".join(f"{said.count(word)} {word}" for word in dict.fromkeys(said)))
    return "\n".join(drawn)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of more and more values would lie, but for :data:`DOUBT`; nothing but their order is used.

    Of fewer than six values that is all of their span, which says a little less.
    """
    ordered, outside, cut = sorted(values), 0.0, 0
    for place in range(len(ordered) // 2):
        outside += 2 * comb(len(ordered), place) / 2 ** len(ordered)
        if outside > DOUBT:
            break
        cut = place
    return ordered[cut], ordered[-1 - cut]


def raced(
    bench: str, against: str, goal: float | None, runs: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> Row:
    """One figure of each run: see :func:`race`."""
    (row,) = race([Row(bench, against, goal)], runs, lambda: [ours()], lambda: [theirs()])
    return row


def race_all(runs: int, ours: Callable[[], float], theirs: Sequence[tuple[Row, Callable[[], float]]]) -> list[Row]:
    """Several opponents, one after the other between two of our runs, to the mean of which each is held. In each round another
    one begins: what is next to a run of ours, and what is far from it, changes.

    One that fails, or does not write what it should, runs no more, whatever it raises; the others go on.
    """
    before = ours() if any(not row.gone for row, _ in theirs) else 0.0
    for number in range(runs):
        turn = number % max(len(theirs), 1)
        order = [*theirs[turn:], *theirs[:turn]]
        figures = [attempt([row], run) for row, run in order]
        if all(found is None for found in figures):
            break
        after = ours()
        for (row, _), found in zip(order, figures, strict=True):
            if found is not None:
                _add(row, (before + after) / 2, found, (before + after) / 2 / found)
        before = after
    for row, _ in theirs:
        print(row.line(), flush=True)
    return [row for row, _ in theirs]


def attempt(rows: Sequence[Row], run: Callable[[], T]) -> T | None:
    """What a run of an opponent gives; None: it has failed, now or before, or is left out. ``rows``: those that it is for."""
    if any(row.gone for row in rows):
        return None
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - whatever an opponent does or writes, the bench goes on
        for row in rows:
            row.gone = "failed"
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        print(f"  {rows[0].against} failed, and does not run again: {kind}{error}", flush=True)
        return None


def race(
    rows: Sequence[Row], runs: int, ours: Callable[[], Sequence[float]], theirs: Callable[[], Sequence[float]]
) -> Sequence[Row]:
    """In turns: each of our runs is held against the mean of theirs before and after it. A run gives a figure for each row. The
    race is over if the other side fails.
    """
    before = attempt(rows, theirs)
    for _ in range(runs):
        if before is None:
            break
        found, after = ours(), attempt(rows, theirs)
        if after is None:
            break
        for row, mine, *others in zip(rows, found, before, after, strict=True):
            _add(row, mine, sum(others) / 2, 2 * mine / sum(others))
        before = after
    for row in rows:
        print(row.line(), flush=True)
    return rows


def paired(
    rows: Sequence[Row], pairs: int, ours: Callable[[], Sequence[float]], theirs: Callable[[], Sequence[float]]
) -> Sequence[Row]:
    """In pairs, both of which run at the same time: the machine is as fast for the one as for the other, however its speed
    changes. Now the one begins and now the other. A run gives a figure for each row: of times, ours and theirs change places.
    """
    for number in range(pairs):
        with ThreadPoolExecutor(2) as pool:
            begun = {side: pool.submit(side) for side in ((theirs, ours) if number % 2 else (ours, theirs))}
            mine, others = begun[ours].result(), begun[theirs].result()
        for row, my, their in zip(rows, mine, others, strict=True):
            _add(row, my, their, my / their if row.unit.endswith("/s") else their / my)
    for row in rows:
        print(row.line(), flush=True)
    return rows


def _add(row: Row, ours: float, theirs: float, ratio: float) -> None:
    """Add the figures of a run, and print them."""
    row.ours.append(ours)
    row.theirs.append(theirs)
    row.ratios.append(ratio)
    told = f"{ours:,.0f} {theirs:,.0f} {ratio:.2f}" if ours > 100 else f"{ours:,.2f} {theirs:,.2f} {ratio:.3f}"
    print(f"  {row.bench} beside {row.against}: {told}", flush=True)
