"""The base of functions that run on Spark's workers by a plan, which is data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from sardonyx.core.spec import TaskSpec
from spark_tasks.apply import plain_params
from spark_tasks.code import CodeBundle

PlanT = TypeVar("PlanT", bound=msgspec.Struct)


class PlannedFunctions(Generic[PlanT]):
    """The functions of one task.

    Args:
        session: gives the session, which many may share. It is asked when there is work.
        task: the task.
        code: the job's code bundle, if it has one.
        plan: what the workers are to do. It has a field ``params``: keyword arguments of the functions.
    """

    def __init__(self, session: Callable[[], Any], task: TaskSpec, code: CodeBundle | None, plan: PlanT) -> None:
        self._session = session
        self._task, self._code = task, code
        self._plan = plan
        self._abandoned = threading.Event()
        self.worked = self.waited = 0.0
        """Of the last call: how many seconds functions ran on the slowest worker, and how many else were spent on Spark."""
        if code is not None:
            code.users.add(self)

    @cached_property
    def _spark(self) -> Any:
        """The session, in which the workers have the job's code. It may have to start first.

        Raises:
            SetupError: it does not start.
        """
        spark = self._session()
        if self._code is not None:
            self._code.ship(spark)
        return spark

    @cached_property
    def _cores(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

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
