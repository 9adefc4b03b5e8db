"""What the tests of the core share: no test meets what another one has left in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from sardonyx.runtime.metrics import REGISTRY


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that a test calls logs to that test's streams, which are closed afterwards."""
    before, root = structlog.get_config(), logging.root
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True)
def metrics_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric has room for so many series only, and other tests have counted in this process."""
    for metric in REGISTRY.families:
        monkeypatch.setattr(metric, "_series", {})
