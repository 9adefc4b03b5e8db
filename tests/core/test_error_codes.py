"""``docs/errors.md`` and the source name the same error codes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sardonyx", "coordinator", "peer", "queues", "sentinel", "spark_tasks")
CODE = re.compile(r"SX(-[A-Z0-9]+)+")
ROWS = re.findall(r"^\| `([^`]+)` \| (.*) \| (.*) \|$", (ROOT / "docs/errors.md").read_text("utf-8"), re.MULTILINE)
DOCUMENTED = {code for code, _, _ in ROWS}


def codes_in_source() -> dict[str, str]:
    """Every text in the code that is an error code and nothing else -> the file that holds it."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                    found.setdefault(node.value, str(path.relative_to(ROOT)))
    return found


def test_every_code_in_the_source_is_documented() -> None:
    """A user who meets a code finds it on the page, with what to do."""
    missing = {code: path for code, path in codes_in_source().items() if code not in DOCUMENTED}
    assert not missing, "write these into docs/errors.md"


def test_every_documented_code_is_in_the_source() -> None:
    """The page lists no code that nothing raises."""
    assert not DOCUMENTED - set(codes_in_source()), "take these out of docs/errors.md"


def test_every_code_stands_once_with_its_meaning_and_what_to_do() -> None:
    """One row a code, no empty cells."""
    assert [code for code, count in Counter(code for code, _, _ in ROWS).items() if count > 1] == []
    assert all(CODE.fullmatch(code) and meaning.strip() and fix.strip() for code, meaning, fix in ROWS)


@pytest.mark.parametrize("package", PACKAGES)
def test_codes_are_never_put_together_from_parts(package: str) -> None:
    """A code can be searched for: no f-string makes one."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                assert not any(str(text).startswith("SX-") for text in texts), f"{path}:{node.lineno}"
