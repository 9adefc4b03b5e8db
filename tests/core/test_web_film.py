"""Films: a stretch of the log, put together from its first state and the differences, is what each of its entries shows."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from history_maker import History
from web_site import EVENTS, REPORT, SPEC, Running, Site, file_like

from coordinator.history.export import LogFile
from sardonyx.cli.web_commands import words
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import JobSubmitted, TaskFailed
from sardonyx.web.api import ADDRESSES, Api
from sardonyx.web.film import differences
from sardonyx.web.source import FileSource, Source
from tests.sizes import histories

FILM = next(each for each in ADDRESSES if each.path == "/log/film")


def put(value: Any, change: dict[str, Any]) -> Any:
    """The value with one change, as the pages make it."""
    if not change["path"]:
        if "index" not in change:
            return change["value"]
        value[change["index"] : change["index"] + change.get("removed", 0)] = change.get("items", [])
        return value
    *way, last = change["path"]
    inner = value
    for name in way:
        inner = inner[name]
    if change.get("gone"):
        del inner[last]
    elif "index" in change:
        put(inner[last], {**change, "path": []})
    else:
        inner[last] = change["value"]
    return value


def played(api: Api, topic: str, begin: int, end: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each frame of a film, with the page that it makes. Films that end early are followed."""
    query = {"from": str(begin), "to": str(end), "topic": topic}
    while query:
        film = json.loads(api.answer(FILM, query, {}))
        page: Any = None
        for frame in film["frames"]:
            for change in frame["changes"]:
                page = put(page, change)
            yield frame, copy.deepcopy(page)
        query = dict(parse_qsl(urlsplit(film["next"]).query)) if film["next"] else {}


def asked(api: Api, path: str, n: int, **parts: str) -> Any:
    """The same page, by the address that answers for one entry."""
    address = next(each for each in ADDRESSES if each.path == path)
    jobs = api.source.book.at(n).jobs
    if parts and parts["job"] not in jobs:
        if any(job.startswith(parts["job"]) for job in jobs):  # an id may be cut short, so that two-1 means two-10
            return None
        with pytest.raises(SardonyxError, match="SX-JOB-UNKNOWN"):
            api.answer(address, {"at": str(n)}, parts)
        return None
    found = json.loads(api.answer(address, {"at": str(n)}, parts))
    found.pop("standing", None)
    return found


PAGES = (("cluster", "/cluster"), ("jobs", "/jobs"), ("capacity", "/capacity"))


def same_as_asked(source: Source) -> int:
    """Compare the film of every page with what is answered about each entry; how many pages were compared."""
    api, book = Api(source), source.book
    jobs = sorted({job for line in book.lines(1, book.last) for job in line.jobs})
    count = 0
    for topic, path in [*PAGES, *((f"job:{job}", "") for job in jobs)]:
        frames = list(played(api, topic, book.first, book.last))
        assert [frame["line"]["n"] for frame, _ in frames] == list(range(book.first, book.last))
        for frame, page in frames:
            n = frame["line"]["n"]
            job = {} if path else {"job": topic.partition(":")[2]}
            assert page == asked(api, path or "/jobs/{job}/overview", n, **job), (topic, n)
            count += 1
    return count


@pytest.mark.parametrize("seed", range(6))
def test_a_film_is_what_is_answered_about_each_of_its_entries(seed: int) -> None:
    """On random histories: the deployment, how its peers are divided, and each job, also before it was submitted."""
    history = History(random.Random(f"film/{seed}"))
    history.unkind(90)
    assert same_as_asked(file_like([event for _, event in history.world.log])) > 200


def test_a_film_of_a_report_is_what_is_answered_about_it() -> None:
    """On the log of a deployment in which a daemon was killed; entries say the same as on their own page."""
    with REPORT.open("rb") as file:
        source = FileSource(LogFile(file, REPORT.name), str(REPORT), words())
    assert same_as_asked(source) > 100
    api = Api(source)
    entry = next(each for each in ADDRESSES if each.path == "/log/{n}")
    for frame, _ in played(api, "cluster", 1, 41):
        told = json.loads(api.answer(entry, {}, {"n": str(frame["line"]["n"])}))
        assert (frame["line"]["kind"], frame["line"]["summary"]) == (told["kind"], told["summary"])
        assert (frame["lines"], frame["request"]) == (told["lines"], told.get("request") or "")


def test_a_film_ends_before_the_last_entry_and_is_made_once() -> None:
    """The page after the last entry still changes. What was made is given again until the log is another one."""
    source = Running(EVENTS)
    site = Site(source)
    whole = site.get("/api/v1/log/film?from=1&to=99").json()
    assert [frame["line"]["n"] for frame in whole["frames"]] == list(range(1, 8))
    walks = []
    walk = source.book.walk
    source.book.walk = lambda *asked: walks.append(asked) or walk(*asked)  # type: ignore[method-assign,func-returns-value]
    assert site.get("/api/v1/log/film?from=1&to=99").json() == whole
    assert walks == []
    for query, status, code in [
        ("from=8&to=9", 404, "SX-LOG-RANGE"),
        ("from=0&to=2", 404, "SX-LOG-RANGE"),
        ("from=5&to=4", 400, "SX-WEB-QUERY"),
        ("from=1&to=2&topic=all", 400, "SX-WEB-QUERY"),
    ]:
        answer = site.get(f"/api/v1/log/film?{query}")
        assert (answer.status, answer.json()["code"]) == (status, code)
    source.book = Running(EVENTS[:3]).book
    assert len(site.get("/api/v1/log/film?from=1&to=99").json()["frames"]) == 2


def test_a_film_that_takes_long_ends_early_and_says_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer holds one entry at least, and all of them together hold each entry once."""
    monkeypatch.setattr("sardonyx.web.film.SECONDS", 0.0)
    monkeypatch.setattr("sardonyx.web.film.LEAST", 1)
    site = Site(Running(EVENTS))
    first = site.get("/api/v1/log/film?from=2&to=7&topic=job:j-1").json()
    assert (len(first["frames"]), first["next"]) == (1, "/api/v1/log/film?from=3&to=7&topic=job%3Aj-1")
    assert same_as_asked(Running(EVENTS)) > 10


def test_a_film_holds_no_secret() -> None:
    """Neither where a spec has it, nor where an error quotes it."""
    quoting = SardonyxError("SX-TEST", "cannot log in with hunter22").to_failure()
    failed = TaskFailed(at=14.0, peer="a", assignment=3, error=quoting, fatal=True)
    other = JobSubmitted(at=15.0, job="k-1", spec=msgspec.structs.replace(SPEC, name="k"))
    site = Site(Running([*EVENTS[:4], failed, other, *EVENTS[5:7]]))
    told = b"".join(site.get(f"/api/v1/log/film?from=1&to=9&topic={each}").body for each in ("cluster", "job:j-1"))
    assert b"SX-TEST" in told
    assert b"******" in told
    assert b"hunter22" not in told


@pytest.mark.parametrize("seed", range(histories(40, whole=300)))
def test_differences_lead_from_any_value_to_any_other(seed: int) -> None:
    """Also in lists that grow at the front, are cut at the end, or change in their middle."""
    rng = random.Random(f"differences/{seed}")

    def value(depth: int) -> Any:
        kind = rng.randrange(5 if depth else 3)
        if kind < 3:
            return rng.choice([None, True, 7, 0, "a", "b", 2.5])
        if kind == 3:
            return [value(depth - 1) for _ in range(rng.randrange(6))]
        return {name: value(depth - 1) for name in rng.sample("abcd", rng.randrange(4))}

    def other(old: Any) -> Any:
        if isinstance(old, list) and rng.random() < 0.6:
            return [value(1) for _ in range(rng.randrange(3))] + [other(each) for each in old][: rng.randrange(7)]
        if isinstance(old, dict) and rng.random() < 0.6:
            return {name: other(each) for name, each in old.items() if rng.random() < 0.8} | (
                {"e": 1} if seed % 3 else {}
            )
        return old if rng.random() < 0.6 else value(2)

    before = value(3)
    after = other(before)
    found = before
    for change in msgspec.json.decode(msgspec.json.encode(list(differences(before, after)))):
        found = put(copy.deepcopy(found), change)
    assert found == after
