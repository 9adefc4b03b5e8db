"""The documentation as files: its lines can be read beside each other, and its links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sardonyx.client.client import Client
from sardonyx.client.job_handle import JobHandle
from tests.browser.tabs import DOCS, PICTURES

ROOT = Path(__file__).parents[2]
LONGEST = 130
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "zk_layout.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^\s*(```|~~~)")
PATH = re.compile(r"`((?:sardonyx|coordinator|peer|queues|sentinel|spark_tasks|tests|bench|examples|docs)/[\w./-]*\w)`")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that are not in a block of code."""
    fenced = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names under which the headings of a page can be linked, as GitHub and the docs site make them."""
    found: list[str] = []
    for _, line in prose(page):
        if heading := re.match(r"#{1,6} +(.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.append(name if name not in found else f"{name}-{found.count(name)}")
    return frozenset(found)


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_too_long_to_read(name: str) -> None:
    """At most 130 characters. Rows of tables cannot be wrapped, and code blocks show what a program wrote: both are exempt."""
    long = [
        f"{name}:{number}: {len(line)}"
        for number, line in prose(ROOT / name)
        if len(line) > LONGEST and not line.lstrip().startswith("|")
    ]
    assert long == []


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    """The file is there, and the heading in it, if the link names one."""
    page = ROOT / name
    broken = []
    for number, line in prose(page):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            if not other.exists() or (anchor and anchor not in anchors(other)):
                broken.append(f"{name}:{number}: {target}")
    assert not broken, "correct these links"


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_named_exists(name: str) -> None:
    """A path in the repository, in backticks, is one that is there. What a run writes below ``bench/results`` is exempt."""
    named = {
        path for _, line in prose(ROOT / name) for path in PATH.findall(line) if not path.startswith("bench/results")
    }
    if name == "CHANGELOG.md":  # tells of what was renamed
        return
    assert not sorted(path for path in named if not (ROOT / path).exists()), "correct these paths"


def test_the_picture_of_the_layers_is_the_contract() -> None:
    """CONTRIBUTING.md shows the layers of ``[tool.importlinter]``, in their order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [set(layer.split(" | ")) for layer in contracts[0]["layers"]]
    block = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.S)
    assert block
    names = {name for layer in layers for name in layer}
    shown = [
        set(re.findall(r"[\w.]+", line.removeprefix("   ").split("only here")[0])) & names
        for line in block[1].splitlines()
    ]
    assert shown == layers


def test_the_pictures_of_the_pages_are_made_by_the_tests_that_look_at_them() -> None:
    """None is copied there by hand, and each is shown somewhere."""
    made = set(PICTURES.values())
    assert {path.name for path in DOCS.iterdir()} == made
    text = "".join(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert [name for name in sorted(made) if f"images/web/{name}" not in text] == []


def test_the_page_about_commands_lists_what_a_handle_does() -> None:
    """Each public method of ``JobHandle``, and no other."""
    told = (ROOT / "docs" / "cli.md").read_text("utf-8").split("What a handle does")[1].split("A client has")[0]
    assert set(re.findall(r"`(\w+)\(", told)) == {name for name in dir(JobHandle) if not name.startswith("_")}


def test_the_pages_of_the_client_are_made_of_its_docstrings() -> None:
    """Each method that programs may call, with its arguments and errors. ``python -m docs_site.client_page`` writes them."""
    from docs_site.client_page import methods, pages

    assert [name for kind in (Client, JobHandle) for name, method in methods(kind) if not method.__doc__] == []
    assert {path.name: path.read_text("utf-8") for path in pages()} == {p.name: text for p, text in pages().items()}


def test_the_check_of_links_sees_a_wrong_one() -> None:
    """A link to a heading is compared with the headings that there are, code blocks left out."""
    page = ROOT / "docs" / "jobs.md"
    assert LINK.findall("see [a `b`](x.md#y) and ![z](i.png)") == ["x.md#y", "i.png"]
    assert "in-python" in anchors(page)
    assert "jobpy" not in anchors(page)
