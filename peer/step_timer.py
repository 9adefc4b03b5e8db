"""How long each step of a batch takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class StepTimer:
    """Measures how long each step of the present batch takes, for the batch's log line."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self.seconds: dict[str, float] = {}
        """Seconds spent, by step."""

    def start(self) -> None:
        """Begin a batch. The time spent waiting for it and reading it counts as its first step, ``wait``."""
        now = time.perf_counter()
        self.seconds = {"wait": now - self._since}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Add the time inside the ``with`` block to the step."""
        began = time.perf_counter()
        yield
        self._since = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + self._since - began

    def share_out(self, step: str, parts: Mapping[str, float], rest: str) -> None:
        """Distribute the time of one step over other steps.

        Args:
            step: the step that was measured.
            parts: seconds by step; it may name the same step. Nothing changes if their sum is 0, or not less than
                the measured time.
            rest: the step that gets the remaining time.
        """
        whole, known = self.seconds.get(step, 0.0), sum(parts.values())
        if 0 < known < whole:
            del self.seconds[step]
            for name, seconds in (*parts.items(), (rest, whole - known)):
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def milliseconds(self) -> dict[str, float]:
        """Return the milliseconds by step, as fields of a log line."""
        return {f"{step}_ms": round(spent * 1000, 1) for step, spent in self.seconds.items()}
