"""The part of the builder for graphs: a view of rows as a graph, and algorithms over it. ``docs/graphs.md`` explains them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import DEFAULT_BATCH_TIMEOUT
from sardonyx.job.collecting import Collecting, collects
from sardonyx.job.given import require
from sardonyx.job.windowing import StoreChoice, Windows, store_data

if TYPE_CHECKING:
    from sardonyx.graphs.program import VertexProgram
    from sardonyx.job.tasks import Edge, Function, Task

Vertex = int | str
"""A vertex: a whole number or a text, as the rows have it."""


class Graphs(Collecting):
    """Methods of :class:`sardonyx.Job`."""

    @collects
    def graph(
        self,
        name: str,
        *,
        edges: Task | Edge | str,
        source: str,
        target: str,
        vertices: Task | Edge | str | None = None,
        id: str = "id",  # noqa: A002 - the name of a column, as users call it
        directed: bool = True,
        window: Windows | Mapping[str, Any] | None = None,
        remove: str | None = None,
        emit: Literal["all", "changes"] = "all",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        max_peers: int = 1,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
    ) -> GraphView:
        """The results of a task as the edges of a graph. Its methods, such as ``pagerank``, add tasks that compute over it.

        Each such task reads all edges, keeps them in its state, and computes when the last one is there: the inputs before it
        must have an end. With ``window`` it computes whenever a window has ended. One peer works on it, unless ``max_peers``
        allows more. docs/graphs.md explains all of it.

        Args:
            name: of the graph, as `sardonyx check` shows it.
            edges: the task whose results are the edges; or a part of them, such as ``links.where(...)``.
            source: the column with the vertex that an edge leads from: whole numbers or texts.
            target: the column with the vertex that an edge leads to.
            vertices: a task whose results are further vertices, in the column ``id``. None: vertices are what edges name.
            id: the column with the vertex in the results.
            directed: whether an edge leads one way only.
            window: the graph changes: ``tumbling(...)`` or ``calendar(...)``. When a window ends, its rows make a new version of
                the graph, and results are computed of each version. None: once, when all edges are there.
            remove: with ``window``: a column with true in rows that remove the edge which they name.
            emit: with ``window``: ``"all"`` results of each version, or ``"changes"``: those that differ from the version before.
            state_limit: the most entries of a task's state, which has one for each batch of rows.
            store: where edges are kept until all are there: ``"memory"``; ``"rocksdb"``, which needs ``sardonyx[rocksdb]`` where
                peers run; ``sql("postgresql://host/name")``, which needs ``sardonyx[sql]``; or a class of your own.
            max_peers: more than 1: so many peers may compute together. Vertices are divided among the partitions of the task's
                queues, and each superstep is committed.
            tags: only virtual peers that have all these tags compute.
            batch_size: how many rows a batch has at most, of edges and of results; None: 50,000, more where much is unread.
            batch_timeout: as for :meth:`task`.
        """
        given: dict[str, Any] = {"graph": name, "source": source, "target": target, "id": id, "directed": directed}
        said = {"window": window, "remove": remove, "emit": emit if emit != "all" else None}
        given |= {key: value for key, value in said.items() if value is not None}
        if state_limit is not None:
            given["state_limit"] = state_limit
        if isinstance(max_peers, int) and max_peers > 1:
            given["durable"] = True
        settings = {"max_peers": max_peers, "tags": tags, "batch_size": batch_size, "batch_timeout": batch_timeout}
        require(name, str, "a graph's name is a text")
        return GraphView(self, name, edges, vertices, given | {"store": store_data(store)}, settings)

    @abstractmethod
    def _add_computed(
        self,
        name: str,
        what: Literal["graph", "iterate"],
        said: dict[str, Any],
        settings: dict[str, Any],
        after: Sequence[Task | Edge | str],
        fn: Function | None = None,
    ) -> Task:
        """Add such a task to the job."""


@dataclass(frozen=True)
class GraphView(Collecting):
    """A graph of a job, as ``job.graph`` returns it. Each method adds a task with an algorithm, and returns the task.

    Results have a row for each vertex, in the column that ``id=`` of ``job.graph`` names, and those that the method names.
    """

    _job: Graphs
    name: str
    _edges: Task | Edge | str
    _vertices: Task | Edge | str | None
    _given: Mapping[str, Any]
    _settings: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<graph {self.name!r} of the edges of {_name(self._edges)!r}>"

    @collects
    def pagerank(
        self,
        name: str,
        *,
        damping: float = 0.85,
        max_supersteps: int | None = None,
        tolerance: float | None = None,
        start: Vertex | Sequence[Vertex] | Mapping[Vertex, float] | None = None,
        doc: str = "",
    ) -> Task:
        """How important each vertex is: ``rank``. The sum of all ranks is 1.

        Args:
            name: of the task.
            damping: the share of a rank that goes along the edges.
            max_supersteps: the most supersteps; None: 20, with ``tolerance`` 1,000.
            tolerance: end when all ranks together move by no more than this in a superstep, such as ``1e-8``.
            start: vertices that are preferred, or by how much each is: personalised PageRank. None: all alike.
            doc: what it does, in a sentence.
        """
        return self._add("pagerank", locals())

    @collects
    def bfs(self, name: str, *, start: Vertex | Sequence[Vertex], doc: str = "") -> Task:
        """The least number of edges on a path to each vertex: ``depth``, null where no path leads.

        Args:
            name: of the task.
            start: the vertex, or the vertices, where paths begin.
            doc: what it does, in a sentence.
        """
        return self._add("bfs", locals())

    @collects
    def k_hop(self, name: str, *, start: Vertex | Sequence[Vertex], hops: int, doc: str = "") -> Task:
        """The vertices within some edges of others, with ``depth``. It is the one algorithm without a row for each vertex.

        Args:
            name: of the task.
            start: the vertex, or the vertices, where paths begin.
            hops: the most edges on a path.
            doc: what it does, in a sentence.
        """
        return self._add("k_hop", locals())

    @collects
    def shortest_paths(self, name: str, *, start: Vertex | Sequence[Vertex], weight: str, doc: str = "") -> Task:
        """The least sum of weights on a path to each vertex: ``distance``, null where no path leads.

        Args:
            name: of the task.
            start: the vertex, or the vertices, where paths begin.
            weight: the column with the weight of an edge, 0 or more.
            doc: what it does, in a sentence.
        """
        return self._add("shortest_paths", locals())

    @collects
    def connected_components(self, name: str, *, doc: str = "") -> Task:
        """Which vertices hang together, whatever the directions of edges: ``component``, the least vertex of each.

        Args:
            name: of the task.
            doc: what it does, in a sentence.
        """
        return self._add("connected_components", locals())

    @collects
    def k_core(self, name: str, *, doc: str = "") -> Task:
        """The greatest k for which a vertex is in the k-core: ``core``.

        The k-core is what is left when vertices with fewer than k neighbours are taken away again and again.

        Args:
            name: of the task.
            doc: what it does, in a sentence.
        """
        return self._add("k_core", locals())

    @collects
    def label_propagation(self, name: str, *, max_supersteps: int | None = None, doc: str = "") -> Task:
        """Communities: ``label``, a vertex. Each vertex takes the label that most of its neighbours have, the least of several.

        Args:
            name: of the task.
            max_supersteps: the most supersteps; None: 20.
            doc: what it does, in a sentence.
        """
        return self._add("label_propagation", locals())

    @collects
    def triangles(self, name: str, *, doc: str = "") -> Task:
        """How many triangles each vertex is in, whatever the directions of edges: ``triangles``.

        Args:
            name: of the task.
            doc: what it does, in a sentence.
        """
        return self._add("triangles", locals())

    @collects
    def clustering(self, name: str, *, doc: str = "") -> Task:
        """The share of edges among a vertex' neighbours, of all that there could be: ``clustering``, from 0 to 1.

        Args:
            name: of the task.
            doc: what it does, in a sentence.
        """
        return self._add("clustering", locals())

    @collects
    def common_neighbors(self, name: str, *, pairs: Task | Edge | str, doc: str = "") -> Task:
        """For pairs of vertices, how many neighbours both have: ``common``; their share of those that either has: ``jaccard``.

        Results have a row for each pair, in the columns that ``source=`` and ``target=`` of ``job.graph`` name.

        Args:
            name: of the task.
            pairs: the task whose results are the pairs, in columns with the same names; it may be the one with the edges.
            doc: what it does, in a sentence.
        """
        return self._add("common_neighbors", locals())

    @collects
    def degrees(self, name: str, *, doc: str = "") -> Task:
        """How many edges a vertex has: ``degree``; of a directed graph also ``in_degree`` and ``out_degree``.

        Args:
            name: of the task.
            doc: what it does, in a sentence.
        """
        return self._add("degrees", locals())

    @collects
    def compute(
        self,
        name: str,
        update: Function | type[VertexProgram],
        send: Function | None = None,
        *,
        state: str,
        first: Mapping[str, bool | int | float | str] | None = None,
        combine: Mapping[str, str] | None = None,
        aggregate: Mapping[str, str] | None = None,
        until: str | None = None,
        master: Function | None = None,
        always: bool = False,
        weight: str | None = None,
        columns: Sequence[str] = (),
        max_supersteps: int | None = None,
        params: Mapping[str, Any] | None = None,
        doc: str = "",
    ) -> Task:
        """A program of your own: results have the columns of its state. docs/graphs.md says what its functions are given.

        The functions run in a process of their own. ``update`` and ``send`` take a ``pyarrow.Table`` and return one with a row
        for each of its rows; they must treat each row by itself. Both may have a parameter ``step``: a
        :class:`~sardonyx.Superstep`.

        Args:
            name: of the task.
            update: makes the states of vertices from their states and the messages that came to them; or a class derived from
                :class:`~sardonyx.VertexProgram`.
            send: makes messages along the edges out of vertices whose state has changed. None: there are none.
            state: the columns of a vertex' state: names, and ``bigint``, ``double``, ``string`` or ``boolean``, such as
                ``"distance double, hops bigint"``.
            first: by column, the state at first; null for those that are not named.
            combine: by column that ``send`` returns, how the messages to one vertex become one (``sum``, ``min``, ``max`` or
                ``collect``), and their type: ``{"via": "min double"}``.
            aggregate: by column that ``update`` returns besides the state, how the values of all vertices become one: ``sum``,
                ``min``, ``max``, ``mean`` or ``count``.
            until: ends the program when it holds of an aggregate, such as ``"moved <= 1e-8"``.
            master: is called with a :class:`~sardonyx.Superstep` after each superstep. It may return other aggregates for the
                next one, and end the program by ``step.finish()``.
            always: call ``update`` for all vertices in each superstep, and let all send. Otherwise only those with messages are
                called after superstep 0.
            weight: the column with the weight of an edge, 0 or more.
            columns: further columns of an edge that ``send`` is given, of any type.
            max_supersteps: the most supersteps; None: 1,000.
            params: further arguments; each function is given those that it names.
            doc: what it does, in a sentence.
        """
        said = {
            "send": send,
            "first": None if first is None else dict(first),
            "combine": None if combine is None else dict(combine),
            "aggregate": None if aggregate is None else dict(aggregate),
            "until": until,
            "master": master,
            "always": always or None,
            "weight": weight,
            "columns": [columns] if isinstance(columns, str) else list(columns) or None,
            "max_supersteps": max_supersteps,
        }
        given = {"name": name, "doc": doc, "state": state, **said}
        return self._add("program", given, update, {} if params is None else {"params": dict(params)})

    def _add(
        self,
        algorithm: str,
        arguments: Mapping[str, Any],
        fn: Function | type[VertexProgram] | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> Task:
        given = {key: value for key, value in arguments.items() if key not in ("self", "name", "doc", "pairs")}
        asked = {"edges": self._edges, "vertices": self._vertices, "pairs": arguments.get("pairs")}
        sides: dict[str, Task | Edge | str] = {side: task for side, task in asked.items() if task is not None}
        graph = {"algorithm": algorithm, **self._given, **{side: _name(task) for side, task in sides.items()}}
        graph |= {key: value for key, value in given.items() if value is not None}
        after = {_name(task): task for task in sides.values()}  # pairs may be edges, too
        settings = {**self._settings, **more, "doc": arguments["doc"]}
        return self._job._add_computed(arguments["name"], "graph", graph, settings, list(after.values()), fn)  # noqa: SLF001

    def _collect(self, problems: Iterable[SardonyxError], task: str | None) -> None:
        self._job._collect(problems, task)  # noqa: SLF001 - of the same job


def _name(side: object) -> Any:
    """The name of a task; the builder reports what is not a task."""
    task = getattr(side, "task", side)
    return getattr(task, "name", task)


__all__ = ["GraphView", "Graphs", "Vertex"]
