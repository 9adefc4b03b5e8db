"""When a peer daemon's process collects garbage: at the end of batches, not whenever it has made many objects.

A batch consists of tens of thousands of objects, and the batches of several peers wait in memory together. Python's
default policy scans all of them again and again, which took a fifth of the processor. The process must still collect.
Spark's JVM keeps what py4j refers to, including whole batches, until Python frees the py4j object. Those objects are in
reference cycles.

What a process has freed, its allocators keep for later. After a fault the peers that remain work off larger batches, at
once and in many threads, so what they keep grew from fault to fault: by 94 MiB in an hour. So the process tells the C
library and Arrow beforehand to keep little (:func:`keep_little`), and gives back what they keep all the same now and then
(:func:`give_back`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import time

_BY_ITSELF = (100_000, 20, 100)
"""Thresholds for Python's automatic collection, as ``gc.set_threshold`` takes them."""

_ALL = 5.0
"""Seconds between full collections. Each batch collects only the objects made since the batch before it."""

_GIVE_BACK = 60.0
"""Seconds between two times that free memory is given back: seldom, since what is needed again soon costs page faults."""

_MALLOC = (
    # Without a limit the C library makes a heap for nearly each thread, and this process has forty. What is free between
    # blocks in use cannot be given back: 33 of 47 MiB in 16 heaps.
    ("MALLOC_ARENA_MAX", -8, 2),
    # A block of at least this size gets pages of its own, and its end gives them back. By default the C library takes the
    # size of the largest such block that was freed as the new limit, up to 32 MiB: then tables lie in the heaps.
    ("MALLOC_MMAP_THRESHOLD_", -3, 128 * 1024),
    # How much may be free at the end of a heap. Otherwise a fixed limit above means 128 KiB here: each batch would give
    # pages back and take them again.
    ("MALLOC_TRIM_THRESHOLD_", -1, 4 * 2**20),
)
"""What we tell glibc: the environment variable with which users choose, the parameter's number in malloc.h, its value."""

_last = time.monotonic()


def keep_little() -> None:
    """Tell the C library and Arrow to keep little of what is freed. What the user has set in the environment stays.

    Call it before pyarrow is imported and before any thread starts: heaps that exist stay, and so does Arrow's pool. Libraries
    that have no such parameters, as on macOS, take no notice.
    """
    # Arrow's own pool (mimalloc) kept 80 to 135 MiB while no byte of it was in use, and gives back little when asked.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for name, parameter, value in _MALLOC:
        if name not in os.environ:
            mallopt(parameter, value)


def seldom() -> None:
    """Collect rarely from now on.

    The collector never again scans the objects that exist now, such as imported modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BY_ITSELF)


def after_batch() -> bool:
    """Collect after Spark has processed a batch; any thread may call it. Returns whether this was a full collection."""
    global _last  # noqa: PLW0603 - there is one collector in a process
    now = time.monotonic()
    if now - _last > _ALL:
        _last = now
        gc.collect()
        return True
    gc.collect(0)
    return False


def give_back() -> bool:
    """Give free memory back to the operating system. Returns whether the C library can do that (glibc can)."""
    import pyarrow as pa  # takes long, and who only asks for help needs none of it

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None


def keep_giving_back() -> None:
    """The same again and again; never returns."""
    while True:
        time.sleep(_GIVE_BACK)
        give_back()
