"""``docs/values.md`` says what becomes of values at the edge of their type: the same, a stated change, or a clear error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.core.edge_values import ALIKE, CHANGES, DECLARED, PAGE, WAYS, Way, check, values_table
from tests.core.values_page import page


def test_the_page_says_what_becomes_of_values(request: pytest.FixtureRequest) -> None:
    """Each table is what is found today; ``--rewrite`` writes it again."""
    memory = Path("/dev/shm")  # noqa: S108 - most of the time would go to the disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        check(page(Path(folder)), rewrite=request.config.getoption("--rewrite"))


@pytest.mark.parametrize("column", ALIKE)
def test_a_column_holds_for_other_ways(column: str, tmp_path: Path) -> None:
    """JSON of topics for JSON of files, which declare their types; and one mode of writing to SQLite for the other."""
    types = tuple(f"| `{kind}` |" for kind in DECLARED)

    def declared(way: Way) -> list[str]:
        _, _, *found = values_table({column: way}, tmp_path).splitlines()
        return [line for line in found if column != "json" or line.startswith(types)]

    assert declared(ALIKE[column]) == declared(WAYS[column])


def test_each_change_that_is_stated_happens() -> None:
    """No rule without a cell."""
    text = PAGE.read_text("utf-8")
    assert [number for number in range(1, len(CHANGES) + 1) if f" ({number}) |" not in text] == []
