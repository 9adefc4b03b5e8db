"""The typed builder: how a job is written in Python.

It only collects. One place finds what is wrong with a job, however it is written (:mod:`sardonyx.job.validate`), and reports
all of it at once. So the builder keeps mistyped arguments as problems of the job, and raises only for arguments of a wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from sardonyx.connectors import declarations
from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.plan import JobPlan, plan_of
from sardonyx.core.spec import (
    DEFAULT_BATCH_TIMEOUT,
    DEFAULT_PARTITIONS,
    JobSpec,
    TaskType,
)
from sardonyx.job.collecting import collects
from sardonyx.job.conditions import condition_data
from sardonyx.job.given import given_settings, listed_tags, require, with_references
from sardonyx.job.graphing import Graphs
from sardonyx.job.iterating import Rounds
from sardonyx.job.looping import After, Cycle, Cycles
from sardonyx.job.parse import read
from sardonyx.job.relating import Relations
from sardonyx.job.tasks import Edge, ErrorPolicy, Function, Lifecycle, Task
from sardonyx.job.validate import validate
from sardonyx.job.windowing import Aggregate, Clock, Emit, Length, StoreChoice, Windows, data_of
from sardonyx.runtime.functions import reference_text
from sardonyx.runtime.source_location import calling_code


def connector(kind: str | type, **options: Any) -> Connector:
    """A connector of the user's own: a class at the top level of a module, or its name as ``module:Class``.

    Args:
        kind: the class; docs/connectors.md says which methods it must have.
        options: plain data, passed to the class as keyword arguments.
    """
    name = kind if isinstance(kind, str) else reference_text(kind)
    return Connector(name, declarations.normal(name, options))


class Job(Relations, Graphs, Rounds, Cycles):
    """A job: a graph of named tasks from its inputs to its outputs.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter.
        partitions: of every queue between two tasks, and so the most peers that can share one task.
        failure_limit: how many failures of one task the job survives, not counting those that its function caused.
        keep: how long a record stays in an internal queue at least, such as "1 h". Without it, a record may be deleted as soon as
            the tasks that read the queue have processed it.
        priority: jobs of a higher priority get their shares before those of a lower one; each gets first what it needs to go on.
        weight: its share of the peers, relative to other jobs of its priority.
        percentage: its share of all peers, where the cluster's scheduler is ``percentage``.
        max_peers: at most this many peers, over all its tasks.
        max_backlog: how many rows of a queue between two tasks may be unread before the task that writes it pauses. A
            number for all queues, or by queue, such as ``{"clean.label": 50_000}``; 0: any number. None: the cluster's default
            (``coordinator.max_backlog``). docs/jobs.md has the rules.
        lineage: whether `sardonyx job progress` can tell at any time how far each source partition is through the whole job.
        checkpoint_every: of which times its tasks keep their state: with "1 min" of each full minute of event time. `sardonyx
            state get --at` shows it; docs/state.md has the rules.
        tags: only virtual peers that have all these tags work for the job, such as ``["pool-a"]``.
        doc: what it is for, in a sentence.
    """

    @collects
    def __init__(
        self,
        name: str,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        failure_limit: int = 3,
        keep: str | None = None,
        priority: int = 0,
        weight: float = 1.0,
        percentage: float | None = None,
        max_peers: int | None = None,
        max_backlog: int | Mapping[str, int] | None = None,
        lineage: bool = False,
        checkpoint_every: str | None = None,
        tags: Sequence[str] = (),
        doc: str = "",
    ) -> None:
        require(name, str, "a job's name is a text")
        self.name = name
        self.location = calling_code()
        """Where the job was made: paths are relative to this file, and its folder holds the job's own modules."""
        self._settings = {
            "partitions": partitions,
            "failure_limit": failure_limit,
            "keep": keep,
            "priority": priority,
            "weight": weight,
            "percentage": percentage,
            "max_peers": max_peers,
            "max_backlog": dict(max_backlog) if isinstance(max_backlog, Mapping) else max_backlog,
            "lineage": lineage,
            "checkpoint_every": checkpoint_every,
            "tags": listed_tags(tags),
            "doc": doc,
        }
        self._catalog: list[dict[str, Any]] = []
        self._workflow: list[tuple[str, str]] = []
        self._routes: dict[str, dict[str, Any]] = {}
        self._cycles: list[Cycle] = []
        self._functions: dict[str, Callable[..., Any]] = {}
        self._problems: list[SardonyxError] = []

    @collects
    def input(
        self,
        name: str,
        connector: Connector,
        fn: Function | None = None,
        *,
        time: str | Clock | Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        sequential: bool = False,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """Where records come from: ``files(...)``, ``kafka(...)`` or ``generator(...)``.

        ``time`` says where their times come from: a column, or ``event_time(...)``, ``kafka_time(...)``, ``wall(...)`` or
        ``ordinal(...)``; docs/time.md. ``fn`` may be a function over what was read. It and the others are as for :meth:`task`.
        """
        return self._add("input", name, connector, fn, given_settings(locals()))

    @collects
    def task(
        self,
        name: str,
        fn: Function,
        *,
        after: After,
        params: Mapping[str, Any] | None = None,
        sequential: bool = False,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        schema: str | None = None,
        group_by: str | Sequence[str] | Function | None = None,
        lifecycle: Lifecycle | None = None,
        fuse: bool = False,
        doc: str = "",
    ) -> Task:
        """A function over the records of the tasks before it.

        Args:
            name: letters, digits, ``-`` and ``_``; its queues are named by it.
            fn: the function; the annotation of its first parameter says what it takes: ``pyspark.sql.DataFrame``,
                ``pyarrow.Table`` or ``pandas.DataFrame`` (gives the same), or ``dict`` (gives a dict, several, or None).
            after: the task or tasks whose results it reads.
            params: keyword arguments for ``fn``: plain JSON data, and functions at the top level of a module.
            sequential: one peer at a time. For one order of all rows, also give the job ``partitions=1``.
            min_peers: the task begins only when this many virtual peers are free for it, or as many as it can take.
            max_peers: at most this many peers at a time. None: as many as there are partitions.
            tags: only virtual peers that have all these tags run the task, such as ``["gpu"]``.
            batch_size: how many rows (not bytes) a batch has at most. None: 50,000, and more where much is unread.
            batch_timeout: how soon a batch that is not full begins after the one before it began, such as ``"100 ms"``. A row
                that comes alone waits for no other.
            on_error: what happens to a record that makes ``fn`` raise: ``"fail"``, ``"retry_task"``, ``"skip"`` or
                ``"dead_letter"``, or an ``OnError(retries=..., backoff=..., then=...)``.
            schema: columns of its results and their types, such as ``"id bigint, amount decimal(10,2)"``. Others have the types
                of their values. A record whose results do not fit goes by ``on_error``.
            group_by: the column or columns, or the function, by which rows belong together: all with equal keys go to
                one peer at a time, in order.
            lifecycle: a class with ``start``, ``before_batch``, ``after_batch`` and ``stop``, or some of them; each peer
                that runs the task makes one instance.
            fuse: run in the batches of the task before it, without a queue between the two. That is faster, and gives up
                what a queue is for: the two share their peers, begin, fail and run again together, and nothing that
                passes between them can be inspected. Still exactly once.
            doc: what it does, in a sentence.
        """
        return self._add("function", name, None, fn, given_settings(locals()), after=after)

    @collects
    def window(
        self,
        name: str,
        windows: Windows | Mapping[str, Any],
        *,
        after: After,
        group_by: str | Sequence[str] | None = None,
        aggregate: Mapping[str, Aggregate | str | Mapping[str, Any]] | None = None,
        fn: Function | None = None,
        emit: str | Emit = "final",
        accumulate: bool = True,
        grace: Length | None = None,
        allowed_lateness: Length | None = None,
        late: Literal["drop", "dead_letter"] = "drop",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        time: str | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        schema: str | None = None,
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """The rows of each key, put into windows; give it ``aggregate``, ``fn``, or both. docs/time.md explains all of it.

        What is not listed is as for :meth:`task`.

        - ``windows``: ``tumbling(...)``, ``hopping(...)``, ``session(...)``, ``counted(...)``, ``calendar(...)``
          or ``everything()``.
        - ``group_by``: the columns of the key; None: all rows have one key, and one peer works on them.
        - ``aggregate``: columns of the results, such as ``{"hits": Count(), "slowest": Max("ms")}``. Each result also has the
          columns of the key, and ``window_start``, ``window_end``, ``pane``, ``final`` and ``window_time``.
        - ``fn``: a function of a ``DataFrame``, an Arrow or a pandas table over all rows of the windows that close; with
          ``aggregate``, over its results.
        - ``emit``: ``"final"``, ``"changes"``, ``every("10 s")``, ``every("10 s", by="wall")`` or ``on_count(100)``.
        - ``accumulate``: whether each result of a window counts all its rows, or those since the result before it.
        - ``grace``: how much longer than its end a window waits for late rows.
        - ``allowed_lateness``: how long a closed window is kept, so that a late row gives a corrected result.
        - ``late``: what becomes of a row after that; the edge ``.late`` of the task takes such rows, too.
        - ``state_limit``: the most entries of one partition's state.
        - ``store``: where the state is kept: ``"memory"``; ``"rocksdb"``, which needs ``sardonyx[rocksdb]`` where peers run;
          ``sql("postgresql://host/name")``, a database where others can read it, which needs ``sardonyx[sql]``; or a class of
          your own.
        - ``standby``: 1: another process keeps the state up to date, to take it over at once.
        - ``time``: the column with a row's time, if it is not that of the inputs.
        """
        return self._add("function", name, None, fn, given_settings(locals()), after=after)

    @collects
    def keyed(
        self,
        name: str,
        fn: Function,
        *,
        after: After,
        group_by: str | Sequence[str] | None = None,
        on_timer: Function | None = None,
        ttl: str | Mapping[str, str] | None = None,
        state: str | None = None,
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        time: str | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        schema: str | None = None,
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """A function that remembers: it is given a state of the key with each row. docs/state.md explains all of it.

        What is not listed is as for :meth:`task`.

        - ``fn``: takes a row as ``dict``, and a state in each parameter that is annotated as :class:`~sardonyx.State`,
          :class:`~sardonyx.ListState` or :class:`~sardonyx.MapState`; also :class:`~sardonyx.Timers` and :class:`~sardonyx.Key`.
          Or it takes two ``pyarrow.Table``, rows and the state of their keys, and gives two: results and the new state.
        - ``group_by``: the columns of the key; None: all rows have one key, and one peer works on them.
        - ``on_timer``: is called with a :class:`~sardonyx.Timer` when one is due, and with the states that its parameters name.
        - ``ttl``: how long after it was last written a state is kept, such as ``"30 days"``; or a mapping from the names of
          states to durations. None: for good.
        - ``state``: of a function of tables: the columns of its state, such as ``"total double, n bigint"``.
        - ``state_limit``: the most entries of one partition's state.
        - ``store``, ``standby``, ``time``: as for :meth:`window`.
        """
        return self._add("function", name, None, fn, given_settings(locals()), after=after)

    @collects
    def output(
        self,
        name: str,
        connector: Connector,
        fn: Function | None = None,
        *,
        after: After,
        params: Mapping[str, Any] | None = None,
        sequential: bool = False,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        group_by: str | Sequence[str] | Function | None = None,
        lifecycle: Lifecycle | None = None,
        fuse: bool = False,
        doc: str = "",
    ) -> Task:
        """Where results go: ``files(...)``, ``kafka(...)`` or ``blackhole()``.

        ``fn`` may be a function over what is to be written. It and the other arguments are as for :meth:`task`.
        """
        return self._add("output", name, connector, fn, given_settings(locals()), after=after)

    def spec(self) -> JobSpec:
        """The job as data, with paths as they were written; not yet validated as a whole.

        Raises:
            JobInvalid: an argument is mistyped, or a value has the wrong type.
        """
        spec, problems = read(self.data())
        if self._problems or problems:
            raise JobInvalid([*self._problems, *problems])
        return spec

    def plan(self) -> JobPlan:
        """How the job runs: its operators, by what rule rows go between them, and how many peers it can use.

        What `sardonyx check --plan` shows. It follows from what the job says; no file is looked at, and no function is called or
        imported by its name.

        Raises:
            JobInvalid: the job is wrong, as far as can be told without its functions and files; ``SX-JOB-CYCLE`` names a
                shortest cycle.
        """
        spec = self.spec()
        validate(spec, import_functions=False)
        return plan_of(spec)

    def data(self) -> dict[str, Any]:
        """The job as a YAML file would have it: everything as it was given, including names that were given twice."""
        found = {"name": self.name, **self._settings, "workflow": self._workflow, "catalog": self._catalog}
        routes = {link: route for cycle in self._cycles for link, route in cycle.routes().items()} | self._routes
        cycles = [cycle.data() for cycle in self._cycles]
        return found | ({"routes": routes} if routes else {}) | ({"cycles": cycles} if cycles else {})

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that were given as objects, by their names in the spec."""
        return dict(self._functions)

    @property
    def problems(self) -> list[SardonyxError]:
        """Mistyped arguments, each with the user's line."""
        return list(self._problems)

    def _collect(self, problems: Iterable[SardonyxError], task: str | None) -> None:
        for found in problems:
            message = f"task {task!r}: {found.message}" if task else found.message
            where = {"task": task, **found.where} if task else found.where
            self._problems.append(SardonyxError(found.code, message, cause=found.cause, fix=found.fix, where=where))

    def _add(
        self,
        type_: TaskType,
        name: str,
        connector: Connector | None,
        fn: Function | None,
        given: dict[str, Any],
        *,
        after: After | None = None,
    ) -> Task:
        require(name, str, "a task's name is a text")
        entry: dict[str, Any] = {"name": name, "type": type_}
        if connector is not None:
            wanted = f"task {name!r}: a connector is made by files(), kafka(), connector() and the like"
            require(connector, Connector, wanted)
            entry |= {"connector": connector.name, "options": connector.options}
            self._collect(connector.problems, name)
        if fn is not None:
            entry["fn"] = self._reference(fn, f"task {name!r}: fn is a function or its name")
        if given.get("lifecycle") is not None:
            given["lifecycle"] = self._reference(given["lifecycle"], f"task {name!r}: lifecycle is a class or its name")
        if isinstance(given.get("params"), Mapping):
            given["params"] = with_references(given["params"], self._reference)
        if callable(given.get("group_by")):
            given["group_by"] = self._reference(given["group_by"], f"task {name!r}: group_by is columns or a function")
        if callable(given.get("keyed", {}).get("on_timer")):
            given["keyed"]["on_timer"] = self._reference(
                given["keyed"]["on_timer"], f"task {name!r}: on_timer is a function"
            )
        entry |= {field: value for field, value in given.items() if field != "batch_size" or value is not None}
        words: list[SardonyxError] = []
        entry |= {key: data_of(given[key], words) for key in ("time", "window", "keyed") if key in given}
        self._collect(words, name)
        self._catalog.append(entry)
        for source in _listed(after):
            self._link(source, name)
        return Task(self, name)

    def _add_related(
        self,
        name: str,
        fn: Function | None,
        relation: dict[str, Any],
        settings: dict[str, Any],
        key: Any,
        after: After,
    ) -> Task:
        words: list[SardonyxError] = []
        entry = given_settings(settings) | {"group_by": key, "relation": data_of(relation, words)}
        self._collect(words, name)
        return self._add("function", name, None, fn, entry, after=after)

    def _add_computed(
        self,
        name: str,
        what: Literal["graph", "iterate"],
        said: dict[str, Any],
        settings: dict[str, Any],
        after: After,
        fn: Function | None = None,
    ) -> Task:
        words: list[SardonyxError] = []
        for role in said.keys() & {"send", "master"}:
            said[role] = self._reference(said[role], f"task {name!r}: {role} is a function or its name")
        entry = {**settings, what: data_of(said, words)}
        entry["tags"] = listed_tags(settings["tags"])
        self._collect(words, name)
        return self._add("function", name, None, fn, entry, after=after)

    def _link(self, edge: Task | Edge | Cycle | str, target: str) -> None:
        if isinstance(edge, Cycle):
            edge.first.append(target)
            for each in edge.outside:
                self._link(each, target)
            return
        source, route = self.edge(edge, target)
        self._workflow.append((source, target))
        if isinstance(edge, Edge):
            self._routes[f"{source}.{target}"] = route

    def edge(self, edge: Task | Edge | str, target: str) -> tuple[str, dict[str, Any]]:
        """The task that an edge leads out of, and what goes over it, as data; ``target``: what reads it, for messages."""
        source = self._name_of(edge.task if isinstance(edge, Edge) else edge, target)
        if not isinstance(edge, Edge):
            return source, {}
        route: dict[str, Any] = {} if edge.of == "results" else {"of": edge.of}
        if edge.condition is not None:
            wanted = f"task {target!r}: a condition is a function or its name, or made by all_of(), any_of() and not_()"
            route["where"] = condition_data(edge.condition, partial(self._reference, wanted=wanted))
        return source, route

    def _edges_of(self, after: After) -> list[Task | Edge | str]:
        """What comes before a loop, and so before each task that it begins with."""
        found = _listed(after)
        if any(isinstance(each, Cycle) for each in found):
            raise TypeError("a loop cannot begin with another loop: let it come after tasks")
        return [each for each in found if not isinstance(each, Cycle)]

    def _reference(self, given: object, wanted: str = "") -> str:
        """The name of a function or class. One that was given as an object is kept for validation."""
        if isinstance(given, str):
            return given
        require(given, Callable, wanted)
        assert callable(given)  # noqa: S101 - just required
        name = reference_text(given)
        self._functions[name] = given
        return name

    def _name_of(self, source: Task | str, target: str) -> str:
        if isinstance(source, str):
            return source
        require(source, Task, f"task {target!r}: after= takes tasks of this job, or their names")
        if source.job is not self:
            raise ValueError(f"task {target!r} cannot come after {source!r}: tasks are linked within one job")
        return source.name


def _listed(after: After | None) -> list[Task | Edge | Cycle | str]:
    if after is None:
        return []
    return [after] if isinstance(after, Task | Edge | Cycle | str) else list(after)
