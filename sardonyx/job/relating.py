"""The part of the builder that relates rows to other rows: joins, lookups, distinct rows, latest rows.

``docs/joins.md`` explains them with pictures.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.core.spec import DEFAULT_BATCH_TIMEOUT
from sardonyx.job.collecting import Collecting, collects
from sardonyx.job.windowing import Emit, Length, StoreChoice, store_data

if TYPE_CHECKING:
    from sardonyx.job.looping import After
    from sardonyx.job.tasks import Edge, ErrorPolicy, Function, Lifecycle, Task

_OF_RELATION = ("how", "within", "prefix", "wait", "emit", "time", "grace", "late", "state_limit", "store")
"""Arguments that stand in the entry ``relation`` of a task; ``late`` and ``store`` only if they are not what they are anyway."""
_ANYWAY = {"late": "drop", "store": "memory", "emit": "changes"}


class Relations(Collecting):
    """Methods of :class:`sardonyx.Job`."""

    @collects
    def join(
        self,
        name: str,
        left: Task | Edge | str,
        right: Task | Edge | str,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        within: Length | Sequence[Length],
        how: Literal["inner", "left"] = "inner",
        prefix: str | None = None,
        grace: Length | None = None,
        late: Literal["drop", "dead_letter"] = "drop",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        fn: Function | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """Pairs of rows of two streams with equal keys whose times are near each other. docs/joins.md explains all of it.

        What is not listed is as for :meth:`task`. A result has the columns of both rows, and ``join_time``, the later time.

        - ``left``, ``right``: the tasks with the rows of the two sides, or edges from them.
        - ``on``: the columns of the key; ``{"order_id": "id"}`` if the right side calls them otherwise.
        - ``within``: how far the time of the right row may be from that of the left one: ``"10 min"`` before or after, or
          ``("-1 min", "10 min")``: from a minute before it to ten minutes after it.
        - ``how``: ``"left"``: a left row for which no partner can come any more gives a result, too.
        - ``prefix``: of the right columns that have the name of a left column; None: the name of the right task and ``_``.
        - ``grace``: by how much a row may be older than the clock of its side.
        - ``late``: what becomes of an older row; the edge ``.late`` of the task takes such rows, too.
        - ``state_limit``: the most entries of one partition's state.
        - ``store``: where the state is kept: ``"memory"``; ``"rocksdb"``, which needs ``sardonyx[rocksdb]`` where peers run;
          ``sql("postgresql://host/name")``, a database where others can read it, which needs ``sardonyx[sql]``; or a class of
          your own.
        - ``standby``: 1: another process keeps the state up to date, to take it over at once.
        - ``fn``: a function over the results.
        """
        return self._related("join", name, fn, locals(), key=on, after=(left, right))

    @collects
    def lookup(
        self,
        name: str,
        left: Task | Edge | str,
        table: Task | Edge | str,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: Literal["inner", "left"] = "left",
        within: Length | None = None,
        wait: Length | None = None,
        prefix: str | None = None,
        grace: Length | None = None,
        late: Literal["drop", "dead_letter"] = "drop",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        fn: Function | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """Each row with the value that a table had for its key at the row's time. docs/joins.md explains all of it.

        What is not listed is as for :meth:`join`. The table is a stream of values: that of a key is its latest row.

        - ``left``: the task with the rows.
        - ``table``: the task with the values.
        - ``how``: ``"inner"``: rows without a value give no result.
        - ``within``: how old a value may be; None: as old as it is.
        - ``wait``: how long a row waits for the clock of the table, by the clock of its own side; None: as long as it takes.
        """
        return self._related("lookup", name, fn, locals(), key=on, after=(left, table))

    @collects
    def distinct(
        self,
        name: str,
        *,
        after: After,
        by: str | Sequence[str],
        within: Length | None = None,
        time: str | None = None,
        grace: Length | None = None,
        late: Literal["drop", "dead_letter"] = "drop",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        fn: Function | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """The rows without repeats: of rows with equal keys, the first. docs/joins.md explains all of it.

        What is not listed is as for :meth:`join`.

        - ``by``: the columns that make a row a repeat of another.
        - ``within``: rows whose times are further apart are not repeats; None: a key is remembered for all time.
        - ``time``: the column with a row's time, if it is not that of the inputs.
        """
        return self._related("distinct", name, fn, locals(), key=by, after=after)

    @collects
    def latest(
        self,
        name: str,
        *,
        after: After,
        group_by: str | Sequence[str],
        emit: Literal["changes", "final"] | Emit = "changes",
        within: Length | None = None,
        time: str | None = None,
        late: Literal["drop", "dead_letter"] = "drop",
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        standby: int = 0,
        fn: Function | None = None,
        params: Mapping[str, Any] | None = None,
        min_peers: int = 1,
        max_peers: int | None = None,
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        on_error: ErrorPolicy = "fail",
        lifecycle: Lifecycle | None = None,
        doc: str = "",
    ) -> Task:
        """The latest row of each key: a stream as a table. docs/joins.md explains all of it.

        What is not listed is as for :meth:`join`.

        - ``group_by``: the columns of the key.
        - ``emit``: ``"changes"``: each row that is newer than those of its key before it; ``every("10 s")``: the newest rows
          of the keys that have had one, at such intervals of the clock; ``"final"``: at the end of the input.
        - ``within``: a key without a row for so long is forgotten; None: none is.
        - ``time``: the column with a row's time, if it is not that of the inputs.
        """
        return self._related("latest", name, fn, locals(), key=group_by, after=after)

    def _related(
        self, kind: str, name: str, fn: Function | None, arguments: Mapping[str, Any], *, key: Any, after: After
    ) -> Task:
        relation: dict[str, Any] = {"kind": kind}
        if kind in ("join", "lookup"):
            left, right = after if isinstance(after, tuple) else (None, None)
            relation |= {"left": _name(left), "right": _name(right)}
        if isinstance(key, Mapping):
            relation["right_on"] = list(key.values())
            key = list(key)
        for field in _OF_RELATION:
            value = arguments.get(field)
            if value is not None and value != _ANYWAY.get(field):
                relation[field] = list(value) if isinstance(value, tuple) else store_data(value)
        settings = {
            field: value
            for field, value in arguments.items()
            if field not in (*_OF_RELATION, "self", "group_by", "after", "left", "right", "table", "on", "by")
        }
        return self._add_related(name, fn, relation, settings, key, after)

    @abstractmethod
    def _add_related(
        self,
        name: str,
        fn: Function | None,
        relation: dict[str, Any],
        settings: dict[str, Any],
        key: Any,
        after: After,
    ) -> Task:
        """Add such a task to the job."""


def _name(side: object) -> object:
    """The name of a side's task; the builder reports what is not a task."""
    task = getattr(side, "task", side)
    return getattr(task, "name", task)


__all__ = ["Relations"]
