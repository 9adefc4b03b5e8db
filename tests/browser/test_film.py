"""Films in Chromium: the log is scrubbed and played without a question for each entry. On a user's report, without services."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sardonyx.cli.daemons import ADDRESS
from sardonyx.runtime.child_process import start_child
from tests.browser.tabs import Tab, browser
from tests.waiting import until

pytestmark = pytest.mark.browser

REPORT = Path(__file__).parents[1] / "reports" / "a_daemon_killed_at_work.jsonl"
JOB = "doubles-sof2db"
LAST = 42
FILMED = """() => import("/static/film.js").then(({ frameOf, filmed }) => import("/static/store.js").then(({ store }) =>
    frameOf(filmed(store.route, store.data), %d) !== null))"""
SHOWN = """() => import("/static/store.js").then(({ store }) => {
    const { standing, ...data } = store.data; return [data, store.entry, store.route.at]; })"""
FETCHED = """(path) => fetch(path).then((answer) => answer.json())"""
SLIDE = """(n) => { const slider = document.getElementById("slider"); slider.value = n;
    slider.dispatchEvent(new Event("input", { bubbles: true })); }"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the report's pages."""
    command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", "0"]
    with start_child(command, name="web", log_path=tmp_path_factory.mktemp("web") / "web.log") as child:
        yield until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")[0].rstrip("/")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def tab(chromium: Any, base: str) -> Iterator[Tab]:
    made = Tab(chromium, base)
    yield made
    assert made.trouble == []
    made.close()


def filmed(page: Any, n: int) -> None:
    until(lambda: page.evaluate(FILMED % n), what=f"a film that holds entry {n}", timeout=60)


@pytest.mark.parametrize("path", ["/", "/capacity", f"/jobs/{JOB}"])
def test_the_log_is_scrubbed_without_a_question_and_shows_what_the_server_would(tab: Tab, path: str) -> None:
    """Once the film is there, no entry is asked for; each shows the same data as the address that answers for it alone."""
    page = tab.open(path)
    page.locator("#slider").focus()
    filmed(page, LAST - 1)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    seen = []
    for n in [*range(3, LAST), 9, 30, 4]:
        page.evaluate(SLIDE, n)
        seen.append(page.evaluate(SHOWN))
    page.wait_for_url("**at=4")
    assert [url for url in asked if "/static/" not in url and "/stream?" not in url] == []
    for data, entry, at in seen:
        address = f"/api/v1/jobs/{JOB}/overview" if "jobs" in path else f"/api/v1{'/cluster' if path == '/' else path}"
        found = page.evaluate(FETCHED, f"{address}?at={at}")
        found.pop("standing", None)
        assert data == found
        told = page.evaluate(FETCHED, f"/api/v1/log/{at}")
        assert (entry["n"], entry["summary"], entry["lines"]) == (at, told["summary"], told["lines"])


def test_what_is_compared_is_asked_for_when_the_slider_rests(tab: Tab) -> None:
    """Not at each entry on the way; what is shown then is what differs from the entry at which it rests."""
    page = tab.open(f"/jobs/{JOB}?from=5&at=12")
    page.get_by_role("heading", name="From entry 5 to entry 12").wait_for()
    filmed(page, LAST - 1)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(f"for (let n = 13; n < 31; n++) ({SLIDE})(n)")
    page.get_by_role("heading", name="From entry 5 to entry 30").wait_for()
    assert len([url for url in asked if "/api/" in url]) <= 2


def test_an_entry_outside_of_any_film_is_asked_for(tab: Tab) -> None:
    """Before a job was submitted there is no page of it: the problem says so, and the way back leads to a page again."""
    page = tab.open("/jobs/bad-wg2vme?at=33")
    page.locator(".node").first.wait_for()
    filmed(page, 33)
    page.evaluate(SLIDE, 5)
    page.get_by_text("SX-JOB-UNKNOWN").wait_for()
    page.evaluate(SLIDE, 33)
    page.locator(".node").first.wait_for()


def test_play_goes_through_the_log_to_its_end_and_folds_rests(tab: Tab) -> None:
    """Half a minute of log takes a few seconds, each rest at most one; the bar says how long it was. A second press stops it."""
    page = tab.open(f"/jobs/{JOB}?at=2")
    page.locator(".node").first.wait_for()
    page.locator("#speed").select_option("1")
    filmed(page, LAST - 1)
    began = time.monotonic()
    page.get_by_role("button", name="play the log").click()
    page.locator(".folded").first.wait_for()
    assert "nothing for" in page.locator(".folded").first.inner_text()
    page.get_by_role("button", name="stop playing").click()
    stopped = page.evaluate(SHOWN)[2]
    assert 2 <= stopped < LAST
    page.locator("#speed").select_option("100")
    page.keyboard.press("p")
    page.get_by_text(f"Entry {LAST}:").wait_for()
    page.get_by_role("button", name="play the log").wait_for()
    assert time.monotonic() - began < 60
