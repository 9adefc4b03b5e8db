"""Runs programs in the form of a class, which works on one vertex at a time, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.text import shorten
from sardonyx.graphs.program import OutEdge, Rules, Vertex, VertexProgram, Wrong, first_of
from sardonyx.graphs.shards import Numbers, Shards

Sent = tuple[int, Any]
"""The number of a sender, or of a vertex that gives a value, and what it sends."""


class ClassProgram:
    """Runs a program on one graph.

    Args:
        spec: the task.
        program: the user's.
        name: of its ``compute``, for people.
        call: calls ``compute``; what it raises is the user's.
        rules: what the task says besides.
        ids: of all vertices.
        shards: the edges; their weights are the numbers of their rows.
        columns: what else the edges bear, by the user's names.
    """

    def __init__(
        self,
        spec: GraphSpec,
        program: VertexProgram,
        name: str,
        call: Callable[[Vertex, Iterator[Any]], None],
        rules: Rules,
        ids: pa.Array,
        shards: Shards,
        columns: pa.Table,
    ) -> None:
        self._spec, self._program, self._call, self._rules = spec, program, call, rules
        self._wrong = Wrong(name)
        self._order = [np.arange(len(ids))[number :: shards.count] for number in range(shards.count)]
        self._ids: list[int | str] = ids.to_pylist()
        self._numbers = {each: number for number, each in enumerate(self._ids)}
        names = list(rules.state)
        first = {name: first_of(spec, name) for name in names}
        edges = _edges(self._ids, shards, columns)
        self.vertices = [
            Vertex(each, dict(first) if len(names) > 1 else first[names[0]], edges[number])
            for number, each in enumerate(self._ids)
        ]
        self._combine = next(iter(how for how, _ in rules.combine.values()), "collect")

    def run(self) -> tuple[int, str]:
        """All supersteps. Returns how many there were, and why there was no other."""
        program, rules = self._program, self._rules
        inbox, number = dict[int, list[Any]](), 0
        told: Mapping[str, Any] = {}
        due: Sequence[int] = range(len(self.vertices))
        while due:
            step = rules.step(number, told)
            program.superstep, program.vertices, program.edges = number, step.vertices, step.edges
            program._aggregates = told  # noqa: SLF001 - of our own base class
            sent, given = self._computed(due, inbox)
            told, ended = rules.after(number, self._reduced(given))
            number += 1
            if ended is not None:
                return number, ended
            inbox = self._delivered(sent)
            active = {place for place, vertex in enumerate(self.vertices) if not vertex._halted}  # noqa: SLF001
            due = sorted(active.union(inbox))
            if due and number == self._spec.most:
                return number, "limit"
        return number, "quiescent"

    def columns(self) -> dict[str, pa.Array]:
        """The state of all vertices, by name."""
        found: dict[str, pa.Array] = {}
        several = len(self._rules.state) > 1
        for name, type_ in self._rules.state.items():
            values = [self._part(vertex, name) if several else vertex.value for vertex in self.vertices]
            try:
                found[name] = pa.array(values, type_)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise self._unfit(name, values, type_, error) from error
        return found

    def _part(self, vertex: Vertex, name: str) -> Any:
        if not isinstance(vertex.value, Mapping) or set(vertex.value) - set(self._rules.state):
            cause = f"vertex.value of vertex {vertex.id!r} is {shorten(repr(vertex.value), 300)}"
            fix = "set vertex.value to a dict with the columns of the state"
            raise self._wrong("left a value that is not a state of several columns", cause, fix)
        return vertex.value.get(name)

    def _unfit(self, name: str, values: list[Any], type_: pa.DataType, error: Exception) -> FunctionError:
        def fits(value: Any) -> bool:
            try:
                pa.array([value], type_)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                return False
            return True

        place = next((place for place, value in enumerate(values) if not fits(value)), 0)
        cause = (
            f"that of vertex {self._ids[place]!r} is {shorten(repr(values[place]), 300)}: {str(error).splitlines()[0]}"
        )
        said = f"left values in {name!r} that do not fit {type_}"
        return self._wrong(said, cause, "set values of the declared type, or declare another one in state=")

    def _computed(
        self, due: Sequence[int], inbox: Mapping[int, list[Any]]
    ) -> tuple[dict[int, list[Sent]], dict[str, list[Sent]]]:
        """What vertices send, by target, and what they give to aggregates, by name."""
        program, wanted = self._program, set(due)
        sent: dict[int, list[Sent]] = {}
        given: dict[str, list[Sent]] = {name: [] for name in self._rules.aggregate}
        for order in self._order:
            for place in order.tolist():
                if place not in wanted:
                    continue
                vertex = self.vertices[place]
                vertex._halted = False  # noqa: SLF001
                program._vertex, program._sent, program._given = vertex, [], []  # noqa: SLF001
                self._call(vertex, iter(inbox.get(place, ())))
                for target, message in program._sent:  # noqa: SLF001
                    sent.setdefault(self._number(target, vertex), []).append((place, self._checked(message, vertex)))
                for name, value in program._given:  # noqa: SLF001
                    if name not in given:
                        fix = f'declare it: aggregate={{"{name}": "sum"}}'
                        raise self._wrong(f"gave a value to the aggregate {name!r}, which is not declared", "", fix)
                    given[name].append((place, self._plain(value, f"gave to the aggregate {name!r}")))
        return sent, given

    def _number(self, target: int | str, vertex: Vertex) -> int:
        number = self._numbers.get(target)
        if number is None or type(target) is bool:
            raise FunctionError(
                "SX-GRAPH-VERTEX",
                f"vertex {vertex.id!r} sent a message to {shorten(repr(target), 200)}, which is not in the graph",
                cause=f"the graph has {len(self._ids):,} vertices, and no edge names it",
                fix="send to vertices that edges name, or that are given to the graph with `vertices=`",
            )
        return number

    def _checked(self, message: Any, vertex: Vertex) -> Any:
        if message is None:
            cause = f"vertex {vertex.id!r} sent it"
            raise self._wrong("sent None as a message", cause, "send a value, or nothing")
        return self._plain(message, "sent") if self._combine == "sum" else message

    def _plain(self, value: Any, did: str) -> Any:
        """A number of numpy as Python's; other values as they are."""
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, int | float | str | None):
            fix = "give numbers; texts and booleans have a least and a greatest value only"
            raise self._wrong(f"{did} {shorten(repr(value), 200)}, which is not a number", "", fix)
        return value

    def _delivered(self, sent: Mapping[int, list[Sent]]) -> dict[int, list[Any]]:
        """By vertex, the messages in the order of their senders, or the one that they become."""
        found: dict[int, list[Any]] = {}
        for target, each in sent.items():
            if len(self._order) > 1:
                each.sort(key=lambda one: one[0])  # stable: a sender's own stay in their order
            messages = [message for _, message in each]
            found[target] = messages if self._combine == "collect" else [self._one(self._combine, messages, "messages")]
        return found

    def _reduced(self, given: Mapping[str, list[Sent]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, how in self._rules.aggregate.items():
            values = [value for _, value in sorted(given[name], key=lambda one: one[0]) if value is not None]
            if how == "count":
                found[name] = len(values)
            elif not values:
                found[name] = None
            elif how == "mean":
                found[name] = self._one("sum", values, name) / len(values)
            else:
                found[name] = self._one(how, values, name)
        return found

    def _one(self, how: str, values: list[Any], what: str) -> Any:
        """What values become. Their order, and how they were divided, change no bit of it."""
        try:
            if how == "sum":
                return math.fsum(values) if any(isinstance(value, float) for value in values) else sum(values)
            # NaN is neither the least nor the greatest value.
            if any(isinstance(value, float) and math.isnan(value) for value in values):
                return math.nan
            return min(values) if how == "min" else max(values)
        except TypeError as error:
            fix = "give values of one type, which can be compared or added"
            raise self._wrong(f"gave {what} that have no {how}", str(error), fix) from error
        except (OverflowError, ValueError):  # infinite ones, of both signs or of a sum that is too great
            return sum(values)


def _edges(ids: list[int | str], shards: Shards, columns: pa.Table) -> list[tuple[OutEdge, ...]]:
    """The edges of each vertex."""
    found: list[tuple[OutEdge, ...]] = [()] * len(ids)
    names = columns.column_names
    values: list[Any] = columns.to_pylist() if len(names) > 1 else columns[names[0]].to_pylist() if names else []
    for shard in shards:
        assert shard.weights is not None  # noqa: S101 (for the type checker: the caller has given numbers)
        sources: Numbers = shard.spread(np.arange(len(ids)))
        mine: dict[int, list[OutEdge]] = {}
        for source, target, row in zip(sources.tolist(), shard.targets.tolist(), shard.weights.tolist(), strict=True):
            mine.setdefault(source, []).append(OutEdge(ids[target], values[int(row)] if names else None))
        for source, edges in mine.items():
            found[source] = tuple(edges)
    return found


__all__ = ["ClassProgram"]
