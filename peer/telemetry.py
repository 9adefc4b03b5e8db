"""What the tasks of a peer daemon tell of their batches. They tell it between the begin and the end of :func:`telling`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from sardonyx.core.notes import Assignment
from sardonyx.core.telemetry import BatchTold, Outcome, steps_of
from sardonyx.runtime.secret_values import unquoted_text

if TYPE_CHECKING:
    from peer.batch_result import Result
    from sardonyx.runtime.settings import Settings

CAUSE = 200
"""The most characters of a cause in a message."""


class _Teller(Protocol):
    def tell(self, told: BatchTold) -> None: ...

    def close(self) -> None: ...


_tellers: list[_Teller] = []


@contextmanager
def telling(settings: Settings) -> Iterator[None]:
    """Tell about batches for as long as the block runs: on a topic if ``metrics.telemetry`` says so, and a collector of traces if
    ``metrics.traces`` does.

    Raises:
        SetupError: ``SX-TRACES-MISSING``.
    """
    with ExitStack() as stack:
        if settings.metrics.traces:
            from peer.traces import TraceTeller

            stack.enter_context(_told_to(TraceTeller(settings)))
        if settings.metrics.telemetry:
            from queues.telemetry import TelemetryProducer

            stack.enter_context(_told_to(TelemetryProducer(settings)))
        yield


@contextmanager
def _told_to(teller: _Teller) -> Iterator[None]:
    _tellers.append(teller)
    try:
        yield
    finally:
        _tellers.remove(teller)
        teller.close()


def tell_committed(
    peer: str, assignment: Assignment, result: Result, seconds: Mapping[str, float], made_from: Callable[[], str]
) -> None:
    """Tell about a batch that is committed.

    ``made_from``: says which offsets it has read. Called only if the daemon tells of batches.
    """
    if _tellers:
        late = result.planned.dropped if result.planned is not None else 0
        _tell(
            BatchTold(
                job=assignment.job,
                task=assignment.task,
                peer=peer,
                slot=assignment.slot,
                assignment=assignment.id,
                at=round(time.time(), 3),
                outcome="committed",
                rows_in=result.rows_in,
                rows_out=result.table.num_rows,
                skipped=result.skipped,
                dead=len(result.letters),
                late=late,
                seconds=steps_of(seconds),
                made_from=made_from(),
            )
        )


def tell_uncommitted(
    peer: str, assignment: Assignment, outcome: Outcome, cause: str, seconds: Mapping[str, float]
) -> None:
    """Tell about a batch that is not."""
    if _tellers:
        _tell(
            BatchTold(
                job=assignment.job,
                task=assignment.task,
                peer=peer,
                slot=assignment.slot,
                assignment=assignment.id,
                at=round(time.time(), 3),
                outcome=outcome,
                seconds=steps_of(seconds),
                cause=unquoted_text(cause)[:CAUSE],
            )
        )


def _tell(told: BatchTold) -> None:
    for teller in _tellers:
        teller.tell(told)
