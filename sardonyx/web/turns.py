"""Lets few look into Kafka at a time, however many want to, and repeats for a while what Kafka said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sardonyx.core.errors import SardonyxError

PERIOD = 2.0
"""Seconds for which an answer is given again."""
SHARE = 4
"""The same is asked for at most one part of so many of the time."""
PATIENCE = 20.0
"""Seconds that one may wait for its turn."""
KEPT = 50
"""Answers that are kept."""

Answer = TypeVar("Answer")


class Turns:
    """Lets so many look at one time; the others wait. Threads may share it.

    Args:
        what: they look at, for the error.
        at_once: how many may.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, what: str, at_once: int, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._at_once = at_once
        self._now = now
        self._free = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[float, Any]] = {}
        """Answers, and until when each is given."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Look within the block. Raises ``SX-WEB-BUSY``."""
        if not self._free.acquire(timeout=PATIENCE):
            raise SardonyxError(
                "SX-WEB-BUSY",
                f"too many look at {self._what} at this moment",
                cause=f"{self._at_once} others did, and none of them has ended within {PATIENCE:.0f} s",
                fix="try again",
            )
        try:
            yield
        finally:
            self._free.release()

    def shared(self, key: Hashable, ask: Callable[[], Answer]) -> Answer:
        """An answer that all get who want the same, for as long as it is new. Raises what ``ask`` raises, and ``SX-WEB-BUSY``."""
        with self.turn():
            began = self._now()
            with self._lock:
                until, known = self._known.get(key, (began, None))
            if began < until:
                return known  # type: ignore[no-any-return]  # the key says of which type it is
            answer = ask()
            ended = self._now()
            with self._lock:
                self._known = {each: kept for each, kept in self._known.items() if kept[0] > ended}
                while len(self._known) >= KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = ended + max(PERIOD, (SHARE - 1) * (ended - began)), answer
            return answer
