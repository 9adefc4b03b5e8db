"""Makes the types of what is stored and sent ready for threads. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def ready_for_threads(kind: type[T]) -> type[T]:
    """Decorate a class that is given to ``msgspec.json.decode``, so that msgspec works it out while its module is loaded.

    Otherwise msgspec does so when the class is read for the first time, without a lock. If two threads do that at the same
    moment, the second one takes what is half done, and the process dies of SIGSEGV (seen with msgspec 0.22). One thread loads a
    module. ``tests/core/test_wire_types.py`` holds that no class is left out.

    Args:
        kind: the class. The classes of its fields are worked out with it, so they stand above it in their module.
    """
    msgspec.json.Decoder(kind)
    return kind


__all__ = ["ready_for_threads"]
