"""Time, chance and threads, as the driving code has them: a simulation puts its own in their place.

The coordinator and the life cycle of a virtual peer wait, measure time and make up names through a :class:`Runtime` only. They
take it from their session (:attr:`sardonyx.zookeeper.session.ZooKeeperSession.runtime`). So the simulation can run a whole
cluster in one thread, on simulated time, from a seed. The batches of a task run outside it, on the machine's own clock.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Signal(Protocol):
    """What of ``threading.Event`` we use."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Worker(Protocol):
    """What of ``threading.Thread`` we use."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Condition(Protocol):
    """What of ``threading.Condition`` we use."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...


class Post(Protocol):
    """What of ``queue.SimpleQueue`` we use."""

    def put(self, item: str) -> None: ...
    def get(self) -> str: ...


class Runtime:
    """The machine's own clock, chance and threads."""

    def now(self) -> float:
        """Seconds by a clock that only goes forwards."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def token(self) -> str:
        """A unique name: 32 letters and digits."""
        return uuid.uuid4().hex

    def signal(self) -> Signal:
        """Something to wait for that others set."""
        return threading.Event()

    def condition(self) -> Condition:
        """A lock with which one waits for a change that others tell."""
        return threading.Condition()

    def post(self) -> Post:
        """A queue of words that one waits for and others fill, from any thread and from signal handlers."""
        return queue.SimpleQueue()

    def spawn(self, name: str, run: Callable[[], None]) -> Worker:
        """Run something in a thread of its own, from now on; it does not keep the process alive."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread


REAL = Runtime()
