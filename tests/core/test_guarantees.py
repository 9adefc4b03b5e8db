"""docs/guarantees.md names what shows each promise; what it names must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests/\w+/)?test_\w+(?:\.py)?(?:::test_\w+)?)", PAGE)))


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
