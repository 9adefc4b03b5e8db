"""Forms and lists of the pages keep what their user does while the pages are drawn anew."""

from __future__ import annotations

from web_scripts import needs_node, play

pytestmark = needs_node

# Forms


def test_what_one_types_into_a_form_stays() -> None:
    """Whatever is drawn meanwhile, and wherever the focus goes; a new address fills the fields in which it differs."""
    typed, cleared = play(
        """
        page.answers["/log"] = given.log;
        await page.open("/log?kind=ack");
        const fields = () => page.body.all("input").filter((each) => each.getAttribute("type") === "search");
        for (const [index, text] of ["j-1", "a"].entries()) {
            fields()[index].focus();
            fields()[index].value = text;
        }
        page.body.all("button").at(-1).focus();
        await page.pass(3000);
        const typed = fields().map((each) => each.value);
        await page.follow("/log?peer=b");
        return [typed, fields().map((each) => each.value)];
        """,
    )
    assert typed == ["j-1", "a", "ack"]
    assert cleared == ["j-1", "b", ""]


def test_going_back_sets_the_form_back() -> None:
    """What stands in its fields is what the address says, also where the focus is, and where one has chosen something."""
    assert play(
        """
        page.answers["/log"] = given.log;
        await page.open("/log");
        const field = page.body.all("input")[0];
        const choices = page.body.all("option");
        const chosen = () => [field.value, ...choices.filter((each) => each.selected).map((each) => each.value)];
        const seen = [choices.map((each) => each.value), chosen()];
        field.focus();
        field.value = "j-1";
        for (const each of choices) each.selected = each.value === "user"; // as a user does
        await page.follow("/log?job=j-1&mark=user");
        seen.push(chosen());
        await page.back();
        return [...seen, chosen()];
        """
    ) == [["", "incident", "user", "leader"], ["", ""], ["j-1", "user"], ["", ""]]


# Lists


def test_items_of_one_key_all_stay() -> None:
    """Two events of one entry of the log, at each drawing; each has the same node as before."""
    texts, same = play(
        """
        const { draw, h } = await load("dom.js");
        const list = document.createElement("ol");
        const drawn = (...texts) => draw(list, texts.map((text) => h("li", { key: text[0] }, text)));
        drawn("5 a", "5 b", "6 c");
        const before = [...list.childNodes];
        drawn("5 a", "5 b", "6 c");
        drawn("7 d", "5 a", "5 b", "6 c");
        return [list.childNodes.map((each) => each.textContent), before.every((node, n) => node === list.childNodes[n + 1])];
        """
    )
    assert texts == ["7 d", "5 a", "5 b", "6 c"]
    assert same


def test_the_list_of_jobs_is_as_new_as_the_log() -> None:
    """Each new entry has it asked for again, one question at a time; what came meanwhile is asked for after that."""
    assert play(
        """
        const jobs = (n, status) => ({ ...given.jobs, n, items: given.jobs.items.map((each) => ({ ...each, status })) });
        const asked = () => page.asked.filter((each) => each.startsWith("/jobs")).length;
        const seen = [];
        page.answers["/jobs"] = jobs(8, "planning");
        await page.open("/jobs");
        await page.streams[0].send("standing", given.standing);
        seen.push([page.text().includes("planning"), asked()]);
        const slow = page.promised();
        page.answers["/jobs"] = slow.promise;
        for (const last of [9, 10, 11]) await page.streams[0].send("standing", { ...given.standing, last });
        seen.push([page.text().includes("planning"), asked()]);
        page.answers["/jobs"] = jobs(11, "completed");
        slow.give(jobs(9, "running"));
        await page.pass(20);
        seen.push([page.text().includes("completed"), asked()]);
        return seen;
        """,
    ) == [[True, 1], [True, 2], [True, 3]]


def test_a_long_list_of_jobs_is_asked_for_as_long_as_it_is() -> None:
    """Who has read on in it keeps what was read, as new as the rest."""
    assert play(
        """
        const line = given.jobs.items[0];
        const jobs = (from, to) => Array.from({ length: to - from }, (_, n) => ({ ...line, id: `j-${from + n}` }));
        page.answers["/jobs"] = { ...given.jobs, items: jobs(0, 100), next: "/api/v1/jobs?after=j-99" };
        await page.open("/jobs");
        page.answers["/jobs"] = { ...given.jobs, items: jobs(100, 130), next: null };
        await page.press(page.named("more"));
        page.answers["/jobs"] = (path) => ({ ...given.jobs, n: 9, items: jobs(0, 130), next: path });
        await page.streams[0].send("standing", { ...given.standing, last: 9 });
        return [page.asked.filter((each) => each.startsWith("/jobs")), page.body.all("tr").length];
        """,
    ) == [["/jobs", "/jobs?after=j-99", "/jobs?limit=130"], 131]


OLDER = """
    const lines = (from) => [0, 1].map((n) => ({ ...given.log.items[0], n: from - n, summary: `summary ${from - n}` }));
    const part = (from) => ({ ...given.log, items: lines(from), next: `/api/v1/log?before=${from - 1}` });
    const shown = () => page.body.all("ol").flatMap((each) => each.all("a")).map((each) => each.textContent);
    page.answers["/log"] = part(8);
    await page.open("/log");
    await page.streams[0].send("standing", given.standing);
"""


def test_older_entries_of_the_log_stay_when_new_ones_come() -> None:
    """Until the page is asked for anew; without them, the log shows each new entry."""
    assert play(
        OLDER
        + """
        page.answers["/log"] = { ...part(9), last: 9 };
        await page.streams[0].send("standing", { ...given.standing, last: 9 });
        const newest = shown();
        page.answers["/log"] = part(7);
        await page.press(page.named("older"));
        page.answers["/log"] = { ...part(10), last: 10 };
        await page.streams[0].send("standing", { ...given.standing, last: 10 });
        const read = shown();
        await page.follow("/log?");
        return [newest, read, shown()];
        """,
    ) == [["9", "8"], ["9", "8", "7", "6"], ["10", "9"]]


def test_the_next_part_of_a_list_comes_once() -> None:
    """However often one presses, and whatever the stream brings until it is there."""
    assert play(
        OLDER
        + """
        const slow = page.promised();
        page.answers["/log"] = slow.promise;
        await page.press(page.named("older"));
        await page.press(page.body.all("button").find((each) => "more" in each.dataset));
        page.answers["/log"] = { ...part(9), last: 9 };
        await page.streams[0].send("standing", { ...given.standing, last: 9 });
        slow.give(part(6));
        await page.pass(20);
        return shown();
        """,
    ) == ["8", "7", "6", "5"]


def test_the_next_part_of_a_list_that_is_left_goes_nowhere() -> None:
    """Not into the list of another page."""
    assert play(
        OLDER
        + """
        const slow = page.promised();
        page.answers["/log"] = slow.promise;
        page.answers["/jobs"] = given.jobs;
        await page.press(page.named("older"));
        await page.follow("/jobs");
        slow.give(part(6));
        await page.pass(20);
        return [page.body.all("h1")[0].textContent, page.body.all("tr").length];
        """,
    ) == ["Jobs", 2]


def test_the_page_says_why_the_next_part_of_a_list_does_not_come() -> None:
    """One may press again."""
    assert play(
        OLDER
        + """
        page.answers["/log"] = { code: "SX-WEB-DISK", title: "the disk is full" };
        await page.press(page.named("older"));
        const said = page.text().includes("the disk is full");
        page.answers["/log"] = part(6);
        await page.press(page.named("older"));
        return [said, page.text().includes("the disk is full"), shown()];
        """,
    ) == [True, False, ["8", "7", "6", "5"]]
