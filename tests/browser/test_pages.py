"""The pages in Chromium, on a user's report, without services: ``make test-browser``, which keeps pictures with ``SHOTS=DIR``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sardonyx.cli.daemons import ADDRESS
from sardonyx.runtime.child_process import ChildProcess, start_child
from tests.browser.tabs import NARROW, WIDE, Tab, browser, with_page
from tests.proxy import Proxy
from tests.waiting import until

pytestmark = pytest.mark.browser

REPORT = Path(__file__).parents[1] / "reports" / "a_daemon_killed_at_work.jsonl"
JOB = "/jobs/doubles-sof2db"
PAGES = {
    "deployment": "/",
    "deployment-then": "/?at=20",
    "jobs": "/jobs",
    "capacity": "/capacity",
    "capacity-then": "/capacity?at=20",
    "task-failed": "/jobs/bad?task=boom",
    "job": JOB,
    "job-then": f"{JOB}?at=20&task=double",
    "job-compared": f"{JOB}?from=12&at=20",
    "failed": "/jobs/bad?at=33",
    "stream": f"{JOB}/stream",
    "log": "/log",
    "entry": "/log/31",
    "nothing": "/jobs/nix",
}
DRAWN = """() => import("/static/store.js").then(({ redraw }) => {
    redraw(); return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); })"""
"""Waits until the page was drawn once more, as it is each second."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ChildProcess, str]]:
    """The process that serves the report, and its address."""
    folder = tmp_path_factory.mktemp("web")
    command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", "0"]
    with start_child(command, name="web", log_path=folder / "web.log") as child:
        found = until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")
        yield child, found[0].rstrip("/")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser."""
    with browser() as opened:
        yield opened


@pytest.fixture
def tab(chromium: Any, server: tuple[ChildProcess, str]) -> Iterator[Tab]:
    made = Tab(chromium, server[1])
    yield made
    assert made.trouble == []
    made.close()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_is_whole(
    chromium: Any, server: tuple[ChildProcess, str], name: str, scheme: str, size: dict[str, int]
) -> None:
    """It has a title, one main heading and a name for every control; nothing sticks out to the side; it asks only us; axe-core
    finds nothing.
    """
    with_page(chromium, server[1], name, PAGES[name], scheme, size)


def test_edges_are_drawn_with_ink(tab: Tab) -> None:
    """Each edge of the graph has a line with a colour and a length, and each task has its box where the layout says."""
    page = tab.open(JOB)
    page.locator(".graph svg .way").first.wait_for(state="attached")
    lines = page.evaluate(
        """[...document.querySelectorAll(".graph svg .way")].map((way) =>
        [way.getTotalLength(), getComputedStyle(way).stroke, getComputedStyle(way).strokeWidth])"""
    )
    assert len(lines) == 3
    for length, colour, width in lines:
        assert length > 50
        assert colour not in ("none", "rgba(0, 0, 0, 0)")
        assert float(width.removesuffix("px")) >= 2
    boxes = [each.bounding_box() for each in page.locator(".node").all()]
    assert len({(box["x"], box["y"]) for box in boxes}) == 4


def test_two_entries_are_compared(tab: Tab) -> None:
    """From the entry that is shown, with the one to which the slider goes; until it is stopped."""
    page = tab.open("/?at=12")
    page.get_by_role("link", name="compare from here").click()
    page.get_by_role("heading", name="From entry 12 to entry 12").wait_for()
    page.get_by_text("Nothing differs.").wait_for()
    page.locator("#slider").fill("20")
    page.get_by_role("heading", name="From entry 12 to entry 20").wait_for()
    assert page.locator(".changes li").count() > 0
    page.get_by_role("link", name="stop comparing with 12").click()
    page.get_by_role("heading", name="Entry 20").wait_for()


def test_the_keyboard_alone_leads_everywhere(tab: Tab) -> None:
    """To the jobs, into a job, along an edge to a task, into the past and back, and to the list of keys."""
    page = tab.open("/")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.locator("tbody a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{JOB}")
    page.locator("#task-make").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.task") == "double"
    page.keyboard.press("Enter")
    page.wait_for_url("**task=double")
    page.locator("dl").first.wait_for()
    page.keyboard.press("[")
    page.wait_for_url("**at=*")
    page.locator(".notice.info").wait_for()
    page.keyboard.press("n")
    page.wait_for_url(f"**{JOB}?task=double")
    page.keyboard.press("Escape")
    page.wait_for_url(f"**{JOB}")
    page.keyboard.press("t")
    page.locator("caption").wait_for()
    page.keyboard.press("?")
    page.locator("#keys").wait_for()


def test_the_slider_puts_the_page_into_the_past(tab: Tab) -> None:
    """The state, the title, the address and the description of the slider are those of the entry."""
    page = tab.open(JOB)
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    page.get_by_text("planning", exact=True).wait_for()
    page.wait_for_url("**at=1")  # a slider that moves on settles the address a moment later
    assert "after entry 1 " in page.title()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**at=7")
    page.get_by_role("heading", name="Entry 7").wait_for()
    assert "host-e368-0 is gone" in page.locator("#slider").get_attribute("aria-valuetext")
    page.go_back()
    page.go_forward()


def test_a_problem_says_what_to_do(tab: Tab) -> None:
    """A job that is not there: our code, the cause and the fix, and the way on."""
    page = tab.open("/jobs/nix")
    page.get_by_text("SX-JOB-UNKNOWN").wait_for()
    assert "sardonyx job list" in page.locator("main").inner_text()
    page.get_by_role("link", name="Jobs").click()
    page.locator("tbody a").first.wait_for()


def test_fields_that_are_filled_one_after_the_other_are_asked_for_together(tab: Tab) -> None:
    """What stands in a field stays while the page is drawn and the focus is elsewhere, also while a button is pressed. The
    address says all of it, and going back empties the form.
    """
    page = tab.open("/log")
    page.locator("#filter-job").fill("doubles-sof2db")
    page.evaluate(DRAWN)
    page.locator("#filter-kind").fill("ack")
    page.evaluate(DRAWN)
    page.get_by_role("button", name="show", exact=True).hover()
    page.mouse.down()
    page.evaluate(DRAWN)
    page.mouse.up()
    page.wait_for_url("**/log?job=doubles-sof2db&kind=ack")
    until(lambda: set(page.locator(".entries .kind").all_inner_texts()) == {"ack"}, what="entries of this kind only")
    page.locator("#filter-mark").select_option("what went wrong")
    page.get_by_role("button", name="show", exact=True).click()
    page.wait_for_url("**&mark=incident")
    page.go_back()
    page.go_back()
    page.wait_for_url("**/log")
    until(
        lambda: [page.locator(f"#filter-{name}").input_value() for name in ("job", "kind", "mark")] == ["", "", ""],
        what="an empty form",
    )


def test_an_address_that_cannot_be_decoded_has_a_page(tab: Tab) -> None:
    """It says that there is no such job."""
    page = tab.open("/jobs/%")
    page.get_by_text("SX-JOB-UNKNOWN").wait_for()


def test_when_the_server_is_gone_the_page_says_so_and_greys_out(chromium: Any, tmp_path: Path) -> None:
    """It keeps what it shows, and says since when that is not live. When the server is back, so is the page."""
    port = 0

    def serve() -> tuple[ChildProcess, str]:
        command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", str(port)]
        child = start_child(command, name="web", log_path=tmp_path / f"web-{port}.log")
        return child, until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")[0].rstrip("/")

    child, base = serve()
    tab = Tab(chromium, base)
    page = tab.open(JOB)
    page.locator(".node").first.wait_for()
    child.signal(signal.SIGTERM)
    child.wait(20)
    page.locator(".notice.bad").wait_for()
    assert "Not live since" in page.locator(".notice.bad").inner_text()
    assert page.locator(".node").count() == 4
    assert page.evaluate("document.documentElement.classList.contains('stale')")
    port = int(base.rpartition(":")[2])
    child, again = serve()
    assert again == base
    page.locator(".notice.bad").wait_for(state="detached")
    tab.close()
    child.stop()


def test_a_stream_that_is_cut_alone_is_said_and_begun_again(chromium: Any, tmp_path: Path) -> None:
    """The server is there and answers. The page says since when it is not live, keeps what it shows, and is live again by
    itself.
    """
    command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", "0"]
    with start_child([*command, "--allow-host", "127.0.0.1"], name="web", log_path=tmp_path / "web.log") as child:
        found = until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")
        with Proxy(found[0].removeprefix("http://").rstrip("/")) as proxy:
            tab = Tab(chromium, f"http://{proxy.address}")
            page = tab.open(JOB)
            page.locator(".node").first.wait_for()
            proxy.cut()  # what is asked for anew comes through
            page.locator(".notice.bad").wait_for()
            assert page.evaluate("document.documentElement.classList.contains('stale')")
            assert page.evaluate("fetch('/api/v1/cluster').then((answer) => answer.status)") == 200
            assert page.locator(".node").count() == 4
            page.locator(".notice.bad").wait_for(state="detached")
            assert not page.evaluate("document.documentElement.classList.contains('stale')")
            tab.close()


def test_a_stream_that_is_silent_is_said_and_begun_again(chromium: Any, tmp_path: Path) -> None:
    """The connection stays and nothing comes, as after a laptop slept. After 40 s, which pass at once here, the page says since
    when it is not live; it is live again by itself.
    """
    command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", "0"]
    with start_child([*command, "--allow-host", "127.0.0.1"], name="web", log_path=tmp_path / "web.log") as child:
        found = until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")
        with Proxy(found[0].removeprefix("http://").rstrip("/")) as proxy:
            tab = Tab(chromium, f"http://{proxy.address}")
            tab.page.clock.install()
            page = tab.open(JOB)
            page.locator(".node").first.wait_for()
            proxy.lose_replies()
            assert page.locator(".notice.bad").count() == 0
            page.clock.fast_forward(41_000)
            page.locator(".notice.bad").wait_for()
            assert page.locator(".node").count() == 4
            proxy.cut()
            page.locator(".notice.bad").wait_for(state="detached")
            tab.close()
