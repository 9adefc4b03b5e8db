"""The content policy of the pages, violated on purpose: what a hole in a page could try, the browser refuses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sardonyx.cli.daemons import ADDRESS
from sardonyx.runtime.child_process import start_child
from tests.browser.tabs import Tab, browser
from tests.waiting import until

pytestmark = pytest.mark.browser

REPORT = Path(__file__).parents[1] / "reports" / "a_daemon_killed_at_work.jsonl"
TRIED = """(elsewhere) => {
    window.ran = [];
    window.refused = new Set();
    document.addEventListener("securitypolicyviolation", (event) => window.refused.add(event.effectiveDirective));
    const made = (name, attributes, text) => {
        const element = document.createElement(name);
        for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
        if (text) element.append(document.createTextNode(text));
        document.body.append(element);
        return element;
    };
    const attempts = [
        () => made("script", {}, "window.ran.push('a script in the page')"),
        () => made("script", {src: elsewhere + "/script.js"}),
        () => { document.body.innerHTML = "<img src=x onerror='window.ran.push(1)'>"; },
        () => setTimeout("window.ran.push('a text')", 0),
        () => made("button", {onclick: "window.ran.push('a handler in the markup')"}).click(),
        () => made("img", {src: elsewhere + "/image.png"}),
        () => made("iframe", {src: elsewhere + "/frame"}),
        () => made("object", {data: elsewhere + "/object"}),
        () => made("link", {rel: "stylesheet", href: elsewhere + "/style.css"}),
        () => made("style", {}, "body { background: url(" + elsewhere + "/style.png) }"),
        () => made("base", {href: elsewhere + "/"}),
        () => made("form", {action: elsewhere + "/form", method: "post", target: "_blank"}).submit(),
        () => fetch(elsewhere + "/fetch").catch(() => null),
        () => navigator.sendBeacon(elsewhere + "/beacon", "all that the page knows"),
        () => new EventSource(elsewhere + "/events"),
        () => new WebSocket(elsewhere.replace("http", "ws") + "/socket"),
        () => new Worker("data:text/javascript,postMessage(1)"),
    ];
    for (const attempt of attempts) {
        try { attempt(); } catch { /* refused at once */ }
    }
}"""
DIRECTIVES = {
    "base-uri",
    "connect-src",
    "form-action",
    "frame-src",
    "img-src",
    "require-trusted-types-for",  # tells of all attempts at scripts: they do not get as far as script-src
    "style-src-elem",
}


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server elsewhere: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(204)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_what_the_policy_forbids_the_browser_refuses(tmp_path: Path) -> None:
    """No script that is not a file of ours runs, and nothing goes elsewhere: each attempt is a violation of its directive, and a
    server that waits for requests gets none.
    """
    command = [sys.executable, "-m", "sardonyx", "web", "--replay", str(REPORT), "--port", "0"]
    with start_child(command, name="web", log_path=tmp_path / "web.log") as child, listener() as (elsewhere, asked):
        found = until(lambda: ADDRESS.search(child.log_tail(50)), what="the pages to be served")
        with browser() as chromium:
            tab = Tab(chromium, found[0].rstrip("/"))
            page = tab.open("/")
            assert tab.trouble == []
            page.evaluate(TRIED, elsewhere)
            until(
                lambda: set(page.evaluate("[...window.refused]")) >= DIRECTIVES,
                what=f"a violation of each of {sorted(DIRECTIVES)}",
            )
            assert page.evaluate("window.ran") == []
            assert page.url.startswith(found[0].rstrip("/"))
            tab.close()
        assert asked == []
