"""``docs/values.md`` says what becomes of values at the edge of their type: the same, a stated change, or a clear error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.core.edge_values import CHANGES, PAGE, check
from tests.core.values_page import page


def test_the_page_says_what_becomes_of_values(request: pytest.FixtureRequest) -> None:
    """Each table is what is found today; ``--rewrite`` writes it again."""
    memory = Path("/dev/shm")  # noqa: S108 - most of the time would go to the disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        check(page(Path(folder)), rewrite=request.config.getoption("--rewrite"))


def test_each_change_that_is_stated_happens() -> None:
    """No rule without a cell."""
    text = PAGE.read_text("utf-8")
    assert [number for number in range(1, len(CHANGES) + 1) if f" ({number}) |" not in text] == []
