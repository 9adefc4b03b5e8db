"""When a peer daemon's process looks for garbage: at the end of batches, instead of whenever many objects were made.

A batch is made of tens of thousands of objects that wait side by side with those of other peers. To look at all of them again
and again, as Python does by itself, took a fifth of the processor. But it must be done: what py4j holds in Spark's JVM, whole
batches among it, is let go only with its Python object, and these stand in cycles.
"""

from __future__ import annotations

import gc
import time

_BY_ITSELF = (100_000, 20, 100)
"""What is left to Python, as ``gc.set_threshold`` takes it."""

_ALL = 5.0
"""Seconds after which all of it is looked at; what came since the batch before, with each batch."""

_last = time.monotonic()


def seldom() -> None:
    """From here on; what was imported by now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BY_ITSELF)


def after_batch() -> bool:
    """From any thread, when a batch has been through Spark. Gives whether all was looked at, which is once in a while."""
    global _last  # noqa: PLW0603 - there is one collector in a process
    now = time.monotonic()
    if now - _last > _ALL:
        _last = now
        gc.collect()
        return True
    gc.collect(0)
    return False
