"""Runs the functions of a task with keyed state on Spark's workers. The state of the keys travels with their rows.

All rows of a key go to one worker, in their order. Otherwise keys are dealt out evenly. Workers change nothing, so work can be
run again, and is if a function raises and the task's ``on_error`` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pyarrow as pa

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.settled_types import SettledTypes
from sardonyx.core.spec import TaskSpec
from sardonyx.core.units import seconds
from sardonyx.state.groups import Numbers
from sardonyx.state.keyed_work import Done, Work, joined, split
from sardonyx.state.signature import signature_of
from spark_tasks.apply import Abandoned
from spark_tasks.failures import types_of
from spark_tasks.keyed_worker import Got, KeyedPlan, Sent, received, run_keyed, send
from spark_tasks.on_demand import TaskSpark
from spark_tasks.planned import PlannedFunctions
from spark_tasks.read_splits import SMALLEST_SLICE
from spark_tasks.worker_pool import on_workers


class _Part(NamedTuple):
    """Some keys of one work."""

    number: int
    """Of the work."""
    work: Work
    rows: Numbers
    """The numbers of its rows in the whole work."""


class KeyedFunctions(PlannedFunctions[KeyedPlan]):
    """The functions of one task with keyed state, ready for batch after batch.

    Args:
        spark: of the assignment.
        task: the task.
        isolate: whether to go on after the first record that the function raises for.
        retried: called before each further attempt.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``, ``SX-FN-ANNOTATION``, ``SX-KEYED-FUNCTION``, ``SX-STATE-TYPE``.
    """

    def __init__(
        self,
        spark: TaskSpark,
        task: TaskSpec,
        *,
        isolate: bool,
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        assert task.keyed is not None  # noqa: S101 (for the type checker: the caller asks)
        self._isolate = isolate
        self._retried = retried
        self._types = SettledTypes()
        spec, fn = task.keyed, str(task.fn)
        declared = None if spec.state is None else arrow_schema(spec.state)
        on_timer = None if spec.on_timer is None else spark.load(spec.on_timer)
        self.signature = signature_of(spec, spark.load(fn), on_timer, declared)
        """What the functions take."""
        plan = KeyedPlan(
            task.name,
            fn,
            spec.on_timer,
            spark.package,
            spec,
            declared,
            task.schema,
            task.params,
            not task.on_error.leaves_out,
            first_fails=True,
        )
        super().__init__(spark, task, plan)

    def __call__(self, works: Sequence[Work]) -> list[Done]:
        """What the functions make of work, in its order. The results of each are a table.

        If a function raises, the keys that it raises for are run again, as often as ``on_error`` says, after a pause that
        doubles each time. What it still raises for is in ``failed``.

        Raises:
            FunctionError: a function gave back what does not fit.
            SetupError: ``SX-SPARK-LOST``, not the function's fault.
            Abandoned: see :meth:`abandon`.
        """
        self.worked = self.waited = 0.0
        if not works:
            return []
        began = time.perf_counter()
        on_error = self._task.on_error
        parts = self._parts(works)
        dones: dict[int, Done] = {}
        pause = seconds(on_error.backoff)
        left = list(range(len(parts)))
        for attempt in range(on_error.retries + 1):
            if attempt:
                if self._abandoned.wait(pause):
                    raise Abandoned
                pause *= 2
                self._retried()
            first_fails = attempt < on_error.retries or not self._isolate
            dones.update(self._run([parts[place] for place in left], left, first_fails=first_fails))
            left = [place for place in left if dones[place].failed]
            if not left:
                break
        found = [self._whole(number, parts, dones) for number in range(len(works))]
        self.waited = max(time.perf_counter() - began - self.worked, 0.0)
        return found

    def _whole(self, number: int, parts: Sequence[_Part], dones: Mapping[int, Done]) -> Done:
        own = [place for place, part in enumerate(parts) if part.number == number]
        with types_of(self._task.name, str(self._task.fn)):
            done = joined([(parts[place].work, parts[place].rows) for place in own], [dones[place] for place in own])
            assert isinstance(done.results, pa.Table)  # noqa: S101 (for the type checker: a worker made it)
            return done._replace(results=self._types.settle(done.results))

    def _parts(self, works: Sequence[Work]) -> list[_Part]:
        total = sum(_size(work) for work in works)
        each = max(total / self._spark.cores, SMALLEST_SLICE)
        return [
            _Part(number, work, rows)
            for number, whole in enumerate(works)
            for work, rows in split(whole, max(1, round(_size(whole) / each)))
        ]

    def _run(self, parts: Sequence[_Part], places: Sequence[int], *, first_fails: bool) -> dict[int, Done]:
        """Run parts, dealt out to as many workers as are worth it."""
        total = sum(_size(part.work) for part in parts)
        count = max(1, min(self._spark.cores, len(parts), total // SMALLEST_SLICE))
        hands: list[list[int]] = [[] for _ in range(count)]
        loads = [0] * count
        for index in sorted(range(len(parts)), key=lambda index: -_size(parts[index].work)):
            least = loads.index(min(loads))
            hands[least].append(index)
            loads[least] += _size(parts[index].work)
        items: list[list[Sent]] = [[send(parts[index].work) for index in hand] for hand in hands]
        plan = msgspec.structs.replace(self._plan, first_fails=first_fails)
        got: list[list[Got]] = on_workers(
            self._spark.session(), f"task {self._task.name}", partial(run_keyed, plan), items, self._took
        )
        return {
            places[index]: received(each)
            for hand, answers in zip(hands, got, strict=True)
            for index, each in zip(hand, answers, strict=True)
        }

    def _took(self, spent: float) -> None:
        self.worked += spent


def _size(work: Work) -> int:
    return int(work.rows.num_rows) + len(work.due)
