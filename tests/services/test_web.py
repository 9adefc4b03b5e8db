"""``sardonyx web`` on a running deployment: what happens is on its stream, and it says so when it cannot know."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, blackhole, generator
from sardonyx.cli.daemons import ADDRESS
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import Settings
from tests.browser.tabs import Tab, browser
from tests.proxy import Proxy
from tests.scrape import value
from tests.services.crew import Crew
from tests.waiting import until


def slow(row: dict) -> dict:
    time.sleep(0.02)  # so that rows are unread when the test looks: the input gives them much faster
    return row


def job_of() -> Job:
    """Two tasks; it ends only if it is ended."""
    job = Job("watched", partitions=2)
    read = job.input("read", generator(5_000_000), batch_size=500)
    passed = job.task("slow", slow, after=read, batch_size=50)
    job.output("drop", blackhole(), after=passed)
    return job


class Stream:
    """What one reader of the stream has got: the newest state of each topic. It reads in a thread."""

    def __init__(self, address: str, topics: str) -> None:
        self.states: dict[str, Any] = {}
        self.over = False
        self._answer = urllib.request.urlopen(f"{address}api/v1/stream?topics={topics}", timeout=60)  # noqa: S310
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        event = b""
        with contextlib.suppress(OSError, ValueError):
            for line in self._answer:
                if line.startswith(b"event: "):
                    event = line[7:].strip()
                elif line.startswith(b"data: ") and event == b"state":
                    found = json.loads(line[6:])
                    self.states[found["topic"]] = found["data"]
                self.over = self.over or event == b"bye"


def asked(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}api/v1/{path}", timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def metric(address: str, name: str, link: str = "") -> float:
    """The value of a metric of the job, of one link if it is named."""
    return value(address.rstrip("/"), name, sx_job="watched", **({"link": link} if link else {}))


@pytest.fixture
def crew(settings: Settings, tmp_path: Path) -> Iterator[Crew]:
    with Crew(settings, tmp_path) as made:
        yield made


@pytest.fixture
def pages(settings: Settings, tmp_path: Path, proxy: Proxy) -> Iterator[tuple[ChildProcess, str]]:
    """The process that serves the pages, which reaches ZooKeeper through a proxy; and its address."""
    through = {**settings.environment(), "SARDONYX__ZOOKEEPER__HOSTS": proxy.address}
    command = [sys.executable, "-m", "sardonyx", "web", "--port", "0"]
    with start_child(command, name="web", log_path=tmp_path / "web.log", env=through) as web:
        found = until(lambda: ADDRESS.search(web.log_tail(50)), what="the pages to be served")
        yield web, found[0]


def test_a_job_under_a_kill_is_seen_and_a_zookeeper_that_is_away_is_said(
    crew: Crew, pages: tuple[ChildProcess, str], proxy: Proxy
) -> None:
    """Rows, lag, a death and who took the place come on the stream. While ZooKeeper is away, it says so and since when;
    then it goes on by itself, with what happened meanwhile. Streams end when it is to stop.
    """
    web, address = pages
    crew.coordinator()
    doomed = crew.peers(2)
    handle = crew.client.submit(job_of())
    seen = Stream(address, f"cluster,job:{handle.id}")

    def job() -> dict[str, Any]:
        return seen.states[f"job:{handle.id}"]

    # It runs: the stream began before the job was known, and Kafka is asked because this job is looked at.
    crew.until(lambda: f"job:{handle.id}" in seen.states and job()["job"]["status"] == "running", "the job to run")
    crew.until(lambda: asked(address, f"jobs/{handle.id}/lag"), "Kafka to tell what is unread")
    crew.until(lambda: any(edge["records"] for edge in job()["graph"]["edges"]), "unread rows on the stream")
    crew.until(lambda: job()["job"]["tasks"][0]["rows_in"], "rows on the stream")
    assert seen.states["cluster"]["jobs"][0]["id"] == handle.id

    # The pages tell Prometheus what is unread, and when Kafka said so. A scrape asks Kafka nothing.
    crew.until(lambda: metric(address, "sardonyx_link_unread_rows", "read.slow") > 0, "unread rows in the metrics")
    assert metric(address, "sardonyx_link_oldest_unread_seconds", "read.slow") > 0
    assert metric(address, "sardonyx_job_lag_timestamp_seconds") == metric(
        address, "sardonyx_job_lag_timestamp_seconds"
    )

    # Peers are killed, and others take their places.
    doomed.kill()
    crew.until(lambda: any(item["event"]["kind"] == "died" for item in job()["timeline"]), "the death on the stream")
    crew.until(
        lambda: "no-live-peers" in {each["code"] for each in seen.states["cluster"]["attention"]}, "no live peer"
    )
    crew.peers(2)
    crew.until(lambda: any(item["event"].get("by") for item in job()["timeline"]), "who took the place")

    # ZooKeeper is away, and comes back.
    proxy.refuse()
    crew.until(lambda: not seen.states["standing"]["connected"], "the pages to say that they are not live")
    away = seen.states["standing"]
    assert away["since"]
    assert away["problem"]
    handle.kill()
    crew.until(lambda: handle.status(live=False).ended, "the job to end, unseen")
    assert asked(address, f"jobs/{handle.id}")["status"] == "running"
    proxy.accept_again()
    crew.until(lambda: job()["job"]["status"] == "killed", "what happened meanwhile")
    crew.until(lambda: seen.states["standing"]["connected"], "the pages to say that they are live")

    # The past, as it was: the command says the same of it.
    born = asked(address, "log?kind=submit&order=asc")["items"][0]["n"]
    then = asked(address, f"jobs/{handle.id}/overview?at={born}")
    assert (then["job"]["status"], then["lags"], then["timeline"]) == ("planning", None, [])

    web.signal(signal.SIGTERM)
    assert web.wait(180) == 0
    until(lambda: seen.over, what="a good-bye on the stream")


def refused(row: dict) -> dict:
    raise ValueError(f"{row['id']} is not one of ours")


def two_more() -> tuple[Job, Job]:
    """One whose rows all become dead letters, and one that asks for what no peer has."""
    letters, waits = Job("letters", partitions=1), Job("waits", partitions=1)
    read = letters.input("read", generator(5_000_000, rate=20))
    letters.output("drop", blackhole(), after=letters.task("refuse", refused, after=read, on_error="dead_letter"))
    waits.output("drop", blackhole(), after=waits.input("read", generator(5_000_000, rate=20), tags=["gpu"]))
    return letters, waits


def test_the_page_of_the_deployment_alone_names_what_is_wrong_with_each_job(
    crew: Crew, pages: tuple[ChildProcess, str]
) -> None:
    """A task that is too slow, dead letters, and a peer that is missing: without a look at the pages of the jobs."""
    crew.coordinator()
    crew.peers(8)
    for job in (job_of(), *two_more()):
        crew.client.submit(job)
    seen = Stream(pages[1], "cluster")

    def named() -> set[tuple[str, str]]:
        return {
            (each["job"].rpartition("-")[0], each["code"])
            for each in seen.states.get("cluster", {}).get("attention", ())
        }

    crew.until(
        lambda: {("letters", "dead-letters"), ("waits", "no-tag")} <= named(), "dead letters, and what is missing"
    )
    late = {("watched", "task-behind"), ("watched", "task-bottleneck")}
    crew.until(lambda: late & named(), "the slow task")
    helps = {each["code"]: each["help"] for each in seen.states["cluster"]["attention"]}
    assert helps["no-tag"] == "sardonyx peer --tag gpu"


@pytest.mark.browser
def test_a_page_says_that_zookeeper_is_away_and_that_it_is_back(
    crew: Crew, pages: tuple[ChildProcess, str], proxy: Proxy
) -> None:
    """The server answers and its stream goes on. The page says since when it is not live and why, keeps what it shows, and is
    live again by itself.
    """
    crew.coordinator()
    with browser() as chromium:
        tab = Tab(chromium, pages[1].rstrip("/"))
        tab.page.set_default_timeout(180_000)
        page = tab.open("/")
        page.locator("header .state.ok").wait_for()
        shown = page.locator("main h1").inner_text()
        proxy.refuse()
        page.locator("header .state.bad").wait_for()
        notice = page.locator(".notice.bad").inner_text()
        assert "Not live since" in notice
        assert "The server tries again by itself" in notice
        assert page.evaluate("document.documentElement.classList.contains('stale')")
        assert page.locator("main h1").inner_text() == shown
        proxy.accept_again()
        page.locator("header .state.ok").wait_for()
        page.locator(".notice.bad").wait_for(state="detached")
        assert tab.trouble == []
        tab.close()
