"""The job that fault runs roll back and replay: its rows, what it keeps of them, and what it gives."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from queues import topics
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.settings import Settings
from sardonyx.state.look import printable
from tests.faults.cluster import now

PARTITIONS = 3
USERS = 7
"""Users from this one on are those of fences: rows that only bring the clocks to a time."""
DELAY = 20
"""Seconds by which rows are out of order at most."""
WINDOW = 90
START = datetime(2026, 11, 26, 10, tzinfo=UTC)

_JOB = """
from sardonyx import Count, Job, MapState, State, Sum, event_time, kafka, tumbling

def keep(row: dict, count: State[int], total: State[int], seen: MapState[int, int]) -> dict:
    new = int(not count.value)
    count.value += 1
    total.value += row["n"]
    seen[row["n"]] = seen.get(row["n"], 0) + 1
    return {{**row, "new": new}}

job = Job("{name}", partitions=3, checkpoint_every="1 min")
read = job.input("read", kafka("{given}", schema="user long, n long, at timestamp", start="earliest"),
                 time=event_time("at", delay="{delay} s"))
kept = job.keyed("keep", keep, after=read, group_by="user", batch_size=100)
totals = {{"hits": Count(), "new": Sum("new")}}
counted = job.window("count", tumbling("{window} s"), after=kept, group_by="user", aggregate=totals)
job.output("out", kafka("{sums}"), after=counted)
"""

Row = dict[str, Any]


class Window(NamedTuple):
    """The rows of one user and a time. Each of them says whether its user was new: nothing was kept of it."""

    user: int
    begin: int
    """Seconds from the start."""


class Result(NamedTuple):
    window: Window
    hits: int
    new: int


def spec_of(name: str, given: str, sums: str, delay: int = DELAY) -> str:
    """The file that declares the job."""
    return _JOB.format(name=name, given=given, sums=sums, delay=delay, window=WINDOW)


def row_of(number: int, rng: random.Random) -> Row:
    """A row each second; each is some seconds older."""
    late = rng.randint(0, DELAY) if number > DELAY else 0
    at = START + timedelta(seconds=number - late)
    return {"user": rng.randrange(USERS), "n": number, "at": at.isoformat()}


def at_of(row: Row) -> datetime:
    return datetime.fromisoformat(row["at"])


def second_of(time: datetime) -> int:
    """Seconds from the start to a time."""
    return round((time - START).total_seconds())


def window_of(row: Row) -> Window:
    return Window(row["user"], second_of(at_of(row)) // WINDOW * WINDOW)


def windows_of(rows: Iterable[Row]) -> Counter[Window]:
    """How many rows each window has."""
    return Counter(map(window_of, rows))


def write(settings: Settings, topic: str, rows: Iterable[Row]) -> None:
    topics.write(settings, topic, [json.dumps(row).encode() for row in rows], PARTITIONS)


def fence(settings: Settings, topic: str, time: datetime) -> None:
    """A row of that time in each partition."""
    write(settings, topic, [{"user": USERS + n, "n": -1, "at": time.isoformat()} for n in range(PARTITIONS)])


def clock_of(handle: JobHandle) -> int:
    """That of the task which is behind all others; -1: it cannot be told at the moment."""
    with contextlib.suppress(SardonyxError):
        return min(-1 if task.clock is None else task.clock for task in handle.clock().tasks)
    return -1


def results_of(settings: Settings, topic: str) -> list[Result]:
    """What was given for windows, but for those of fences."""
    found = []
    for _, value in topics.read_committed(settings, topic):
        row = json.loads(value or b"{}")
        begin = second_of(datetime.fromisoformat(row["window_start"]).replace(tzinfo=UTC))
        if row["user"] < USERS:
            found.append(Result(Window(row["user"], begin), row["hits"], row["new"]))
    return found


def states_of(handle: JobHandle, at: datetime | None = None) -> dict[str, list[bytes]] | None:
    """By task, the lines that ``state export`` prints, but for those of fences. None: the checkpoint is not kept any more."""
    deadline = now() + 60
    while now() < deadline:
        try:
            return {task: _lines(handle, task, at) for task in ("keep", "count")}
        except SardonyxError as error:  # its positions go on meanwhile
            if error.code == "SX-CHECKPOINT-UNKNOWN":
                return None
    raise AssertionError("the state is not told")


def _lines(handle: JobHandle, task: str, at: datetime | None) -> list[bytes]:
    rows = list(handle.state(task, at=at))
    users = [row["user"] if isinstance(row, dict) else row.key[0] for row in rows]
    lines = [msgspec.json.encode(printable(row)) for row, user in zip(rows, users, strict=True) if user < USERS]
    return sorted(lines)


def kept_of(rows: Iterable[Row]) -> dict[int, dict[str, Any]]:
    """By user, the states of ``keep`` after these rows."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["user"], []).append(row["n"])
    return {
        user: {"count": len(own), "total": sum(own), "seen": [[n, 1] for n in sorted(own)]}
        for user, own in found.items()
    }


__all__ = [
    "DELAY",
    "PARTITIONS",
    "START",
    "USERS",
    "WINDOW",
    "Result",
    "Row",
    "Window",
    "at_of",
    "clock_of",
    "fence",
    "kept_of",
    "results_of",
    "row_of",
    "second_of",
    "spec_of",
    "states_of",
    "window_of",
    "windows_of",
    "write",
]
