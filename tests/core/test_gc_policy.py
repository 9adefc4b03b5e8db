"""When a peer daemon's process looks for garbage."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from peer import gc_policy

ROOT = Path(__file__).parents[2]


class Held:
    """As py4j's objects: in a cycle with one of its methods."""

    def __init__(self) -> None:
        self.methods = {"id": self}


def test_what_a_batch_leaves_in_cycles_goes_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though so few objects would not make Python look by itself: Spark's JVM keeps a batch as long as its object is there."""
    gc.collect()
    gc.disable()  # nothing by itself, as between two batches of a few large messages
    try:
        here = weakref.ref(Held())
        assert here() is not None
        gc_policy.after_batch()
        assert here() is None

        grown_old = Held()
        gc.collect(0)
        gc.collect(1)
        old = weakref.ref(grown_old)
        del grown_old
        monkeypatch.setattr(gc_policy, "_last", gc_policy._last - 100)
        gc_policy.after_batch()
        assert old() is None
    finally:
        gc.enable()


def test_what_is_imported_is_not_looked_at_again() -> None:
    """In a process of its own, since it is for good."""
    code = (
        "import gc; from peer import gc_policy; gc_policy.seldom();"
        "print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 10_000)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True"]
