"""What the pages say while streams break, jobs change and servers begin anew."""

from __future__ import annotations

import pytest
from web_scripts import needs_node, play

from sardonyx.web.hub import SILENCE

pytestmark = needs_node

# The stream


def test_a_stream_that_is_silent_for_long_is_not_live() -> None:
    """After 40 s without a word, which is longer than servers are silent, the page says since when, and begins another one."""
    assert play(
        r"""
        page.answers["/cluster"] = given.cluster;
        const { clock } = await load("text.js");
        await page.open("/");
        const [stream] = page.streams;
        await stream.send("standing", given.standing);
        for (let each = 0; each < 8; each++) {
            await page.pass(given.silence);
            await stream.say(": still here\n\n");
        }
        const seen = [page.text().includes("● live"), page.streams.length];
        const at = Date.now() / 1000;
        await page.pass(40500);
        seen.push(page.text().includes(`Not live since ${clock(at)}`), stream.over);
        await page.pass(2000);
        return [...seen, page.text().includes("● live"), page.streams.length];
        """,
        silence=SILENCE * 1000,
    ) == [True, 1, True, True, True, 2]


def test_a_stream_that_cannot_be_read_is_ended() -> None:
    """Before another one is begun: a browser has room for six connections."""
    assert play(
        r"""
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        await page.streams[0].say("event: state\ndata: {{\n\n");
        await page.pass(2000);
        return [page.streams.map((each) => each.over), page.text().includes("● live")];
        """,
    ) == [[True, False], True]


def test_a_page_without_its_standing_is_not_live() -> None:
    """A defect of the server ends the news of one topic: the page keeps what it shows, and says since when and why."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        const seen = [page.text().includes("● live")];
        await page.streams[0].send("standing", { code: "SX-UNEXPECTED", title: "KeyError: 'x'" }, "gone");
        seen.push(page.text().includes("✕ not live"), page.text().includes("KeyError"), page.text().includes("Deployment test"));
        await page.streams[0].send("standing", given.standing);
        return [...seen, page.text().includes("● live")];
        """,
    ) == [True, True, True, True, True]


def test_what_was_known_of_the_past_is_forgotten_while_the_page_does_not_listen() -> None:
    """A page that is hidden for 30 s does not listen any more, and the server may begin with another log meanwhile."""
    assert play(
        """
        page.answers["/cluster"] = { ...given.cluster, live: false };
        const asked = () => page.asked.filter((each) => each === "/cluster?at=3").length;
        const look = async () => {
            await page.follow("/?at=4");
            await page.follow("/?at=3");
            return asked();
        };
        await page.open("/?at=3");
        await page.streams[0].send("standing", given.standing);
        await page.away(20000);
        const seen = [await look()];
        await page.away(40000);
        return [...seen, await look()];
        """,
    ) == [1, 2]


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/?at=3", "/cluster?at=3"),
        ("/jobs/j-1?at=3", "/jobs/j-1/overview?at=3"),
        ("/log/3", "/log/3"),
        ("/log", "/log?"),
        ("/jobs", "/jobs"),
    ],
)
def test_what_no_stream_brings_is_asked_for_again_once_the_server_was_away(address: str, path: str) -> None:
    """The log may be another one, of as many entries."""
    assert play(
        """
        const entry = { ...given.log.items[0], event: { at: 1 }, lines: [] };
        Object.assign(page.answers, { "/cluster": given.cluster, "/jobs/j-1/overview": given.job, "/jobs": given.jobs });
        Object.assign(page.answers, { "/log": given.log, "/log/3": entry });
        const asked = () => page.asked.filter((each) => each === given.path).length;
        await page.open(given.address);
        await page.streams[0].send("standing", given.standing);
        const seen = [asked()];
        await page.streams[0].send("standing", given.standing);
        await page.streams[0].say("event: bye\\n\\n");
        await page.pass(2000);
        for (const each of [1, 2]) await page.streams[1].send("standing", given.standing);
        return [...seen, asked()];
        """,
        address=address,
        path=path,
    ) == [1, 2]


# Jobs and tasks

TWO_JOBS = """
    const overview = (id) => ({ ...given.job, job: { ...given.job.job, id } });
    for (const id of ["j-1", "j-2"]) page.answers[`/jobs/${id}/overview`] = overview(id);
    const partition = (link) => ({ link, topic: link, partition: 0, committed: 1, end: 2, records: 1, seconds: 1 });
    const batch = (peer) => ({ peer, task: "read", at: Date.now() / 1000, seconds: { function: 1 }, outcome: "committed" });
    const told = (items) => ({ items, at: Date.now() / 1000, last: 1, problem: "" });
    const never = page.promised().promise;
"""


@pytest.mark.parametrize("late", [False, True], ids=["known", "late"])
def test_the_panel_of_a_task_is_that_of_its_job(late: bool) -> None:
    """Two jobs may have tasks of one name. What is known of the first, or comes after one has left it, is not the second's."""
    assert play(
        TWO_JOBS
        + """
        const answers = { partitions: told([partition("first-link")]), batches: told([batch("first-peer")]) };
        const slow = page.promised();
        for (const [what, answer] of Object.entries(answers)) {
            page.answers[`/jobs/j-1/tasks/read/${what}`] = given.late ? slow.promise.then(() => answer) : answer;
            page.answers[`/jobs/j-2/tasks/read/${what}`] = never;
        }
        const shown = () => ["first-link", "first-peer"].map((each) => page.text().includes(each));
        await page.open("/jobs/j-1?task=read");
        const seen = [...shown()];
        await page.follow("/jobs/j-2?task=read");
        slow.give();
        await page.pass(20);
        return [...seen, page.body.all("h1")[0].textContent, ...shown()];
        """,
        late=late,
    ) == [not late, not late, "j-2", False, False]


def test_the_task_stream_is_that_of_its_job() -> None:
    """What comes after one has left the page of another job is not shown."""
    assert (
        play(
            TWO_JOBS
            + """
        const slow = page.promised();
        page.answers["/jobs/j-1/batches"] = slow.promise;
        page.answers["/jobs/j-2/batches"] = never;
        await page.open("/jobs/j-1/stream");
        await page.follow("/jobs/j-2/stream");
        slow.give(told([batch("first-peer")]));
        await page.pass(20);
        return page.text().includes("first-peer");
        """,
        )
        is False
    )


def test_the_marks_of_the_log_are_those_of_the_job() -> None:
    """What is known of the log of another job, when one has left it, is not shown."""
    assert play(
        TWO_JOBS
        + """
        const slow = page.promised();
        const { store } = await load("store.js");
        page.answers["/log/scale"] = (path) => (path.includes("job=j-1") ? slow.promise : never);
        await page.open("/jobs/j-1");
        await page.streams[0].send("standing", given.standing);
        await page.follow("/jobs/j-2");
        slow.give({ first: 1, last: 8, marks: [] });
        await page.pass(20);
        return [page.asked.some((each) => each.includes("scale")), store.scale];
        """
    ) == [True, None]


def test_nothing_is_said_to_be_left_undone_once_it_was_asked_for() -> None:
    """The button that leaves the question says "do nothing" only where nothing is done by then."""
    assert play(
        """
        page.answers["/jobs/j-1/overview"] = given.job;
        const buttons = () => page.body.all("dialog")[0].all("button");
        const words = () => buttons().map((each) => each.textContent);
        const seen = [];
        await page.open("/jobs/j-1");
        await page.press(page.named("kill"));
        seen.push(words());
        const slow = page.promised();
        page.answers["/jobs/j-1/kill"] = slow.promise;
        await page.press(buttons()[0]);
        seen.push(words());
        slow.give({ code: "SX-JOB-STATE-LOST", title: "states would be lost" });
        await page.pass(20);
        seen.push(words());
        page.answers["/jobs/j-1/kill"] = Promise.reject(new TypeError("network error"));
        await page.press(buttons()[0]);
        seen.push(words());
        page.answers["/jobs/j-1/kill"] = { n: 9 };
        await page.press(buttons()[0]);
        seen.push(words());
        return seen;
        """,
    ) == [
        ["kill", "do nothing"],
        ["asking the coordinator …", "close"],
        ["stop, and lose it", "do nothing"],
        ["stop, and lose it", "close"],
        ["close"],
    ]


# Addresses and keys


@pytest.mark.parametrize("address", ["/jobs/%", "/jobs/%#token=%"])
def test_an_address_that_cannot_be_decoded_is_a_page_too(address: str) -> None:
    """It is taken as it is: there is no such job, and the page says so."""
    assert play("await page.open(given.address); return page.text().includes('/jobs/%25/overview');", address=address)


def test_a_button_says_once_what_it_does() -> None:
    """By a label that changes, and not by a state besides: "show as a graph, pressed" would be both."""
    assert play(
        """
        page.answers["/jobs/j-1/overview"] = given.job;
        await page.open("/jobs/j-1");
        const pressed = () => page.body.all("button").filter((each) => each.getAttribute("aria-pressed") !== null).length;
        const before = pressed();
        await page.press(page.named("show as a table"));
        return [before, pressed(), Boolean(page.named("show as a graph"))];
        """,
    ) == [0, 0, True]


def test_the_same_sentence_is_said_again() -> None:
    """A sentence for screen readers is gone after a while; where a browser copies nothing, it says so."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        const said = () => page.body.all("div").find((each) => each.getAttribute("aria-live")).textContent;
        const copy = async () => {
            await page.happen("keydown", document.body, { key: "y" });
            await page.pass(100);
            return said();
        };
        const seen = [await copy()];
        navigator.clipboard = { writeText: async () => {} };
        seen.push(await copy());
        await page.pass(10000);
        seen.push(said(), await copy());
        navigator.clipboard = { writeText: async () => Promise.reject(new Error("not allowed")) };
        return [...seen, await copy()];
        """,
    ) == [
        "address not copied: the browser does not let this page",
        "address copied",
        "",
        "address copied",
        "address not copied: the browser does not let this page",
    ]
