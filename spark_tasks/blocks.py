"""Running a plain function over blocks of bytes on Spark's workers: the fast way through Spark for Python code.

A table goes as one Arrow IPC stream a slice and comes back as one. An error raised on a worker comes back as data: the
Spark job itself succeeds, so nothing is retried and no JVM stack trace appears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from sardonyx import errors
from sardonyx.errors import Failure, InternalError, SardonyxError, failure_of
from spark_tasks.failures import spark_lost

Item = TypeVar("Item")
Result = TypeVar("Result")


def to_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The reverse of :func:`to_bytes`, without copying."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def on_workers(spark: Any, what: str, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` applied to every item on Spark's workers, one Spark task an item; results in the items' order.

    May be called from many threads at once; their Spark jobs share the workers fairly.

    Args:
        spark: the session.
        what: what this is, in a few words, for Spark's own pages and logs.
        work: a function of a module, or a ``functools.partial`` of one; it must be importable on the workers.
        items: bytes or plain data.

    Raises:
        SardonyxError: what ``work`` raised for the first item that failed, as it was; ``SX-UNEXPECTED`` for an
            exception that is not ours.
        SetupError: ``SX-SPARK-LOST``, Spark itself failed.
    """
    from spark_tasks.session import is_alive

    if not items:
        return []
    context = spark.sparkContext
    try:
        context.setJobDescription(what)
        outcomes = context.parallelize(items, len(items)).map(_Guarded(work)).collect()
    except Exception as error:
        lost = spark_lost(error, is_alive(spark))
        if lost is None:
            raise
        raise lost from error
    for _, kind, failure in outcomes:
        if failure is not None:
            raise _rebuilt(kind, failure)
    return [value for value, _, _ in outcomes]


class _Guarded(Generic[Item, Result]):
    """Calls a function on a worker and gives its result, or the class and the data of the error."""

    def __init__(self, work: Callable[[Item], Result]) -> None:
        self._work = work

    def __call__(self, item: Item) -> tuple[Result | None, str, Failure | None]:
        try:
            return self._work(item), "", None
        except Exception as error:  # noqa: BLE001 (it is raised again on the other side)
            return None, type(error).__name__, failure_of(error)


def _rebuilt(kind: str, failure: Failure) -> SardonyxError:
    found = getattr(errors, kind, InternalError)
    if not (isinstance(found, type) and issubclass(found, SardonyxError)) or found is errors.JobInvalid:
        found = InternalError
    return found(
        failure.code,
        failure.message,
        cause=failure.cause,
        fix=failure.fix,
        traceback=failure.traceback,
        where=failure.where,
    )
