"""Streams: what a pipeline's operators read and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import SardonyxError
from sardonyx.core.text import listed
from sardonyx.job.tasks import Edge, Function, Task
from sardonyx.job.windowing import Length
from sardonyx.pipeline.windows import Window

if TYPE_CHECKING:
    from sardonyx.pipeline.builder import Pipeline
    from sardonyx.pipeline.keyed import KeyedStream

Part = Task | Edge


@dataclass(frozen=True)
class Stream:
    """Rows of a pipeline, as its operators give them. Each method adds an operator that reads them.

    An operator has the name of its function, unless ``name=`` gives another one. Further keyword arguments are the settings of
    the task that it becomes, as for the method of :class:`sardonyx.Job` that it says.
    """

    pipeline: Pipeline
    parts: tuple[Part, ...]
    """The tasks, or parts of what they give, that the rows come from."""
    windows: tuple[Window, ...]
    """Those of the sources: one, unless streams of different windows were united."""
    late_tasks: tuple[Task, ...] = ()
    """The tasks whose late rows these are without, if they are others than those of the rows."""

    def __repr__(self) -> str:
        return f"<stream of {listed([_task(part).name for part in self.parts])} of pipeline {self.pipeline.name!r}>"

    # --- Rows ---

    def map(self, fn: Function, name: str | None = None, *, fuse: bool | None = None, **settings: Any) -> Stream:
        """A function over the rows: :meth:`sardonyx.Job.task`.

        Args:
            fn: takes a ``dict`` and gives one; or a ``pyarrow.Table``, a ``pandas.DataFrame`` or a Spark ``DataFrame``.
            name: of the operator.
            fuse: whether it runs in the batches of the operator before it, without a queue between. None: if it can, and that is
                a map, a flat_map or a filter.
            settings: as for ``job.task``.
        """
        name = named(fn, name)
        given = settings if fuse is None else {**settings, "fuse": fuse}
        task = self.pipeline.task(name, fn, after=self.parts, **given)
        self.pipeline.chain(name, fn, given)
        return self._given_by(task)

    def flat_map(self, fn: Function, name: str | None = None, *, fuse: bool | None = None, **settings: Any) -> Stream:
        """A function that gives several rows for one, or none: a list or an iterator of dicts. Else as :meth:`map`."""
        return self.map(fn, name, fuse=fuse, **settings)

    def filter(self, condition: Function, name: str | None = None) -> Stream:
        """The rows for which a condition holds.

        A filter between two functions runs in their batches. Any other one becomes a condition of the edges after it, if it can,
        and no task.

        Args:
            condition: takes a ``dict`` and gives a bool, or takes a ``pyarrow.Table`` and gives a boolean for each row.
            name: of the operator.
        """
        return self._given_by(self.pipeline.condition(named(condition, name), condition, self.parts))

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and of others."""
        windows: list[Window] = []
        for window in (window for stream in (self, *others) for window in stream.windows):
            if all(window.windows != each.windows for each in windows):
                windows.append(window)
        parts = dict.fromkeys(part for stream in (self, *others) for part in stream.parts)
        late = dict.fromkeys(task for stream in (self, *others) for task in stream.of_late)
        return Stream(self.pipeline, tuple(parts), tuple(windows), tuple(late))

    def key_by(self, *columns: str) -> KeyedStream:
        """The rows by the columns of a key; without columns all rows have one key."""
        from sardonyx.pipeline.keyed import KeyedStream

        return KeyedStream(self, columns)

    def iterate(self, fn: Function, name: str | None = None, **settings: Any) -> Stream:
        """Rounds over all rows until nothing changes any more: :meth:`sardonyx.Job.iterate`, whose arguments it has."""
        name = named(fn, name)
        return self._given_by(self.pipeline.iterate(name, fn, rows=self.parts, **settings))

    # --- Two streams ---

    def join(
        self,
        name: str,
        other: Stream,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        within: Length | Sequence[Length],
        **settings: Any,
    ) -> Stream:
        """Pairs of rows of this stream and another one, with equal keys and times near each other: :meth:`sardonyx.Job.join`."""
        sides = self.side(name), other.side(name)
        task = self.pipeline.join(name, *sides, on=on, within=within, **settings)
        return Stream(self.pipeline, (task,), self.union(other).windows)

    def lookup(
        self, name: str, table: Stream, *, on: str | Sequence[str] | Mapping[str, str], **settings: Any
    ) -> Stream:
        """Each row with the value that a table had for its key at the row's time: :meth:`sardonyx.Job.lookup`."""
        sides = self.side(name), table.side(name)
        return self._given_by(self.pipeline.lookup(name, *sides, on=on, **settings))

    def side(self, name: str) -> Part:
        """The one task that the rows come from, or a part of what it gives: for an operator that must know them apart."""
        if len(self.parts) > 1:
            self.pipeline.wrong(
                "SX-PIPELINE-SIDE",
                name,
                f"it reads the union of {listed([_task(part).name for part in self.parts])} on one side",
                "a join, a lookup and a graph tell their sides apart by the tasks that give them",
                "put a map after the union",
            )
        return self.parts[0]

    # --- Ends ---

    def sink(self, name: str, connector: Connector, fn: Function | None = None, **settings: Any) -> Task:
        """Where the rows go: :meth:`sardonyx.Job.output`."""
        return self.pipeline.output(name, connector, fn, after=self.parts, **settings)

    @property
    def failed(self) -> Stream:
        """The records that made the function before this stream raise, each as a row that says what happened."""
        return replace(self, parts=tuple(Edge(_task(part), of="failed") for part in self.parts), late_tasks=())

    @property
    def late(self) -> Stream:
        """The rows that came too late to the windows or the join before this stream."""
        return replace(self, parts=tuple(Edge(task, of="late") for task in self.of_late), late_tasks=())

    # --- Underneath ---

    @property
    def of_late(self) -> tuple[Task, ...]:
        """The tasks whose late rows these are without."""
        return self.late_tasks or tuple(_task(part) for part in self.parts)

    def window(self, name: str) -> Window:
        """The windows of an operator that reads these rows."""
        if len(self.windows) > 1:
            texts = [f"Window.{each.kind}" for each in self.windows]
            self.pipeline.wrong(
                "SX-PIPELINE-WINDOW",
                name,
                f"its rows come from sources with different windows: {listed(texts)}",
                "what is aggregated or reduced is so by the windows of the sources before it",
                "give these sources equal windows",
            )
        return self.windows[0]

    def _given_by(self, task: Task) -> Stream:
        return Stream(self.pipeline, (task,), self.windows)


def named(fn: object, name: str | None) -> str:
    """The name of an operator: that of its function, if no other was given."""
    if name is not None:
        return name
    return fn.rpartition(":")[2] if isinstance(fn, str) else str(getattr(fn, "__name__", type(fn).__name__))


def _task(part: Part) -> Task:
    return part.task if isinstance(part, Edge) else part


def problem(code: str, task: str, message: str, cause: str, fix: str) -> SardonyxError:
    """What is wrong with an operator."""
    return SardonyxError(code, f"operator {task!r}: {message}", cause=cause, fix=fix, where={"task": task})


__all__ = ["Part", "Stream", "named", "problem"]
