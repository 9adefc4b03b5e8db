"""A running job is changed at a time: rows before it go the old way, rows from it on the new one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sardonyx.client.change import LOOK_EVERY, not_now, refuse_finished, rival
from sardonyx.client.checkpoints import moment
from sardonyx.client.clocks import Lack, lacking
from sardonyx.core import node_paths
from sardonyx.core.changing import change_failure, rewiring
from sardonyx.core.changing_at import (
    Pending,
    closed,
    complete,
    leads_to,
    pending,
    settled,
    side_by_side,
)
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.refused_at import failure_at
from sardonyx.core.spec import JobSpec

if TYPE_CHECKING:
    from sardonyx.client.change import Making
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.job.load import LoadedJob

_BETWEEN_CLOCKS = 5 * LOOK_EVERY
"""Seconds between two looks at the clocks, which ask the consumer groups."""


def change_at(
    client: Client, handle: JobHandle, making: Making, loaded: LoadedJob, at: datetime | str | int, named: Sequence[str]
) -> int:
    """What :meth:`sardonyx.client.job_handle.JobHandle.change` does with ``at``: three changes, one after the other.

    Args:
        client: of the deployment.
        handle: of the job.
        making: of its changes.
        loaded: the new version.
        at: the time.
        named: tasks and queues of which the user has said that they go. None need be named.
    """
    client.settings.require("kafka")
    known, new = making.known, loaded.spec
    time_, number = _time(at)
    if settled(known.spec) == new:  # a command that was ended before it saw that, and is given again
        return making.written(known.revision)
    begun = pending(known.spec) or (None if known.next_spec is None else pending(known.next_spec))
    if begun is None:
        _begin(client, handle.id, making, loaded, time_, named, number=number)
    elif begun.at != time_ or not leads_to(known.next_spec or known.spec, new):
        raise rival(handle.id)
    elif known.next_spec is not None and pending(known.spec) is None:  # the first version is being made
        making.make(known.next_spec, [], loaded)
    try:
        return _end(handle, making, loaded)
    except SardonyxError as error:
        if error.code == "SX-JOB-ENDED" and making.completed:  # it has told all its rows apart
            return making.written(making.revision)
        raise


def _end(handle: JobHandle, making: Making, loaded: LoadedJob) -> int:
    """Close the old way when the clock has passed, and have it removed when it is read to its end."""
    new = loaded.spec
    if not _closed(making):
        _await_clock(handle, making)
        making.make(closed(making.known.spec, new), [], loaded)
    found = rewiring(graph_of(making.known.spec, "", ""), graph_of(new, "", ""))
    if found.gone:
        making.await_read(handle, [link.name for link in found.gone if link.kind == "internal"])
    return making.make(complete(making.known.spec, new), found.names, loaded)


def _time(at: datetime | str | int) -> tuple[int, bool]:
    """The time in microseconds, or a number of rows; and whether it is a number."""
    if isinstance(at, int):
        return at, True
    return (int(at), True) if isinstance(at, str) and at.isdecimal() else (moment(at), False)


def _begin(
    client: Client, job: str, making: Making, loaded: LoadedJob, at: int, named: Sequence[str], *, number: bool
) -> None:
    """Have both versions stand side by side. ``number``: the time is a number of rows."""
    known, new = making.known, loaded.spec
    old = settled(known.spec)
    gone = rewiring(graph_of(old, "", ""), graph_of(new, "", "")).names
    failure = change_failure(job, old, new, [*gone, *named], known.retired)
    if failure is None:
        failure = failure_at(job, old, new, making.same(known.spec, new, loaded), known.retired)
    if failure is not None:
        raise SardonyxError.from_failure(failure)
    refuse_finished(job, known, new)
    both = side_by_side(old, new, at)
    begun = pending(both)
    if begun is not None and begun.ordinal != number:
        have, given = ("numbers", "a time") if begun.ordinal else ("times", "a number")
        raise SardonyxError(
            "SX-JOB-CHANGE-AT",
            f"job {job} was not changed: its rows have {have}, and {given} was given",
            cause="the `time=` of their input tells rows apart",
            fix=f"give {'the number of a row' if begun.ordinal else 'a time, such as 2026-11-27T12:00:00Z'}",
            where={"job": job},
        )
    failure = change_failure(job, known.spec, both, (), known.retired)
    if failure is not None:
        raise SardonyxError.from_failure(failure)
    if loaded.code is not None and new.code is not None:
        client.put_code(node_paths.code(new.code), loaded.code)
    making.make(both, [], loaded)


def _closed(making: Making) -> bool:
    found = pending(making.known.spec)
    return found is not None and found.closed


def _await_clock(handle: JobHandle, making: Making) -> None:
    """Wait until no row that comes is older than the time of the change, late ones apart, and all that went the old way has given
    its results.
    """
    while True:
        making.look()
        known = making.known
        if known.suspended:
            raise not_now(handle.id, "it is suspended, so its clock stands still", "resume it, and try again")
        waits = pending(known.spec)
        if waits is None:  # another user has ended the change
            raise rival(handle.id)
        lack = _lacking(handle, known.spec, waits)
        if lack is None:
            return
        if making.over:
            raise Interrupted(
                "SX-JOB-CHANGE-PENDING",
                f"the change of job {handle.id} at {waits.time} is not complete yet; its rows are told apart by their times",
                cause=lack.text(waits),
                fix="give the same command again later; or give the change up: change the job to what it was, with `--drop`",
                where={"job": handle.id},
            )
        time.sleep(_BETWEEN_CLOCKS)


def _lacking(handle: JobHandle, spec: JobSpec, waits: Pending) -> Lack | None:
    """The first task whose clock is not far enough; None also if the job has just ended, and so cannot be asked."""
    try:
        return lacking(spec, waits, handle.clock())
    except SardonyxError as error:
        if error.code != "SX-CLOCK-GONE":
            raise
        return None


__all__ = ["change_at"]
