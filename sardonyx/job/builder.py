"""The typed builder: how a job is written in Python.

It only collects. What is wrong with a job is found in one place for all ways of writing it (:mod:`sardonyx.job.validate`),
all of it at once, so the builder raises for nothing but arguments of the wrong kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from sardonyx.connectors import declarations
from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import JobInvalid
from sardonyx.core.spec import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_BATCH_TIMEOUT,
    DEFAULT_PARTITIONS,
    JobSpec,
    OnError,
    Route,
    TaskType,
)
from sardonyx.job.parse import read
from sardonyx.runtime.functions import reference_text

Function = Callable[..., Any] | str
"""A function at the top level of a module, or its name as ``module:function``."""

Lifecycle = type | str
"""A class at the top level of a module, or its name as ``module:Class``."""

ErrorPolicy = Literal["fail", "skip", "dead_letter"] | OnError | Mapping[str, Any]
"""What happens to a record that makes the function raise; see :class:`sardonyx.OnError`."""


@dataclass(frozen=True)
class Task:
    """One task of a job, as its builder gives it back: to stand in ``after=`` of the next one."""

    job: Job
    name: str

    def __repr__(self) -> str:
        return f"<task {self.name!r} of job {self.job.name!r}>"

    @property
    def failed(self) -> Way:
        """The records that made this task's function raise, each as a row that says what happened."""
        return Way(self, of="failed")

    def where(self, condition: Function) -> Way:
        """Those of this task's results for which ``condition`` holds.

        ``condition`` takes a ``pyarrow.Table`` and gives a boolean array, or takes a ``dict`` and gives a bool.
        """
        return Way(self).where(condition)


@dataclass(frozen=True)
class Way:
    """What goes from one task to the next, where that is not simply all its results: to stand in ``after=``."""

    task: Task
    of: Literal["results", "failed"] = "results"
    condition: Function | None = None

    def where(self, condition: Function) -> Way:
        """Only the rows for which ``condition`` holds; see :meth:`Task.where`."""
        if self.condition is not None:
            raise ValueError(f"a way out of {self.task!r} has one condition: write one function that asks for both")
        return replace(self, condition=condition)


After = Task | Way | str | Iterable[Task | Way | str]


@dataclass(frozen=True)
class Origin:
    """Where a ``Job`` was made: the file and the module's name; None and ``__main__`` in an interactive session."""

    file: Path | None
    module: str


def connector(kind: str | type, **options: Any) -> Connector:
    """A connector of the user's own: a class at the top level of a module, or its name as ``module:Class``.

    Args:
        kind: the class; what it must have is told in docs/connectors.md.
        options: plain data, given to it when it is made.
    """
    name = kind if isinstance(kind, str) else reference_text(kind)
    return Connector(name, declarations.normal(name, options))


class Job:
    """A job: a graph of named tasks from its inputs to its outputs.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter.
        partitions: of every queue between two tasks, and so the most peers that can share one task.
        failure_limit: how many failures of one task that are not its function's fault the job outlives.
        doc: what it is for, in a sentence.
    """

    def __init__(
        self, name: str, *, partitions: int = DEFAULT_PARTITIONS, failure_limit: int = 3, doc: str = ""
    ) -> None:
        _require(name, str, "a job's name is a text")
        self.name = name
        self.origin = _caller()
        self._settings = {"partitions": partitions, "failure_limit": failure_limit, "doc": doc}
        self._catalog: list[dict[str, Any]] = []
        self._workflow: list[tuple[str, str]] = []
        self._routes: dict[str, dict[str, Any]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}

    def input(
        self,
        name: str,
        connector: Connector,
        fn: Function | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        sequential: bool = False,
        min_peers: int = 1,
        max_peers: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """Where records come from: ``files(...)``, ``kafka(...)`` or ``generator(...)``.

        ``fn`` may be a function over what was read. It and the other arguments are as for :meth:`task`.
        """
        return self._add("input", name, connector, fn, _given(locals()))

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
        batch_size: int = DEFAULT_BATCH_SIZE,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
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
            params: keyword arguments for ``fn``: plain JSON data.
            sequential: one peer at a time.
            min_peers: it is not begun before so many virtual peers are free for it.
            max_peers: no more than so many at a time. None: as many as there are partitions.
            batch_size: rows a micro-batch aims at.
            batch_timeout: how long a batch waits to fill, such as ``"100 ms"``.
            on_error: what happens to a record that makes ``fn`` raise: ``"fail"``, ``"skip"`` or ``"dead_letter"``, or an
                ``OnError(retries=..., backoff=..., then=...)``.
            group_by: the column or columns, or the function, by which rows belong together: all with equal keys go to
                one peer at a time, in order.
            lifecycle: a class with ``start``, ``before_batch``, ``after_batch`` and ``stop``, or some of them; made
                once for each peer that runs the task.
            fuse: run in the micro-batches of the task before it, without a queue between the two. That is faster, and gives up
                what a queue is for: the two share their peers, are begun, fail and are run again together, and nothing that
                passes between them can be looked at. Still exactly once.
            doc: what it does, in a sentence.
        """
        return self._add("function", name, None, fn, _given(locals()), after=after)

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
        batch_size: int = DEFAULT_BATCH_SIZE,
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
        return self._add("output", name, connector, fn, _given(locals()), after=after)

    def spec(self) -> JobSpec:
        """The job as data, with paths as they were written; not yet validated as a whole.

        Raises:
            JobInvalid: a value is not of the type that it must be.
        """
        spec, problems = read(self.data())
        if problems:
            raise JobInvalid(problems)
        return spec

    def data(self) -> dict[str, Any]:
        """The job as it would stand in a YAML file: everything as it was given, names given twice included."""
        found = {"name": self.name, **self._settings, "workflow": self._workflow, "catalog": self._catalog}
        return found | ({"routes": self._routes} if self._routes else {})

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that were given as such, by the name under which they stand in the spec."""
        return dict(self._functions)

    def _add(
        self,
        type_: TaskType,
        name: str,
        connector: Connector | None,
        fn: Function | None,
        given: dict[str, Any],
        *,
        after: After = (),
    ) -> Task:
        _require(name, str, "a task's name is a text")
        entry: dict[str, Any] = {"name": name, "type": type_}
        if type_ != "function":
            _require(
                connector,
                Connector,
                f"task {name!r}: a connector is made by files(), kafka(), connector() and the like",
            )
            assert connector is not None  # noqa: S101 - just required
            entry |= {"connector": connector.name, "options": connector.options}
        if fn is not None:
            entry["fn"] = self._reference(fn, f"task {name!r}: fn is a function or its name")
        if given.get("lifecycle") is not None:
            given["lifecycle"] = self._reference(given["lifecycle"], f"task {name!r}: lifecycle is a class or its name")
        if callable(given.get("group_by")):
            given["group_by"] = self._reference(given["group_by"], f"task {name!r}: group_by is columns or a function")
        entry |= given
        self._catalog.append(entry)
        for source in _listed(after):
            self._link(source, name)
        return Task(self, name)

    def _link(self, way: Task | Way | str, target: str) -> None:
        source = self._name_of(way.task if isinstance(way, Way) else way, target)
        self._workflow.append((source, target))
        if not isinstance(way, Way):
            return
        where = way.condition
        if where is not None:
            where = self._reference(where, f"task {target!r}: a condition is a function or its name")
        self._routes[f"{source}.{target}"] = msgspec.to_builtins(Route(of=way.of, where=where))

    def _reference(self, given: object, wanted: str) -> str:
        """The name of a function or class, which is kept if it was given as such."""
        if isinstance(given, str):
            return given
        _require(given, Callable, wanted)
        assert callable(given)  # noqa: S101 - just required
        name = reference_text(given)
        self._functions[name] = given
        return name

    def _name_of(self, source: Task | str, target: str) -> str:
        if isinstance(source, str):
            return source
        _require(source, Task, f"task {target!r}: after= takes tasks of this job, or their names")
        if source.job is not self:
            raise ValueError(f"task {target!r} cannot come after {source!r}: tasks are linked within one job")
        return source.name


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """A task's common settings out of the arguments of the method that took them, as they stand in a catalog."""
    found = {key: arguments[key] for key in ("min_peers", "max_peers", "batch_size", "batch_timeout", "doc")}
    if arguments["params"] is not None:
        found["params"] = arguments["params"]
    on_error = arguments["on_error"]
    found["on_error"] = msgspec.to_builtins(on_error) if isinstance(on_error, OnError) else on_error
    for key in ("group_by", "lifecycle"):
        if arguments.get(key) is not None:
            found[key] = arguments[key]
    if arguments.get("fuse"):
        found["fuse"] = arguments["fuse"]
    found["consumption"] = "sequential" if arguments["sequential"] else "concurrent"
    return found


def _listed(after: After) -> list[Task | Way | str]:
    return [after] if isinstance(after, Task | Way | str) else list(after)


def _require(value: object, kind: Any, message: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{message}, not {type(value).__name__} ({value!r})")


def _caller() -> Origin:
    """The module in which ``Job(...)`` was called."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    scope: Mapping[str, Any] = frame.f_globals if frame is not None else {}
    module_spec = scope.get("__spec__")
    name = module_spec.name if scope.get("__name__") == "__main__" and module_spec else scope.get("__name__")
    file = scope.get("__file__")
    return Origin(Path(file).absolute() if file else None, str(name or "__main__"))
