"""What differs between two moments of the log. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.core.state import State
from coordinator.history.replay import Change, place_of
from sardonyx.core.events import PeerState
from sardonyx.core.notes import PeerNote
from sardonyx.core.secrets import masked
from sardonyx.web.book import Book
from sardonyx.web.queries import DiffQuery

_NAMES = {"begin": "from", "end": "to", "begin_at": "from_at", "end_at": "to_at"}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two moments at one node of ZooKeeper, as in `log show N --json`, and in words."""

    path: str
    before: Any
    """None: there was no such node."""
    after: Any
    text: str
    """Empty if other nodes say it."""


class LogDiff(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """What differs between two moments. What came and went between them is not in it."""

    begin: int
    end: int
    begin_at: float | None
    end_at: float | None
    peers_before: dict[PeerState, int]
    """How many virtual peers were in each state."""
    peers_after: dict[PeerState, int]
    changes: list[Difference]
    """First jobs and their tasks, then peers."""
    left_out: int
    """How many more there are than were asked for."""


def log_diff(book: Book, query: DiffQuery) -> LogDiff:
    """What differs between the two moments of a question.

    Raises:
        SardonyxError: ``SX-LOG-RANGE``: the book does not hold one of them. ``SX-WEB-DISK``.
    """
    before, after = _peers(book.at(query.begin)), _peers(book.at(query.end))
    found = [each for each in book.changed(query.begin, query.end) if not query.job or _is_of(each, query.job)]
    told = [book.words.change(each) for each in found[: query.limit]]
    return LogDiff(
        begin=query.begin,
        end=query.end,
        begin_at=book.time_of(query.begin),
        end_at=book.time_of(query.end),
        peers_before=before,
        peers_after=after,
        changes=[
            Difference(**masked(msgspec.json.decode(msgspec.json.encode(data))), text=text) for data, text in told
        ],
        left_out=len(found) - len(told),
    )


def _peers(state: State) -> dict[PeerState, int]:
    return {name: len(peers) for name, peers in state.by_state.items() if peers}


def _is_of(change: Change, job: str) -> bool:
    """Whether a change concerns a job, also as that of a peer which worked on it before or after."""
    notes = [note for note in (change.was, change.now) if isinstance(note, PeerNote) and note.assignment is not None]
    return place_of(change.path).job == job or any(note.assignment.job == job for note in notes if note.assignment)
