"""Functions one behind the other: how many records a second go through all of them."""

from __future__ import annotations

import functools
import time
from typing import Any

from performance_track import STEPS, Track, chain_job
from performance_watch import daemons
from performance_windows import explain
from races import Row, raced

from sardonyx import Job
from sardonyx.job.load import load_job

LARGE = 100_000
"""Rows of a batch, where they go through many tasks; theirs take all that there is."""


def chain(track: Track, runs: int) -> list[Row]:
    """Four functions behind each other; and what it gives to fuse them."""
    title = f"chain of {STEPS} functions"

    def queued(*, fuse: bool = False) -> float:
        return chained(track, fuse=fuse)[0]

    def queries() -> float:
        return track.theirs("structured_streaming", work="chain", right=stepped).through

    rows = [
        raced(title, f"{STEPS} chained queries of Structured Streaming", 8, runs, queued, queries),
        raced(
            f"{title}, fused",
            "the same with a queue between each two",
            None,
            runs // 2 + 1,
            functools.partial(queued, fuse=True),
            queued,
        ),
    ]
    explain(track, rows, "chain", lambda where: where.completed(large(where, where.target()), STEPS))
    return rows


def large(track: Track, target: str, **options: Any) -> Job:
    """The chain with large batches."""
    return chain_job(track.source, target, batch_size=LARGE, **options)


def chained(track: Track, **options: Any) -> tuple[float, float]:
    """Records a second through the whole chain, and microseconds of processor time that the peer daemon, its JVM and its workers
    take for each.

    Not by the output's own speed, as elsewhere: one that comes in a few large batches, each behind all steps before it, would
    seem to be as fast as its last step.

    Args:
        track: where it runs.
        options: of :func:`performance_track.chain_job`.
    """
    target = track.target()
    began = time.time()
    with daemons(track, STEPS) as found:
        job = load_job(large(track, target, **options))
        worked = found.processor_seconds()
        view = found.client.submit(job).await_completion(900)
        ended, worked = time.time(), found.processor_seconds() - worked
        assert view.status == "completed", view
        first = found.batches("step0")[0]
        since = found.commits("step0").at[0] - (float(first["write_ms"]) + float(first["commit_ms"])) / 1000
    return track.landed(target, began, ended, right=stepped, since=since).through, worked / track.records * 1e6


def stepped(row: dict[str, Any]) -> bool:
    """For what went through the chain."""
    return all(row[f"step{number}"] == row["value"] * (number + 2) for number in range(STEPS))
