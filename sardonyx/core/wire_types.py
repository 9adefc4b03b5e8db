"""Makes the types of what is stored and sent ready for threads. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


def ready_for_threads(*types: Any) -> None:
    """Have msgspec work out types while their module is loaded, which one thread does.

    Otherwise it does so when a type is read for the first time, without a lock. If two threads do that at the same moment, the
    second one takes what is half done, and the process dies of SIGSEGV (seen with msgspec 0.22). So a module whose types are read
    calls this at its end; ``tests/core/test_wire_types.py`` holds that.

    Args:
        types: as they are given to ``msgspec.json.decode``. Those of their fields are worked out with them.
    """
    for each in types:
        msgspec.json.Decoder(each)


__all__ = ["ready_for_threads"]
