"""When a peer daemon's process collects garbage: at the end of batches, not whenever it has made many objects.

A batch consists of tens of thousands of objects, and the batches of several peers wait in memory together. Python's
default policy scans all of them again and again, which took a fifth of the processor. The process must still collect.
Spark's JVM keeps what py4j refers to, including whole batches, until Python frees the py4j object. Those objects are in
reference cycles.
"""

from __future__ import annotations

import gc
import time

_BY_ITSELF = (100_000, 20, 100)
"""Thresholds for Python's automatic collection, as ``gc.set_threshold`` takes them."""

_ALL = 5.0
"""Seconds between full collections. Each batch collects only the objects made since the batch before it."""

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
