"""What is probably not meant about keyed state in a job that can run: a part of :mod:`sardonyx.job.warn`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.graph import has_end, order_of
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.row_times import Times, Untimed, row_times
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.text import listed
from sardonyx.job.validate_windows import inputs_of
from sardonyx.job.warn_windows import one_key, store_missing, warning
from sardonyx.runtime import functions as fns

if TYPE_CHECKING:
    from sardonyx.state.signature import Signature


def warnings_of_keyed(spec: JobSpec) -> Iterator[Failure]:
    """Everything to warn about, in the order of the catalog."""
    if all(task.keyed is None for task in spec.catalog):
        return
    times = row_times(spec, order_of(spec))
    for task in spec.catalog:
        if task.keyed is not None:
            yield from _state(spec, task, task.keyed)
            yield from _timers(task, task.keyed, times[task.name])
            yield from one_key(task, "its state has no group_by")
            yield from store_missing(task, task.keyed.store)


def _state(spec: JobSpec, task: TaskSpec, keyed: KeyedSpec) -> Iterator[Failure]:
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    if not endless or keyed.state_limit is not None or ALL_STATES in keyed.ttl:
        return
    grows = _kept_for_good(task, keyed)
    if grows:
        each = f" for each {' and '.join(task.group_by)}" if isinstance(task.group_by, list) else ""
        yield warning(
            "SX-WARN-STATE",
            task,
            "its state grows as long as the job runs",
            f"it keeps {grows}{each} for good, and input {endless[0]!r} has no end",
            "give ttl, after which a state goes; or state_limit, so that the job fails before memory does",
        )


def _kept_for_good(task: TaskSpec, keyed: KeyedSpec) -> str:
    """The states without a ttl that grow; empty if there are none."""
    signature = _signature(task, keyed)
    if signature is None or signature.tables:
        return "a state" if task.group_by else ""
    with_keys = bool(task.group_by)
    names = [
        each.name for each in signature.states.values() if each.ttl is None and (with_keys or each.kind != "value")
    ]
    return listed(names)


def _signature(task: TaskSpec, keyed: KeyedSpec) -> Signature | None:
    """What the functions take. They were imported when the job was validated."""
    from sardonyx.state.signature import signature_of  # with Arrow, which a job without keyed state does not need

    try:
        on_timer = None if keyed.on_timer is None else fns.import_function(keyed.on_timer)
        declared = None if keyed.state is None else arrow_schema(keyed.state)
        return signature_of(keyed, fns.import_function(str(task.fn)), on_timer, declared)
    except FunctionError:  # only where the job was validated without its functions
        return None


def _timers(task: TaskSpec, keyed: KeyedSpec, times: Times) -> Iterator[Failure]:
    if keyed.on_timer is None or keyed.on_timer.startswith("sardonyx."):  # ours wait for the end
        return
    untimed = sorted(each.task for each in times if isinstance(each, Untimed))
    if untimed:
        why = f"the rows of {untimed[0]!r} have no time, so their clock stands still until their end"
    elif any(each.ordinal for each in times if not isinstance(each, Untimed)):
        why = "its rows have numbers as their times (ordinal), and timers are set for moments"
    else:
        return
    yield warning(
        "SX-WARN-TIMERS",
        task,
        "its timers by event time fire only when its inputs have ended",
        why,
        'give the input time="column"; or set timers with by="wall", which fire by the clock of the machine',
    )
