"""Rows and dead letters on the pages of a running deployment: what the API answers, and what Chromium shows of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sardonyx.cli.daemons import ADDRESS
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.secrets import MASK
from sardonyx.runtime.child_process import start_child
from tests.browser.tabs import NARROW, WIDE, Tab, browser, with_page
from tests.scrape import get
from tests.services.house import House, house_of
from tests.waiting import until

JOB = """
import fcntl
from pathlib import Path
from sardonyx import Job, kafka

class Held:
    def before_batch(self, rows):
        with Path("{hold}").open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)

def price(row: dict, api_token: str) -> dict:
    if row["n"] % 5 == 0:
        raise ZeroDivisionError("pieces is 0")
    return {{"n": row["n"], "name": "größer", "token": api_token}}

def same(row: dict) -> dict:
    return row

job = Job("orders", partitions=1, keep="1 h")
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
priced = job.task("price", price, after=read, on_error="dead_letter", params={{"api_token": "planted-7391"}})
job.output("out", kafka("{topic}-out"), after=job.task("slow", same, after=priced, lifecycle=Held))
"""


class Scene(NamedTuple):
    """A job half of whose rows are read, with four dead letters, and the pages that show it."""

    house: House
    handle: JobHandle
    topic: str
    address: str

    def asked(self, path: str, status: int = 200) -> Any:
        code, _, body = get(f"{self.address}/api/v1/{path}")
        assert code == status, body
        return json.loads(body)

    def put(self, *numbers: int) -> None:
        self.house.put(self.topic, 0, *(b'{"n": %d}' % number for number in numbers))


@contextlib.contextmanager
def pages(house: House, folder: Path, *options: str) -> Iterator[str]:
    """The pages of a deployment, and their address."""
    command = [sys.executable, "-m", "sardonyx", "web", "--port", "0", *options]
    with start_child(
        command,
        name="web",
        log_path=folder / f"web{''.join(options).replace('/', '_')}.log",
        env=house.settings.environment(),
    ) as web:
        yield until(lambda: ADDRESS.search(web.log_tail(50)), what="the pages to be served")[0].rstrip("/")


@pytest.fixture(scope="module")
def scene(zookeeper: str, kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARDONYX__METRICS__TELEMETRY", "true")
        yield from made(zookeeper, kafka, folder)


def made(zookeeper: str, kafka: str, folder: Path) -> Iterator[Scene]:
    with house_of(zookeeper, kafka, folder) as house, pages(house, folder) as address:
        topic, hold = house.make_topic("orders"), folder / "hold"
        hold.touch()
        scene = Scene(house, None, topic, address)  # type: ignore[arg-type]
        scene.put(*range(10))
        handle = house.submit(folder, JOB.format(hold=hold, topic=topic))

        def rows_in(task: str) -> int:
            return handle.status().task(task).rows_in or 0

        until(lambda: rows_in("slow") == 8, what="the first rows to be through")
        with hold.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            scene.put(*range(10, 20))
            until(lambda: rows_in("price") == 20, what="the other rows to be written")
            yield scene._replace(handle=handle)
        house.clear()


def test_rows_and_letters_are_those_of_the_commands(scene: Scene) -> None:
    """A link's rows as `link peek --json` prints them; the piles of `dlq list --json` with their errors; letters in pages, and
    one letter. Values of secrets are masked also in rows. Letters that come later are counted too.
    """
    job, house = scene.handle.id, scene.house
    found = scene.asked("jobs/orders/links/price.slow/rows?limit=6")
    printed = json.loads(house.call("link", "peek", job, "price.slow", "-n", "6", "--json").stdout)
    assert [row["record"]["n"] for row in printed["partitions"][0]["rows"]] == [7, 8, 9, 11, 12, 13]
    masked = json.loads(json.dumps(printed).replace("planted-7391", MASK))
    assert found == masked
    assert [row["read"] for row in found["partitions"][0]["rows"]] == [True] * 3 + [False] * 3

    (pile,) = scene.asked("dead-letters?job=orders")["items"]
    (listed,) = json.loads(house.call("dlq", "list", job, "--json").stdout)
    assert pile == {**listed, "errors": {"ZeroDivisionError": 4}, "counting": False}
    assert (pile["letters"], pile["waiting"]) == (4, 4)
    first = scene.asked(f"dead-letters/{job}/price?limit=3")
    rest = scene.asked(first["next"].removeprefix("/api/v1/"))
    letters = [*first["items"], *rest["items"]]
    assert [letter["record"] for letter in letters] == [{"n": 0}, {"n": 5}, {"n": 10}, {"n": 15}]
    assert rest["next"] is None
    one = scene.asked(f"dead-letters/{job}/price/{letters[1]['offset']}")
    assert one == letters[1]
    assert "pieces is 0" in one["letter"]["failure"]["message"]

    for path, status, code in (
        ("jobs/orders/links/nix/rows", 404, "SX-PEEK-LINK"),
        (f"dead-letters/{job}/slow", 404, "SX-DLQ-TASK"),
        (f"dead-letters/{job}/price/999", 404, "SX-DLQ-NONE"),
        (f"dead-letters/{job}/price/x", 400, "SX-WEB-QUERY"),
        ("jobs/orders/links/price.slow/rows?limit=0", 400, "SX-WEB-QUERY"),
    ):
        assert scene.asked(path, status)["code"] == code

    assert house.call("dlq", "drop", job).exit_code == 0
    scene.put(25)
    counted = until(
        lambda: [each for each in scene.asked("dead-letters")["items"] if each["letters"] == 5],
        what="the new letter to be counted",
    )
    assert (counted[0]["waiting"], counted[0]["dropped"]) == (1, 4)


def test_the_task_stream_holds_the_batches_of_all_tasks(scene: Scene) -> None:
    """In the order in which peers told about them. What comes later is asked for from there."""

    def told() -> Any:
        found = scene.asked("jobs/orders/batches")
        worked = [each for each in found["items"] if each["outcome"] == "committed"]
        rows = sum(each.get("rows_in", 0) for each in worked if each["task"] == "price")
        return rows >= 20 and {each["task"] for each in worked} >= {"price", "slow"} and found

    found = until(told, what="the committed batches of two tasks")
    assert found["problem"] == ""
    for each in found["items"]:
        assert each["job"] == scene.handle.id
        assert each["peer"]
    later = scene.asked(f"jobs/orders/batches?after={found['last']}")
    assert later["last"] >= found["last"]
    assert not [each for each in later["items"] if each in found["items"]]
    (last,) = scene.asked("jobs/orders/batches?limit=1")["items"]
    assert last in scene.asked("jobs/orders/batches")["items"]
    assert scene.asked("jobs/nix/batches", 404)["code"] == "SX-JOB-UNKNOWN"


def test_rows_are_hidden_behind_a_proxy_unless_asked_for(scene: Scene, tmp_path: Path) -> None:
    """Who lets others look says whether they see rows. Everything else is shown."""
    job = scene.handle.id
    for options, status in (["--behind-proxy"], 403), (["--behind-proxy", "--rows"], 200), (["--no-rows"], 403):
        with pages(scene.house, tmp_path, *options) as address:
            there = scene._replace(address=address)
            for path in (f"jobs/{job}/links/price.slow/rows", "dead-letters", f"dead-letters/{job}/price"):
                answer = there.asked(path, status)
                assert status == 200 or answer["code"] == "SX-WEB-ROWS"
            assert there.asked("standing")["rows"] is (status == 200)
            assert there.asked(f"jobs/{job}")["status"] == "running"


# In Chromium: make test-browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_with_rows_are_whole(chromium: Any, scene: Scene, scheme: str, size: dict[str, int]) -> None:
    """As all pages: names, no overflow, nothing from elsewhere, axe-core finds nothing."""
    job = scene.handle.id
    first = scene.asked(f"dead-letters/{job}/price")["items"][0]["offset"]
    for name, path, ready in (
        ("link", f"/jobs/{job}/links/price.slow", "tr.here"),
        ("letters", "/dead-letters", "tbody tr"),
        ("pile", f"/dead-letters/{job}/price?letter={first}", "#letter"),
        ("live-capacity", "/capacity", "tbody tr"),
        ("live-job", f"/jobs/{job}?task=price", ".steps"),
        ("live-stream", f"/jobs/{job}/stream?span=900", ".lane .batch"),
    ):
        with_page(chromium, scene.address, name, path, scheme, size, ready)


@pytest.mark.browser
def test_the_way_from_a_job_to_its_rows(chromium: Any, scene: Scene) -> None:
    """From the task into the link, where the reader's position stands between the rows; to the newest rows; to its letters."""
    job = scene.handle.id
    tab = Tab(chromium, scene.address)
    page = tab.open(f"/jobs/{job}?task=price")
    page.locator(".steps").first.wait_for()
    assert "committed" in page.get_by_role("region", name="Last batches of price").inner_text()
    page.get_by_role("link", name="price.slow", exact=True).click()
    page.wait_for_url("**/links/price.slow")
    page.locator("tr.here").wait_for()
    shown = page.locator("tbody tr").all_inner_texts()
    here = next(index for index, text in enumerate(shown) if "slow has read up to here" in text)
    assert 0 < here < len(shown) - 1
    assert "planted" not in page.content()
    page.locator("#begin").select_option("end")
    page.locator("#limit").fill("2")
    page.get_by_role("button", name="show", exact=True).click()
    page.wait_for_url("**begin=end&limit=2*")
    until(lambda: page.locator("tbody tr:not(.here)").count() == 2, what="the two newest rows")
    page.go_back()
    until(lambda: page.locator("tbody tr:not(.here)").count() > 2, what="the rows around the position again")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.get_by_role("link", name="price", exact=True).click()
    page.locator("tbody th a").first.click()
    page.locator("#letter").wait_for()
    assert "ZeroDivisionError" in page.locator("section.panel").inner_text()
    assert tab.trouble == []
    tab.close()


@pytest.mark.browser
def test_the_task_stream_has_a_lane_for_each_peer(chromium: Any, scene: Scene) -> None:
    """With a bar for each batch, as long as it took, in the colours of its steps, its task or its outcome."""
    job = scene.handle.id
    tab = Tab(chromium, scene.address)
    page = tab.open(f"/jobs/{job}")
    page.get_by_role("link", name="task stream").click()
    page.get_by_role("link", name="15 min").click()
    page.wait_for_url("**/stream?span=900")
    page.locator(".lane .batch").first.wait_for()
    peers = {each["peer"] for each in scene.asked("jobs/orders/batches")["items"]}
    assert {each.inner_text() for each in page.locator(".lanes li b").all()} == peers
    bar = "(each) => [getComputedStyle(each).backgroundImage, each.getBoundingClientRect().width, each.title]"
    for ground, width, title in page.locator(".lane .batch").evaluate_all(f"(all) => all.map({bar})"):
        assert "gradient" in ground
        assert width >= 2
        assert "rows in" in title
        assert "committed" in title
    page.get_by_role("link", name="task", exact=True).click()
    page.wait_for_url("**by=task*")
    page.locator(".lane .hue1").first.wait_for()
    page.get_by_role("link", name="what became of it").click()
    page.locator(".lane .work").first.wait_for()
    assert page.get_by_role("region", name="What each virtual peer did").locator("tbody tr").count() == len(peers)
    assert tab.trouble == []
    tab.close()
