"""Run a task's lifecycle hooks. The user's class opens resources once per peer and task, and always closes them.

All hooks run one after the other, on the thread that also calls DataFrame functions. So the resources need not be
thread-safe. The hooks run in the peer's process, not on Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from sardonyx.core.errors import FunctionError
from sardonyx.core.text import shorten
from spark_tasks.failures import MESSAGE_LIMIT, shown_traceback

log = structlog.get_logger()

_USER_ERRORS = (Exception, SystemExit)


@dataclass(frozen=True)
class Context:
    """The argument of ``start``: which peer runs which task of which job."""

    deployment: str
    job: str
    """The job's id."""
    task: str
    peer: str
    """The virtual peer's id."""
    slot: int
    """Number of the peer among those that run this task. A peer that replaces another takes over its slot number."""


class Hooks:
    """The lifecycle of one assignment. Not thread-safe.

    Args:
        reference: the user's class, as ``module:Class``.
        load: finds the class.
        context: the argument for ``start``.

    Raises:
        FunctionError: the class cannot be imported.
    """

    def __init__(self, reference: str, load: Callable[[str], Callable[..., Any]], context: Context) -> None:
        self._reference = reference
        self._made = load(reference)
        self._context = context
        self._instance: Any = None
        self._begun = False

    def start(self) -> Mapping[str, Any]:
        """Create the instance and call its ``start``. Return extra keyword arguments for the task's function.

        Raises:
            FunctionError: ``SX-FN-LIFECYCLE``, with the user's traceback.
        """
        self._begun = True
        try:
            self._instance = self._made()
        except _USER_ERRORS as error:
            raise self._raised("its constructor", error) from error
        given = self._call("start", self._context)
        if given is None:
            return {}
        if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
            return given
        raise FunctionError(
            "SX-FN-LIFECYCLE",
            f"start of lifecycle {self._name} gave something that is not a dict",
            cause=f"it gave {shorten(repr(given), 200)}",
            fix="return a dict of further keyword arguments for the task's function, or nothing",
            where=self._where,
        )

    def before_batch(self, rows: int) -> None:
        """Call the hook before the function gets a batch of ``rows`` rows. Raises FunctionError ``SX-FN-LIFECYCLE``."""
        self._call("before_batch", rows)

    def after_batch(self, rows_out: int) -> None:
        """Call the hook after the commit of ``rows_out`` result rows. Raises FunctionError ``SX-FN-LIFECYCLE``."""
        self._call("after_batch", rows_out)

    @property
    def hears_of_batches(self) -> bool:
        """Whether the user's class has a ``before_batch`` hook."""
        return callable(getattr(self._instance, "before_batch", None))

    @property
    def hears_of_commits(self) -> bool:
        """Whether the user's class has an ``after_batch`` hook."""
        return callable(getattr(self._instance, "after_batch", None))

    def stop(self) -> None:
        """Call the stop hook once, also if ``start`` failed half-way. It logs errors: the task can no longer fail."""
        if not self._begun:
            return
        self._begun = False
        try:
            self._call("stop")
        except FunctionError as error:
            log.error("lifecycle_stop_failed", error=error.message, traceback=error.traceback)
        finally:
            self._instance = None

    def _call(self, hook: str, *arguments: object) -> Any:
        call = getattr(self._instance, hook, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except _USER_ERRORS as error:
            raise self._raised(hook, error) from error

    def _raised(self, hook: str, error: BaseException) -> FunctionError:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return FunctionError(
            "SX-FN-LIFECYCLE",
            f"{hook} of lifecycle {self._name} raised {shorten(said, MESSAGE_LIMIT)}",
            fix="correct it; what it creates once for a peer and task must exist before the first batch",
            traceback=shown_traceback(error),
            where=self._where,
        )

    @property
    def _name(self) -> str:
        return self._reference.partition(":")[2]

    @property
    def _where(self) -> dict[str, str]:
        return {"task": self._context.task, "lifecycle": self._reference}
