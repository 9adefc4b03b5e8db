"""Where the time of a job's batches went, by task and step: what ``run --profile`` shows.

Read from the metrics that the peer daemon wrote into a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from peer.peer_metrics import BATCHES, ROWS, STEP_SECONDS
from sardonyx.cli.tables import number, plain
from sardonyx.core.errors import SetupError
from sardonyx.core.names import job_name
from sardonyx.runtime.metrics import read_snapshot

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.runtime.settings import Settings

STEPS = ("wait", "decode", "restore", "state", "spark", "function", "encode", "write", "commit", "publish")
"""Of a batch, as :class:`peer.step_timer.StepTimer` measures them: until there are enough rows; messages into rows; state made
again from its log; the rows of a task with state into changes of it, and these into the store; the way to Spark's workers and
back; the function there, on the one where it takes longest; rows into messages; messages and positions into the transaction; its
commit, with all that is still on its way to the brokers; files made visible."""

_OF_STATE = ("restore", "state")
"""Only of tasks with state."""


class TaskProfile(msgspec.Struct):
    """One task's batches, of all its peers together."""

    task: str
    batches: int = 0
    rows: int = 0
    seconds: dict[str, float] = {}
    """By step. Steps of several peers run at once, so these add up to more than the job took."""


def profiled(settings: Settings, file: Path) -> Settings:
    """The same settings for a peer daemon that is to write its metrics into this file."""
    return settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"file": file})})


def must_be_ours(*, ours: bool) -> None:
    """Raises SetupError ``SX-PROFILE-ELSEWHERE`` if the peers run elsewhere, and their metrics are not at hand."""
    if not ours:
        raise SetupError(
            "SX-PROFILE-ELSEWHERE",
            "Only peers that this command starts can be profiled.",
            cause="The job would run on the peers of the configured cluster, which keep their metrics to themselves.",
            fix="start peers here with --peers N, or set metrics.file for the peer daemons and read these files",
        )


def read_profile(file: Path, job: str) -> list[TaskProfile]:
    """What a peer daemon's metrics tell of the jobs with the name of this one; tasks in the order of their first batch."""
    snapshot, name = read_snapshot(file), job_name(job)
    found = {
        series.labels["task"]: TaskProfile(series.labels["task"], int(series.value), seconds=dict.fromkeys(STEPS, 0.0))
        for series in snapshot.series(BATCHES.name)
        if series.labels["sx_job"] == name and series.labels["outcome"] == "committed"
    }
    for series in snapshot.series(ROWS.name):
        if series.labels["sx_job"] == name and series.labels["what"] == "in":
            found[series.labels["task"]].rows = int(series.value)
    for series in snapshot.series(STEP_SECONDS.name):
        # A task without rows may have steps: its state may be restored before a first row.
        if series.labels["sx_job"] == name and series.labels["task"] in found:
            found[series.labels["task"]].seconds[series.labels["step"]] = series.value
    return list(found.values())


def profile_table(profiles: Sequence[TaskProfile]) -> Table:
    """One line a task: microseconds a row by step. Steps of state are there if a task has any."""
    stateful = any(profile.seconds[step] for profile in profiles for step in _OF_STATE)
    shown = [step for step in STEPS if stateful or step not in _OF_STATE]
    table = plain("task", "batches", "rows a batch", *(f"{step} us/row" for step in shown))
    for profile in profiles:
        rows = max(profile.rows, 1)
        steps = [f"{profile.seconds[step] / rows * 1e6:.2f}" for step in shown]
        table.add_row(profile.task, number(profile.batches), number(round(rows / profile.batches)), *steps)
    return table
