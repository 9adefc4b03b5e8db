"""docs/guarantees.md names what shows each promise: it must be there, and `make test` must run some of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests/\w+/)?test_\w+(?:\.py)?(?:::test_\w+)?)", PAGE)))
SERVICES = sorted((ROOT / "tests/services").glob("test_*.py"))
NAME = re.compile(r"`((?:tests/)?[\w/*]*(?:\.\w+)?)(?:::(test_\w+))?`")
"""What is in backticks: a file or a test without its file, then a test in it."""


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    """A file of tests, or one test in it; a file without its folder was named with it before."""
    file, _, test = name.partition("::")
    if not file.endswith(".py"):  # a test alone: of one of the files that the page names
        file, test = "", file
    where = Path(file).name or "test_*.py"
    found = list((ROOT / "tests").glob(f"*/{where}"))
    assert found, f"no {where} in tests"
    assert not test or any(f"def {test}(" in path.read_text() for path in found), f"no {test} in {where}"


def test_the_families_of_faults_exist() -> None:
    """``KINDS=...`` on the page is something that ``make faults`` takes."""
    harness = "".join(path.read_text() for path in (ROOT / "tests/faults").glob("*.py"))
    families = set(re.findall(r"KINDS=(\w+)", PAGE))
    assert families
    assert not [family for family in families if f'"{family}"' not in harness]


def test_make_test_shows_each_promise() -> None:
    """Each row names a test in tests/core or tests/simulation, a scenario, or a test on services that is marked `gate`."""
    assert len(list(rows(PAGE))) > 80
    assert not [row for row, shown_by in rows(PAGE) if not shown_by_make_test(shown_by)]


@pytest.mark.parametrize(
    ("shown_by", "shown"),
    [
        ("`tests/core/test_keys.py`", True),
        ("`tests/scenarios/shares_*.txt`", True),
        ("`make faults SHAPE=join`, `test_queue.py::test_every_record_once_and_counted`", True),
        ("`tests/services/test_queue.py` (all of it)", True),
        ("`tests/services/test_queue.py::test_rewind_reads_the_same_again`", False),
        ("`tests/services/test_takeover.py`, `::test_fifty_depositions`", True),
        ("`test_takeover.py::test_fifty_depositions`, `::test_jobs_go_on_whatever_ends_a_leadership`", False),
        ("`tests/services/test_tutorial.py`, `KINDS=network`, `make simulate`", False),
        ("the same", False),
    ],
)
def test_a_promise_that_make_test_does_not_show_is_seen(shown_by: str, shown: bool) -> None:
    """A file on services counts if one of its tests is marked, a test only if it is marked itself."""
    page = f"| promise | shown by |\n| --- | --- |\n| the first | {shown_by} |\n\n| name | meaning |\n| --- | --- |\n| a | b |\n"
    assert [(row, shown_by_make_test(cell)) for row, cell in rows(page)] == [("the first", shown)]


def test_no_test_is_marked_both_gate_and_long() -> None:
    """`make test` would run for minutes."""
    assert not [
        name for path in SERVICES for name, runs in marks(path).items() if any({"gate", "long"} <= run for run in runs)
    ]


def rows(page: str) -> Iterator[tuple[str, str]]:
    """The first and the last cell of each row of the tables that say by what something is shown."""
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif not cells[0].startswith("---") and (header[-1] == "shown by" or header == ["shown by", ""]):
            yield cells[0], cells[-1]


def shown_by_make_test(cell: str) -> bool:
    """Whether `make test` runs one of the tests that a cell names. A test without a file is of the file before it."""
    where: list[Path] = []
    for file, test in NAME.findall(cell):
        name = test
        if re.fullmatch(r"test_\w+", file):
            name, where = file, [path for path in SERVICES if file in marks(path)]
        elif file:
            where = sorted(ROOT.glob(file)) if "/" in file else sorted((ROOT / "tests").glob(f"*/{file}"))
        if any(made_to_run(path, name) for path in where):
            return True
    return False


def made_to_run(path: Path, test: str) -> bool:
    """Whether `make test` runs this test, or any of the file."""
    folder = path.relative_to(ROOT).parts[1] if path.is_relative_to(ROOT / "tests") else ""
    if folder in {"core", "simulation", "scenarios"}:
        return not test or f"def {test}(" in path.read_text()
    if folder != "services" or path.suffix != ".py":
        return False
    found = marks(path)
    return any("gate" in run for name in ([test] if test else found) for run in found.get(name, ()))


@cache
def marks(path: Path) -> dict[str, list[set[str]]]:
    """Of each test of a file: the marks that all its runs have, and then for each ``pytest.param`` those of its runs."""
    tree = ast.parse(path.read_text())
    module = [
        named(node) for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets)
    ]
    found = {}
    for test in ast.walk(tree):
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            always = set().union(
                *module, *map(named, (d for d in test.decorator_list if "parametrize" not in named(d)))
            )
            calls = [node for each in test.decorator_list for node in ast.walk(each) if isinstance(node, ast.Call)]
            params = [call for call in calls if ast.unparse(call.func) == "pytest.param"]
            found[test.name] = [always, *(always | named(param) for param in params)]
    return found


def named(node: ast.AST) -> set[str]:
    """The marks of pytest in a piece of code."""
    attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return {each.attr for each in attributes if ast.unparse(each.value) == "pytest.mark"}
