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


GIVE_BACK = """
import os, threading
import psutil
from peer import gc_policy

def used():
    return psutil.Process().memory_info().rss >> 20

def batch():  # what is freed lies below something that stays, as in a process of many threads
    rows = [bytes(3000) for _ in range(50_000)]
    kept.append(rows.pop())

kept = []
gc_policy.give_back()
before = used()
threads = [threading.Thread(target=batch) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
after = used()
if gc_policy.give_back():
    print(before, after, used())
"""


def test_what_batches_have_freed_goes_back_to_the_operating_system() -> None:
    """Otherwise a daemon keeps for good what a few large batches at once took, though it uses none of it."""
    done = subprocess.run([sys.executable, "-c", GIVE_BACK], cwd=ROOT, capture_output=True, text=True, check=True)
    if not done.stdout:
        pytest.skip("this C library gives nothing back")
    before, after, then = map(int, done.stdout.split())
    assert after - before > 100, "the C library keeps what was freed"
    assert then - before < 50, (before, after, then)
