"""The hooks around a task: what a user's lifecycle class makes once for a peer and task, and closes again for sure.

All hooks run on the thread that also calls DataFrame functions, one after the other, so what they make need not be safe to use
from several threads. They run in the peer's process, not on Spark's workers.
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
    """What ``start`` is given: who runs what, and where."""

    deployment: str
    job: str
    """The job's id."""
    task: str
    peer: str
    """The virtual peer's id."""
    slot: int
    """Its number among those that run this task, stable over peers that come and go."""


class Hooks:
    """One assignment's lifecycle. Not for several threads.

    Args:
        reference: ``module:Class``.
        load: finds it.
        context: what ``start`` is given.

    Raises:
        FunctionError: it cannot be imported.
    """

    def __init__(self, reference: str, load: Callable[[str], Callable[..., Any]], context: Context) -> None:
        self._reference = reference
        self._made = load(reference)
        self._context = context
        self._instance: Any = None
        self._begun = False

    def start(self) -> Mapping[str, Any]:
        """Make the instance and start it. Gives further keyword arguments for the task's function.

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
            f"start of lifecycle {self._name} gave something that is no dict",
            cause=f"it gave {shorten(repr(given), 200)}",
            fix="return a dict of further keyword arguments for the task's function, or nothing",
            where=self._where,
        )

    def before_batch(self, rows: int) -> None:
        """Before the function gets a batch of so many rows. Raises FunctionError ``SX-FN-LIFECYCLE``."""
        self._call("before_batch", rows)

    def after_batch(self, rows_out: int) -> None:
        """After the commit of a batch that gave so many rows. Raises FunctionError ``SX-FN-LIFECYCLE``."""
        self._call("after_batch", rows_out)

    @property
    def hears_of_batches(self) -> bool:
        """Whether it wants to be told before each batch."""
        return callable(getattr(self._instance, "before_batch", None))

    @property
    def hears_of_commits(self) -> bool:
        """Whether it wants to be told after each batch."""
        return callable(getattr(self._instance, "after_batch", None))

    def stop(self) -> None:
        """Close what was started, once, also where starting broke half-way. Raises nothing: it is too late to fail."""
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
            fix="mend it; what it makes once for a peer and task must be there before the first batch",
            traceback=shown_traceback(error),
            where=self._where,
        )

    @property
    def _name(self) -> str:
        return self._reference.partition(":")[2]

    @property
    def _where(self) -> dict[str, str]:
        return {"task": self._context.task, "lifecycle": self._reference}
