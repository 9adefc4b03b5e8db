"""Waits for the end of a job, and says how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.cli import report
from sardonyx.cli.call import SILENCE, Call
from sardonyx.core.errors import Interrupted, JobFailed, SardonyxError

if TYPE_CHECKING:
    from sardonyx.client.client import JobHandle
    from sardonyx.client.views import JobView
    from sardonyx.core.spec import JobSpec


def upstream_of(spec: JobSpec) -> Mapping[str, Sequence[str]]:
    """Return by task the tasks whose rows go to it."""
    found: dict[str, list[str]] = {}
    for source, target in spec.workflow:
        found.setdefault(target, []).append(source)
    return found


def watch_to_end(call: Call, handle: JobHandle, *, timeout: float | None = None) -> JobView:
    """Show progress on stderr until the job has ended. Raises Interrupted ``SX-JOB-TIMEOUT``."""
    from sardonyx.cli.progress import progress
    from sardonyx.cli.unread import tell_rows_error

    silence = Silence(handle)
    with progress(call.error_console, upstream_of(handle.spec())) as shown:
        for view in handle.follow(timeout=timeout):
            tell_rows_error(call, view)
            shown.show(view, silence.remark(view, time.monotonic()))
    return view


class Silence:
    """Finds out what a job waits for when nothing has happened to it for a few seconds, or a task pauses after a failure."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle = handle
        self._last: object = None
        self._since = 0.0
        self._about: object = None
        self._why: str | None = None
        self._again = 0.0

    def remark(self, view: JobView, now: float) -> str | None:
        """What to say at this moment (seconds, monotonic), if anything."""
        state = (view.status, view.tasks)
        if state != self._last:
            self._last, self._since = state, now
        quiet = now - self._since >= SILENCE
        paused = [(task.name, task.failures) for task in view.tasks if task.backing_off]
        if not (quiet or paused or view.waits_for):
            return None
        about = view.status, view.waits_for, view.queued, paused
        if about != self._about or now >= self._again:  # not at each look: it may read the coordinator's log
            self._about, self._again = about, now + SILENCE
            self._why = self._handle.waiting(view, closely=quiet or bool(view.waits_for))
        return self._why


def tell_end(call: Call, view: JobView) -> int:
    """Say how a job ended, and give the exit code for it."""
    error = end_error(view)
    if error is not None:
        call.tell(error, report.as_data(view))
    elif call.json:
        call.put_json(view)
    else:
        from sardonyx.cli.tables import took

        call.put(f"job {view.id} is {view.status}, took {took(view)}")
    return report.exit_code_of(view.status if view.ended else "killed")


def end_error(view: JobView) -> SardonyxError | None:
    """Why a job ended otherwise than it should; None if it completed, or was stopped."""
    if view.status in ("completed", "stopped"):
        return None
    if view.status == "failed" and view.error is not None:
        return JobFailed.from_failure(view.error)
    what = "was killed" if view.ended else "is to be killed, but no coordinator has processed the request yet"
    return Interrupted("SX-JOB-KILLED", f"job {view.id} {what}", where={"job": view.id})
