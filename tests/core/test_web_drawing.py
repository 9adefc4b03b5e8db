"""Whatever the pages have to show, they show it; and what their user looks at or has chosen stays where it is."""

from __future__ import annotations

import pytest
from web_scripts import needs_node, play

pytestmark = needs_node

# What stays


def test_what_comes_and_goes_leaves_the_rest_in_place() -> None:
    """The graph keeps its scrolling, and a task the focus, when the job gets a banner or loses it."""
    assert play(
        """
        const failed = { code: "SX-TASK-FAILED", message: "it broke", cause: "", fix: "", traceback: "" };
        const job = (error) => ({ ...given.job, job: { ...given.job.job, error } });
        page.answers["/jobs/j-1/overview"] = job(null);
        await page.open("/jobs/j-1");
        await page.streams[0].send("standing", given.standing);
        const task = page.body.all("a").find((each) => each.getAttribute("id") === "task-read");
        const scrolled = task.parentNode.parentNode.parentNode.parentNode;
        const seen = [scrolled.getAttribute("class")];
        task.focus();
        for (const error of [failed, null]) {
            await page.streams[0].send("job:j-1", job(error));
            seen.push(page.text().includes("it broke"), scrolled.isConnected, document.activeElement === task);
        }
        return seen;
        """
    ) == ["scroll", True, True, True, False, True, True]


@pytest.mark.parametrize("after", ["bcd", "bcda", "acbd", "xabcd", "d"])
def test_a_link_keeps_the_focus_when_others_in_its_list_come_go_or_move(after: str) -> None:
    """So one can go on with the keyboard: a browser takes the focus of a node that is moved, and its scrolling."""
    assert play(
        """
        const { draw, h } = await load("dom.js");
        const list = document.createElement("ul");
        page.body.insertBefore(list, null);
        const drawn = (text) => draw(list, [...text].map((key) => h("li", { key }, h("a", { href: key }, key))));
        drawn("abcd");
        const link = list.all("a")[3];
        link.focus();
        drawn(given.after);
        return [list.textContent, document.activeElement === link];
        """,
        after=after,
    ) == [after, True]


def test_the_focus_goes_back_when_a_question_is_closed() -> None:
    """To the button that asked it."""
    assert play(
        """
        page.answers["/jobs/j-1/overview"] = given.job;
        await page.open("/jobs/j-1");
        const button = page.named("kill");
        button.focus();
        await page.press(button);
        const seen = [document.activeElement === button];
        await page.press(page.named("do nothing"));
        return [...seen, document.activeElement === button, page.body.all("dialog").length];
        """
    ) == [False, True, 0]


# Whatever comes


def test_integers_have_all_their_digits() -> None:
    """Keys of 64 bits are more than a number of a browser holds; texts that look like them stay texts."""
    assert play(
        r"""
        const { parsed, written } = await load("exact.js");
        const texts = [
            '{"id":1234567890123456789,"n":[-9007199254740993,17],"t":"[1234567890123456789]","f":0.30000000000000004}',
            '[9223372036854775807,"a \\"1234567890123456789,"]',
        ];
        return texts.map((text) => written(parsed(text)) === text);
        """
    ) == [True, True]


def test_a_text_beside_such_an_integer_may_begin_with_any_letter() -> None:
    """Letters that are kept for private use are letters too: a text stays a text, whatever marks the integers meanwhile."""
    assert (
        play(
            r"""
        const { parsed, written } = await load("exact.js");
        const texts = [
            '{"a":"\uE000x","n":1234567890123456789}',
            '{"a":"\uE0001234","n":1234567890123456789}',
            '{"\uE0001234":1,"n":[-1234567890123456789]}',
            '["a\\"\uE0001234",1234567890123456789]',
        ];
        const { a } = parsed('{"a":"\\ue000x","n":1234567890123456789}');
        return [...texts.map((text) => written(parsed(text)) === text), a === "\uE000x"];
        """
        )
        == [True] * 5
    )


def test_a_row_shows_all_digits_and_any_time() -> None:
    """A user's program writes what it likes into records, and any number as their time."""
    assert play(
        """
        const row = (at, id) => `{"offset":1,"row":null,"at":${at},"by":null,"key":null,"record":{"id":${id}},"read":true}`;
        const rows = [row(1.7e15, 1234567890123456789n), row(1.7e9, 5)].join(",");
        page.answers["/jobs/j-1/links/l/rows"] =
            '{"link":"l","job":"j-1","kind":"input","topic":"t","writer":"a","reader":"b","more":0,' +
            `"partitions":[{"number":0,"first":0,"end":9,"position":2,"cut":false,"rows":[${rows}]}]}`;
        await page.open("/jobs/j-1/links/l");
        return ["1234567890123456789", "not a time"].map((each) => page.text().includes(each));
        """
    ) == [True, True]


def test_a_part_that_cannot_be_drawn_says_so_and_the_rest_goes_on() -> None:
    """A page without a word would be the worst answer."""
    assert play(
        """
        page.answers["/cluster"] = { ...given.cluster, attention: null };
        console.error = () => {};
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        const seen = [page.text().includes("cannot be shown"), page.text().includes("● live")];
        await page.streams[0].send("cluster", given.cluster);
        return [...seen, page.text().includes("cannot be shown"), page.text().includes("Needs attention")];
        """
    ) == [True, True, False, True]


# What the page says is wrong


def test_the_page_says_why_the_server_refuses_its_stream() -> None:
    """It does reach the server."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        page.answers["/stream"] = { code: "SX-WEB-STREAMS", title: "there are many streams", fix: "close pages", status: 503 };
        await page.open("/");
        await page.pass(3000);
        const seen = ["there are many streams; close pages", "does not reach"].map((each) => page.text().includes(each));
        delete page.answers["/stream"];
        await page.pass(3000);
        return [...seen, page.text().includes("many streams")];
        """
    ) == [True, False, False]


def test_a_token_that_is_known_no_more_is_asked_for() -> None:
    """And the page does not say that it tries again by itself."""
    assert play(
        """
        page.answers["/cluster"] = given.cluster;
        await page.open("/");
        await page.streams[0].send("standing", given.standing);
        page.answers["/stream"] = { code: "SX-WEB-LOGIN", title: "these pages ask for a token", status: 401 };
        await page.streams[0].say("event: bye\\n\\n");
        await page.pass(3000);
        return ["ask for a token", "tries again", "● live"].map((each) => page.text().includes(each));
        """
    ) == [True, False, False]


def test_an_answer_of_a_proxy_is_not_taken_for_the_server() -> None:
    """What the user gets is its status, where to look, and a button that asks again."""
    assert play(
        """
        page.answers["/jobs"] = "<html>Bad Gateway</html>";
        await page.open("/jobs");
        const seen = ["something before the server", "proxy", "try again"].map((each) => page.text().includes(each));
        page.answers["/jobs"] = given.jobs;
        await page.press(page.named("try again"));
        return [...seen, page.text().includes("j-1")];
        """
    ) == [True, True, True, True]


def test_an_answer_that_never_comes_is_an_error() -> None:
    """A connection can die without a word."""
    assert play(
        """
        page.answers["/dead-letters"] = page.promised().promise;
        await page.open("/dead-letters");
        const seen = [page.text().includes("no answer within 90 s")];
        await page.pass(95000);
        return [...seen, page.text().includes("no answer within 90 s")];
        """
    ) == [False, True]


# Where one is


def test_dead_letters_are_those_of_their_task_when_one_goes_back() -> None:
    """The button beside them redoes those of the task that the address names."""
    assert (
        play(
            """
        const letter = (error) => ({
            offset: 1, at: 1, job: "j-1", record: { a: 1 }, dropped: false, redone_by: null,
            letter: { attempts: 1, error, origin: { topic: "t", partition: 0, offset: 1 }, failure: {} },
        });
        page.answers["/dead-letters/j-1/one"] = { items: [letter("FirstError")], next: null };
        page.answers["/dead-letters/j-1/two"] = { items: [letter("SecondError")], next: null };
        await page.open("/dead-letters/j-1/one");
        await page.follow("/dead-letters/j-1/two");
        page.answers["/dead-letters/j-1/one"] = page.promised().promise;
        await page.back();
        return page.text().includes("SecondError");
        """
        )
        is False
    )


def test_the_same_address_twice_is_one_step_back() -> None:
    """However often one presses it."""
    assert (
        play(
            """
        Object.assign(page.answers, { "/cluster": given.cluster, "/jobs": given.jobs });
        await page.open("/");
        for (const each of [1, 2, 3]) await page.follow("/jobs");
        await page.back();
        return location.pathname;
        """
        )
        == "/"
    )


def test_the_address_that_is_copied_is_that_of_what_is_shown() -> None:
    """Also while the log plays, when the bar of the browser does not follow each entry."""
    assert play(
        """
        page.answers["/cluster"] = { ...given.cluster, live: false };
        await page.open("/?at=3");
        await page.streams[0].send("standing", given.standing);
        const { store } = await load("store.js");
        const copied = [];
        navigator.clipboard = { writeText: async (text) => copied.push(text) };
        store.pending = 5; // as while it plays
        await page.happen("keydown", document.body, { key: "y" });
        return copied;
        """
    ) == ["http://pages/?at=5"]


def test_a_list_shows_each_job_once() -> None:
    """Whatever an answer holds."""
    assert play(
        """
        const jobs = (...ids) => ids.map((id) => ({ ...given.jobs.items[0], id }));
        page.answers["/jobs"] = { ...given.jobs, items: jobs("j-3", "j-2"), next: "/api/v1/jobs?after=j-2" };
        await page.open("/jobs");
        page.answers["/jobs"] = { ...given.jobs, items: jobs("j-3", "j-1"), next: null };
        await page.press(page.named("more"));
        return page.body.all("th").map((each) => each.textContent).filter((each) => each.startsWith("j-"));
        """
    ) == ["j-3", "j-2", "j-1"]


def test_what_is_known_of_the_past_is_forgotten_when_the_log_is_shorter_than_it_was() -> None:
    """It is another one: the deployment was deleted and made anew."""
    assert play(
        """
        await page.open("/");
        const { store } = await load("store.js");
        const eras = [];
        for (const last of [8, 9, 3, 3, 4]) {
          await page.streams[0].send("standing", { ...given.standing, last });
          eras.push(store.era);
        }
        return eras.map((each) => each - eras[0]);
        """
    ) == [0, 0, 1, 1, 1]
