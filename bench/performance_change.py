"""How long tasks stand still when a running job is changed: those that the change touches, and all others."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
from performance_restore import until
from performance_track import Feed, Track
from performance_watch import Daemons, daemons
from races import Row
from topic_to_topic import PARTITIONS, SCHEMA

from sardonyx import Job, kafka
from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job

STILL = 2.0
"""Seconds that a touched task may stand still, of 95 changes in 100."""
AS_EVER = 0.8
"""How the longest pause of an untouched task in a change may compare with that of the same time without one."""
RATE = 200
"""Records a second."""
CHANGES = 20
"""In each run; the first two are not counted."""
APART = 4.0
"""Seconds between two changes."""


def changed(track: Track, runs: int) -> list[Row]:
    """A task comes after ``work`` and goes again, or ``work`` gets another version. ``side`` reads the same topic beside it."""
    touched = Row("a change, a touched task stands still, p95", f"{STILL:g} s", 1, unit="s")
    beside = Row("a change, the longest pause of an untouched task, p95", "as long without a change", AS_EVER, unit="s")
    for _ in range(runs):
        found = one_run(track)
        for row, ours, theirs in (
            (touched, p95(found["work"]), STILL),
            (beside, p95(found["side"]), p95(found["side, without a change"])),
        ):
            row.ours.append(ours)
            row.theirs.append(theirs)
            row.ratios.append(theirs / ours)
        print(
            "  "
            + "; ".join(f"{name}: p95 {p95(each):.2f} s, at most {max(each):.2f} s" for name, each in found.items()),
            flush=True,
        )
    for row in (touched, beside):
        print(row.line(), flush=True)
    return [touched, beside]


def p95(seconds: list[float]) -> float:
    return float(np.quantile(seconds, 0.95))


def changed_job(source: str, targets: list[str], version: int, tap: str) -> Job:
    """``read -> work -> after -> write`` and ``read -> side -> beside``, and perhaps a tap after ``work``."""
    job = Job("bench-change", partitions=PARTITIONS)
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest"))
    work = job.task("work", pass_on, after=read, params={"version": version}, max_peers=1, batch_timeout="1 ms")
    after = job.task("after", pass_on, after=work, params={"version": 0}, max_peers=1, batch_timeout="1 ms")
    job.output("write", kafka(targets[0]), after=after)
    side = job.task("side", pass_on, after=read, params={"version": 0}, max_peers=1, batch_timeout="1 ms")
    job.output("beside", kafka(targets[1]), after=side)
    if tap:
        tapped = job.task(tap, pass_on, after=work, params={"version": 0}, max_peers=1, batch_timeout="1 ms")
        job.output(f"{tap}-out", kafka(targets[2]), after=tapped)
    return job


def pass_on(row: dict, version: int) -> dict:
    return {**row, "version": version}


def one_run(track: Track) -> dict[str, list[float]]:
    """Seconds of the longest pause between two commits around each change, by task; and how long each command took."""
    live = dataclasses.replace(track, source=track.target())
    targets = [live.target() for _ in range(3)]
    spans: list[tuple[float, float]] = []
    with daemons(live, 4, count=2) as found, Feed(live, RATE):
        handle = found.client.submit(load_job(changed_job(live.source, targets, 0, "")))
        until("records come", lambda: all(found.batches(task) for task in ("work", "after", "side")))
        version, tap = 0, ""
        for number in range(CHANGES):
            time.sleep(APART)
            drop: list[str] = []
            if number % 3 == 2:
                version += 1
            elif tap:
                drop, tap = [tap, f"{tap}-out"], ""
            else:
                tap = f"tap{number}"
            wanted = load_job(changed_job(live.source, targets, version, tap))
            began = time.time()
            change(handle, wanted, drop)
            spans.append((began, time.time()))
        time.sleep(APART)
        accepted = {task: lines(found, "task_accepted", task) for task in ("after", "side")}
        commits = {task: lines(found, "batch_committed", task) for task in ("work", "side")}
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
    counted = spans[2:]
    for task, times in accepted.items():
        moved = sum(any(began <= at <= ended + 1 for at in times) for began, ended in counted)
        print(f"  {task} got another peer in {moved} of {len(counted)} changes", flush=True)
    quiet = [(ended + 1.5, ended + 1.5 + (ended - began)) for began, ended in counted]
    return {
        "work": [longest(commits["work"], span) for span in counted],
        "side": [longest(commits["side"], span) for span in counted],
        "side, without a change": [longest(commits["side"], span) for span in quiet],
        "command": [ended - began for began, ended in counted],
    }


def change(handle: Any, wanted: Any, drop: list[str]) -> None:
    """As a user does; what an earlier change has removed may still be deleted."""
    while True:
        try:
            handle.change(wanted, "60 s", drop=drop)
        except SardonyxError as error:
            if error.code != "SX-JOB-CHANGE-NOW":
                raise
            time.sleep(0.1)
        else:
            return


def longest(times: list[float], span: tuple[float, float]) -> float:
    """The longest time between two commits, one after the other, which the span touches."""
    return max(
        (then - now for now, then in itertools.pairwise(times) if then > span[0] and now < span[1]),
        default=span[1] - span[0],
    )


def lines(found: Daemons, event: str, task: str) -> list[float]:
    """When peers have logged an event of a task, in seconds since 1970."""
    told = [line for peer in found.peers for line in str(peer.log_path and peer.log_path.read_text()).splitlines()]
    read = [msgspec.json.decode(line) for line in told if f'"{event}"' in line]
    return sorted(datetime.fromisoformat(line["timestamp"]).timestamp() for line in read if line.get("task") == task)
