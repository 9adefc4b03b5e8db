"""What operators do from the pages of a running deployment: each action, asked for once or many times, and who asked."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.kafka_rights import ROLES, rights
from tests.browser.tabs import NARROW, WIDE, Tab, browser
from tests.scrape import get
from tests.services.crew import Crew
from tests.services.house import House, written
from tests.services.secured import Grants, SecuredServices
from tests.services.test_web_rows import pages
from tests.waiting import until

ANA, WALL = "a" * 40, "w" * 40
"""The tokens of an operator and of a viewer."""

ENDLESS = """
from sardonyx import Job, blackhole, kafka

def same(row: dict) -> dict:
    return row

job = Job("endless", partitions=1)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest"))
job.output("drop", blackhole(), after=job.task("same", same, after=read))
"""
BOUNDED = """
from sardonyx import Job, blackhole, generator

job = Job("bounded", partitions=1)
job.output("drop", blackhole(), after=job.input("read", generator(5_000_000), batch_size=100))
"""
FAILING = """
from pathlib import Path
from sardonyx import Job, blackhole, kafka

def price(row: dict) -> dict:
    if Path("{fault}").exists():
        raise ZeroDivisionError("pieces is 0")
    return row

job = Job("orders", partitions=1)
read = job.input("read", kafka("{topic}", schema="n long", start="earliest", end="latest"))
job.output("out", kafka("{topic}-out"), after=job.task("price", price, after=read, on_error="dead_letter"))
"""


class Site(NamedTuple):
    """Pages that ask for tokens."""

    house: House
    address: str

    def post(self, path: str, key: str = "", token: str = ANA, status: int = 200) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key or uuid.uuid4().hex}
        code, _, body = get(f"{self.address}/api/v1/{path}", "POST", **headers)
        assert code == status, body
        return json.loads(body)

    def asked(self, path: str) -> Any:
        code, _, body = get(f"{self.address}/api/v1/{path}", Authorization=f"Bearer {ANA}")
        assert code == 200, body
        return json.loads(body)

    def entries(self, job: str, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.asked(f"log?job={job}&kind={kind}")["items"]
        return found

    def known(self, handle: JobHandle) -> str:
        """The id of a job, once it runs and the pages know it."""
        until(lambda: handle.status(live=False).status == "running", what="the job to run")
        until(lambda: any(each["id"] == handle.id for each in self.asked("jobs")["items"]), what="the pages to know it")
        return handle.id


@contextlib.contextmanager
def guarded(house: House, folder: Path) -> Iterator[Site]:
    tokens = folder / "tokens"
    tokens.write_text(f"ana operator {ANA}\nwall viewer {WALL}\n")
    with pages(house, folder, "--tokens", str(tokens)) as address:
        yield Site(house, address)


@pytest.fixture
def site(house: House, tmp_path: Path) -> Iterator[Site]:
    with guarded(house, tmp_path) as made:
        yield made


def test_an_unbounded_job_is_suspended_resumed_and_stopped(site: Site, tmp_path: Path) -> None:
    """Each is answered with the entry that took it in, which says who asked. A request that comes again later does nothing, and
    has the same answer. A viewer may not.
    """
    topic = site.house.make_topic("endless")
    handle = site.house.submit(tmp_path, ENDLESS.format(topic=topic))
    job = site.known(handle)
    first = uuid.uuid4().hex
    done = site.post(f"jobs/{job}/suspend", first)
    until(lambda: handle.status().suspended, what="the job to be suspended")
    (entry,) = site.entries(job, "job-scaled")
    assert (done["job"], done["n"]) == (job, entry["n"])
    assert done["by"].startswith("ana@")
    assert site.asked(f"log/{done['n']}")["event"]["by"] == done["by"]

    site.post(f"jobs/{job}/resume")
    assert site.post(f"jobs/{job}/suspend", first) == done
    until(lambda: not handle.status().suspended, what="the job to be resumed")
    assert len(site.entries(job, "job-scaled")) == 2

    for deed in ("kill", "stop", "suspend", "resume"):
        assert site.post(f"jobs/{job}/{deed}", token=WALL, status=403)["code"] == "SX-WEB-ROLE"
    assert handle.status().status == "running"
    assert not handle.status().stopping

    assert site.post(f"jobs/{job}/stop")["n"]
    until(lambda: handle.status(live=False).status == "stopped", what="the job to stop")
    until(lambda: site.asked(f"jobs/{job}")["status"] == "stopped", what="the pages to know it")
    for deed in ("kill", "stop", "suspend", "resume"):
        assert site.post(f"jobs/{job}/{deed}", status=409)["code"] == "SX-JOB-ENDED"


def test_twenty_who_ask_at_once_under_one_key_kill_once(site: Site, tmp_path: Path) -> None:
    """All get the same answer, and the log has one entry. Only the whole id of a job is good enough, and a job that ends by
    itself cannot be stopped.
    """
    handle = site.house.submit(tmp_path, BOUNDED)
    job = site.known(handle)
    assert site.post(f"jobs/{job}/stop", status=409)["code"] == "SX-JOB-BOUNDED"
    for other in ("bounded", job[:-1]):
        assert site.post(f"jobs/{other}/kill", status=404)["code"] == "SX-JOB-UNKNOWN"
    assert site.post(f"jobs/{job}/kill", "short", status=400)["code"] == "SX-WEB-QUERY"
    key = uuid.uuid4().hex
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: site.post(f"jobs/{job}/kill", key), range(20)))
    assert all(answer == answers[0] for answer in answers)
    assert [entry["n"] for entry in site.entries(job, "kill")] == [answers[0]["n"]]
    until(lambda: handle.status(live=False).status == "killed", what="the job to be killed")


def test_dead_letters_are_redone_once(site: Site, tmp_path: Path) -> None:
    """By a job with the code that the first one has. Asked for again under the same key, it is the same job; under another one,
    there is nothing left.
    """
    topic, fault = site.house.make_topic("letters"), tmp_path / "fault"
    fault.touch()
    site.house.fill(topic, *(b'{"n": %d}' % n for n in range(6)))
    handle = site.house.submit(tmp_path, FAILING.format(topic=topic, fault=fault))
    site.house.completed(handle)
    job = handle.id
    until(
        lambda: [pile["waiting"] for pile in site.asked(f"dead-letters?job={job}")["items"]] == [6], what="the letters"
    )
    assert site.post(f"dead-letters/{job}/price/redo", token=WALL, status=403)["code"] == "SX-WEB-ROLE"
    assert site.post(f"dead-letters/{job}/nix/redo", status=404)["code"] == "SX-DLQ-TASK"
    fault.unlink()
    key = uuid.uuid4().hex
    done = site.post(f"dead-letters/{job}/price/redo", key)
    view = site.house.completed(site.house.client.job(done["job"]))
    assert (view.task("price").rows_in, view.by) == (6, done["by"])
    assert site.post(f"dead-letters/{job}/price/redo", key) == done
    assert site.post(f"dead-letters/{job}/price/redo", status=404)["code"] == "SX-DLQ-NONE"
    assert sorted(row["n"] for row in site.house.records(f"{topic}-out")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_pages_with_a_viewers_identity_change_nothing(secured: SecuredServices, tmp_path: Path) -> None:
    """Where the pages log in to ZooKeeper as a viewer, not even an operator's token lets them act. As a client they do."""
    deployment = f"s{uuid.uuid4().hex[:10]}"
    settings, grants = secured.with_roles(deployment), Grants(secured)
    stack = contextlib.ExitStack()
    for role in ROLES:
        grants.give(role, rights(role, deployment, [], []))
        stack.callback(grants.take_all, role)
    with stack, Crew(settings["coordinator"], tmp_path) as crew, Client(settings=settings["client"]) as client:
        crew.coordinator()
        crew.leader()
        handle = client.submit(written(tmp_path / "job", BOUNDED))
        for role, status in (("viewer", 403), ("client", 200)):
            house = House(settings[role], crew)
            (tmp_path / role).mkdir()
            with guarded(house, tmp_path / role) as site:
                job = site.known(handle)
                answer = site.post(f"jobs/{job}/kill", status=status)
                assert answer.get("code", "") == ("SX-ZOOKEEPER-DENIED" if role == "viewer" else "")
        until(lambda: handle.status(live=False).status == "killed", what="the job to be killed")


# In Chromium: make test-browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", NARROW)], ids=["light wide", "dark narrow"])
def test_a_job_is_killed_with_the_keyboard_alone(
    chromium: Any, site: Site, tmp_path: Path, scheme: str, size: dict[str, int]
) -> None:
    """The question says what will happen, and begins at the way out. Escape does nothing to the job. What became of it is said,
    and on the page.
    """
    handle = site.house.submit(tmp_path, BOUNDED)
    job = site.known(handle)
    tab = Tab(chromium, site.address, scheme=scheme, size=size)
    page = tab.open(f"/jobs/{job}#token={ANA}")
    page.get_by_role("button", name="kill", exact=True).wait_for()
    assert "#" not in page.url
    assert page.get_by_role("button", name="stop", exact=True).count() == 0
    page.get_by_role("button", name="kill", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name=f"Kill {job}?").wait_for()
    assert "It ends at once, and cannot go on." in page.locator("dialog").inner_text()
    assert page.evaluate("document.activeElement.textContent") == "do nothing"
    tab.check("question")
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    assert site.entries(job, "kill") == []

    page.get_by_role("button", name="kill", exact=True).focus()
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_text("The coordinator has taken it in").wait_for()
    assert len(site.entries(job, "kill")) == 1
    tab.check("answer")
    page.keyboard.press("Enter")
    page.locator(".pill", has_text="killed").wait_for()
    page.get_by_role("button", name="kill", exact=True).wait_for(state="detached")
    assert tab.trouble == []
    tab.close()


@pytest.mark.browser
def test_a_viewer_types_a_token_and_gets_no_buttons(chromium: Any, site: Site, tmp_path: Path) -> None:
    """Without a token there is a form and nothing else. A wrong one is said to be wrong. The right one is kept for the next tab
    of the same browser, and works for the stream, too.
    """
    job = site.known(site.house.submit(tmp_path, BOUNDED))
    tab = Tab(chromium, site.address)
    page = tab.open(f"/jobs/{job}")
    page.get_by_label("Token").fill("x" * 40)
    assert job not in page.locator("main").inner_text()
    tab.check("login")
    page.keyboard.press("Enter")
    page.get_by_text("This token is not known here.").wait_for()
    page.get_by_label("Token").fill(WALL)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=job).wait_for()
    page.locator(".state.ok").wait_for()
    assert page.get_by_role("button", name="kill", exact=True).count() == 0
    other = page.context.new_page()
    other.goto(f"{site.address}/jobs")
    other.get_by_role("link", name=job).wait_for()
    assert tab.trouble == []
    tab.close()
