"""``docs/histories.md`` shows what the scenario files say."""

from __future__ import annotations

import pytest

from tests.core.history_page import PAGE, page


def test_the_page_shows_what_the_coordinator_decides(request: pytest.FixtureRequest) -> None:
    """The committed page is what the scenarios give today; ``--rewrite`` writes it again."""
    drawn = page()
    if request.config.getoption("--rewrite"):
        PAGE.write_text(drawn, "utf-8")
    assert PAGE.read_text("utf-8") == drawn, "run: pytest tests/core/test_history_page.py --rewrite"


def test_all_ten_are_there() -> None:
    """Each number from 1 to 10 has a diagram."""
    text = PAGE.read_text("utf-8")
    assert all(f"\n## History {number}: " in text for number in range(1, 11))
    assert text.count("```mermaid") == text.count("\n## ")
