"""What the pages and their API refuse; and that they show no secret and bring no markup in."""

from __future__ import annotations

import io
import re
from typing import Any

import msgspec
import pytest
import structlog
from web_site import EVENTS, SPEC, Running, Site, file_like, of_report

from queues.dead_letters import Letter, Origin
from sardonyx.client.dead_letters import Stored
from sardonyx.client.lags import LinkLag, PartitionLag
from sardonyx.client.peek import Peek, PeekedPartition, PeekedRow
from sardonyx.client.views import JobView
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.events import JobSubmitted, TaskFailed
from sardonyx.core.spec import TaskSpec
from sardonyx.core.telemetry import BatchTold
from sardonyx.runtime.logging import configure_logging
from sardonyx.runtime.secret_values import KNOWN
from sardonyx.runtime.settings import load_settings
from sardonyx.web.access import Visitor
from sardonyx.web.actions import ACTIONS, Done
from sardonyx.web.api import ADDRESSES, Api
from sardonyx.web.app import static_files
from sardonyx.web.batches import BatchesPage, BatchStream
from sardonyx.web.lag_meter import LagMeter
from sardonyx.web.partitions import PartitionsPage
from sardonyx.web.rows import LetterPile
from sardonyx.web.sight import Sample


@pytest.fixture(scope="module")
def report() -> Site:
    return of_report()


@pytest.mark.parametrize(
    ("address", "status", "code", "says"),
    [
        ("/api/v1/jobs/nix", 404, "SX-JOB-UNKNOWN", "nix"),
        ("/api/v1/jobs?stats=x", 400, "SX-WEB-QUERY", "did you mean 'status'"),
        ("/api/v1/jobs?at=soon", 400, "SX-WEB-QUERY", "at"),
        ("/api/v1/jobs?at=-1", 400, "SX-WEB-QUERY", ">= 0"),
        ("/api/v1/jobs?at=1&at=2", 400, "SX-WEB-QUERY", "twice"),
        ("/api/v1/jobs?limit=100000", 400, "SX-WEB-QUERY", "<= 1000"),
        ("/api/v1/cluster?at=43", 404, "SX-LOG-RANGE", "1 to 42"),
        ("/api/v1/log/99", 404, "SX-LOG-RANGE", "1 to 42"),
        ("/api/v1/log/zero", 400, "SX-WEB-QUERY", "zero"),
        ("/api/v1/log/find", 400, "SX-WEB-QUERY", "at"),
        ("/api/v1/nothing", 404, "SX-WEB-PATH", "nothing"),
        ("/api/v1/stream?topics=all", 400, "SX-WEB-QUERY", "all"),
        ("/sd/prometheus", 404, "SX-WEB-PATH", "a file"),
        ("/static/../app.py", 404, "SX-WEB-PATH", "app.py"),
    ],
)
def test_an_error_is_a_problem_with_our_code_cause_and_fix(
    report: Site, address: str, status: int, code: str, says: str
) -> None:
    """``application/problem+json``, as RFC 9457 has it."""
    answer = report.get(address)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert (problem["code"], problem["status"], problem["type"]) == (code, status, f"urn:sardonyx:{code}")
    assert says in problem["detail"]
    assert problem["fix"]


PATHS = ("/", "/jobs/doubles", "/api/v1/cluster", "/api/v1/stream", "/static/app.css", "/nothing")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8484",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1.evil.example:8484",
        "localhost@evil",
    ],
)
def test_a_request_by_another_name_is_refused_before_anything_else(report: Site, path: str, host: str) -> None:
    """Whatever it asks for: a page elsewhere can make any name lead here."""
    answer = report.get(path, {"host": host})
    assert (answer.status, answer.json()["code"]) == (421, "SX-WEB-HOST")


@pytest.mark.parametrize("host", ["localhost:8484", "127.0.0.1:8484", "[::1]:8484", "LOCALHOST:8484"])
def test_this_machine_may_be_named_in_each_way(report: Site, host: str) -> None:
    """With the port that is listened on."""
    assert report.get("/", {"host": host}).status == 200


def test_a_name_that_was_allowed_may_have_any_port() -> None:
    """A proxy listens on a port of its own."""
    site = Site(file_like(EVENTS), ("sx.example",))
    assert site.get("/", {"host": "sx.example"}).status == 200
    assert site.get("/", {"host": "sx.example:8443"}).status == 200
    assert site.get("/", {"host": "a.sx.example"}).status == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PURGE"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_but_reading_is_allowed(report: Site, path: str, method: str) -> None:
    """By the method, whatever the address is."""
    answer = report.get(path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/cluster", {"origin": "http://evil.example"}, 403),
        ("/api/v1/cluster", {"origin": "http://127.0.0.1:9999"}, 403),
        ("/api/v1/cluster", {"origin": "null"}, 403),
        ("/api/v1/cluster", {"sec-fetch-site": "cross-site"}, 403),
        ("/api/v1/cluster", {"sec-fetch-site": "same-site"}, 403),
        ("/api/v1/cluster", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ("/static/main.js", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ("/jobs", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ("/api/v1/cluster", {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8484"}, 200),
        ("/api/v1/cluster", {"sec-fetch-site": "none"}, 200),
    ],
)
def test_a_page_elsewhere_may_link_to_a_page_and_nothing_more(
    report: Site, path: str, headers: dict[str, str], status: int
) -> None:
    """Ports count: another program of this machine is elsewhere, too."""
    assert report.get(path, headers).status == status


def test_every_answer_tells_the_browser_what_it_may_do(report: Site) -> None:
    """Pages, data, files and refusals alike: no script in a page, nothing from another host, no frame around it."""
    for path in (*PATHS[:3], "/static/main.js", "/nothing"):
        for headers in ({}, {"host": "evil.example"}):
            policy = report.get(path, headers).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert report.get(path, headers).headers["x-content-type-options"] == "nosniff"


QUOTE = "cannot log in with hunter22"


class Quoting:
    """What Kafka and ZooKeeper tell. All of it quotes a secret of the job: in answers, or in the error in their place."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def _told(self, answer: Any) -> Any:
        if self._fails:
            raise SetupError("SX-KAFKA-REFUSED", QUOTE, cause=QUOTE, fix=QUOTE, where={"hunter": QUOTE})
        return answer

    def of(self, job: str, *_: Any) -> Any:
        batch = BatchTold(job=job, task="read", peer="a", slot=0, assignment=3, at=1.0, outcome="dropped", cause=QUOTE)
        return self._told(BatchesPage([batch], QUOTE))

    def stream(self, job: str, *_: Any) -> Any:
        return self._told(BatchStream(items=self.of(job).items, last=1, at=1.0, problem=QUOTE))

    def worked(self, _job: str) -> None:
        return None

    def peek(self, job: str, _spec: Any, link: str, _query: Any) -> Any:
        rows = [PeekedRow(offset=0, key=QUOTE, record={"text": QUOTE})]
        partition = PeekedPartition(number=0, first=0, end=1, rows=rows)
        return self._told(
            Peek(job=job, link=link, kind="internal", topic="t", writer="read", reader=None, partitions=[partition])
        )

    def piles(self, *_: Any) -> Any:
        return self._told([LetterPile(job="j-1", task="read", letters=1, waiting=1, errors={"ValueError": 1})])

    def letters(self, *_: Any) -> Any:
        return [self.letter()]

    def letter(self, *_: Any) -> Any:
        failure = SardonyxError("SX-FN-RAISED", QUOTE, traceback=QUOTE).to_failure()
        letter = Letter("read", "row", "ValueError", 1, failure, Origin("t", 0, 0))
        return self._told(Stored(job="j-1", offset=0, at=1.0, letter=letter, record={"text": QUOTE}))

    def now(self) -> Any:
        return self._told([])

    def act(self, *_: Any, **__: Any) -> Any:
        return self._told(Done(job="j-1", n=3, by=QUOTE))


@pytest.mark.parametrize("fails", [False, True])
def test_no_answer_of_any_address_holds_a_secret(fails: bool) -> None:
    """Neither where a spec has it, nor where an error, an entry or a node quotes it: of each address, now and in the past, of the
    stream, of actions, and of what stands beside them, such as the metrics.
    """
    failed = TaskFailed(
        at=14.0, peer="a", assignment=3, error=SardonyxError("SX-TEST", QUOTE).to_failure(), fatal=False
    )
    short = TaskSpec(name="read", type="input", connector="generator", options={"count": 1, "token": "abc"})
    spec = msgspec.structs.replace(SPEC, name="k", catalog=[short, SPEC.catalog[1]])
    source: Any = Running([*EVENTS[:4], failed, JobSubmitted(at=15.0, job="k-1", spec=spec), EVENTS[5]])
    source.batches = source.rows = source.actions = source.targets = Quoting(fails=fails)
    source.partitions = Partitioned(fails=fails)
    lag = LinkLag(link="read.splits", reader="read", kind="splits", topic="t", records=1)
    view = JobView(id="j-1", name="j", status="running", tasks=[])
    source.said.add(Sample(at=1.0, view=view, lags=[lag], problem=QUOTE))
    site, api = Site(source), Api(source)
    needed = {"/log/find": ["at=14"], "/log/diff": ["from=3&to=6"], "/log/film": ["from=3&to=6&topic=cluster"]}
    needed["/log/film"].append("from=3&to=6&topic=job:j-1")
    bodies: dict[str, bytes] = {}
    for address in ADDRESSES:
        parts = {"job": "j-1", "task": "read", "link": "read.write", "offset": "0"}
        for n in range(1, 8) if "{n}" in address.path else (1,):
            path = f"/api/v1{address.path.format(**parts, n=n)}"
            moments = [f"at={at}" for at in range(2, 8)] if "at" in address.query.__struct_fields__ else []
            for query in needed.get(address.path, ["", *moments]):
                answer = site.get(f"{path}?{query}")
                assert answer.status == 200 or (fails and address.asks), (path, query, answer.body)
                bodies[f"{path}?{query}"] = answer.body
    for topic in ("standing", "cluster", "job:j-1"):
        bodies[topic] = api.topic(topic)
    for action in ACTIONS:
        quoting = action._replace(handler=lambda actions, _: actions.act())
        try:
            bodies[action.path] = api.act(
                quoting, {}, {"job": "j-1", "task": "read"}, Visitor("ana", "operator"), "a" * 32
            )[1]
        except SardonyxError as error:
            bodies[action.path] = msgspec.json.encode(error.to_failure())
    for path in ("/metrics", "/api/v1/jobs/k/spec", "/api/v1/session", "/api/v1/openapi.json", "/sd/prometheus"):
        bodies[path] = site.get(path).body
    assert sum(b"cannot log in with ******" in body for body in bodies.values()) > 10
    for where, body in bodies.items():
        assert b"hunter22" not in body, where
        assert b'"abc"' not in body, where


def test_no_line_of_the_log_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where Kafka or ZooKeeper quote one in an error, which is logged as it is; nor in its traceback."""
    monkeypatch.setattr(KNOWN, "_known", set())
    monkeypatch.setattr(KNOWN, "_longest_first", [])
    out = io.StringIO()
    configure_logging(load_settings(log={"level": "debug"}), stream=out)
    source: Any = Running(EVENTS)
    source.batches = source.rows = source.actions = source.targets = quoting = Quoting(fails=True)
    site = Site(source)
    for path in ("/api/v1/jobs/j/batches", "/api/v1/jobs/j/dead-letters", "/api/v1/jobs/j/links/read.write/rows"):
        site.get(path)
    LagMeter(lambda: {"j-1": SPEC}, quoting.of, lambda: None).step()
    try:
        quoting.now()
    except SetupError:
        structlog.get_logger().exception("web_log_unread")
    assert out.getvalue().count("cannot log in with ******") >= 3
    assert "hunter22" not in out.getvalue()


class Partitioned(Quoting):
    """Partitions, which are asked for by the same name as batches."""

    def of(self, job: str, *_: Any) -> Any:
        return self._told(
            PartitionsPage(items=[PartitionLag(link=job, topic=QUOTE, partition=0)], at=1.0, problem=QUOTE)
        )


def test_the_pages_ask_the_public_api_and_nothing_else() -> None:
    """So all that they show can be scripted: two places in their scripts ask, and both ask below ``/api/v1``."""
    text = "\n".join(data.decode() for name, data in static_files().items() if name.endswith(".js"))
    assert sorted(re.findall(r"\bfetch\(([^,)]+)", text)) == ["`/api/v1${path}`", "path"]
    assert "const path = `/api/v1/stream?" in text
    for way in ("XMLHttpRequest", "new EventSource", "WebSocket", "sendBeacon", "importScripts"):
        assert way not in text, way


def test_the_pages_need_nothing_from_elsewhere_and_put_no_text_in_as_markup() -> None:
    """No address of another host stands in their files, and none of the ways by which text becomes markup or code."""
    files = {name: data.decode() for name, data in static_files().items()}
    assert {"main.js", "app.css", "icon.svg"} <= set(files)
    for name, text in files.items():
        bare = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in bare and "https:" not in bare, name  # noqa: PT018
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert way not in text, (name, way)
    assert sum(len(text) for text in files.values()) < 160_000
