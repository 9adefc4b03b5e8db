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
        await page.open("/log?kind=acked");
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
    assert typed == ["j-1", "a", "acked"]
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
