"""Pages of the API's lists, and the scale of the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from coordinator.core.state import State
from sardonyx.client.cluster_views import PeerView
from sardonyx.core.errors import SardonyxError
from sardonyx.web.book import Book
from sardonyx.web.overview import JobLine, job_lines
from sardonyx.web.queries import JobsQuery
from sardonyx.web.shelf import Line, Mark


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, the latest first, after one entry of the log."""

    items: list[JobLine]
    next: str | None
    """The address of those that follow."""
    n: int
    at: float | None
    live: bool


class PeersPage(msgspec.Struct, frozen=True):
    """Virtual peers, by id."""

    items: list[PeerView]
    next: str | None
    """The address of those that follow."""


class LogPage(msgspec.Struct, frozen=True):
    """Entries of the log."""

    items: list[Line]
    first: int
    """The oldest entry that there is."""
    last: int
    """The newest entry that there is."""
    next: str | None
    """The address of those that follow."""


class Found(msgspec.Struct, frozen=True):
    """An entry and its time."""

    n: int
    at: float | None


class ScaleMark(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that stands out."""

    n: int
    at: float
    what: Mark
    text: str


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The whole log in short: how many entries were taken in when, and those that stand out."""

    first: int
    last: int
    first_at: float | None
    last_at: float | None
    buckets: list[int]
    """Entries in equal parts of the time between the two."""
    marks: list[ScaleMark]


def jobs_page(book: Book, state: State, query: JobsQuery) -> JobsPage:
    """The jobs of a state. Called with the book's lock held."""
    lines = [line for line in job_lines(state) if query.status in ("", line.status) and query.name in ("", line.name)]
    if query.after:
        place = _submission(book, state, query.after)
        lines = [line for line in lines if state.jobs[line.id].number < place]
    items, last = cut(lines, query.limit, lambda line: line.id)
    return JobsPage(
        items=items,
        next=following_page("jobs", query, {"after": last} if last else None),
        n=state.n,
        at=book.time_of(state.n),
        live=state.n == book.last,
    )


def _submission(book: Book, state: State, job: str) -> int:
    """The entry that submitted a job, by which jobs are listed. It may not be in the list: it has another status, or is gone.

    Raises:
        SardonyxError: ``SX-WEB-CURSOR``: the job is gone, and so is the entry.
    """
    number = state.jobs[job].number if job in state.jobs else book.submission(job)
    if number is None:
        raise SardonyxError(
            "SX-WEB-CURSOR",
            f"the list of jobs cannot go on after {job}",
            cause="there is no such job, or not any more, and the log does not reach back to when it was submitted",
            fix="ask for the list from its beginning, without `after`",
            where={"job": job},
        )
    return number


def cut(items: list[Any], limit: int, key: Callable[[Any], str]) -> tuple[list[Any], str | None]:
    """The first page of what is left of a list, and the key after which the next one begins."""
    page = items[:limit]
    return page, key(page[-1]) if limit < len(items) else None


def following_page(path: str, query: msgspec.Struct, moved: Mapping[str, Any] | None) -> str | None:
    """The address of the page that follows one; None: none does. ``moved``: what of the query is another there."""
    if not moved:
        return None
    given = {key: value for key, value in msgspec.to_builtins(query).items() if value not in (None, "")}
    return f"/api/v1/{path}?{urlencode({**given, **moved})}"
