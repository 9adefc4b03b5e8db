"""The documentation as a whole: every page has its place on the site, and every link leads somewhere.

``make docs`` builds the site and takes warnings for errors; these tests find most of what it would find, without its environment.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import sardonyx

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
HOOKS = ast.parse((ROOT / "docs_site" / "hooks.py").read_text("utf-8"))


def constant(name: str) -> dict[str, Any]:
    """A constant of the site's hooks, which can be imported only where MkDocs is installed."""
    for node in HOOKS.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return dict(ast.literal_eval(node.value))
    raise AssertionError(f"docs_site/hooks.py has no {name}")


def in_nav(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav if isinstance(nav, list) else nav.values()) for page in in_nav(item)]


def prose(page: Path) -> str:
    """The page without code."""
    return re.sub(r"^(```+).*?^\1|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What headings can be linked by."""
    text = re.sub(r"^(```+).*?^\1$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = (heading.lower() for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", word).strip()) for word in words}


def test_every_page_has_one_place_in_the_navigation() -> None:
    """Those in docs/, those that the site takes from the repository's root, and the reference."""
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    from_root, reference = constant("FROM_ROOT"), constant("REFERENCE")
    assert all((ROOT / source).is_file() for source in from_root.values())
    assert sorted(in_nav(SITE["nav"])) == sorted([*pages, *from_root, *reference])


def test_every_public_name_is_in_the_reference() -> None:
    """A name that `sardonyx` exports has its place on the page, and no other name has."""
    groups = constant("IN_GROUPS")["sardonyx"]
    names = [name for group in groups.values() for name in group]
    assert sorted(names) == sorted(set(sardonyx.__all__) - {"__version__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A relative link names a file of the repository; an anchor names one of its headings."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []
