"""Test jobs with pytest: on rows in this process, on real services, under faults. See ``docs/testing.md``.

The import is quick: each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.testing.clocked import ClockedRun
    from sardonyx.testing.cluster import Addresses, Cluster
    from sardonyx.testing.faults import Fault, kill_at, pause_at
    from sardonyx.testing.local import run_job
    from sardonyx.testing.result import DeadLetter, JobResult

__all__ = ["Addresses", "ClockedRun", "Cluster", "DeadLetter", "Fault", "JobResult", "kill_at", "pause_at", "run_job"]

_LATER = {
    "Addresses": "sardonyx.testing.cluster",
    "ClockedRun": "sardonyx.testing.clocked",
    "Cluster": "sardonyx.testing.cluster",
    "DeadLetter": "sardonyx.testing.result",
    "Fault": "sardonyx.testing.faults",
    "JobResult": "sardonyx.testing.result",
    "kill_at": "sardonyx.testing.faults",
    "pause_at": "sardonyx.testing.faults",
    "run_job": "sardonyx.testing.local",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is here

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            import importlib

            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
