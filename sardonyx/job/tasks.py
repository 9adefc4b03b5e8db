"""What the builder returns for a task, and the parts of its results that other tasks can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from sardonyx.core.spec import OnError
from sardonyx.job.conditions import Condition

Function = Callable[..., Any] | str
"""A function at the top level of a module, or its name as ``module:function``."""

Lifecycle = type | str
"""A class at the top level of a module, or its name as ``module:Class``."""

ErrorPolicy = Literal["fail", "retry_task", "skip", "dead_letter"] | OnError | Mapping[str, Any]
"""What happens to a record that makes the function raise; see :class:`sardonyx.OnError`."""


class OfTask(Protocol):
    """The job of a task: a :class:`sardonyx.Job`."""

    name: str


@dataclass(frozen=True)
class Task:
    """One task of a job, as the builder returns it: give it to ``after=`` of the next task."""

    job: OfTask
    name: str

    def __repr__(self) -> str:
        return f"<task {self.name!r} of job {self.job.name!r}>"

    @property
    def failed(self) -> Edge:
        """The records that made this task's function raise, each as a row that says what happened."""
        return Edge(self, of="failed")

    @property
    def late(self) -> Edge:
        """The rows that came too late to this task, a window or a join, with ``late_by``, and of a window ``window_start``."""
        return Edge(self, of="late")

    def where(self, condition: Condition) -> Edge:
        """The results of this task for which ``condition`` holds.

        ``condition`` takes a ``pyarrow.Table`` and gives a boolean array, or takes a ``dict`` and gives a bool. It may be given
        parameters, as ``functools.partial(is_late, minutes=15)``, and be made of others, with :func:`sardonyx.all_of`,
        :func:`sardonyx.any_of` and :func:`sardonyx.not_`.
        """
        return Edge(self).where(condition)


@dataclass(frozen=True)
class Edge:
    """A part of what a task gives: failed or late rows, or rows that meet a condition. Give it to ``after=`` of the next task."""

    task: Task
    of: Literal["results", "failed", "late"] = "results"
    condition: Condition | None = None

    def where(self, condition: Condition) -> Edge:
        """Only the rows for which ``condition`` holds; see :meth:`Task.where`."""
        if self.condition is not None:
            raise ValueError(f"an edge from {self.task!r} can have one condition: join the two by all_of() or any_of()")
        return replace(self, condition=condition)


__all__ = ["Edge", "ErrorPolicy", "Function", "Lifecycle", "OfTask", "Task"]
