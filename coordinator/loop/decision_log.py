"""Log lines about what was decided: one for each event that is out of the ordinary, one for many of a kind at once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import structlog

from coordinator.core.state import State
from coordinator.loop.log_writer import PendingEntry
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Completed,
    Exhausted,
    JobPurged,
    JobSubmitted,
    Left,
    LinksCreated,
    LinksDeleted,
    PeerBorn,
    PeerDied,
    kind_of,
)

_EVERYDAY = (Acked, Exhausted, Completed)
"""Events that are logged for debugging only: there are many, and they say nothing that is out of the ordinary."""
_SUMMED_UP = (PeerBorn, PeerDied, Left, JobSubmitted, LinksCreated, LinksDeleted, JobPurged)
"""Events that get a line each only if few come at once; otherwise one line counts them."""
MANY = 5
"""Events of one such kind at once that still get a line each; when debugging, all do."""

log = structlog.get_logger()


class DecisionLog:
    """Logs what was decided about some entries that were appended together."""

    def __init__(self, entries: Sequence[PendingEntry]) -> None:
        self._log = log.bind()  # once: binding for each line costs more than a decision
        self._debugs = self._log.is_enabled_for(logging.DEBUG)
        self._entries = entries
        self._many: set[type] = set()
        if len(entries) > MANY:
            kinds = Counter(type(entry.event) for entry in entries)
            self._many = {kind for kind in _SUMMED_UP if kinds[kind] > MANY}

    def decided(self, state: State, n: int, event: AnyEvent) -> None:
        """To be called right after each decision, with the state that it gave."""
        everyday = isinstance(event, _EVERYDAY) or type(event) in self._many
        if everyday and not self._debugs:
            return
        fields: dict[str, object] = {"n": n, "kind": kind_of(event)}
        peer, job = getattr(event, "peer", None), getattr(event, "job", None)
        if peer is not None:
            fields["peer"] = peer
            assignment = state.peers[peer].assignment if peer in state.peers else None
            if assignment is not None:
                fields |= {"job": assignment.job, "task": assignment.task}
        if job is not None:
            fields["job"] = job
            if job in state.jobs:
                fields["status"] = state.jobs[job].status
        if error := getattr(event, "error", None):
            fields |= {"code": error.code, "error": error.message}
        say = self._log.debug if everyday else self._log.info
        say("event_decided", **fields)

    def summary(self, n: int) -> None:
        """To be called after the last decision, of entry ``n``."""
        if self._many:
            kinds = Counter(kind_of(entry.event) for entry in self._entries if type(entry.event) in self._many)
            log.info("many_events_decided", n=n, **kinds)
