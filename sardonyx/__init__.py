"""Exactly-once dataflow jobs on Spark between Kafka queues: what users import.

The import is quick: Spark and the clients of Kafka and ZooKeeper are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.core.errors import (
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
from sardonyx.core.version import VERSION

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.connectors.base import PositionedOutput, PositionsMoved, Split, StoredPosition
    from sardonyx.connectors.declarations import blackhole, console, files, generator, kafka, sql
    from sardonyx.core.plan import JobPlan
    from sardonyx.core.secrets import Secret
    from sardonyx.core.spec import OnError
    from sardonyx.graphs.program import Superstep, Vertex, VertexProgram
    from sardonyx.job.builder import Job, connector
    from sardonyx.job.conditions import all_of, any_of, not_
    from sardonyx.job.graphing import GraphView
    from sardonyx.job.looping import Cycle
    from sardonyx.job.windowing import (
        Collect,
        Count,
        Distinct,
        First,
        Last,
        Max,
        Mean,
        Min,
        Quantile,
        Sum,
        Var,
        calendar,
        counted,
        event_time,
        every,
        everything,
        hopping,
        kafka_time,
        on_count,
        ordinal,
        session,
        tumbling,
        wall,
    )
    from sardonyx.runtime.settings import Settings, load_settings
    from sardonyx.state.handles import Key, ListState, MapState, State
    from sardonyx.state.timers import Timer, Timers

__version__ = VERSION

__all__ = [
    "Client",
    "Collect",
    "Count",
    "Cycle",
    "Distinct",
    "First",
    "FunctionError",
    "GraphView",
    "InputError",
    "Interrupted",
    "Job",
    "JobFailed",
    "JobInvalid",
    "JobPlan",
    "Key",
    "Last",
    "ListState",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "OnError",
    "OutputError",
    "PositionedOutput",
    "PositionsMoved",
    "Quantile",
    "SardonyxError",
    "Secret",
    "Settings",
    "SetupError",
    "SpecUnreadable",
    "Split",
    "State",
    "StoredPosition",
    "Sum",
    "Superstep",
    "Timer",
    "Timers",
    "Var",
    "Vertex",
    "VertexProgram",
    "__version__",
    "all_of",
    "any_of",
    "blackhole",
    "calendar",
    "connector",
    "console",
    "counted",
    "event_time",
    "every",
    "everything",
    "files",
    "generator",
    "hopping",
    "kafka",
    "kafka_time",
    "load_settings",
    "not_",
    "on_count",
    "ordinal",
    "session",
    "sql",
    "tumbling",
    "wall",
]

_LATER = {  # name -> module; these need pyarrow or more, and are imported when they are first used, so that the CLI is quick
    "Client": "sardonyx.client.client",
    "Cycle": "sardonyx.job.looping",
    "GraphView": "sardonyx.job.graphing",
    "Job": "sardonyx.job.builder",
    "JobPlan": "sardonyx.core.plan",
    "OnError": "sardonyx.core.spec",
    "PositionedOutput": "sardonyx.connectors.base",
    "PositionsMoved": "sardonyx.connectors.base",
    "Split": "sardonyx.connectors.base",
    "StoredPosition": "sardonyx.connectors.base",
    "Secret": "sardonyx.core.secrets",
    "Settings": "sardonyx.runtime.settings",
    "Superstep": "sardonyx.graphs.program",
    "Vertex": "sardonyx.graphs.program",
    "VertexProgram": "sardonyx.graphs.program",
    "blackhole": "sardonyx.connectors.declarations",
    "console": "sardonyx.connectors.declarations",
    "files": "sardonyx.connectors.declarations",
    "generator": "sardonyx.connectors.declarations",
    "sql": "sardonyx.connectors.declarations",
    "kafka": "sardonyx.connectors.declarations",
    "load_settings": "sardonyx.runtime.settings",
    "connector": "sardonyx.job.builder",
    "all_of": "sardonyx.job.conditions",
    "any_of": "sardonyx.job.conditions",
    "not_": "sardonyx.job.conditions",
    "Key": "sardonyx.state.handles",
    "ListState": "sardonyx.state.handles",
    "MapState": "sardonyx.state.handles",
    "State": "sardonyx.state.handles",
    "Timer": "sardonyx.state.timers",
    "Timers": "sardonyx.state.timers",
    "Collect": "sardonyx.job.windowing",
    "Count": "sardonyx.job.windowing",
    "Distinct": "sardonyx.job.windowing",
    "First": "sardonyx.job.windowing",
    "Last": "sardonyx.job.windowing",
    "Max": "sardonyx.job.windowing",
    "Mean": "sardonyx.job.windowing",
    "Min": "sardonyx.job.windowing",
    "Quantile": "sardonyx.job.windowing",
    "Sum": "sardonyx.job.windowing",
    "Var": "sardonyx.job.windowing",
    "calendar": "sardonyx.job.windowing",
    "counted": "sardonyx.job.windowing",
    "event_time": "sardonyx.job.windowing",
    "every": "sardonyx.job.windowing",
    "everything": "sardonyx.job.windowing",
    "hopping": "sardonyx.job.windowing",
    "kafka_time": "sardonyx.job.windowing",
    "on_count": "sardonyx.job.windowing",
    "ordinal": "sardonyx.job.windowing",
    "session": "sardonyx.job.windowing",
    "tumbling": "sardonyx.job.windowing",
    "wall": "sardonyx.job.windowing",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is here

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            import importlib

            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What an interactive shell completes: the public names, those not imported yet too."""
    return __all__
