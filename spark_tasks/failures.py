"""Turns errors of users' functions, and of Spark itself, into errors that users can read.

Users see the frames and the message of their own code. They never see a JVM's stack trace or the frames of our code.
"""

from __future__ import annotations

import re
import reprlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import Failure, FunctionError, SetupError
from sardonyx.core.text import shorten
from sardonyx.core.tracebacks import is_machinery, user_traceback

RAISED = "SX-FN-RAISED"
MESSAGE_LIMIT = 500
_TRACEBACK_LIMIT = 8_000
_ZIP = re.compile(r'File "[^"]*[0-9a-f]{64}\.zip/')
_PACKAGE = re.compile(r"\b_sx_[0-9a-f]{16}\.")
_LAST_LINE = re.compile(r"[A-Za-z_][\w.]*(:|$)")


class Bad(msgspec.Struct, frozen=True):
    """A record that a task's function raises for."""

    index: int
    """The index of its row in the batch."""
    error: str
    """The class of the exception, as the user's code names it."""
    attempts: int
    """How many runs with this record raised. It is 1 for a record that could not even be read."""
    failure: Failure
    """What users see of it. The length of the traceback is bounded."""


_record_repr = reprlib.Repr()
_record_repr.maxdict = 40
_record_repr.maxlist = _record_repr.maxtuple = 10
_record_repr.maxstring = _record_repr.maxother = 80
_record_repr.maxlevel = 4


def shown_traceback(error: BaseException) -> str:
    """Shorten :func:`sardonyx.core.tracebacks.user_traceback`, and write the names as the user wrote them."""
    return readable(user_traceback(error))


def as_written(text: str) -> str:
    """Give the modules and files of a code bundle the names that the user gave them."""
    return _PACKAGE.sub("", _ZIP.sub('File "', text))


def readable(text: str) -> str:
    """Apply :func:`as_written`, and bound the length because ZooKeeper will store the text."""
    text = as_written(text)
    if len(text) > _TRACEBACK_LIMIT:
        half = _TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n  ...\n{text[-half:]}"
    return text


class FunctionRaised(FunctionError):
    """``SX-FN-RAISED``: a user's function raised an exception.

    Args:
        kind: the class of that exception, as the user's code names it.
        message: this and the other arguments have the same meaning as for every error.
    """

    def __init__(self, kind: str, message: str, *, cause: str, fix: str, traceback: str, where: dict[str, str]) -> None:
        super().__init__(RAISED, message, cause=cause, fix=fix, traceback=traceback, where=where)
        self.kind = kind


def error_class(error: FunctionError) -> str:
    """Return the class of what a user's function raised, or of our own error if the function returned a wrong value."""
    return error.kind if isinstance(error, FunctionRaised) else type(error).__name__


def function_raised(
    task: str, fn: str, error: BaseException, record: object = None, *, may_skip: bool = True, what: str = "records"
) -> FunctionRaised:
    """Make the ``SX-FN-RAISED`` error for what a user's function raised.

    Args:
        task: name of the task.
        fn: its function as ``module:function``.
        error: the exception. Python code raised it, or Spark raised it for an expression of the function.
        record: the record that the function got, if it takes one record at a time.
        may_skip: whether another ``on_error`` would help. It does not help if the task already leaves such records out,
            or if the function fails for every record.
        what: ``on_error`` would leave out.
    """
    kind, message, trace = _said(error)
    name = fn.partition(":")[2]
    return FunctionRaised(
        kind,
        f"function {name} of task {task} raised {shorten(f'{kind}: {message}' if message else kind, MESSAGE_LIMIT)}",
        cause="" if record is None else f"the record was {shorten(_record_repr.repr(record), 1_000)}",
        fix="correct the function"
        + (f", or set on_error to skip or dead_letter to leave such {what} out" if may_skip else ""),
        traceback=trace,
        where={"task": task, "function": fn},
    )


def wrong_result(task: str, fn: str, cause: str, fix: str) -> FunctionError:
    """Make the ``SX-FN-RESULT`` error: a function of this kind must not return such a value."""
    return FunctionError(
        "SX-FN-RESULT",
        f"function {fn.partition(':')[2]} of task {task} returned something that cannot be passed on",
        cause=cause,
        fix=fix,
        where={"task": task, "function": fn},
    )


@contextmanager
def types_of(task: str, fn: str) -> Iterator[None]:
    """Let an ``SX-COLUMN-TYPE`` error name the function that has returned the rows."""
    try:
        yield
    except UnfitTypes as error:
        name = fn.partition(":")[2]
        raise error.of(f"what function {name} of task {task} returned", {"task": task, "function": fn}) from error


def spark_lost(error: BaseException, alive: bool) -> SetupError | None:
    """Return ``SX-SPARK-LOST`` if Spark itself failed, else None.

    Spark fails if its JVM or one of its workers dies, or if something stops it.

    Args:
        error: the exception that a call to Spark raised.
        alive: whether the JVM still runs.
    """
    from py4j.protocol import Py4JError

    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    in_py4j = last is not None and "/py4j/" in Path(last.tb_frame.f_code.co_filename).as_posix()
    broken_off = in_py4j and isinstance(error, OSError | EOFError)
    if alive and not broken_off and not isinstance(error, Py4JError):
        return None
    dead = "Spark's JVM has ended: it was killed, or it ran out of memory"
    return SetupError(
        "SX-SPARK-LOST",
        "Spark could not finish the batch",
        cause=shorten(_root_cause(error), MESSAGE_LIMIT) if alive else dead,
        fix="wait, for the batch is tried again; if the error comes back, check the memory (spark.driver.memory in the settings) "
        "and look for functions that end their worker process",
    )


def _root_cause(error: BaseException) -> str:
    """Return the innermost message of a Java exception, in one line."""
    try:
        java: Any = getattr(error, "java_exception", None)
        while java is not None and java.getCause() is not None:
            java = java.getCause()
        text = str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
    except Exception as second:  # noqa: BLE001 (asking a dying JVM may raise anything)
        text = f"{type(error).__name__}, and then {type(second).__name__}"
    return text.partition("\n")[0]


def _said(error: BaseException) -> tuple[str, str, str]:
    """Return the class, message and traceback in the form that the user should read."""
    if not type(error).__module__.startswith("pyspark."):
        return type(error).__name__, readable(str(error)), shown_traceback(error)
    text = str(error)
    _, found, trace = text.partition("Traceback (most recent call last):")
    if found:  # a Python function on a worker raised it, and Spark's message contains the traceback
        trace = readable(found + trace)
        last = [line for line in trace.splitlines() if _LAST_LINE.match(line)]
        kind, _, message = (last[-1] if last else type(error).__name__).partition(": ")
        return kind.rpartition(".")[2], message, trace
    short = text.partition("\n")[0].rstrip(";")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_machinery(f.filename)]
    kind = type(error).__name__
    head = "Traceback (most recent call last):\n" if frames else ""
    return kind, short, readable(f"{head}{''.join(traceback.format_list(frames))}{kind}: {short}\n")
