"""How many times as fast more virtual peers, and more peer daemons, are: reported beside the ideal, without a goal."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
from machine import machine
from performance_track import RESULTS, Track
from performance_watch import Daemons, daemons
from races import Row
from topic_to_topic import SCHEMA, create_topic, fill

from sardonyx import Job, kafka
from sardonyx.job.load import load_job

PARTITIONS = 8
BATCH = 500
"""Rows."""
ROUNDS = 200
"""Of a key derivation, for each row: about 0.1 ms on one core, 50 ms a batch."""
SETTLED, MEASURED = 2.0, 5.0
"""Seconds from when every peer has committed a batch until it is measured, and how long it is."""
RECORDS = 1_000_000
"""In the topic, more than anything here can read in time."""


def waits(rows: pa.Table) -> pa.Table:
    """10 ms a batch, as one that asks something near."""
    time.sleep(0.01)
    return rows


def burns(rows: pa.Table) -> pa.Table:
    """The same work for every row, on one core."""
    found = [hashlib.pbkdf2_hmac("sha256", key.encode(), b"salt", ROUNDS).hex() for key in rows["key"].to_pylist()]
    return rows.append_column("derived", pa.array(found))


FUNCTIONS: dict[str, Callable[[pa.Table], pa.Table]] = {"waits 10 ms a batch": waits, "burns processor": burns}


class Series(NamedTuple):
    """More and more of something."""

    of: str
    shapes: list[tuple[int, int]]
    """Daemons, and virtual peers of each."""
    master: str | None = None
    """Spark's, if not the default, which is as many tasks at a time as there are cores."""
    functions: tuple[str, ...] = tuple(FUNCTIONS)


SERIES = [
    Series("virtual peers in one daemon", [(1, n) for n in (1, 2, 4, 8)]),
    Series("daemons of one virtual peer", [(n, 1) for n in (2, 4)]),
    Series("virtual peers, Spark with 8 slots", [(1, 8)], "local[8]", ("waits 10 ms a batch",)),
]


def scaling(track: Track, runs: int) -> list[Row]:
    """Records a second from a topic to a topic, of 8 partitions each, in batches of 500, beside what one virtual peer in one
    daemon gives times the number of peers; for work that burns the processor, times the number of cores at most.
    """
    source = f"{track.settings.deployment}-wide"
    create_topic(track.settings, source, PARTITIONS)
    fill(track.settings, source, RECORDS, PARTITIONS)
    rows = {
        (series.of, shape, function): Row(f"{function}: {series.of}, {shape[0] * shape[1]}", "the ideal", None)
        for series in SERIES
        for shape in series.shapes
        for function in series.functions
    }
    for _ in range(runs):
        alone: dict[str, float] = {}
        for series in SERIES:
            for shape in series.shapes:
                with daemons(track, shape[1], count=shape[0], master=series.master) as found:
                    for function in series.functions:
                        row, peers = rows[series.of, shape, function], shape[0] * shape[1]
                        row.ours.append(rate(found, source, function, peers))
                        row.theirs.append(alone.setdefault(function, row.ours[-1]) * ideal(peers, function))
                        row.ratios.append(row.ours[-1] / row.theirs[-1])
                        print(f"  {row.bench}: {row.ours[-1]:,.0f} beside {row.theirs[-1]:,.0f}", flush=True)
    draw(rows)
    return list(rows.values())


def ideal(peers: int, function: str) -> int:
    """Times one peer."""
    return peers if FUNCTIONS[function] is waits else min(peers, psutil.cpu_count() or 1)


def rate(found: Daemons, source: str, function: str, peers: int) -> float:
    """Records a second that a job commits while all peers work on it; then it is ended."""
    job = Job("bench-scaling")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest"))
    task = f"work-{uuid.uuid4().hex[:6]}"  # its lines differ from those of the job before
    work = job.task(task, FUNCTIONS[function], after=read, batch_size=BATCH)
    job.output("write", kafka(f"{source}-{task}", partitions=PARTITIONS), after=work)
    handle = found.client.submit(load_job(job))
    deadline = time.time() + 90
    while len({batch["peer"] for batch in found.batches(task)}) < peers:
        assert time.time() < deadline, f"not all of {peers} peers had something to do within 90 s"
        time.sleep(0.5)
    began = time.time() + SETTLED
    time.sleep(SETTLED + MEASURED)
    commits = found.commits(task)
    assert commits.rows[-1] < RECORDS, "the topic was read to its end"
    handle.kill()
    while not handle.status().ended:
        time.sleep(0.2)
    first, last = np.interp([began, began + MEASURED], commits.at, commits.rows)
    return float(last - first) / MEASURED


def draw(rows: dict[tuple[str, tuple[int, int], str], Row]) -> None:
    """All figures, and a plot of each function: a line for each series, and the ideal."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    RESULTS.mkdir(parents=True, exist_ok=True)
    figures = {row.bench: {"records/s": row.ours, "ideal": row.theirs} for row in rows.values()}
    (RESULTS / "scaling.json").write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    figure, places = plt.subplots(1, len(FUNCTIONS), figsize=(10, 4.5), layout="constrained")
    for axes, function in zip(places, FUNCTIONS, strict=True):
        for series in SERIES:
            if function not in series.functions:
                continue
            found = [rows[series.of, shape, function] for shape in series.shapes]
            peers = [count * each for count, each in series.shapes]
            axes.plot(peers, [statistics.median(row.ours) for row in found], "o-", label=series.of)
            if series is SERIES[0]:
                axes.plot(peers, [statistics.median(row.theirs) for row in found], "k:", label="ideal")
        axes.set_title(function)
        axes.set_xlabel("virtual peers in all")
        axes.set_ylabel("records/s")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    figure.savefig(RESULTS / "scaling.png", dpi=90)
    plt.close(figure)
