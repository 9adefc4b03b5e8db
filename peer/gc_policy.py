"""When a peer daemon's process collects garbage: at the end of batches, not whenever it has made many objects.

A batch consists of tens of thousands of objects, and the batches of several peers wait in memory together. Python's
default policy scans all of them again and again, which took a fifth of the processor. The process must still collect.
Spark's JVM keeps what py4j refers to, including whole batches, until Python frees the py4j object. Those objects are in
reference cycles.

What a process has freed, the C library and Arrow keep for later. After a fault the peers that remain work off larger
batches, at once and in many threads, so what they keep grew from fault to fault: from 400 to 455 MiB in 20 minutes. The
process gives it back to the operating system now and then.
"""

from __future__ import annotations

import ctypes
import gc
import time

_BY_ITSELF = (100_000, 20, 100)
"""Thresholds for Python's automatic collection, as ``gc.set_threshold`` takes them."""

_ALL = 5.0
"""Seconds between full collections. Each batch collects only the objects made since the batch before it."""

_GIVE_BACK = 60.0
"""Seconds between two times that free memory is given back: seldom, since what is needed again soon costs page faults."""

_last = time.monotonic()


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
