"""The pages on a log without a server, and logs for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from coordinator.core.state import new_state
from coordinator.history.export import LogFile
from sardonyx.cli.web_commands import words
from sardonyx.core.events import Acked, AnyEvent, JobSubmitted, LinkFacts, LinksCreated, PeerBorn, PeerDied
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.web.access import Access
from sardonyx.web.app import application
from sardonyx.web.batches import NoBatches
from sardonyx.web.book import Book
from sardonyx.web.partitions import NoPartitions
from sardonyx.web.sight import Samples, Standing
from sardonyx.web.source import FileSource, Source

REPORT = Path(__file__).parents[1] / "reports" / "a_daemon_killed_at_work.jsonl"
HERE = "127.0.0.1:8484"

SPEC = JobSpec(
    name="j",
    workflow=[("read", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="generator", options={"count": 10, "password": "hunter22"}),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
)
EVENTS: list[AnyEvent] = [
    PeerBorn(at=10.0, peer="a", host="h", pid=7, daemon="d"),
    JobSubmitted(at=11.0, job="j-1", spec=SPEC),
    LinksCreated(at=12.0, job="j-1", links={"read.splits": LinkFacts(2), "read.write": LinkFacts(2)}),
    Acked(at=13.0, peer="a", assignment=3),
    PeerDied(at=20.0, peer="a"),  # entry 5
    PeerBorn(at=24.0, peer="b", host="h", pid=8, daemon="e"),
    Acked(at=26.0, peer="b", assignment=6),
    PeerDied(at=30.0, peer="a"),  # entry 8: it is dead already
]


def book_of(events: list[AnyEvent], **sizes: int) -> Book:
    """The log of these events as the pages hold it."""
    book = Book(new_state("test"), words(), **sizes)
    for n, event in enumerate(events, 1):
        book.take(n, event)
    return book


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self, kind: Any = Any) -> Any:
        return msgspec.json.decode(self.body, type=kind)


class Site:
    """An application without a server."""

    def __init__(self, source: Source, hosts: tuple[str, ...] = (), access: Access | None = None) -> None:
        self.app, self.hub = application(source, 8484, hosts, access)

    def get(self, address: str, headers: Mapping[str, str] = {}, method: str = "GET") -> Answer:
        path, _, query = address.partition("?")
        sent = {"host": HERE, **headers}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(key.encode(), value.encode()) for key, value in sent.items() if value],
        }
        got: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: dict[str, Any]) -> None:
            got.append(message)

        asyncio.run(self.app(scope, receive, send))
        head = {key.decode(): value.decode() for key, value in got[0]["headers"]}
        return Answer(got[0]["status"], head, b"".join(message.get("body", b"") for message in got[1:]))


class Running:
    """A deployment that runs, with what would be seen beside its log."""

    def __init__(self, events: list[AnyEvent], **standing: Any) -> None:
        self.book = book_of(events)
        self._standing = standing
        self.said = Samples()
        self.asked: list[str] = []
        self.glanced: list[str] = []
        self.rows = "there is no Kafka here"
        self.actions = "there is no ZooKeeper here"
        self.targets = "there is no ZooKeeper here"
        self.batches = NoBatches("there is no Kafka here")
        self.partitions = NoPartitions("there is no Kafka here")

    def on_change(self, call: Any) -> None: ...

    def standing(self) -> Standing:
        at = self.book.time_of(self.book.last)
        seen = {"source": "live", "leader": "h:1", "epoch": 1, **self._standing}
        return Standing(deployment="test", first=1, last=self.book.last, at=at, **seen)

    def samples(self, job: str) -> Samples:
        self.asked.append(job)
        return self.said

    def glances(self, jobs: Iterable[str]) -> Mapping[str, Samples]:
        self.glanced += jobs
        return dict.fromkeys(jobs, self.said)

    def every(self, job: str) -> float:
        return 2.0

    def close(self) -> None: ...


def file_like(events: list[AnyEvent]) -> Running:
    """As a file of a log is shown: nothing else is seen beside it."""
    return Running(events, source="file")


def of_report() -> Site:
    """The pages on the log of a daemon that was killed at work."""
    with REPORT.open("rb") as file:
        return Site(FileSource(LogFile(file, REPORT.name), str(REPORT), words()))
