"""What users' programs over graphs are made of, and what both forms of them share: functions of tables, and a class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec, read_columns, read_combine, read_until
from sardonyx.core.text import listed

TYPES: Mapping[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}

Ended = Literal["converged", "finished"]


class Superstep:
    """What a program knows about the superstep that it is in. A function that has a parameter ``step`` is given it.

    Attributes:
        number: from 0.
        vertices: how many the graph has.
        edges: how many it has; of an undirected one each counts once.
        aggregates: by name, what the values of the superstep before have become, or what ``master`` has put in their place.
            There are none in superstep 0. In ``master`` they are those of the superstep itself.
    """

    def __init__(self, number: int, vertices: int, edges: int, aggregates: Mapping[str, Any]) -> None:
        self.number, self.vertices, self.edges = number, vertices, edges
        self.aggregates = dict(aggregates)
        self.is_finished = False

    def finish(self) -> None:
        """Let the program end after this superstep. Only ``master`` may call it."""
        self.is_finished = True


class Vertex:
    """A vertex, as a :class:`VertexProgram` is given it.

    Attributes:
        id: of the graph: a whole number or a text.
        value: its state. Of a state with several columns a mapping by their names; None where nothing is known.
        out_edges: the edges that lead from it; if the graph is not directed, all that it has.
    """

    __slots__ = ("_halted", "id", "out_edges", "value")

    def __init__(self, id: int | str, value: Any, out_edges: tuple[OutEdge, ...]) -> None:  # noqa: A002
        self.id, self.value, self.out_edges = id, value, out_edges
        self._halted = False

    def halt(self) -> None:
        """Vote to halt: the program is not called again for this vertex, until a message comes to it."""
        self._halted = True


class OutEdge(NamedTuple):
    """An edge from a vertex."""

    target: int | str
    value: Any
    """The weight or the one column that the program reads; of several a mapping by their names; None: it reads none."""


class VertexProgram:
    """A program in the form of Pregel, Giraph and GeaFlow: derive from it, and let ``compute`` work on one vertex.

    It is called for every vertex in superstep 0, and then for those that have messages or have not halted. ``graph.compute`` says
    what the state and the combiner are. There is one object for the whole graph. What it keeps in attributes of its own is not
    divided among vertices, so it changes results if graphs are divided otherwise.

    Attributes:
        params: what ``params=`` gives.
        superstep: the number of the superstep, from 0.
        vertices: how many there are.
        edges: how many there are.
    """

    params: Mapping[str, Any]
    superstep: int
    vertices: int
    edges: int

    def __init__(self) -> None:
        self._sent: list[tuple[int | str, Any]] = []
        self._given: list[tuple[str, Any]] = []
        self._aggregates: Mapping[str, Any] = {}
        self._vertex: Vertex | None = None

    def compute(self, vertex: Vertex, messages: Iterator[Any]) -> None:
        """Work on one vertex.

        Args:
            vertex: it; setting ``vertex.value`` changes its state.
            messages: that were sent to it in the superstep before, in the order of their senders; one if there is a combiner.
        """
        raise NotImplementedError

    def send(self, target: int | str, message: Any) -> None:
        """Send a message to a vertex, which has it in the next superstep.

        Args:
            target: the vertex.
            message: anything but None; what the combiner takes, if there is one.
        """
        self._sent.append((target, message))

    def send_to_neighbors(self, message: Any) -> None:
        """Send a message along each edge that leads from the vertex."""
        assert self._vertex is not None  # noqa: S101 (for the type checker: compute is running)
        self._sent += [(edge.target, message) for edge in self._vertex.out_edges]

    def aggregate(self, name: str, value: Any) -> None:
        """Add a value to an aggregate that ``aggregate=`` declares."""
        self._given.append((name, value))

    def aggregated(self, name: str) -> Any:
        """What the values of the superstep before have become; None: there were none."""
        return self._aggregates.get(name)


class Functions(NamedTuple):
    """The functions of a program of tables, each with the arguments that it takes by name already given."""

    update: Callable[[pa.Table, Superstep], Any]
    send: Callable[[pa.Table, Superstep], Any] | None


class Wrong:
    """Makes the errors of what a program's functions return.

    Args:
        function: its name, for people.
        code: of the errors.
        declared: where columns are declared, for people.
    """

    def __init__(
        self, function: str, code: str = "SX-GRAPH-RESULT", declared: str = "state=, combine= or aggregate="
    ) -> None:
        self._function, self._code, self._declared = function, code, declared

    def __call__(self, said: str, cause: str, fix: str) -> FunctionError:
        return FunctionError(self._code, f"{self._function} {said}", cause=cause, fix=fix)

    def columns(self, given: Any, rows: int, known: Mapping[str, pa.DataType | None], needed: list[str]) -> pa.Table:
        """A result with the columns that are known, each of its type.

        Args:
            given: what the function returned.
            rows: how many it was given.
            known: by name, the types; None: any.
            needed: which must be there.
        """
        if isinstance(given, pa.RecordBatch):
            given = pa.Table.from_batches([given])
        if not isinstance(given, pa.Table):
            fix = f"return a table with some of the columns {listed(known)}"
            raise self(f"returned {type(given).__name__}, and no pyarrow.Table", "", fix)
        names = given.column_names
        odd = next((name for name in names if name not in known or names.count(name) > 1), None)
        if odd is not None:
            cause = f"the columns that it may return are {listed(known)}"
            said = f"returned column {odd!r}, which " + ("stands for nothing" if odd not in known else "is there twice")
            raise self(said, cause, f"return only these; a new one must be declared in {self._declared}")
        missing = [name for name in needed if name not in names]
        if missing:
            cause = f"it returned {listed(map(repr, names)) or 'no columns'}"
            raise self(f"left out column {missing[0]!r}", cause, "return it; nulls in it say that there is nothing")
        if given.num_rows != rows:
            cause = "its rows have no names: each stands for the row at the same place of the table that it was given"
            raise self(f"returned {given.num_rows:,} rows for {rows:,}", cause, "return exactly one row for each")
        return pa.table({name: self._typed(given[name], name, known[name]) for name in names})

    def _typed(self, column: pa.ChunkedArray, name: str, type_: pa.DataType | None) -> pa.Array:
        whole = column.combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
        if type_ is None or whole.type == type_:
            return whole
        try:
            return whole.cast(type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            cause = str(error).splitlines()[0]
            said = f"returned column {name!r} as {whole.type}, which does not fit {type_}"
            raise self(said, cause, "return it as declared, or declare another type") from error


class Rules:
    """What a program says besides its functions, and what that makes of each superstep.

    Args:
        spec: the task.
        wrong: makes the errors of the master.
        master: the function, if there is one.
        vertices: how many there are.
        edges: how many there are.
    """

    def __init__(
        self,
        spec: GraphSpec,
        wrong: Wrong,
        master: Callable[[Superstep], Any] | None,
        vertices: int,
        edges: int,
    ) -> None:
        self.state = {name: TYPES[type_] for name, type_ in (read_columns(spec.state or "") or {}).items()}
        self.combine = {name: read_combine(text) for name, text in spec.combine.items()}
        self.aggregate = spec.aggregate
        self._until = None if spec.until is None else read_until(spec.until)
        self._wrong, self._master = wrong, master
        self.last: Mapping[str, Any] = {}
        """The aggregates of the last superstep."""
        self._vertices, self._edges = vertices, edges

    def step(self, number: int, aggregates: Mapping[str, Any]) -> Superstep:
        """What a program knows about a superstep."""
        return Superstep(number, self._vertices, self._edges, aggregates)

    def after(self, number: int, aggregates: Mapping[str, Any]) -> tuple[Mapping[str, Any], Ended | None]:
        """The aggregates that the next superstep gets, and why there is none, if there is none."""
        self.last = aggregates
        if self._until is not None and self._until.holds(aggregates.get(self._until.aggregate)):
            return aggregates, "converged"
        if self._master is None:
            return aggregates, None
        step = self.step(number, aggregates)
        said = self._master(step)
        if said is None:
            said = step.aggregates
        if not isinstance(said, Mapping) or not all(isinstance(name, str) for name in said):
            fix = "return a dict from names to values, or None to leave the aggregates as they are"
            raise self._wrong(f"returned {type(said).__name__}, and no mapping", "", fix)
        return said, "finished" if step.is_finished else None


def first_of(spec: GraphSpec, name: str) -> Any:
    """What a column of the state is at first."""
    value = spec.first.get(name)
    types = read_columns(spec.state or "") or {}
    return float(value) if types.get(name) == "double" and value is not None else value


__all__ = ["TYPES", "Functions", "OutEdge", "Rules", "Superstep", "Vertex", "VertexProgram", "Wrong", "first_of"]
