"""Which operators of a pipeline run in the batches of others, and which filters become conditions of edges. Pure.

That can be told only of a whole pipeline, since a stream may branch. The rules of fusing are those of
:mod:`sardonyx.job.validate_edges`: one operator before, which no other one reads, of which all results come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Kind = Literal["row", "table"]
"""Functions that run on Spark's workers, slice by slice; and those of a Spark ``DataFrame``, which run as one query. Only
functions of one kind are fused."""

Link = tuple[str, str]
_SIDES = {"relation": ("left", "right"), "graph": ("edges", "vertices", "pairs")}
"""Entries of a task that name the tasks before it."""


class Chained(NamedTuple):
    """An operator that may be put together with others."""

    kind: Kind | None
    """None: it is not known what its function takes."""
    joins: bool = True
    """Whether it may run in the batches of the operator before it. Others may run in its batches in any case."""
    where: str | None = None
    """The condition of a filter."""


class Stages:
    """The operators of a pipeline that may be put together: map, flat_map and filter."""

    def __init__(self) -> None:
        self._chained: dict[str, Chained] = {}

    def add(self, name: str, chained: Chained) -> None:
        """An operator; those before it were added before it."""
        self._chained[name] = chained

    def arranged(self, data: dict[str, Any]) -> dict[str, Any]:
        """The data of a job, with these operators put together."""
        names = [entry["name"] for entry in data["catalog"]]
        if len(names) > len(set(names)):  # `check` reports it
            return data
        job = _Arranged(data, self._chained)
        for name, chained in self._chained.items():
            if chained.where is not None and not job.within(name):
                job.put_on_edges(name, chained.where)
            elif job.fits(name):
                job.fuse(name)
        return job.data()


class _Arranged:
    """The data of a job, as operators are put together one after the other."""

    def __init__(self, data: dict[str, Any], chained: dict[str, Chained]) -> None:
        self._data, self._chained = data, chained
        self._tasks = {entry["name"]: entry for entry in data["catalog"]}
        self._links: list[Link] = list(data["workflow"])
        self._routes: dict[str, dict[str, Any]] = dict(data.get("routes", {}))

    def data(self) -> dict[str, Any]:
        """What has become of the job."""
        found = {**self._data, "catalog": list(self._tasks.values()), "workflow": self._links}
        found.pop("routes", None)
        return found | ({"routes": self._routes} if self._routes else {})

    def fuse(self, name: str) -> None:
        """Let an operator run in the batches of the one before it."""
        self._tasks[name] = {**self._tasks[name], "fuse": True}

    def fits(self, name: str) -> bool:
        """Whether an operator can run in the batches of the one before it."""
        before = list(self._before(name))
        if len(before) != 1 or before[0] not in self._chained or list(self._after(before[0])) != [name]:
            return False
        kind = self._chained[name].kind
        alike = kind is not None and kind == self._chained[before[0]].kind and self._chained[name].joins
        routes = [self._routes.get(f"{name}.{target}", {}).get("of", "results") for target in self._after(name)]
        return alike and self._whole(before[0], name) and "failed" not in routes

    def within(self, name: str) -> bool:
        """Whether a filter is best a task: in the batches of the operator before it, or where it reads a topic in place, if the
        operator after it runs in its batches. As a condition of an edge it would have the topic copied.
        """
        after = list(self._after(name))
        if len(after) != 1 or after[0] not in self._chained or not self.fits(after[0]):
            return False
        return self.fits(name) or all(self._in_place(source) for source in self._before(name))

    def _in_place(self, name: str) -> bool:
        entry = self._tasks[name]
        return entry["type"] == "input" and entry.get("connector") == "kafka" and not entry.get("fn")

    def put_on_edges(self, name: str, where: str) -> None:
        """Take a filter out, and give its condition to the edges around it, if they have none and each stays one edge."""
        before, after = list(self._before(name)), list(self._after(name))
        if not all(self._whole(name, target) for target in after) or not after:
            return
        if any(self._routes.get(f"{source}.{name}", {}).get("where") for source in before):
            return
        if any((source, target) in self._links for source in before for target in after):
            return
        if len(before) > 1 and any(self._sides(target, name) for target in after):
            return
        del self._tasks[name]
        links: list[Link] = []
        for source, target in self._links:
            if source == name:
                links += [(each, target) for each in before]
            elif target != name:
                links.append((source, target))
        self._links = links
        for source in before:
            route = self._routes.pop(f"{source}.{name}", {})
            self._routes |= {f"{source}.{target}": {**route, "where": where} for target in after}
        for target in after:
            for part, side in self._sides(target, name):
                entry = self._tasks[target]
                self._tasks[target] = {**entry, part: {**entry[part], side: before[0]}}

    def _before(self, name: str) -> Iterator[str]:
        return (source for source, target in self._links if target == name)

    def _after(self, name: str) -> Iterator[str]:
        return (target for source, target in self._links if source == name)

    def _whole(self, source: str, target: str) -> bool:
        """Whether all results of a task go over an edge, and nothing else."""
        route = self._routes.get(f"{source}.{target}", {})
        return route.get("of", "results") == "results" and not route.get("where")

    def _sides(self, target: str, name: str) -> list[tuple[str, str]]:
        """Where a task names another one as a side of a join, a lookup or a graph."""
        entry = self._tasks[target]
        return [
            (part, side) for part, sides in _SIDES.items() for side in sides if entry.get(part, {}).get(side) == name
        ]


__all__ = ["Chained", "Kind", "Stages"]
