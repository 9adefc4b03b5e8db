"""Work in threads of its own that is repeated, with a growing pause, until it is done.

The coordinator does everything outside ZooKeeper this way. Clock and threads come from the :class:`Runtime`, so a simulation can
put its own in their place.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable

import structlog

from sardonyx.runtime.clock import REAL, Runtime

log = structlog.get_logger()

Attempt = Callable[[int], bool]
"""One attempt, given its number from 1 on: whether the work is done. If it raises, it is logged and tried again."""


class RetryingWorker:
    """Runs pieces of work, each until it is done. Threads are started when there is work for them.

    Pieces of the same key run in the order of their submission, one at a time. Pieces of different keys do not wait for each
    other, not even while one of them pauses.

    Args:
        name: of its threads.
        threads: how many pieces run at once, at most.
        first_pause: seconds before the second attempt; doubled each time.
        longest_pause: seconds between two attempts, at most.
        runtime: time and threads.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int = 1,
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
        runtime: Runtime = REAL,
    ) -> None:
        self._name = name
        self._most = threads
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._runtime = runtime
        self._changed = runtime.condition()
        self._work: dict[Hashable, deque[Attempt]] = {}
        """By key, what is not done yet; the first of each is due, pauses or runs."""
        self._due: list[tuple[float, int, Hashable, int]] = []
        """When the first piece of a key is to be run, as a heap: time, tie-breaker, key, number of the attempt."""
        self._ticket = itertools.count()
        self._threads = 0
        self._waiting = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called. A running attempt may ask."""
        return self._closed

    @property
    def pending(self) -> int:
        """How many pieces of work are not done. Any thread may ask."""
        with self._changed:
            return sum(map(len, self._work.values()))

    def submit(self, key: Hashable, attempt: Attempt) -> None:
        """Have a piece of work done, after all others of the same key. Does not wait. Nothing happens after :meth:`close`."""
        with self._changed:
            if self._closed:
                return
            pieces = self._work.setdefault(key, deque())
            pieces.append(attempt)
            if len(pieces) > 1:
                return
            self._schedule(key, 0.0, 1)
            if self._waiting < len(self._due) and self._threads < self._most:
                self._runtime.spawn(f"{self._name}-{self._threads}", self._run)
                self._threads += 1

    def close(self) -> None:
        """Begin no attempt any more. One that runs is left to end by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _schedule(self, key: Hashable, pause: float, attempt: int) -> None:
        heapq.heappush(self._due, (self._runtime.now() + pause, next(self._ticket), key, attempt))
        self._changed.notify()

    def _next(self) -> tuple[Hashable, int] | None:
        with self._changed:
            while not self._closed:
                pause = self._due[0][0] - self._runtime.now() if self._due else None
                if pause is not None and pause <= 0:
                    _, _, key, attempt = heapq.heappop(self._due)
                    return key, attempt
                self._waiting += 1
                self._changed.wait(pause)
                self._waiting -= 1
            return None

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, attempt = found
            try:
                done = self._work[key][0](attempt)
            except Exception as error:
                log.exception("attempt_raised", worker=self._name, attempt=attempt, error=str(error))
                done = False
            with self._changed:
                pieces = self._work[key]
                if not done:
                    pause = min(self._first_pause * 2.0 ** min(attempt - 1, 60), self._longest_pause)
                    self._schedule(key, pause, attempt + 1)
                    continue
                pieces.popleft()
                if pieces:
                    self._schedule(key, 0.0, 1)
                else:
                    del self._work[key]
