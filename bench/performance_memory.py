"""Whether a peer daemon's memory stays as it is: over many records, and with a slow task behind a fast one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from typing import Any

import numpy as np
import pyarrow as pa
from machine import machine
from performance_track import RESULTS, Feed, Track, filter_job, kept, smaller
from performance_watch import Commits, Daemons, Memory, daemons
from races import Row
from topic_to_topic import SCHEMA

from sardonyx import Job, blackhole, kafka
from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job

FLAT = 0.9
"""Least that memory at the beginning may be of memory at the end."""
SLOW_ROWS, SLOW_SECONDS = 1000, 1.0
"""Rows of a slow task's batch, and what its function sleeps for each."""
FASTER = 20
"""Records that come for each that the slow task could take."""


def memory(track: Track, _runs: int, records: int = 10_000_000) -> list[Row]:
    """One daemon, one long job from topic to topic; once, however many runs are asked for."""
    with smaller(track, records) as long:
        target = long.target()
        with daemons(long, long.peers) as found, Memory(found.peers[0].pid) as held:
            began = time.time()
            view = found.client.submit(load_job(filter_job(long.source, target))).await_completion(3600)
            ended = time.time()
            assert view.status == "completed", view
            done = found.commits("work")
        long.landed(target, began, ended, part=0.9)
    samples = np.array([sample for sample in held.samples if began < sample[0] < done.at[-1]])
    progress = np.interp(samples[:, 0], done.at, done.rows, left=0) / 1e6
    return flat("memory", f"over {records:,} records", samples, progress, "million records", {})


def slow(rows: pa.Table) -> pa.Table:
    """As one that asks something far away."""
    time.sleep(SLOW_SECONDS)
    return rows


def slow_task(track: Track, _runs: int, minutes: float = 10) -> list[Row]:
    """Records that come faster than the second of two tasks takes them; the first takes them all. Once."""
    live = dataclasses.replace(track, source=track.target())
    job = Job("bench-slow-task")
    read = job.input("read", kafka(live.source, schema=SCHEMA, start="earliest"))
    fast = job.task("fast", kept, after=read)
    job.output("slow", blackhole(), slow, after=fast, batch_size=SLOW_ROWS, max_peers=1)
    with daemons(live, 2) as found:
        handle = found.client.submit(load_job(job))
        with Feed(live, round(FASTER * SLOW_ROWS / SLOW_SECONDS)) as feed:
            await_first(found)
            with Memory(found.peers[0].pid) as held:
                time.sleep(minutes * 60)
            told = {"fed": feed.fed, "fast": taken(found.commits("fast")), "slow": taken(found.commits("slow"))}
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
    print(f"  slow_task: {told}", flush=True)
    assert told["fast"] > 10 * told["slow"], "the second task was not the slow one"
    samples = np.array(held.samples)
    return flat("slow_task", "behind a fast producer", samples, (samples[:, 0] - samples[0, 0]) / 60, "minutes", told)


def await_first(found: Daemons) -> None:
    """Until the slow task has committed something."""
    deadline = time.time() + 120
    while not found.batches("slow"):
        assert time.time() < deadline, "no record came through within two minutes"
        time.sleep(0.5)


def taken(commits: Commits) -> int:
    """Rows in all."""
    return int(commits.rows[-1])


def flat(name: str, what: str, samples: np.ndarray, progress: np.ndarray, unit: str, told: dict[str, Any]) -> list[Row]:
    """Memory between 10% and 20% of the way beside that between 90% and 100%; kept with all samples, and drawn.

    Args:
        name: of the files.
        what: happened meanwhile.
        samples: as of :class:`Memory`.
        progress: for each, how far it had come, in
        unit: these.
        told: more to be kept.
    """
    share = progress / progress[-1]
    rows: list[Row] = []
    figures: dict[str, Any] = {}
    for number, of in enumerate(Memory.OF):
        held = samples[:, number + 1]
        early, late = (float(held[(low <= share) & (share <= high)].mean()) for low, high in ((0.1, 0.2), (0.9, 1.0)))
        warm = share >= 0.1
        figures[of] = {
            "at_10_percent": float(held[warm][0]),
            "at_the_end": float(held[-1]),
            "most": float(held.max()),
            f"slope by {unit}": float(np.polyfit(progress[warm], held[warm], 1)[0]),
        }
        print(f"  {of} {what}, MiB: {figures[of]}", flush=True)
        goal = FLAT if number == 0 else None
        rows.append(
            Row(
                f"memory of {of} {what}",
                "itself at the beginning",
                goal,
                "MiB",
                ratios=[early / late],
                ours=[late],
                theirs=[early],
            )
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    all_of_it = {
        "machine": machine(),
        **told,
        "MiB": figures,
        "columns": ["at", *Memory.OF, unit],
        "samples": np.column_stack([samples, progress]).round(3).tolist(),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(all_of_it) + "\n")
    draw(name, progress, samples, unit)
    return rows


def draw(name: str, progress: np.ndarray, samples: np.ndarray, unit: str) -> None:
    """One line for each of :data:`Memory.OF`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for number, of in enumerate(Memory.OF):
        axes.plot(progress, samples[:, number + 1], label=of)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(unit)
    axes.set_ylabel("resident memory, MiB")
    axes.legend()
    figure.savefig(RESULTS / f"{name}.png", dpi=90)
    plt.close(figure)
