"""Which timers have run out, as the leader asks. A defect in one kind of them stops no other kind, and so not all jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from coordinator.core.state import State
from coordinator.core.timers import KINDS, TimerKind, Timers
from sardonyx.core.events import AnyEvent
from sardonyx.runtime.settings_sections import CoordinatorSettings

T = TypeVar("T")
log = structlog.get_logger()


def timers_of(settings: CoordinatorSettings) -> Timers:
    """The timeouts that the settings say."""
    return Timers(
        ack_timeout=settings.ack_timeout,
        revoke_grace=settings.revoke_grace,
        failure_backoff=settings.failure_backoff,
        quantum=settings.quantum,
        rebalance_after=settings.rebalance_after,
        keep_jobs=settings.keep_jobs,
    )


class DueTimers:
    """Asks each kind of timers for itself. The log says once that one ended in an error, and the next turn asks it again.

    Args:
        timers: how long each runs.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._broken: dict[str, str] = {}
        """By kind, the last error."""

    def events(self, state: State, now: float) -> list[AnyEvent]:
        """As :func:`coordinator.core.timers.due`."""
        return [event for kind in KINDS for event in self._asked(kind, lambda each: each.due(state, now, self._timers))]

    def next(self, state: State) -> float | None:
        """As :func:`coordinator.core.timers.next_due`."""
        if len(state.expirable) > self._timers.keep_jobs:
            return 0.0
        found = [at for kind in KINDS for at in self._asked(kind, lambda each: each.next(state, self._timers))]
        return min(found, default=None)

    def _asked(self, kind: TimerKind, ask: Callable[[TimerKind], Iterable[T]]) -> list[T]:
        try:
            return list(ask(kind))
        except Exception as error:
            if self._broken.get(kind.name) != repr(error):
                self._broken[kind.name] = repr(error)
                log.error(
                    "timers_broken",
                    timers=kind.name,
                    error=repr(error),
                    exc_info=error,
                    consequence="what these timers bring about does not happen; please report it",
                )
            return []


__all__ = ["DueTimers", "timers_of"]
