"""What the pages show is the newest that they got, and they say when it is not the present."""

from __future__ import annotations

from typing import Any

import pytest
from web_scripts import needs_node, play

pytestmark = needs_node

# The answer to a question, and the stream


NOTHING = {"attention": [], "jobs": [], "daemons": [], "peers": {}, "ended": {}}
AWAY = {"code": "SX-KAFKA-UNREACHABLE", "title": "Kafka is away"}


@pytest.mark.parametrize(
    "answer", [{**NOTHING, "standing": {"deployment": "test"}, "live": True}, AWAY], ids=["old", "error"]
)
def test_an_answer_takes_nothing_back_that_the_stream_has_brought_meanwhile(answer: dict[str, Any]) -> None:
    """It was made before. No other state may come for hours, in which nothing happens."""
    assert play(
        """
        const slow = page.promised();
        page.answers["/cluster"] = slow.promise;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        await page.streams[0].send("cluster", given.cluster);
        const seen = [page.text().includes("j-1")];
        slow.give(given.answer);
        await page.pass(20);
        return [...seen, page.text().includes("j-1"), page.text().includes("Kafka is away")];
        """,
        answer=answer,
    ) == [True, True, False]


def test_a_job_that_is_gone_stays_gone_when_an_older_answer_comes() -> None:
    """It was purged while it was asked for."""
    assert play(
        """
        const slow = page.promised();
        page.answers["/jobs/j-1/overview"] = slow.promise;
        await page.open("/jobs/j-1");
        await page.streams[0].send("job:j-1", { code: "SX-JOB-UNKNOWN", title: "there is no job j-1" }, "gone");
        slow.give(given.job);
        await page.pass(20);
        return page.text().includes("there is no job j-1");
        """,
    )


# The present


def test_what_differs_from_a_moment_goes_on_with_the_present() -> None:
    """As long as the page is compared with an entry, each new state is."""
    assert play(
        """
        const diff = (path) => {
            const [from, to] = ["from", "to"].map((each) => Number(new URL(path, "http://x").searchParams.get(each)));
            return { from, to, peers_before: {}, peers_after: {}, changes: [], left_out: 0 };
        };
        page.answers["/cluster"] = given.cluster;
        page.answers["/log/diff"] = diff;
        await page.open(`/?from=${given.cluster.n}`);
        await page.streams[0].send("standing", given.standing);
        await page.streams[0].send("cluster", { ...given.cluster, n: 20 });
        await page.streams[0].send("cluster", { ...given.cluster, n: 21 });
        return [page.text().includes("to entry 21"), page.asked.filter((each) => each.includes("diff")).length];
        """,
    ) == [True, 3]


def test_the_marks_of_the_log_are_as_new_as_the_log() -> None:
    """Also those of entries that come within the two seconds in which marks are asked for once, and are the last ones."""
    assert (
        play(
            """
        page.answers["/cluster"] = given.cluster;
        page.answers["/log/scale"] = { first: 1, last: 8, marks: [] };
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        page.answers["/log/scale"] = { first: 1, last: 9, marks: [{ n: 9, at: 1, what: "incident", text: "a peer died" }] };
        await page.streams[0].send("standing", { ...given.standing, last: 9 });
        await page.pass(5000);
        const incidents = page.body.all("i").filter((each) => each.getAttribute("class") === "incident");
        return incidents.filter((each) => each.getAttribute("title")).length;
        """,
        )
        == 1
    )


def test_the_page_after_the_last_entry_is_asked_for_again_when_that_has_become_the_past() -> None:
    """Until then it showed the present, and what an operator can do."""
    assert play(
        """
        page.answers["/jobs/j-1/overview"] = { ...given.job, n: 8, live: true };
        await page.open("/jobs/j-1?at=8");
        await page.streams[0].send("standing", given.standing);
        page.answers["/jobs/j-1/overview"] = { ...given.job, n: 8, live: false };
        await page.streams[0].send("standing", { ...given.standing, last: 9 });
        await page.pass(20);
        const seen = [Boolean(page.named("kill"))];
        await page.streams[0].send("standing", { ...given.standing, last: 10 });
        await page.pass(20);
        return [...seen, page.asked.filter((each) => each.includes("overview")).length];
        """,
    ) == [False, 2]


def test_a_page_that_one_comes_back_to_is_not_live_before_the_server_has_said_something() -> None:
    """What it shows may be hours old, and a connection can hang."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        const live = () => page.text().includes("● live");
        const seen = [live()];
        await page.away(40000);
        await page.pass(20);
        seen.push(live());
        await page.streams.at(-1).send("standing", given.standing);
        return [...seen, live()];
        """,
    ) == [True, False, True]


def test_a_page_whose_machine_has_slept_asks_anew() -> None:
    """Its clocks stood still, and the connection may be dead without a word."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        await page.pass(5000);
        const seen = [page.streams.length];
        const never = page.promised();
        page.answers["/stream"] = never.promise;
        page.sleep(3600000);
        await page.pass(1100);
        seen.push(page.text().includes("● live"), page.text().includes("Not live since"));
        delete page.answers["/stream"];
        never.fail(new TypeError("network error"));
        await page.pass(2000);
        await page.streams.at(-1).send("standing", given.standing);
        return [...seen, page.text().includes("● live"), page.streams[0].over];
        """,
    ) == [1, False, True, True, True]


@pytest.mark.parametrize("ahead", [-7200, 0, 7200])
def test_how_long_ago_something_was_is_told_by_the_clock_of_the_server(ahead: int) -> None:
    """That of the browser may be hours off."""
    assert play(
        """
        page.clock.ahead = given.ahead;
        const server = Date.now() / 1000 + given.ahead;
        const look = { level: "bad", code: "x", text: "it stands", job: "", task: "", since: server - 180, help: "" };
        page.answers["/cluster"] = { ...given.cluster, attention: [look] };
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        return /\\(3 min \\d s\\)/.test(page.text());
        """,
        ahead=ahead,
    )


def test_durations_stand_still_while_the_page_is_not_live() -> None:
    """What it shows is as of then: a job may have ended since."""
    assert play(
        """
        const now = Date.now() / 1000;
        const look = { level: "bad", code: "x", text: "it stands", job: "", task: "", since: now - 60, help: "" };
        page.answers["/cluster"] = { ...given.cluster, attention: [look] };
        await page.open("/");
        await page.streams[0].send("standing", { ...given.standing, connected: false, since: now, problem: "away" });
        await page.pass(600000);
        return page.text().includes("(1 min 0 s)");
        """,
    )
