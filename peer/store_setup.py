"""What a process has for the stores of its shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.kept_shards import KeptShards
from peer.standby import StandbyShards
from sardonyx.runtime.functions import import_function


@dataclass(frozen=True)
class StoreSetup:
    """What a process has for the stores of shards: where they are, and what keeps them when an assignment is over."""

    folder: Path | None = None
    """For stores on disk; None: the one for temporary files."""
    load: Callable[[str], Any] = import_function
    """Finds a store of the user's own."""
    kept: KeptShards[Any] | None = None
    """Shards of earlier assignments of this process; None: there are none, and none is kept."""
    standby: StandbyShards | None = None
    """Shards that other processes work on and that this one follows; None: it follows none."""


NO_SETUP = StoreSetup()
"""Of a process that has nothing for them."""
