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
