"""The API under ``/api/v1``: what each address answers. One table makes the routes and the OpenAPI document.

The objects are those that ``--json`` prints. Within v1 there are only additions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from coordinator.core.state import Job, State
from coordinator.history.timeline import TimelineEvent
from sardonyx.client.cluster_views import PeerView, peer_view
from sardonyx.client.dead_letters import Stored
from sardonyx.client.ids import find_job
from sardonyx.client.lags import LinkLag
from sardonyx.client.peek import Peek
from sardonyx.client.reasons import Why
from sardonyx.client.views import JobView
from sardonyx.core.errors import Failure, SardonyxError, failure_of
from sardonyx.core.notes import PulseNote
from sardonyx.core.secrets import masked
from sardonyx.core.spec import JobSpec
from sardonyx.web.access import Session, Visitor
from sardonyx.web.actions import Action, no_actions, wish_of
from sardonyx.web.batches import BatchesPage, BatchesQuery, BatchStream, StreamQuery
from sardonyx.web.book import Book
from sardonyx.web.capacity import Capacity, capacity
from sardonyx.web.differences import LogDiff, log_diff
from sardonyx.web.film import Film, FilmQuery, Films, page_of
from sardonyx.web.graph_view import GraphView
from sardonyx.web.listings import (
    Found,
    JobsPage,
    LogPage,
    PeersPage,
    Scale,
    ScaleMark,
    cut,
    following_page,
    jobs_page,
)
from sardonyx.web.overview import (
    ClusterOverview,
    JobOverview,
    cluster_overview,
    job_overview,
)
from sardonyx.web.partitions import PartitionsPage
from sardonyx.web.problems import no_task
from sardonyx.web.queries import (
    AtQuery,
    DiffQuery,
    FindQuery,
    JobsQuery,
    LogQuery,
    NoQuery,
    PeersQuery,
    ScaleQuery,
    read_query,
)
from sardonyx.web.rows import LettersPage, LettersQuery, PeekQuery, PilesPage, PilesQuery, Rows, not_here
from sardonyx.web.shelf import Line
from sardonyx.web.sight import Standing
from sardonyx.web.source import Source
from sardonyx.web.targets import no_targets

MARKS = 400
"""Marks on the scale of the log; of more, those that tell least are left out."""
SCALES = 100
"""Scales that are kept."""
SCANNED = 50_000
"""Entries that one question to a filtered list looks at; the answer says where to go on."""


class Address(NamedTuple):
    """One address of the API."""

    path: str
    query: type[msgspec.Struct]
    answer: Any
    summary: str
    handler: Callable[[Api, Any, Mapping[str, str]], Any]
    past: bool = False
    """Whether the same question always has the same answer, once it names a moment."""
    asks: bool = False
    """It asks Kafka, or makes a film: it may take seconds, and holds no lock meanwhile."""


class Api:
    """Answers questions about a source. Runs in threads."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._scales: dict[tuple[int, str], tuple[Book, Scale]] = {}
        self._films = Films()

    def answer(self, address: Address, raw: Mapping[str, str], parts: Mapping[str, str]) -> bytes:
        """The JSON of an answer, without secrets.

        Raises:
            SardonyxError: ``SX-WEB-QUERY``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``, ``SX-LOG-RANGE`` and others.
        """
        with self._errors_told():
            query = read_query(address.query, raw)
            if address.asks:
                found = address.handler(self, query, parts)
                if isinstance(found, bytes):
                    return found
                with self.source.book.lock:
                    return self._encoded(found)
            with self.source.book.lock:
                return self._encoded(address.handler(self, query, parts))

    def act(
        self, action: Action, raw: Mapping[str, str], parts: Mapping[str, str], visitor: Visitor, key: str
    ) -> tuple[int, bytes]:
        """Do what an operator wants: 200 with the entry of the log by which it was taken in, or 202 as long as it was not.

        Raises:
            SardonyxError: ``SX-WEB-QUERY``, ``SX-WEB-METHOD``, ``SX-JOB-UNKNOWN``, ``SX-JOB-ENDED``, and what the action raises.
        """
        actions = self.source.actions
        if isinstance(actions, str):
            raise no_actions(actions)
        with self._errors_told():
            done = action.handler(actions, wish_of(visitor, action, parts, key, raw))
        return (202 if done.n is None else 200), self._encoded(done)

    def targets(self) -> bytes:
        """The daemons that serve metrics, as Prometheus' HTTP service discovery reads them.

        Raises:
            SardonyxError: ``SX-WEB-PATH``: no running deployment is shown. Or ZooKeeper does not answer.
        """
        targets = self.source.targets
        if isinstance(targets, str):
            raise no_targets(targets)
        with self._errors_told():
            return msgspec.json.encode(targets.now())

    def session(self, visitor: Visitor) -> bytes:
        """Who asks, and what that person may do here."""
        acts = visitor.role == "operator" and not isinstance(self.source.actions, str)
        return msgspec.json.encode(Session(name=visitor.name, role=visitor.role, acts=acts))

    def topic(self, topic: str) -> bytes:
        """The JSON of a topic of the stream: ``standing``, ``cluster``, or ``job:ID``."""
        with self._errors_told(), self.source.book.lock:
            if topic == "standing":
                return self._encoded(self.source.standing())
            if topic == "cluster":
                return self._encoded(self.cluster(AtQuery(), {}))
            return self._encoded(self.job_overview(AtQuery(), {"job": topic.partition(":")[2]}))

    def _encoded(self, value: Any) -> bytes:
        return msgspec.json.encode(self._book.mask.plain(msgspec.to_builtins(value)))

    def without_secrets(self, error: Exception) -> SardonyxError:
        """An error that quotes no secret of a job."""
        plain = self._book.mask.plain(msgspec.to_builtins(failure_of(error)))
        return SardonyxError.from_failure(msgspec.convert(plain, Failure))

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except SardonyxError as error:
            raise self.without_secrets(error) from None

    # The answers

    def standing(self, _query: NoQuery, _parts: Mapping[str, str]) -> Standing:
        return self.source.standing()

    def cluster(self, query: AtQuery, _parts: Mapping[str, str]) -> ClusterOverview:
        state = self._state(query.at)
        running = [name for name, job in state.jobs.items() if not (job.ended or job.suspended)]
        glances = self.source.glances(running) if state.n == self._book.last and query.at is None else {}
        return cluster_overview(self._book, state, self.source.standing(), self._now(state), glances)

    def jobs(self, query: JobsQuery, _parts: Mapping[str, str]) -> JobsPage:
        return jobs_page(self._book, self._state(query.at), query)

    def job(self, query: AtQuery, parts: Mapping[str, str]) -> JobView:
        return self.job_overview(query, parts).job

    def job_overview(self, query: AtQuery, parts: Mapping[str, str]) -> JobOverview:
        state, name, _ = self._job(query.at, parts)
        samples = self.source.samples(name) if state.n == self._book.last and query.at is None else None
        now, every = self._now(state), self.source.every(name)
        return job_overview(self._book, state, name, self.source.standing(), samples, now, every)

    def spec(self, query: AtQuery, parts: Mapping[str, str]) -> JobSpec:
        return self._book.mask.spec(self._job(query.at, parts)[2].spec)

    def graph(self, query: AtQuery, parts: Mapping[str, str]) -> GraphView:
        return self.job_overview(query, parts).graph

    def explain(self, query: AtQuery, parts: Mapping[str, str]) -> Why:
        return self.job_overview(query, parts).why

    def timeline(self, query: AtQuery, parts: Mapping[str, str]) -> list[TimelineEvent]:
        state, name, _ = self._job(query.at, parts)
        return self._book.timeline(name, state.n)

    def lag(self, _query: NoQuery, parts: Mapping[str, str]) -> list[LinkLag]:
        return self.job_overview(AtQuery(), parts).lags or []

    def peers(self, query: PeersQuery, _parts: Mapping[str, str]) -> PeersPage:
        state = self._state(query.at)
        views = [
            view
            for view in (_peer(state, name) for name in sorted(state.peers) if name > query.after)
            if view is not None
        ]
        fitting = [
            view
            for view in views
            if query.state in (None, view.state) and query.host in ("", view.host) and query.job in ("", view.job)
        ]
        items, following = cut(fitting, query.limit, lambda view: view.id)
        return PeersPage(items, following_page("peers", query, {"after": following} if following else None))

    def log(self, query: LogQuery, _parts: Mapping[str, str]) -> LogPage:
        book = self._book
        low = book.first if query.after is None else max(query.after + 1, book.first)
        high = book.last if query.before is None else min(query.before - 1, book.last)
        forth = query.order == "asc"
        begin, end = (low, high) if forth else (high, low)
        items: list[Line] = []
        seen, following = begin, None
        common = {"job": query.job, "kind": query.kind, "mark": query.mark}
        for count, line in enumerate(book.lines_among(begin, end, **common) if low <= high else ()):
            if len(items) >= query.limit or count >= SCANNED:
                following = {"after": seen} if forth else {"before": seen}
                break
            seen = line.n
            if _fits(line, query):
                items.append(line)
        return LogPage(items, book.first, book.last, following_page("log", query, following))

    def entry(self, _query: NoQuery, parts: Mapping[str, str]) -> dict[str, Any]:
        decided, request = self._book.decided(_number(parts["n"]))
        told = {**self._book.words.entry(decided, request), "lines": self._book.words.lines(decided)}
        plain: dict[str, Any] = masked(msgspec.json.decode(msgspec.json.encode(told)))  # it holds nodes as they are
        return plain

    def diff(self, query: DiffQuery, _parts: Mapping[str, str]) -> LogDiff:
        return log_diff(self._book, query)

    def film(self, query: FilmQuery, _parts: Mapping[str, str]) -> bytes:
        book = self._book
        return self._films.film(book, query, page_of(query.topic, book, self.source.standing()))

    def find(self, query: FindQuery, _parts: Mapping[str, str]) -> Found:
        n = max(self._book.find(query.at), self._book.first - 1)
        return Found(n, self._book.time_of(n))

    def scale(self, query: ScaleQuery, _parts: Mapping[str, str]) -> Scale:
        key = query.buckets, query.job
        book, known = self._scales.get(key, (None, None))
        if (
            known is None or book is not self._book or known.last != self._book.last
        ):  # made once, for all who ask for it
            if len(self._scales) >= SCALES:
                self._scales.clear()
            known = scale_of(self._book, query)
            self._scales[key] = self._book, known
        return known

    def capacity(self, query: AtQuery, _parts: Mapping[str, str]) -> Capacity:
        return capacity(self._book, self._state(query.at))

    # What is in Kafka

    def batches(self, query: BatchesQuery, parts: Mapping[str, str]) -> BatchesPage:
        name, _, task = self._asked_task(parts)
        return self.source.batches.of(name, task, query.limit)

    def partitions(self, _query: NoQuery, parts: Mapping[str, str]) -> PartitionsPage:
        return self.source.partitions.of(*self._asked_task(parts))

    def stream(self, query: StreamQuery, parts: Mapping[str, str]) -> BatchStream:
        name, _ = self._asked(parts)
        return self.source.batches.stream(name, query.after, query.limit)

    def peek(self, query: PeekQuery, parts: Mapping[str, str]) -> Peek:
        name, spec = self._asked(parts)
        return self._rows.peek(name, spec, parts["link"], query)

    def piles(self, query: PilesQuery, _parts: Mapping[str, str]) -> PilesPage:
        only = self._asked({"job": query.job})[0] if query.job else ""
        with self.source.book.lock:
            jobs = {name: job.spec for name, job in self._book.state.jobs.items()}
        return PilesPage(self._rows.piles(jobs, only))

    def letters(self, query: LettersQuery, parts: Mapping[str, str]) -> LettersPage:
        name, _ = self._asked(parts)
        found = self._rows.letters(name, parts["task"], query.first, query.limit + 1)
        items, more = found[: query.limit], found[query.limit :]
        path = f"dead-letters/{name}/{parts['task']}"
        return LettersPage(items, following_page(path, query, {"first": more[0].offset} if more else None))

    def letter(self, _query: NoQuery, parts: Mapping[str, str]) -> Stored:
        name, _ = self._asked(parts)
        return self._rows.letter(name, parts["task"], _number(parts["offset"], "the number of a letter"))

    @property
    def _rows(self) -> Rows:
        rows = self.source.rows
        if isinstance(rows, str):
            raise not_here(rows)
        return rows

    def _asked(self, parts: Mapping[str, str]) -> tuple[str, JobSpec]:
        with self.source.book.lock:
            _, name, job = self._job(None, parts)
            return name, job.spec

    def _asked_task(self, parts: Mapping[str, str]) -> tuple[str, JobSpec, str]:
        name, spec = self._asked(parts)
        task = parts["task"]
        known = [each.name for each in spec.catalog]
        if task not in known:
            raise no_task(name, task, known)
        return name, spec, task

    # Underneath

    @property
    def _book(self) -> Book:
        return self.source.book

    def _state(self, at: int | None) -> State:
        return self._book.state if at is None else self._book.at(at)

    def _now(self, state: State) -> float:
        """The time of a moment: of the last entry of a running deployment the present, otherwise when the entry was taken in."""
        live = state.n == self._book.last and self.source.standing().source == "live"
        return time.time() if live else self._book.time_of(state.n) or 0.0

    def _job(self, at: int | None, parts: Mapping[str, str]) -> tuple[State, str, Job]:
        state = self._state(at)
        jobs = state.jobs
        names = {job: each.spec.name for job, each in jobs.items()}
        running = [job for job, each in jobs.items() if not each.ended]
        refused = [job for job, each in jobs.items() if each.refused]
        name = find_job(parts["job"], names, running, {job: each.submitted_at for job, each in jobs.items()}, refused)
        return state, name, jobs[name]


def scale_of(book: Book, query: ScaleQuery) -> Scale:
    """The log in short."""
    marked = book.marked(query.job)
    if len(marked) > MARKS:
        step = len(marked) / MARKS
        marked = [marked[int(index * step)] for index in range(MARKS)]
    begin, end = book.time_of(book.first), book.time_of(book.last)
    span = (end or 0.0) - (begin or 0.0)
    before = book.taken_in((begin or 0.0) + span * part / query.buckets for part in range(1, query.buckets))
    buckets = [high - low for low, high in pairwise([0, *before, max(book.last - book.first + 1, 0)])]
    marks = [
        ScaleMark(n=line.n, at=line.at, what=line.mark, text=_mark_text(line)) for line in book.marked_lines(marked)
    ]
    return Scale(first=book.first, last=book.last, first_at=begin, last_at=end, buckets=buckets, marks=marks)


def _mark_text(line: Line) -> str:
    if line.mark == "leader":  # not the time of its election, which the log does not hold
        return f"coordinator {line.leader} had taken over (its first entry in the log)"
    return line.summary


def _number(text: str, what: str = "the number of an entry") -> int:
    if not text.isdigit():
        raise SardonyxError("SX-WEB-QUERY", f"{text!r} is not {what}", fix="name one, such as 17")
    return int(text)


def _peer(state: State, name: str) -> PeerView | None:
    peer = state.peers[name]
    note = peer.note()
    if note is None:
        return None
    pulse = PulseNote(peer.daemon, peer.host, peer.pid, peer.version, peer.format, tuple(sorted(peer.tags)))
    return peer_view(name, note, pulse, peer.since)


def _fits(line: Line, query: LogQuery) -> bool:
    return (
        (not query.job or query.job in line.jobs)
        and (not query.peer or query.peer in line.peers)
        and query.kind in ("", line.kind)
        and query.mark in ("", line.mark)
    )


ADDRESSES = (
    Address("/standing", NoQuery, Standing, "What is shown, and whether it is up to date", Api.standing),
    Address("/cluster", AtQuery, ClusterOverview, "The deployment, and what needs attention", Api.cluster, past=True),
    Address("/jobs", JobsQuery, JobsPage, "The jobs", Api.jobs, past=True),
    Address("/jobs/{job}", AtQuery, JobView, "A job, as `job show --json` has it", Api.job, past=True),
    Address(
        "/jobs/{job}/overview", AtQuery, JobOverview, "All that the page of a job shows", Api.job_overview, past=True
    ),
    Address("/jobs/{job}/spec", AtQuery, JobSpec, "A job as data, without secrets", Api.spec, past=True),
    Address("/jobs/{job}/graph", AtQuery, GraphView, "The graph of a job, ready to be drawn", Api.graph, past=True),
    Address("/jobs/{job}/explain", AtQuery, Why, "Why a job does not run, or that it does", Api.explain, past=True),
    Address(
        "/jobs/{job}/timeline",
        AtQuery,
        list[TimelineEvent],
        "What went wrong with a job, and how it went on",
        Api.timeline,
        past=True,
    ),
    Address("/jobs/{job}/lag", NoQuery, list[LinkLag], "What is unread, as `link lag --json` has it", Api.lag),
    Address(
        "/jobs/{job}/tasks/{task}/batches",
        BatchesQuery,
        BatchesPage,
        "The last batches of a task, as its peers tell",
        Api.batches,
        asks=True,
    ),
    Address(
        "/jobs/{job}/tasks/{task}/partitions",
        NoQuery,
        PartitionsPage,
        "What is unread in each partition that a task reads",
        Api.partitions,
        asks=True,
    ),
    Address(
        "/jobs/{job}/batches", StreamQuery, BatchStream, "The last batches of all its tasks", Api.stream, asks=True
    ),
    Address(
        "/jobs/{job}/links/{link}/rows",
        PeekQuery,
        Peek,
        "Rows of a link, as `link peek --json` has them",
        Api.peek,
        asks=True,
    ),
    Address("/dead-letters", PilesQuery, PilesPage, "Dead letters by job and task", Api.piles, asks=True),
    Address("/dead-letters/{job}/{task}", LettersQuery, LettersPage, "Letters of a task", Api.letters, asks=True),
    Address(
        "/dead-letters/{job}/{task}/{offset}",
        NoQuery,
        Stored,
        "A dead letter, as `dlq show --json` has it",
        Api.letter,
        asks=True,
    ),
    Address("/capacity", AtQuery, Capacity, "Which job has how many virtual peers, and why", Api.capacity, past=True),
    Address("/peers", PeersQuery, PeersPage, "The virtual peers", Api.peers, past=True),
    Address("/log", LogQuery, LogPage, "Entries of the coordinator's log", Api.log),
    Address("/log/find", FindQuery, Found, "The last entry at or before a time", Api.find),
    Address("/log/diff", DiffQuery, LogDiff, "What differs between two moments", Api.diff, past=True),
    Address(
        "/log/film",
        FilmQuery,
        Film,
        "A stretch of the log as a page shows it",
        Api.film,
        asks=True,
    ),
    Address("/log/scale", ScaleQuery, Scale, "The whole log in short", Api.scale),
    Address(
        "/log/{n}", NoQuery, dict[str, Any], "An entry and what it changed, as `log show N --json` has it", Api.entry
    ),
)
"""Every address that answers with JSON. ``/stream`` and ``/openapi.json`` stand beside them."""
