"""A browser for tests of the pages, and what is true of every page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
NAMELESS = """[...document.querySelectorAll("a, button, input, select, [role=region]")].filter((each) =>
    !(each.getAttribute("aria-label") || each.textContent.trim() || (each.labels && each.labels.length))).length"""
SMALL = """[...document.querySelectorAll("button, .button, select, input:not([type=checkbox])")]
    .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 24).length"""
AXE = """() => axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((each) =>
    `${each.id} (${each.impact}): ${each.nodes.map((node) => node.html).slice(0, 3).join(" ")}`))"""


PICTURES = {"failed-light-1440": "job.png"}
"""Which of the pictures are those of the documentation, in :data:`DOCS`: ``make pictures`` makes these anew."""
DOCS = Path(__file__).parents[2] / "docs/images/web"


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SARDONYX_TEST_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "there is no Chromium: apt-get install chromium, or name one in SARDONYX_TEST_BROWSER"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


class Tab:
    """One page, and everything that it complains about or asks elsewhere for."""

    def __init__(self, browser: Any, base: str, *, scheme: str = "light", size: dict[str, int] = WIDE) -> None:
        self.page = browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce").new_page()
        self.base = base
        self.kind = f"{scheme}-{size['width']}"
        self.trouble: list[str] = []
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(status in message.text for status in ("401", "404")):
            self.trouble.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.trouble.append(f"asked elsewhere: {request.url}")

    def open(self, path: str) -> Any:
        self.page.goto(self.base + path)
        self.page.locator("main h1").first.wait_for()
        return self.page

    def check(self, name: str) -> None:
        """Assert what is true of every page. ``SARDONYX_TEST_SHOTS`` names a folder for pictures, of this name; with
        ``SARDONYX_TEST_PICTURES`` those of the documentation are made.
        """
        page, folder, shot = self.page, os.environ.get("SARDONYX_TEST_SHOTS"), f"{name}-{self.kind}"
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(folder) / f"{shot}.png"))
        if os.environ.get("SARDONYX_TEST_PICTURES") and shot in PICTURES:
            page.screenshot(path=str(DOCS / PICTURES[shot]))
        assert page.title().endswith("Sardonyx")
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "something sticks out to the side"
        assert page.evaluate(NAMELESS) == 0, "a control has no name"
        assert page.evaluate(SMALL) == 0, "a target is at least 24 pixels high"
        page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text())
        assert page.evaluate(AXE) == []
        assert self.trouble == []

    def close(self) -> None:
        self.page.context.close()


def with_page(
    browser: Any, base: str, name: str, path: str, scheme: str, size: dict[str, int], ready: str = "h1"
) -> None:
    """Open a page and check what is true of every page.

    Args:
        browser: that opens it.
        base: address of the server.
        name: of the picture.
        path: of the page.
        scheme: ``light`` or ``dark``.
        size: of the window.
        ready: what is there when the page has its data.
    """
    tab = Tab(browser, base, scheme=scheme, size=size)
    page = tab.open(path)
    page.locator("header .state").wait_for()
    page.locator(ready).first.wait_for()
    tab.check(name)
    tab.close()
