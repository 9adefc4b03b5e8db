"""The part of the builder for rounds over tables. ``docs/cycles.md`` explains them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.core.spec import DEFAULT_BATCH_TIMEOUT
from sardonyx.job.collecting import Collecting, collects
from sardonyx.job.windowing import StoreChoice, store_data

if TYPE_CHECKING:
    import pyarrow as pa

    from sardonyx.job.tasks import Edge, Function, Task

Row = Mapping[str, bool | int | float | str | None]


class Rounds(Collecting):
    """Methods of :class:`sardonyx.Job`."""

    @collects
    def iterate(
        self,
        name: str,
        fn: Function,
        *,
        rows: Task | Edge | str | Iterable[Task | Edge | str],
        state: str | None = None,
        aggregate: Mapping[str, str] | None = None,
        group_by: str | Sequence[str] = (),
        start: Row | Iterable[Row] | pa.Table | None = None,
        until: str | None = None,
        max_rounds: int | None = None,
        results: Literal["rows", "aggregates"] = "rows",
        params: Mapping[str, Any] | None = None,
        state_limit: int | None = None,
        store: StoreChoice = "memory",
        tags: Sequence[str] = (),
        batch_size: int | None = None,
        batch_timeout: str = DEFAULT_BATCH_TIMEOUT,
        doc: str = "",
    ) -> Task:
        """A function that is called with all rows, round after round, until nothing changes any more: k-means, or any fixpoint.

        It begins when the last row is there: the inputs before it must have an end. One peer has all rows. The function runs in
        a process of its own. docs/cycles.md says what it is given and must return.

        Args:
            name: of the task.
            fn: takes a ``pyarrow.Table`` with all rows and their state, and returns one with a row for each of them: the columns
                of the state that change, and those that are aggregated. A parameter ``aggregates`` is given the aggregates of
                the round before, as a ``pyarrow.Table``.
            rows: the task whose results are the rows, a part of them such as ``points.where(...)``, or several.
            state: the columns that the function changes: names, and ``bigint``, ``double``, ``string`` or ``boolean``, such as
                ``"cluster bigint"``. At first they are as the rows have them, and null where these do not.
            aggregate: by column, how its values become one after each round: ``sum``, ``min``, ``max``, ``mean`` or ``count``.
                The column is one that the function returns, or of the state, or of the rows.
            group_by: the columns that say which rows are aggregated together. None: all rows.
            start: the aggregates that the first round is given: a row for each group. None: there are none.
            until: ends the rounds when it holds of an aggregate, in every group, such as ``"moved <= 1e-3"``. In any case they
                end when a round has changed neither a state nor an aggregate.
            max_rounds: the most rounds; None: 1,000.
            results: ``"rows"`` with their state, or the last ``"aggregates"``, a row for each group.
            params: further arguments of the function.
            state_limit: the most entries of the task's state, which has one for each batch of rows.
            store: where rows are kept until all are there, as for :meth:`graph`.
            tags: only virtual peers that have all these tags work on it.
            batch_size: how many rows a batch has at most, of rows and of results; None: 50,000, more where much is unread.
            batch_timeout: as for :meth:`task`.
            doc: what it does, in a sentence.
        """
        said: dict[str, Any] = {
            "state": state,
            "aggregate": None if aggregate is None else dict(aggregate),
            "group_by": [group_by] if isinstance(group_by, str) else list(group_by) or None,
            "start": None if start is None else _rows(start),
            "until": until,
            "max_rounds": max_rounds,
            "results": results if results != "rows" else None,
            "state_limit": state_limit,
            "store": store_data(store),
        }
        said = {key: value for key, value in said.items() if value is not None}
        settings = {"max_peers": 1, "tags": tags, "batch_size": batch_size, "batch_timeout": batch_timeout, "doc": doc}
        settings |= {} if params is None else {"params": dict(params)}
        return self._add_computed(name, "iterate", said, settings, rows, fn)

    @abstractmethod
    def _add_computed(
        self,
        name: str,
        what: Literal["graph", "iterate"],
        said: dict[str, Any],
        settings: dict[str, Any],
        after: Any,
        fn: Function | None = None,
    ) -> Task:
        """Add such a task to the job."""


def _rows(start: Any) -> list[dict[str, Any]]:
    rows = [start] if isinstance(start, Mapping) else start.to_pylist() if hasattr(start, "to_pylist") else start
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if hasattr(value, "item") else value


__all__ = ["Rounds"]
