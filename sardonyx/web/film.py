"""A stretch of the log as one page shows it: its first state whole, and of the others what differs from the one before.

So a browser that has a film shows any of its entries without a question. The states are those that ``?at=N`` answers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from coordinator.core.state import State
from sardonyx.core.errors import SardonyxError
from sardonyx.core.secrets import masked
from sardonyx.web.book import Book
from sardonyx.web.capacity import Capacity, capacity
from sardonyx.web.listings import JobsPage, jobs_page
from sardonyx.web.overview import ClusterOverview, JobOverview, cluster_overview, job_overview
from sardonyx.web.queries import JobsQuery
from sardonyx.web.shelf import Line
from sardonyx.web.sight import Standing

FRAMES = 200
"""Entries of a film, at most."""
SECONDS = 0.4
"""Seconds after which a film ends early: the answer says where it goes on."""
LEAST = 20
"""Entries of a film, at least: each question takes some time of its own."""
KEPT = 16 << 20
"""Bytes of films that are kept, because others look at the same stretch."""
SHIFT = 4
"""Items that come at the front of a list at once, where the others move on; of more, the list is sent anew."""

Page = Callable[[State], ClusterOverview | JobsPage | JobOverview | Capacity | None]
"""Makes what a page shows of a state; None if there is no such page then."""


class FilmQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"begin": "from", "end": "to"}):
    """A stretch of the log, and a page."""

    begin: Annotated[int, Meta(description="The first entry.", ge=0)]
    end: Annotated[int, Meta(description="The last entry; a film has 200 at most.", ge=0)]
    topic: Annotated[
        str, Meta(description="Which page: `cluster`, `jobs`, `capacity`, or `job:ID` with a whole id.")
    ] = "cluster"


class FilmChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference: the value at a path is another one; or it is gone; or some items of the list there are others."""

    path: list[str | int]
    """Names and indices from the top of the page."""
    value: Any = msgspec.UNSET
    gone: bool = False
    index: int | None = None
    """From here on, ``removed`` items of the list go and ``items`` come."""
    removed: int = 0
    items: list[Any] = []


class FilmFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, what it changed, and how the page differs from that of the frame before."""

    line: Line
    lines: list[str]
    """What it changed, as the page of the entry says it."""
    request: str
    """The request that it came from."""
    changes: list[FilmChange]
    """How the page differs from that of the frame before; in the first frame, the whole page."""


class Film(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the log as one page shows it."""

    topic: str
    frames: list[FilmFrame]
    next: str | None
    """The address of the film that follows, if this one ended early."""


def page_of(topic: str, book: Book, standing: Standing) -> Page:
    """What makes the page of a topic from a past state; called with the book's lock held.

    Raises:
        SardonyxError: ``SX-WEB-QUERY``: there is no such topic.
    """

    def job(state: State) -> JobOverview | None:
        name = topic.partition(":")[2]
        if name not in state.jobs:
            return None
        return job_overview(book, state, name, standing, None, book.time_of(state.n) or 0.0, None)

    if topic.startswith("job:"):
        return job
    if topic == "cluster":
        return lambda state: cluster_overview(book, state, standing, book.time_of(state.n) or 0.0)
    if topic == "capacity":
        return lambda state: capacity(book, state)
    if topic == "jobs":
        return lambda state: jobs_page(book, state, JobsQuery(at=state.n))
    raise SardonyxError("SX-WEB-QUERY", f"there is no topic {topic!r}", fix="cluster, jobs, capacity, or job:ID")


class Films:
    """Makes films, one at a time, and keeps the last of them. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: Book | None = None
        self._kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._bytes = 0

    def film(self, book: Book, query: FilmQuery, page: Page) -> bytes:
        """The JSON of a film, without secrets.

        Args:
            book: the log.
            query: which stretch.
            page: makes the page; called with the book's lock held.

        Raises:
            SardonyxError: ``SX-LOG-RANGE``: the book does not hold the first entry, or it is the last one of the log, after
                which the page still changes. ``SX-WEB-QUERY``: the stretch ends before it begins. ``SX-WEB-DISK``.
        """
        if query.end < query.begin:
            raise SardonyxError(
                "SX-WEB-QUERY", "the film ends before it begins", fix="give `to` that is not before `from`"
            )
        with book.lock:
            if not book.first <= query.begin < book.last:
                raise _no_film(query.begin, book)
            end = min(query.end, query.begin + FRAMES - 1, book.last - 1)
        key = query.topic, query.begin, end
        with self._lock:
            if self._of is not book:  # the log was read anew: it may be another one
                self._of, self._bytes = book, 0
                self._kept.clear()
            known = self._kept.pop(key, None)
            if known is None:
                known = msgspec.json.encode(_film(book, query.topic, query.begin, end, page))
                self._bytes += len(known)
            self._kept[key] = known
            while self._bytes > KEPT:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return known


def _no_film(n: int, book: Book) -> SardonyxError:
    return SardonyxError(
        "SX-LOG-RANGE",
        f"there is no film from entry {n} on; films hold entries {book.first} to {book.last - 1}",
        cause="the page after the last entry still changes" if n >= book.last else "older ones are not kept",
        fix=f"name one of {book.first} to {book.last - 1}" if book.last > book.first else "wait for more entries",
        where={"n": n, "first": book.first, "last": book.last},
    )


def _film(book: Book, topic: str, begin: int, end: int, page: Page) -> Film:
    until = time.monotonic() + SECONDS
    frames: list[FilmFrame] = []
    before: Any = msgspec.UNSET
    for decided, request, state in book.walk(begin, end):
        with book.lock:
            shown = page(state)
            now = None if shown is None else book.mask.plain(_plain(shown))
            line = next(book.lines(decided.n, decided.n))
            told = book.mask.plain(masked([msgspec.to_builtins(line), book.words.lines(decided)]))
        frames.append(
            FilmFrame(
                line=msgspec.convert(told[0], Line),
                lines=told[1],
                request=request,
                changes=list(differences(before, now)),
            )
        )
        before = now
        if len(frames) >= LEAST and time.monotonic() > until:
            break
    last = frames[-1].line.n
    moved = {"from": last + 1, "to": end, "topic": topic}
    return Film(topic=topic, frames=frames, next=f"/api/v1/log/film?{urlencode(moved)}" if last < end else None)


def _plain(shown: msgspec.Struct) -> dict[str, Any]:
    """What a page shows, without where the server stands: that is no part of the past."""
    plain: dict[str, Any] = msgspec.to_builtins(shown)
    plain.pop("standing", None)
    return plain


def differences(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[FilmChange]:
    """What leads from one value of plain data to another; in this order, one after the other.

    Args:
        before: the value before; ``UNSET``: there was none.
        after: the value after.
        path: of both.
    """
    if before == after:  # a field has one type: 1 is never true
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield FilmChange(path=[*path, key], gone=True)
        for key, value in after.items():
            yield from differences(before.get(key, msgspec.UNSET), value, (*path, key))
    elif isinstance(before, list) and isinstance(after, list) and before and after:
        yield from _in_list(before, after, path)
    else:
        yield FilmChange(path=[*path], value=after)


def _in_list(before: list[Any], after: list[Any], path: tuple[str | int, ...]) -> Iterator[FilmChange]:
    if len(before) == len(after) and before[0] == after[0]:
        for index, (was, now) in enumerate(zip(before, after, strict=True)):
            yield from differences(was, now, (*path, index))
        return
    for new in range(1, SHIFT + 1):  # the newest come first, and the oldest of a list that is cut fall off its end
        stay = len(after) - new
        if 0 < stay <= len(before) and after[new:] == before[:stay]:
            yield FilmChange(path=[*path], index=0, items=after[:new])
            if stay < len(before):
                yield FilmChange(path=[*path], index=len(after), removed=len(before) - stay)
            return
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    if len(before) == len(after) and same + tail >= len(after) // 2:
        for index in range(same, len(after) - tail):
            yield from differences(before[index], after[index], (*path, index))
        return
    yield FilmChange(path=[*path], index=same, removed=len(before) - tail - same, items=after[same : len(after) - tail])
