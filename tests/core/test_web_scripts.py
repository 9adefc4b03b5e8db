"""What the pages say while streams break, jobs change and servers begin anew."""

from __future__ import annotations

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
