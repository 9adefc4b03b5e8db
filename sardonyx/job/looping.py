"""How loops are written in Python: a part of the builder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from sardonyx.job.collecting import Collecting, collects
from sardonyx.job.tasks import Edge, OfTask, Task

if TYPE_CHECKING:
    from types import TracebackType


class OfCycle(OfTask, Protocol):
    """The job of a loop: a :class:`sardonyx.Job`."""

    def edge(self, edge: Task | Edge | str, target: str) -> tuple[str, dict[str, Any]]:
        """The task that an edge leads out of, and what goes over it, as data."""


class Cycle:
    """The beginning of a loop, as :meth:`sardonyx.Job.cycle` returns it: give it to ``after=`` of the first tasks of the loop.

    It stands for the rows that come from outside and for those that come back. It is not a task itself.
    """

    def __init__(self, job: OfCycle, name: str, after: list[Task | Edge | str], max_hops: int | None) -> None:
        self.job = job
        self.name = name
        self.outside = after
        """What comes into the loop."""
        self.first: list[str] = []
        """The tasks that it begins with."""
        self._max_hops = max_hops
        self._back: list[tuple[str, dict[str, Any]]] = []

    def __repr__(self) -> str:
        return f"<loop {self.name!r} of job {self.job.name!r}>"

    def __enter__(self) -> Cycle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: the loop can still be fed back to afterwards."""

    def feedback(self, *tasks: Task | Edge | str) -> None:
        """Let the results of these tasks come back to the beginning of the loop.

        Args:
            tasks: tasks of the loop, or edges of them: ``.where(...)``, ``.failed``.
        """
        for each in tasks:
            self._back.append(self.job.edge(each, self.name))

    def data(self) -> dict[str, Any]:
        """The loop as a YAML file would have it."""
        back = [(source, target) for source, _ in self._back for target in self.first]
        return {"name": self.name, "back": back, "max_hops": self._max_hops}

    def routes(self) -> dict[str, Any]:
        """The routes of its feedback edges."""
        return {f"{source}.{target}": route for source, route in self._back for target in self.first if route}


After = Task | Edge | Cycle | str | Iterable[Task | Edge | Cycle | str]
"""What a task comes after: one or more."""


class Cycles(Collecting):
    """Methods of :class:`sardonyx.Job`."""

    _cycles: list[Cycle]

    @collects
    def cycle(self, name: str, *, after: After, max_hops: int | None = None) -> Cycle:
        """A loop of tasks: rows that have been through it may come back to its beginning. docs/cycles.md explains all of it.

        .. code-block:: python

            with job.cycle("crawl", after=seeds, max_hops=20) as again:
                pages = job.task("fetch", fetch, after=again)
                links = job.keyed("fresh", unseen, after=pages, group_by="url")
                again.feedback(links)

        The loop ends when its inputs have ended and no row is on its way in it.

        Args:
            name: letters, digits, ``-`` and ``_``.
            after: the task or tasks whose results come into the loop.
            max_hops: how often a row, and what is made of it, may come back. A row that comes back once more is a failed record
                of the task that reads it: its ``on_error`` and its edge ``.failed`` say what happens to it. None: any number.
        """
        made = Cycle(self, name, self._edges_of(after), max_hops)  # type: ignore[arg-type]
        self._cycles.append(made)
        return made

    @abstractmethod
    def _edges_of(self, after: After) -> list[Task | Edge | str]:
        """What ``after=`` names, as a list."""


__all__ = ["After", "Cycle", "Cycles", "OfCycle"]
