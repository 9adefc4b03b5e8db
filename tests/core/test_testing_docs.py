"""What ``docs/testing.md`` promises to those who test under faults is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("coordinator", "peer", "queues", "sentinel", "spark_tasks", "sardonyx")


def test_every_point_that_is_documented_stands_in_the_code() -> None:
    """A fault at a point that nothing passes would never come."""
    text = (ROOT / "docs" / "testing.md").read_text("utf-8")
    table = text[text.index("| point | where it stands |") :]
    points = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    sources = "".join(path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    passed = set(re.findall(r'failpoint\("([\w-]+)"\)', sources))
    pipelines = re.findall(r'WritePipeline\(\s*[\w.]+,\s*"([\w-]+)"', sources)  # each passes two points of its own
    passed |= {f"{when}-{name}" for name in pipelines for when in ("before", "after")}
    assert len(points) > 20
    assert sorted(points - passed) == []
