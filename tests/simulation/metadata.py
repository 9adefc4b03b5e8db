"""What clients beside the reader ask a simulated broker about topics, and a background thread that has answered at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from sardonyx.runtime.background import BackgroundThread


class Topics:
    """A client whose broker tells how many partitions topics have.

    Args:
        sizes: by topic, how many it has now. A test changes it, as users do.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        about = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self.sizes[topic])))
        return SimpleNamespace(topics={topic: about})


def at_once(_: BackgroundThread, work: Callable[[], Any]) -> Future[Any]:
    """In place of :meth:`BackgroundThread.submit`."""
    done: Future[Any] = Future()
    done.set_result(work())
    return done
