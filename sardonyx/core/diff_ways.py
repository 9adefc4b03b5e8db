"""How a difference between two versions of a job can be carried out. Pure.

A way that a later release adds gets a name in :data:`Way`, a place in :data:`WAYS`, and a line in :meth:`Ways.of`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from sardonyx.core.changing import obstacles
from sardonyx.core.graph import graph_of
from sardonyx.core.predecessors import Predecessor, ResumeProblem
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec, stateful
from sardonyx.core.spec_fields import DifferenceKind
from sardonyx.core.units import seconds

Way = Literal["scale", "keep", "change", "resume", "start"]
"""``scale``: ``sardonyx job scale``, in the running job. ``keep``: ``sardonyx link keep``, in the running job. ``change``:
``sardonyx job change``, in the running job, whose peers leave for it. ``resume``: ``sardonyx job stop``, then ``sardonyx job
submit --resume``. ``start``: a new job, which begins at its own ``start=``."""

WAYS: tuple[Way, ...] = ("scale", "keep", "change", "resume", "start")
"""All ways, the one that disturbs the running job least first."""
IN_PLACE: frozenset[Way] = frozenset({"scale", "keep", "change"})
"""The ways that change a running job."""


_OF_LINKS = frozenset({"", "type", "connector", "fuse", "group_by", "window", "keyed", "relation", "graph", "iterate"})
"""What of a task decides which links it has. Empty: where it runs."""


class Ways:
    """The ways from one version of a job to another.

    Args:
        old: the job that runs, or has run.
        new: the job that is to take its place.
        before: what is known of the old job.
        job: its id, for the texts.
    """

    def __init__(self, old: JobSpec, new: JobSpec, before: Predecessor, job: str) -> None:
        self.running = not before.ended
        ended = before.once_ended()
        self.problems = list(resume_problems(job, ended, new))
        """Why the new job cannot resume the old one."""
        self.keeps_states = ended.end is not None
        """Whether it goes on with its states, if it can."""
        self.obstacles = list(obstacles(old, new, before.retired)) if self.running else []
        """Why the running job cannot be changed to the new one."""
        self._all_blocked = any(not found.topic for found in self.problems)
        """Whether a problem is not about what differs, so that no difference could be taken."""
        self._graph = graph_of(old, "", "")
        self.bounded = self._graph.bounded
        self._links: set[str] = set()
        """The links over which a task reads a topic that no task of its name reads in the new job."""
        self._inputs: set[str] = set()
        """The inputs of these links."""
        self._readers: set[str] = set()
        for problem in self.problems:
            for link in self._graph.stage(problem.task).ingress if problem.topic else ():
                if link.topic == problem.topic:
                    self._links.add(link.name)
                    self._inputs.add(link.source)
                    self._readers.add(link.target)
        edges = [(spec, *edge) for spec in (old, new) for edge in spec.workflow if edge[0] in self._inputs]
        self._after = {target for _, _, target in edges}
        """The tasks that one of these inputs leads to, in either version."""
        self._routed = {target for spec, source, target in edges if _routed(spec.route(source, target))}
        """Those of them to which not all rows go: such an input looks at its rows."""

    def link_of(self, problem: ResumeProblem) -> str:
        """The link whose difference a problem is about; empty if it is not about what differs."""
        links = self._graph.stage(problem.task).ingress if problem.topic else []
        return next((link.name for link in links if link.topic == problem.topic), "")

    def can_change(self, *, task: str = "", field: str = "") -> bool:
        """Whether the running job can be changed in this: a field of the job or of a task, or a whole task."""
        return not any(
            found.task == task and not found.link and (not field or found.field in ("", field))
            for found in self.obstacles
        )

    def can_change_link(self, name: str, *, whole: bool) -> bool:
        """Whether the running job can be changed in a link. ``whole``: it is added or removed, or carried by something else,
        which comes of a task at one of its ends.
        """
        ends = name.split(".") if whole else []
        return not any(
            found.link == name or (found.task in ends and found.field in _OF_LINKS) for found in self.obstacles
        )

    def of(self, kind: DifferenceKind, field: str, after: Any, *, moves: bool, changes: bool) -> list[Way]:
        """The ways in which one difference can be carried out.

        Args:
            kind: what differs.
            field: of the job, the task or the link.
            after: the field's new value.
            moves: whether it moves the reading of a topic to another task, or ends it: :meth:`moved_by_task` and
                :meth:`moved_by_link`.
            changes: whether it can be made in the running job: :meth:`can_change` and :meth:`can_change_link`.
        """
        whole = field == "keep" and seconds(after or 0).is_integer()  # `link keep` takes whole seconds
        possible: dict[Way, bool] = {
            "scale": self.running and kind == "share",
            "keep": self.running and whole,
            "change": self.running and changes,
            "resume": not self._all_blocked and not moves,
            "start": True,
        }
        return [way for way in WAYS if possible[way]]

    def moved_by_link(self, name: str) -> bool:
        """Whether a difference of this link ends or moves the reading of a topic by a task of some name, or comes of that."""
        return name in self._links or name.partition(".")[0] in self._inputs

    def moved_by_task(self, field: str, old: TaskSpec | None, new: TaskSpec | None) -> bool:
        """Whether a difference of a task ends the reading of a topic by a task of some name.

        An input without work of its own leaves the reading to the tasks after it; :func:`sardonyx.core.graph.graph_of` says when.

        Args:
            field: in which the two differ; empty if one of them is None.
            old: the task in the old version; None: it was added.
            new: the task in the new version; None: it was removed.
        """
        task = new or old
        assert task is not None  # noqa: S101 - of either version
        if task.name not in self._inputs | self._after | self._readers:
            return False
        if old is None or new is None:
            return task.name in self._inputs | self._readers | self._routed or _by_key(task)
        if field in ("group_by", "window", "keyed", "relation", "graph", "iterate"):
            return task.name in self._after and _by_key(old) != _by_key(new)
        return field == "type" or (task.name in self._inputs and _moved_by_input(field, old, new))


def _moved_by_input(field: str, old: TaskSpec, new: TaskSpec) -> bool:
    """Whether an input reads something else, or itself what it has left to the tasks after it, or the reverse."""
    if field.startswith("on_error."):
        return (old.on_error == OnError()) != (new.on_error == OnError())
    if field in ("fn", "lifecycle"):
        return (getattr(old, field) is None) != (getattr(new, field) is None)
    return field in ("connector", "options.topic")


def _routed(route: Route) -> bool:
    """Whether an input looks at its rows, because not all go over an edge. What a change at a time leaves out, readers do."""
    return replace(route, bounds=None) != Route()


def _by_key(task: TaskSpec) -> bool:
    return bool(task.group_by) or stateful(task)


__all__ = ["IN_PLACE", "WAYS", "Way", "Ways"]
