"""What the tests of the core share: no test meets what another one has left in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import structlog

from sardonyx.runtime.metrics import REGISTRY
from tests.waiting import PATIENCE


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


@pytest.fixture
def threads_end() -> Iterator[None]:
    """For tests of what has threads. One that went on would log and count in a later test, and draw from its `random`."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"the thread {thread.name} goes on after its test"
