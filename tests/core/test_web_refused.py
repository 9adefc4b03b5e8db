"""What the pages and their API refuse; and that they show no secret and bring no markup in."""

from __future__ import annotations

import msgspec
import pytest
from web_site import EVENTS, SPEC, Running, Site, file_like, of_report

from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import JobSubmitted, TaskFailed
from sardonyx.core.spec import TaskSpec
from sardonyx.web.app import static_files


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


def test_no_answer_holds_a_secret() -> None:
    """Neither where a spec has it, nor where an error, an entry or a node quotes it, now or in the past."""
    quoting = SardonyxError("SX-TEST", "cannot log in with hunter22").to_failure()
    failed = TaskFailed(at=14.0, peer="a", assignment=3, error=quoting, fatal=True)
    short = [
        TaskSpec(name="read", type="input", connector="generator", options={"count": 1, "token": "abc"}),
        SPEC.catalog[1],
    ]
    other = JobSubmitted(at=15.0, job="k-1", spec=msgspec.structs.replace(SPEC, name="k", catalog=short))
    site = Site(Running([*EVENTS[:4], failed, other]))
    told = b""
    for at in ("", *(f"?at={n}" for n in range(2, 7))):
        for path in (
            "cluster",
            "jobs",
            "peers",
            *(f"jobs/j-1/{part}" for part in ("overview", "spec", "explain", "timeline")),
        ):
            told += site.get(f"/api/v1/{path}{at}").body
    for path in ("log", "log/scale", "jobs/k/spec?at=6", *(f"log/{n}" for n in range(1, 7))):
        told += site.get(f"/api/v1/{path}").body
    assert b"SX-TEST" in told
    assert b"******" in told
    assert b"hunter22" not in told
    assert b'"abc"' not in told


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
