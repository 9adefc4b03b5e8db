"""Streams by key: aggregates, reduce, and functions with state."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sardonyx.core.text import listed
from sardonyx.job.tasks import Function, Task
from sardonyx.job.windowing import Aggregate
from sardonyx.pipeline.streams import Stream, named

if TYPE_CHECKING:
    from sardonyx.pipeline.windows import Window

Across = Literal["window", "windows"]
"""What a result counts: the rows of its window; or also those of all windows before it, so that totals run."""

CARRIED = ("count", "sum", "min", "max", "first", "last", "collect")
"""Aggregates whose result over several windows follows from their results over each."""
_OF_BOTH = ("min_peers", "max_peers", "tags", "batch_size", "batch_timeout", "state_limit", "store", "standby", "doc")
"""Settings of an operator that becomes two tasks: each of them has them."""
_OF_FIRST = ("grace", "late", "time")
_OF_SECOND = ("ttl",)
_OURS = "sardonyx.pipeline.functions"


@dataclass(frozen=True)
class KeyedStream:
    """The rows of a stream by the columns of a key."""

    stream: Stream
    columns: tuple[str, ...]

    def aggregate(
        self,
        name: str,
        columns: Mapping[str, Aggregate | str | Mapping[str, Any]],
        *,
        across: Across = "window",
        **settings: Any,
    ) -> Stream:
        """Counts, sums and the like of the rows of each key: :meth:`sardonyx.Job.window`, by the windows of the source.

        Args:
            name: of the operator.
            columns: of the results, such as ``{"hits": Count(), "slowest": Max("ms")}``.
            across: ``"window"``: each result is of one window. ``"windows"``: of all windows so far, and one comes after each
                window that has a row of the key; the aggregates are then ``Count``, ``Sum``, ``Min``, ``Max``, ``First``,
                ``Last`` and ``Collect``.
            settings: as for ``job.window``.
        """
        window = self._window(name, across)
        if across == "window" or window.kind == "all":
            return self._windowed(name, window, {**settings, "aggregate": columns})
        merge = {column: [kind, most] for column, kind, most in _kinds(columns)}
        for column, (kind, _) in merge.items():
            if kind not in CARRIED:
                self.stream.pipeline.wrong(
                    "SX-PIPELINE-ACROSS",
                    name,
                    f"aggregate {column!r} is a {kind}, which cannot run across windows",
                    "the result over several windows does not follow from the results over each",
                    'leave out across="windows"; or aggregate a sum and a count, and divide them in a map',
                )
        windowed = self._windowed(f"{name}-window", window, {**self._first(name, settings), "aggregate": columns})
        running = self._keyed(name, f"{_OURS}:add_to_here", windowed, {"merge": merge}, settings)
        return Stream(windowed.pipeline, (running,), windowed.windows, windowed.of_late)

    def reduce(self, fn: Function, name: str | None = None, *, across: Across = "window", **settings: Any) -> Stream:
        """One row of all rows of a key: a function makes one of two, as often as it takes.

        Args:
            fn: takes two rows as ``dict`` and gives one, with the columns that they have. In which order it meets the rows does
                not follow from the input, so ``fn(a, fn(b, c))`` must be ``fn(fn(a, b), c)``, and ``fn(a, b)`` as good as
                ``fn(b, a)``.
            name: of the operator.
            across: as for :meth:`aggregate`.
            settings: as for ``job.window``; with ``Window.all()`` as for ``job.keyed``.
        """
        name = named(fn, name)
        pipeline, window = self.stream.pipeline, self._window(name, across)
        _check_reduce(self, name, fn)
        params = {"reduce": fn, "keys": list(self.columns)}
        if window.kind == "all":
            given = {"on_timer": f"{_OURS}:give_reduced", "params": params, "group_by": self._group_by, **settings}
            task = pipeline.keyed(name, f"{_OURS}:reduce_until_end", after=self.stream.parts, **given)
            return Stream(pipeline, (task,), self.stream.windows)
        one = {"fn": f"{_OURS}:reduce_windows", "params": params}
        if across == "window":
            return self._windowed(name, window, {**settings, **one})
        windowed = self._windowed(f"{name}-window", window, {**self._first(name, settings), **one})
        running = self._keyed(name, f"{_OURS}:reduce_to_here", windowed, params, settings)
        return Stream(pipeline, (running,), windowed.windows, windowed.of_late)

    def process(self, fn: Function, name: str | None = None, **settings: Any) -> Stream:
        """A function that remembers, with a state of the key: :meth:`sardonyx.Job.keyed`, whose settings it has."""
        stream = self.stream
        task = stream.pipeline.keyed(named(fn, name), fn, after=stream.parts, group_by=self._group_by, **settings)
        return Stream(stream.pipeline, (task,), stream.windows)

    # --- Underneath ---

    @property
    def _group_by(self) -> list[str] | None:
        return list(self.columns) or None

    def _window(self, name: str, across: object) -> Window:
        if across not in ("window", "windows"):
            self.stream.pipeline.wrong(
                "SX-PIPELINE-ACROSS", name, f"across cannot be {across!r}", "", 'write "window" or "windows"'
            )
        return self.stream.window(name)

    def _windowed(self, name: str, window: Window, given: Mapping[str, Any]) -> Stream:
        stream = self.stream
        task = stream.pipeline.window(name, window.windows, after=stream.parts, group_by=self._group_by, **given)
        return Stream(stream.pipeline, (task,), stream.windows)

    def _first(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the first of two tasks. Those that neither has are reported."""
        known = (*_OF_BOTH, *_OF_FIRST, *_OF_SECOND)
        unknown = [each for each in settings if each not in known]
        if unknown:
            self.stream.pipeline.wrong(
                "SX-PIPELINE-ACROSS",
                name,
                f'with across="windows" it cannot have {listed(unknown)}',
                "it becomes two tasks: one for the results of each window, and one that carries them on",
                f"remove it, or choose from {', '.join(known)}",
            )
        return {each: value for each, value in settings.items() if each in (*_OF_BOTH, *_OF_FIRST)}

    def _keyed(self, name: str, fn: str, after: Stream, params: Mapping[str, Any], settings: Mapping[str, Any]) -> Task:
        given = {each: value for each, value in settings.items() if each in (*_OF_BOTH, *_OF_SECOND)}
        return after.pipeline.keyed(name, fn, after=after.parts, group_by=self._group_by, params=params, **given)


def _kinds(aggregate: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None]]:
    """For each column of ``aggregate=``, in any of its forms, its kind, and how many values a list has at most."""
    for name, said in aggregate.items():
        data = said.data if isinstance(said, Aggregate) else said
        if not isinstance(data, Mapping):
            yield name, str(data), None
            continue
        options = data.get("options") or data
        short = next((key for key in data if key in CARRIED), next(iter(data), ""))
        yield name, str(data.get("of", short)), options.get("most")


def _check_reduce(keyed: KeyedStream, name: str, fn: Function) -> None:
    """A function that was given by its name is looked at when it is called."""
    if isinstance(fn, str):
        return
    try:
        inspect.signature(fn).bind({}, {})
    except TypeError as error:
        keyed.stream.pipeline.wrong(
            "SX-FN-PARAMS",
            name,
            f"function {getattr(fn, '__name__', fn)!r} cannot be called with two rows",
            str(error),
            "let it take two rows as dict, and give one",
        )
    except ValueError:  # a builtin that tells no signature
        return


__all__ = ["CARRIED", "Across", "KeyedStream"]
