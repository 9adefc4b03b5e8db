"""Running a plain function over blocks of bytes on Spark's workers: the fast way through Spark for Python code.

A table travels as one Arrow IPC stream for each slice, in both directions. Where the workers are on this machine it does not
go through Spark's JVM (:mod:`spark_tasks.shared_memory`). An error on a worker comes back as data: the Spark job itself
succeeds, so Spark retries nothing and shows no JVM stack trace.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
import structlog

from sardonyx.core import errors
from sardonyx.core.errors import Failure, InternalError, SardonyxError, failure_of
from spark_tasks import shared_memory
from spark_tasks.failures import spark_lost

log = structlog.get_logger()

Item = TypeVar("Item")
Result = TypeVar("Result")


def to_buffer(table: pa.Table) -> pa.Buffer:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_buffer(data: pa.Buffer) -> pa.Table:
    """The reverse of :func:`to_buffer`, without copying."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def on_workers(
    spark: Any,
    what: str,
    work: Callable[[Item], Result],
    items: Sequence[Item],
    took: Callable[[float], None] = lambda _seconds: None,
) -> list[Result]:
    """``work`` applied to every item on Spark's workers, one Spark task an item; results in the items' order.

    May be called from many threads at once; their Spark jobs share the workers fairly.

    Args:
        spark: the session.
        what: what this is, in a few words, for Spark's own pages and logs.
        work: a function of a module, or a ``functools.partial`` of one; it must be importable on the workers.
        items: plain data, and buffers as of :func:`to_buffer`.
        took: called with the seconds that ``work`` ran for the slowest item.

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
        if len(items) <= _AT_ONCE and spark not in _unshared and shared_memory.possible(context):
            try:
                return _by_shared_memory(context, work, items, took)
            except shared_memory.Unreachable as reason:
                log.warning("shared_memory_unavailable", error=str(reason))
                if reason.lasting:
                    _unshared.add(spark)
        return _by_jvm(context, work, items, took)
    except SardonyxError:
        raise
    except Exception as error:
        lost = spark_lost(error, is_alive(spark))
        if lost is None:
            raise
        raise lost from error


_AT_ONCE = 32
"""Most items with memory of their own, each of which takes file descriptors; more items are small ones."""

_unshared: weakref.WeakSet[Any] = weakref.WeakSet()
"""Sessions whose workers cannot reach the memory of this process."""


def _by_shared_memory(
    context: Any, work: Callable[[Item], Result], items: Sequence[Item], took: Callable[[float], None]
) -> list[Result]:
    """Large buffers go through shared memory: each item has one for itself and one for its result."""
    with contextlib.ExitStack() as held:
        inputs, outputs = (
            [held.enter_context(contextlib.closing(shared_memory.Memory())) for _ in items] for _ in range(2)
        )
        sent = [
            _Sent(memory.pack(item), memory.ref, output.ref)
            for item, memory, output in zip(items, inputs, outputs, strict=True)
        ]
        return [output.unpack(got) for output, got in zip(outputs, _run(context, work, sent, took), strict=True)]


def _by_jvm(
    context: Any, work: Callable[[Item], Result], items: Sequence[Item], took: Callable[[float], None]
) -> list[Result]:
    """Everything goes through the JVM, wherever the workers are."""
    return [
        shared_memory.unpack(got)
        for got in _run(context, work, [_Sent(shared_memory.pack(item)) for item in items], took)
    ]


def _run(
    context: Any, work: Callable[[Item], Result], sent: Sequence[_Sent], took: Callable[[float], None]
) -> list[shared_memory.OutOfBandPickle]:
    outcomes = context.parallelize(sent, len(sent)).map(_Guarded(work)).collect()
    for outcome in outcomes:
        if outcome.unreachable is not None:
            reason, lasting = outcome.unreachable
            raise shared_memory.Unreachable(reason, lasting=lasting)
        if outcome.failure is not None:
            raise _rebuilt(outcome.kind, outcome.failure)
    took(max(outcome.seconds for outcome in outcomes))
    return [outcome.value for outcome in outcomes]


class _Sent(msgspec.Struct, frozen=True):
    """An item on its way to a worker."""

    item: shared_memory.OutOfBandPickle
    input: shared_memory.MemfdRef | None = None
    """Where its large buffers are."""
    output: shared_memory.MemfdRef | None = None
    """Where those of the result may be put."""


class _Outcome(msgspec.Struct, frozen=True):
    """What a worker gives back: a value, or the class and the data of an error."""

    value: shared_memory.OutOfBandPickle | None = None
    seconds: float = 0.0
    """That it took to come to the value."""
    kind: str = ""
    failure: Failure | None = None
    unreachable: tuple[str, bool] | None = None
    """Why its item could not be had, and whether that lasts."""


class _Guarded(Generic[Item, Result]):
    """Calls a function on a worker."""

    def __init__(self, work: Callable[[Item], Result]) -> None:
        self._work = work

    def __call__(self, sent: _Sent) -> _Outcome:
        from pyspark import TaskContext

        try:
            item = shared_memory.unpack(sent.item, sent.input)
        except shared_memory.Unreachable as reason:
            return _Outcome(unreachable=(str(reason), reason.lasting))
        try:
            # When Spark repeats an attempt, the one before may still write. So only the first may use the output.
            context = TaskContext.get()
            again = context is not None and context.attemptNumber() > 0
            began = time.perf_counter()
            result = self._work(item)
            seconds = time.perf_counter() - began
            return _Outcome(shared_memory.pack(result, None if again else sent.output), seconds)
        except Exception as error:  # noqa: BLE001 (it is raised again on the other side)
            return _Outcome(kind=_kind(error), failure=failure_of(error))


def _kind(error: BaseException) -> str:
    """The nearest of our general classes of errors: subclasses, which have arguments of their own, are not made again."""
    return next((each.__name__ for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each), "")


def _rebuilt(kind: str, failure: Failure) -> SardonyxError:
    found = getattr(errors, kind, InternalError)
    if not (isinstance(found, type) and issubclass(found, SardonyxError)) or found is errors.JobInvalid:
        found = InternalError
    return found.from_failure(failure)
