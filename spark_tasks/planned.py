"""The base of functions that run on Spark's workers by a plan, which is data."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from sardonyx.core.spec import TaskSpec
from spark_tasks.apply import plain_params
from spark_tasks.on_demand import TaskSpark

PlanT = TypeVar("PlanT", bound=msgspec.Struct)


class PlannedFunctions(Generic[PlanT]):
    """The functions of one task.

    Args:
        spark: of the assignment. It is asked for the session when there is work.
        task: the task.
        plan: what the workers are to do. It has a field ``params``: keyword arguments of the functions.
    """

    def __init__(self, spark: TaskSpark, task: TaskSpec, plan: PlanT) -> None:
        self._spark, self._task, self._plan = spark, task, plan
        self._abandoned = threading.Event()
        self.worked = self.waited = 0.0
        """Of the last call: how many seconds functions ran on the slowest worker, and how many else were spent on Spark."""

    def give(self, more: Mapping[str, Any]) -> None:
        """Give the functions further keyword arguments, which come from the task's lifecycle.

        Raises:
            FunctionError: ``SX-FN-PARAMS``, they cannot travel to a Spark worker.
        """
        params = plain_params(self._task, {**self._task.params, **more})
        self._plan = msgspec.structs.replace(self._plan, params=params)

    def abandon(self) -> None:
        """The result is not needed any more; a wait between two attempts ends. Any thread may call it."""
        self._abandoned.set()


__all__ = ["PlannedFunctions"]
