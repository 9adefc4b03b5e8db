"""A job as data: the client sends it through ZooKeeper to the coordinator and the peers.

The typed builder (:mod:`sardonyx.job.builder`) and YAML or TOML files produce the same :class:`JobSpec`. One module
validates it (:mod:`sardonyx.job.validate`). This module imports no kazoo, Kafka or Spark.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sardonyx.core.conditions import Where, functions_in
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.stores import SqlStore, Store, is_own
from sardonyx.core.text import near
from sardonyx.core.timing import Bounds, TimeSpec, WindowSpec
from sardonyx.core.wire_types import ready_for_threads

TaskType = Literal["input", "function", "output"]
Consumption = Literal["concurrent", "sequential"]

DEFAULT_BATCH_SIZE = 50_000
"""Rows that a batch of a reader that keeps up has at most: Spark's floor of about 0.05 s a batch is small beside the work."""

DEFAULT_BATCH_TIMEOUT = "100 ms"
"""How long a reader waits for a batch to fill once it holds its first row."""

DEFAULT_BACKOFF = "100 ms"
"""How long a batch that raised waits before it is run again, if its task says that it is."""

DEFAULT_PARTITIONS = 8
"""Partitions of every internal link, and so the most peers that can share one task."""

FUNCTION = "$function"
"""The one key of a value in ``params`` that stands for a function."""

LETTERS_FORMAT = "letters"
"""The format of a ``kafka`` input whose topic holds dead letters. Only ``sardonyx dlq redo`` writes such inputs."""

LETTERS_ORIGINS = "formats"
"""Option of such an input: by topic whose records could not be decoded, the options for decoding them again."""


class _Declared(msgspec.StructMeta):
    """Of structs that users make by hand: mistyped keywords get an error with the nearest known ones, all at once."""

    def __call__(cls, *arguments: Any, **values: Any) -> Any:  # noqa: N805 - of a metaclass
        known = cls.__struct_fields__
        unknown = [name for name in values if name not in known]
        if unknown:
            raise SardonyxError(
                "SX-JOB-FIELD",
                "; ".join(f"{cls.__name__}() has no parameter {name!r}{near(name, known)}" for name in unknown),
                fix=f"choose from {', '.join(known)}",
            )
        return super().__call__(*arguments, **values)


class OnError(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    metaclass=_Declared,
):
    """What happens to a record for which the task's function raises.

    The peer runs a batch that raises again ``retries`` times unchanged. Then it halves the batch until it has isolated
    the record.
    """

    retries: int = 0
    backoff: str = DEFAULT_BACKOFF
    """The pause before the first run again; before each later one it is twice as long."""
    then: Literal["fail", "retry_task", "skip", "dead_letter"] = "fail"
    """``fail`` ends the job with the first traceback; ``retry_task`` lets the task begin again from its committed positions,
    until it has failed more often than the job's ``failure_limit``; ``skip`` leaves the record out, counts it and shows the
    count; ``dead_letter`` does so too and keeps the record, with what went wrong, on a queue of the task's own."""

    @property
    def leaves_out(self) -> bool:
        """Whether the task goes on without the record."""
        return self.then in ("skip", "dead_letter")


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Which rows go over one link. Without a route, all results of the task before the link do."""

    of: Literal["results", "failed", "late"] = "results"
    """``failed``: the records that made the task's function raise, each as a row that says what happened. ``late``: the rows that
    came after their windows had closed."""
    where: Where | None = None
    """The condition on a row to go this way: ``module:function``, or several with parameters; None: all rows do."""
    bounds: Bounds | None = None
    """The times of the rows that go over it. Only a change at a time says them."""


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of a job's catalog."""

    name: str
    type: TaskType
    connector: str | None = None
    """Input and output: ``kafka``, ``files``, ``generator``, ``blackhole``; a user's own as ``module:Class``."""
    options: dict[str, Any] = {}
    """The connector's own options, as the functions in :mod:`sardonyx.connectors.declarations` make them."""
    fn: str | None = None
    """``module:function``; must stand on a function task, may stand on an input or output."""
    params: dict[str, Any] = {}
    """Keyword arguments for ``fn``: plain JSON data. ``{"$function": "module:function"}`` stands for a function."""
    consumption: Consumption = "concurrent"
    min_peers: int = 1
    """The task is not begun before so many virtual peers are free for it."""
    max_peers: int | None = None
    batch_size: int | msgspec.UnsetType = msgspec.UNSET
    """Rows that no batch exceeds. Unset: :data:`DEFAULT_BATCH_SIZE`, and more where much is unread."""
    batch_timeout: str = DEFAULT_BATCH_TIMEOUT
    on_error: OnError = OnError()
    schema: str | None = None
    """Columns of the results of ``fn`` and their types, as Spark writes a schema. Others have the types of their values."""
    group_by: list[str] | str | None = None
    """Rows with equal keys go to one peer at a time, in order: the columns of the key, or ``module:function`` that
    makes it. Stands on the task that reads them."""
    lifecycle: str | None = None
    """``module:Class``, made once for each peer that runs the task."""
    fuse: bool = False
    """Whether it runs in the micro-batches of the task before it, without a queue between the two."""
    tags: list[str] = []
    """Only virtual peers that have all these tags run the task."""
    time: TimeSpec | None = None
    """Input: where the times of its rows come from; None: they have none."""
    window: WindowSpec | None = None
    """Function: it aggregates the rows of each key in windows; ``fn`` is then given what the windows that close hold."""
    keyed: KeyedSpec | None = None
    """Function: it keeps a state for each key, which ``fn`` is given with the rows of the key."""
    relation: RelationSpec | None = None
    """Function: it relates rows to others: a join, a lookup, distinct or latest rows; ``fn`` is then given the results."""
    graph: GraphSpec | None = None
    """Function: it computes over a graph when all edges are there."""
    iterate: IterateSpec | None = None
    """Function: it works on all rows in rounds when all are there."""
    standby: int = 0
    """Of a task with a state: how many other processes keep each shard of it up to date, to take it over at once."""
    doc: str = ""

    @property
    def rows_per_batch(self) -> int:
        """How many rows a batch has at most where its reader keeps up."""
        return DEFAULT_BATCH_SIZE if self.batch_size is msgspec.UNSET else self.batch_size


class CycleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A loop of tasks: rows that have been through it may come back to its beginning."""

    name: str
    back: list[tuple[str, str]]
    """Its feedback edges (from, to). They are not in the job's ``workflow``."""
    max_hops: int | None = None
    """How often a row, and what is made of it, may go over a feedback edge; None: any number of times."""


@ready_for_threads
class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A whole job. ``workflow`` holds the edges (from, to) between the names in ``catalog``."""

    name: str
    workflow: list[tuple[str, str]]
    catalog: list[TaskSpec]
    routes: dict[str, Route] = {}
    """Conditions, by the link ``from.to``; edges that are not named carry all results."""
    cycles: list[CycleSpec] = []
    """Its loops. Each closes by feedback edges, so ``workflow`` has no cycle."""
    partitions: int = DEFAULT_PARTITIONS
    next_partitions: int | None = None
    """Its inputs stand still until its queues are read to their end: then they get so many partitions. Only a change says it."""
    failure_limit: int = 3
    """How many failures of one task that are not its function's fault (Spark), or whose ``on_error`` says so, a job outlives."""
    max_backlog: int | dict[str, int] | None = None
    """How many rows of a queue may be unread before the task that writes it pauses; 0: any number. Of all queues, or by link.
    None, and for links that it does not name: the cluster's default."""
    keep: str | None = None
    """How long a record stays in an internal queue at least, such as "1 h"; None: until its readers have processed it."""
    priority: int = 0
    """Jobs of a higher priority get peers before those of a lower one; each job gets what it needs to go on before either."""
    weight: float = 1.0
    """Its share of the peers, relative to other jobs of its priority."""
    percentage: float | None = None
    """Its share of all peers, where the cluster's scheduler is ``percentage``."""
    max_peers: int | None = None
    """The most peers that it gets, over all its tasks."""
    tags: list[str] = []
    """Tags of all its tasks: only virtual peers that have them work for the job."""
    lineage: bool = False
    """Whether its tasks state how far the partitions of its sources have passed them: see :mod:`sardonyx.core.fronts`."""
    checkpoint_every: str | None = None
    """How far apart the times are of which its tasks keep their state: see :mod:`sardonyx.core.checkpoints`. None: of none."""
    code: str | None = None
    """sha256 of the zip with the job's own modules, under ``code/`` in ZooKeeper; None if it brings none."""
    doc: str = ""

    def task(self, name: str) -> TaskSpec:
        for task in self.catalog:
            if task.name == name:
                return task
        raise KeyError(name)

    def route(self, source: str, target: str) -> Route:
        """The route from one task to another."""
        return self.routes.get(f"{source}.{target}", Route())

    def bound(self, link: str) -> int | None:
        """How many rows of a queue may be unread before its writer pauses; None: what the cluster says."""
        return self.max_backlog.get(link) if isinstance(self.max_backlog, dict) else self.max_backlog

    @property
    def feedback(self) -> list[tuple[str, str]]:
        """The edges (from, to) that close its loops."""
        return [edge for cycle in self.cycles for edge in cycle.back]

    @property
    def edges(self) -> list[tuple[str, str]]:
        """All its edges: those of ``workflow``, then those that close its loops."""
        return [*self.workflow, *self.feedback]

    def references(self) -> list[str]:
        """Everything that the job names by ``module:name``: first in the order of its catalog, then its conditions."""
        found = [name for task in self.catalog for name in references_of(task)]
        routes = (route for _, route in sorted(self.routes.items()) if route.where)
        found += [name for route in routes for name, _ in functions_in(route.where or "")]
        return list(dict.fromkeys(found))


def references_of(task: TaskSpec) -> list[str]:
    """Everything that a task names by ``module:name``: its functions, and classes of the user's own."""
    keyed, graph = task.keyed, task.graph
    found = [task.fn, task.lifecycle, group_function(task), None if keyed is None else keyed.on_timer]
    found += [] if graph is None else [graph.send, graph.master]
    found += [function_of(value) for value in task.params.values()]
    found += [task.connector if is_custom(task.connector) else None, own_store(task)]
    return [name for name in found if name]


def function_of(value: object) -> str | None:
    """The ``module:function`` that a value in ``params`` stands for; None: it stands for itself."""
    if not isinstance(value, dict) or value.keys() != {FUNCTION}:
        return None
    name = value[FUNCTION]
    return name if isinstance(name, str) else None


def stateful(task: TaskSpec) -> bool:
    """Whether a task keeps a state: of windows, of the keys of a function, of a join and the like, or all rows until the last."""
    return any(each is not None for each in (task.window, task.keyed, task.relation, task.graph, task.iterate))


def whole_of(task: TaskSpec) -> GraphSpec | IterateSpec | None:
    """What a task does with all its rows at once, when the last one is there; None: it works on them as they come."""
    return task.graph or task.iterate


def store_of(task: TaskSpec) -> Store | None:
    """Where the state of a task is kept; None: it has none."""
    said = task.window or task.keyed or task.relation or task.graph or task.iterate
    return None if said is None else said.store


def database_of(task: TaskSpec) -> SqlStore | None:
    """The database that keeps the state of a task; None: there is a log of its state in Kafka, or it has none."""
    store = store_of(task)
    return store if isinstance(store, SqlStore) else None


def own_store(task: TaskSpec) -> str | None:
    """The ``module:Class`` that keeps the state of a task; None: none of the user's does."""
    store = store_of(task)
    return store if isinstance(store, str) and is_own(store) else None


def late_policy(task: TaskSpec) -> str | None:
    """What happens to the late rows of a task; None: none of its rows is late."""
    said = task.window or task.relation
    return None if said is None else said.late


def group_function(task: TaskSpec) -> str | None:
    """The ``module:function`` that makes a task's grouping keys; None if columns do, or if the task does not group."""
    return task.group_by if isinstance(task.group_by, str) else None


def encode_spec(spec: JobSpec) -> bytes:
    """A spec as JSON bytes. Keys have a fixed order, so equal specs give equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(data: bytes) -> JobSpec:
    """The reverse of :func:`encode_spec`. Raises ``msgspec.ValidationError`` on anything else."""
    return msgspec.json.decode(data, type=JobSpec)


def is_custom(connector: str | None) -> bool:
    """Whether a connector is the user's own class, named as ``module:Class``."""
    return connector is not None and ":" in connector
