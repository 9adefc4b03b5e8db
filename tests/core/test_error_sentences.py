"""What is said of an error in one line reads as a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sardonyx.core.errors import SardonyxError

ROOT = Path(__file__).parents[2]
PACKAGES = ("sardonyx", "coordinator", "peer", "queues", "sentinel", "spark_tasks")
GOES_ON = re.compile(r"error\.message\}( \(|:|,|;)")


@pytest.mark.parametrize("message", ["Kafka at k:9 did not answer (waited 5.0 s)", "No peer runs."])
def test_a_text_that_goes_on_has_no_full_stop_before_a_colon(message: str) -> None:
    """Messages of some errors end with one."""
    said = f"{SardonyxError('SX-TEST', message).opening}: the cause"
    assert re.sub(r"\.$", "", message) + ": the cause" == said


def test_no_text_goes_on_after_the_whole_message_of_an_error() -> None:
    """``explain``, ``doctor`` and the pages take :attr:`~sardonyx.core.errors.SardonyxError.opening`."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for match in GOES_ON.finditer(path.read_text("utf-8"))
    ]
    assert found == []
