"""When a peer daemon's process collects garbage: now and then after Spark jobs, not whenever it has made many objects.

A batch consists of tens of thousands of objects, and the batches of several peers wait in memory together. Python's
default policy scans all of them again and again, which took a fifth of the processor; to scan after each batch took a tenth.
Nearly all of them are in no cycle, so they go when the last reference does. The process must still collect. Spark's JVM keeps
what py4j refers to, including whole batches, until Python frees the py4j object. Those objects are in reference cycles. So
what bounds the JVM's memory is how many bytes batches have had since the last collection, and for how long a small one waits.

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

_SECONDS = 5.0
"""Seconds between two collections, as long as Spark jobs run. Each is of all objects: what a batch has left has often outlived
a collection that Python made by itself in the meantime."""

_BYTES = 128 * 2**20
"""Bytes of batches after which there is one earlier: the JVM may still hold them all."""

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
_bytes = 0
"""Of batches since then."""


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


def after_batch(size: int) -> bool:
    """Collect, if it is time, after Spark has processed a batch of so many bytes; any thread may call it. Returns whether it did.

    Two threads at once may count a batch of one of them only.
    """
    global _last, _bytes  # noqa: PLW0603 - there is one collector in a process
    now = time.monotonic()
    _bytes += size
    if _bytes < _BYTES and now - _last < _SECONDS:
        return False
    _last, _bytes = now, 0
    gc.collect()
    return True


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
