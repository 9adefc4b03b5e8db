"""A job as a pipeline of streams, which is batch, micro-batches or stream by the windows of its sources.

``docs/pipeline.md`` explains it. It compiles to the same job as :class:`sardonyx.Job`, and has no engine of its own. The import
is quick: each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sardonyx.pipeline.builder import Pipeline
    from sardonyx.pipeline.environment import Environment, Execution
    from sardonyx.pipeline.graphs import GraphStreams
    from sardonyx.pipeline.keyed import KeyedStream
    from sardonyx.pipeline.streams import Stream
    from sardonyx.pipeline.windows import Window

__all__ = ["Environment", "Execution", "GraphStreams", "KeyedStream", "Pipeline", "Stream", "Window"]

_LATER = {
    "Environment": "sardonyx.pipeline.environment",
    "Execution": "sardonyx.pipeline.environment",
    "GraphStreams": "sardonyx.pipeline.graphs",
    "KeyedStream": "sardonyx.pipeline.keyed",
    "Pipeline": "sardonyx.pipeline.builder",
    "Stream": "sardonyx.pipeline.streams",
    "Window": "sardonyx.pipeline.windows",
}


if not TYPE_CHECKING:  # a type checker would take any name for one that is here

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            import importlib

            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
