"""When a peer daemon's process looks for garbage."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from peer import gc_policy
from peer.prepared_task import PreparedTask
from spark_tasks.applied import Applied, NoFunction

ROOT = Path(__file__).parents[2]


class Held:
    """As py4j's objects: in a cycle with one of its methods."""

    def __init__(self) -> None:
        self.methods = {"id": self}


def test_what_a_batch_leaves_in_cycles_goes_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though so few objects would not make Python look by itself: Spark's JVM keeps a batch as long as its object is there. It
    waits until batches were large together, or for some seconds: to look after each small one took a tenth of the processor.
    """
    now = [1000.0]
    monkeypatch.setattr(gc_policy, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gc_policy, "_last", now[0])
    monkeypatch.setattr(gc_policy, "_bytes", 0)

    def left_behind() -> weakref.ref[Held]:
        held = Held()
        gc.collect(0)
        gc.collect(1)  # it has outlived what Python collects by itself in the meantime
        return weakref.ref(held)

    gc.collect()
    gc.disable()  # nothing by itself, as between two batches of a few large messages
    try:
        old = left_behind()
        assert not any(gc_policy.after_batch(2**20) for _ in range(127))
        assert old() is not None
        assert gc_policy.after_batch(2**20), "all of them may still be in the JVM"
        assert old() is None

        old = left_behind()
        assert not gc_policy.after_batch(2**20)
        now[0] += 6
        assert gc_policy.after_batch(10), "however small they are"
        assert old() is None
        assert not gc_policy.after_batch(2**20), "and so on"
    finally:
        gc.enable()


def test_a_task_that_runs_no_spark_job_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows pass, or stay in its state: there is nothing of it in the JVM."""
    sizes: list[int] = []
    monkeypatch.setattr(gc_policy, "after_batch", lambda size: sizes.append(size) or False)
    table = pa.table({"n": list(range(10))})
    task = SimpleNamespace(spark=SimpleNamespace(used=object()), function=NoFunction())
    task._after_spark = partial(PreparedTask._after_spark, task)
    assert PreparedTask._apply(task, table).table is table
    assert sizes == []
    task.function = SimpleNamespace(apply=lambda rows, traced: Applied(rows, worked=traced))
    PreparedTask._apply(task, table)
    assert sizes == [2 * table.nbytes]


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


KEEP_LITTLE = """
import ctypes, re, threading
from peer import gc_policy

gc_policy.keep_little()
import psutil
import pyarrow as pa

libc = ctypes.CDLL(None)

def heaps():
    libc.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    return len(re.findall(b"<heap nr", text.value))

def used():
    return psutil.Process().memory_info().rss >> 20

def batch():  # freed in an order of its own, and all of it before the thread waits
    tables = [pa.py_buffer(bytes(1)), *(pa.allocate_buffer(1 << 20, resizable=False) for _ in range(50))]
    for table in tables[1:]:
        ctypes.memset(table.address, 1, table.size)
    full.wait()  # however the threads take turns, all four have theirs at once
    most.append(used())
    del tables
    ready.wait()

before, most = used(), []
ready, full = threading.Barrier(5), threading.Barrier(4)
threads = [threading.Thread(target=batch) for _ in range(4)]
for thread in threads:
    thread.start()
ready.wait()
print(pa.default_memory_pool().backend_name, max(most) - before, used() - before)
print(heaps() if hasattr(libc, "malloc_info") else "")
"""


def keep_little(**environment: str) -> list[str]:
    """What a process says that is to keep little, and works off four batches at once."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "ARROW_"))}
    done = subprocess.run(
        [sys.executable, "-c", KEEP_LITTLE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**ours, **environment},
    )
    return done.stdout.split()


def test_a_process_keeps_little_of_what_is_freed() -> None:
    """Its threads share two heaps, and what Arrow frees goes back at once."""
    pool, most, kept, *heaps = keep_little()
    assert pool == "system"
    assert (int(most) > 180, int(kept) < 20) == (True, True), (most, kept)
    assert heaps in ([], ["2"])


def test_what_the_user_has_set_stays() -> None:
    """Who has chosen a pool or a number of heaps knows the machine better."""
    pool, _, _, *heaps = keep_little(ARROW_DEFAULT_MEMORY_POOL="mimalloc", MALLOC_ARENA_MAX="4")
    assert pool == "mimalloc"
    assert heaps in ([], ["4"])
