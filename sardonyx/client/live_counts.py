"""Row counts of tasks that are not complete, asked from Kafka, with a limit on how long to wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from sardonyx.core.errors import Failure, failure_of
from sardonyx.core.events import Counts
from sardonyx.core.graph import Graph

LOOK = 5.0
"""Seconds that Kafka may take to answer. After that the client shows row counts as unknown."""

log = structlog.get_logger()

Ask = Callable[[Graph, str], dict[str, Counts]]


class LiveCounts:
    """Asks for one job at a time. If Kafka is down, an answer takes half a minute or never comes. So a separate thread asks, and
    nothing new is asked until it has an answer. Threads may share it.

    Args:
        ask: gives the counts of a job by task, from its graph and its id.
        patience: seconds to wait for an answer.
    """

    def __init__(self, ask: Ask, patience: float = LOOK) -> None:
        self._ask = ask
        self._patience = patience
        self._lock = threading.Lock()
        self._asked: _Asked | None = None
        self._failed: dict[str, Failure] = {}

    def counts(self, graph: Graph, job: str) -> dict[str, Counts] | None:
        """Return the counts by task; None if Kafka does not answer in time, also if it has not answered about another job yet."""
        deadline = time.monotonic() + self._patience
        while True:
            with self._lock:
                if self._asked is None or not self._asked.thread.is_alive():
                    self._asked = self._begun(graph, job)
                asked = self._asked
            asked.thread.join(max(deadline - time.monotonic(), 0.0))
            if asked.thread.is_alive():
                return None
            if asked.job == job:
                return asked.answer[0] if asked.answer else None

    def error(self, job: str) -> Failure:
        """Say why the counts of a job are not known: what its last question ended with, or that Kafka is silent."""
        return self._failed.get(job) or Failure(
            "SX-KAFKA-UNREACHABLE",
            f"Kafka has not answered within {self._patience:.0f} s",
            fix=f"run `sardonyx job explain {job}`, which says why; the rows are shown again as soon as it answers",
        )

    def _begun(self, graph: Graph, job: str) -> _Asked:
        answer: list[dict[str, Counts]] = []

        def ask() -> None:
            try:
                answer.append(self._ask(graph, job))
                self._failed.pop(job, None)
            except Exception as error:  # noqa: BLE001 - the outermost frame of the thread: it is told, and not printed
                failure = self._failed[job] = failure_of(error)
                log.warning("row_counts_unavailable", job=job, code=failure.code, error=failure.message)

        thread = threading.Thread(target=ask, daemon=True, name="live counts")
        thread.start()
        return _Asked(job, thread, answer)


class _Asked(NamedTuple):
    """A question about one job."""

    job: str
    thread: threading.Thread
    answer: list[dict[str, Counts]]
    """What it gave, once the thread has ended; empty: nothing."""


__all__ = ["LOOK", "LiveCounts"]
