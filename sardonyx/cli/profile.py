"""Where the time of a job's batches went, by task and step: what ``run --profile`` shows.

Read from the log of the peer daemon, which tells of each committed batch when debugging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sardonyx.cli.tables import number, plain
from sardonyx.core.errors import SetupError

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.runtime.settings import Settings

STEPS = ("wait", "decode", "spark", "function", "encode", "write", "commit", "publish")
"""Of a batch, as :class:`peer.task_runner.StepClock` names them: until there are enough rows; messages into rows; the way to
Spark's workers and back; the function there, on the one where it takes longest; rows into messages; messages and positions
into the transaction; its commit, with all that is still on its way to the brokers; files made visible."""


class TaskProfile(msgspec.Struct):
    """One task's batches, of all its peers together."""

    task: str
    batches: int = 0
    rows: int = 0
    seconds: dict[str, float] = {}
    """By step. Steps of several peers run at once, so these add up to more than the job took."""


def profiled(settings: Settings) -> Settings:
    """The same settings for daemons whose log is read here afterwards."""
    return settings.model_copy(update={"log": settings.log.model_copy(update={"level": "debug", "format": "json"})})


def must_be_ours(*, ours: bool) -> None:
    """Raises SetupError ``SX-PROFILE-ELSEWHERE`` if the peers are none of ours, and their logs lie elsewhere."""
    if not ours:
        raise SetupError(
            "SX-PROFILE-ELSEWHERE",
            "only peers that are started here can be profiled",
            cause="the job would run on the peers of the configured cluster, whose logs lie with them",
            fix="start some here with --peers N, or set log.level to debug there and look for 'batch committed'",
        )


def read_profile(log: Path, job: str) -> list[TaskProfile]:
    """What the daemon's log tells of a job, tasks in the order of their first batch."""
    found: dict[str, TaskProfile] = {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in _batches(lines, job):
            profile = found.setdefault(line["task"], TaskProfile(line["task"]))
            profile.batches += 1
            profile.rows += line["rows_in"]
            for step in STEPS:
                profile.seconds[step] = profile.seconds.get(step, 0.0) + line.get(f"{step}_ms", 0.0) / 1000
    return list(found.values())


def _batches(lines: Iterable[str], job: str) -> Iterable[dict[str, Any]]:
    for line in lines:
        if '"batch committed"' in line and f'"{job}"' in line:
            yield msgspec.json.decode(line)


def profile_table(profiles: Sequence[TaskProfile]) -> Table:
    """One line a task: microseconds a row by step."""
    table = plain("task", "batches", "rows a batch", *(f"{step} us/row" for step in STEPS))
    for profile in profiles:
        rows = max(profile.rows, 1)
        steps = [f"{profile.seconds[step] / rows * 1e6:.2f}" for step in STEPS]
        table.add_row(profile.task, number(profile.batches), number(round(rows / profile.batches)), *steps)
    return table
