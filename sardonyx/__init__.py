"""Exactly-once dataflow jobs on Spark between Kafka queues: what users import.

Importing it is light: neither Spark nor the clients of Kafka and ZooKeeper are imported before they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.errors import (
    FunctionError,
    InputError,
    Interrupted,
    JobFailed,
    JobInvalid,
    OutputError,
    SardonyxError,
    SetupError,
    SpecUnreadable,
)

if TYPE_CHECKING:
    from sardonyx.client import Client
    from sardonyx.config import Settings, load_settings
    from sardonyx.job import Job, medium
    from sardonyx.media import blackhole, console, files, generator, jdbc, kafka
    from sardonyx.spec import OnError

__version__ = "0.1.0"

__all__ = [
    "Client",
    "FunctionError",
    "InputError",
    "Interrupted",
    "Job",
    "JobFailed",
    "JobInvalid",
    "OnError",
    "OutputError",
    "SardonyxError",
    "Settings",
    "SetupError",
    "SpecUnreadable",
    "__version__",
    "blackhole",
    "console",
    "files",
    "generator",
    "jdbc",
    "kafka",
    "load_settings",
    "medium",
]

_LATER = {  # name -> module; what needs pyarrow or more waits until it is asked for, so that `sardonyx --help` is quick
    "Client": "sardonyx.client",
    "Job": "sardonyx.job",
    "OnError": "sardonyx.spec",
    "Settings": "sardonyx.config",
    "blackhole": "sardonyx.media",
    "console": "sardonyx.media",
    "files": "sardonyx.media",
    "generator": "sardonyx.media",
    "jdbc": "sardonyx.media",
    "kafka": "sardonyx.media",
    "load_settings": "sardonyx.config",
    "medium": "sardonyx.job",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
