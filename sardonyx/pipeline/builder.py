"""The builder of pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import FunctionError
from sardonyx.job.builder import Job
from sardonyx.job.conditions import Combined
from sardonyx.job.tasks import Function, Task
from sardonyx.job.validate_edges import OF_BATCHES
from sardonyx.job.windowing import Clock
from sardonyx.pipeline.graphs import GraphStreams
from sardonyx.pipeline.stages import Chained, Kind, Stages
from sardonyx.pipeline.streams import Part, Stream, problem
from sardonyx.pipeline.windows import Window
from sardonyx.runtime.functions import takes, takes_rows

_FILTERS = {"record": "sardonyx.pipeline.functions:keep_row", "arrow": "sardonyx.pipeline.functions:keep_rows"}
"""What a condition takes -> the function of a task that filters by it."""


class Pipeline(Job):
    """A job as a pipeline of streams: :meth:`source` begins one, and the methods of streams go on. docs/pipeline.md explains it.

    A pipeline is a job: everything that takes a :class:`sardonyx.Job` takes it, and its methods may be used beside the streams.
    Its arguments are those of a job.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._stages = Stages()

    def source(
        self,
        name: str,
        connector: Connector,
        fn: Function | None = None,
        *,
        window: Window | None = None,
        time: str | Clock | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Stream:
        """Where rows come from: :meth:`sardonyx.Job.input`.

        Args:
            name: of the operator.
            connector: such as ``kafka(...)``.
            fn: may be a function over what was read.
            window: how the rows are cut: what is aggregated or reduced after this source is so by these windows. None:
                ``Window.all()``.
            time: with ``Window.all()``: where the times of the rows come from, for joins and states that expire. The other
                windows say it themselves.
            settings: as for ``job.input``.
        """
        window = Window.all() if window is None else window
        if time is not None and window.clock is not None:
            self.wrong(
                "SX-PIPELINE-WINDOW",
                name,
                f"it has time, and its Window.{window.kind} says what the times of its rows are",
                "a row has one time",
                "remove time; with Window.time give by=event_time(...) or the like",
            )
        task = self.input(name, connector, fn, time=time if window.clock is None else window.clock, **settings)
        return self.stream(task, window)

    def stream(self, part: Part, window: Window | None = None) -> Stream:
        """The results of a task as a stream, or a part of them.

        Args:
            part: as a method of :class:`sardonyx.Job` returned it.
            window: that of the sources before it. None: ``Window.all()``.
        """
        return Stream(self, (part,), (Window.all() if window is None else window,))

    def graph_view(
        self, name: str, *, edges: Stream, source: str, target: str, vertices: Stream | None = None, **settings: Any
    ) -> GraphStreams:
        """The rows of a stream as the edges of a graph: :meth:`sardonyx.Job.graph`, whose arguments it has."""
        further = None if vertices is None else vertices.side(name)
        view = self.graph(name, edges=edges.side(name), source=source, target=target, vertices=further, **settings)
        return GraphStreams(view, edges)

    def data(self) -> dict[str, Any]:
        """The job as a YAML file would have it, with operators put together where that is possible."""
        return self._stages.arranged(super().data())

    # --- For streams ---

    def chain(self, name: str, fn: Function, settings: Mapping[str, Any]) -> None:
        """An operator may run in the batches of the one before it, unless it has settings of its own for batches."""
        kind: Kind | None = None
        if not isinstance(fn, str):
            with suppress(FunctionError):  # `check` reports it
                kind = "table" if takes(fn) == "dataframe" else "row"
        self._stages.add(name, Chained(kind, joins=not {*OF_BATCHES, "fuse"}.intersection(settings)))

    def condition(self, name: str, condition: Function, parts: Sequence[Part]) -> Task:
        """Add a filter. Raises ``TypeError`` for a condition that only an edge can have: a filter may become a task."""
        if isinstance(condition, Combined | partial):
            raise TypeError(
                "filter takes a function or its name, without parameters: write a function that tests it all"
            )
        kind = "record"
        if not isinstance(condition, str):
            with suppress(FunctionError):  # `check` reports it
                kind = takes_rows(condition)
        task = self.task(name, _FILTERS[kind], after=parts, params={"condition": condition})
        where = self._reference(condition)
        self._stages.add(name, Chained(None if isinstance(condition, str) else "row", where=where))
        return task

    def wrong(self, code: str, name: str, message: str, cause: str, fix: str) -> None:
        """Keep what is wrong with an operator, to be reported with the job's other problems."""
        self._problems.append(problem(code, name, message, cause, fix))


__all__ = ["Pipeline"]
