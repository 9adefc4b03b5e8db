"""From the start of the command `sardonyx run` to the first committed result, with ZooKeeper, Kafka and daemons of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from performance_alone import bare_spark
from performance_track import Track
from races import Row

RECORDS = 10_000
GOAL = 3.0
"""Seconds that windows may take, from a warm disk."""

WINDOWS = """
from sardonyx import Count, Job, event_time, files, tumbling
job = Job("first")
read = job.input("read", files("in.json", format="json", schema="key long, at timestamp"), time=event_time("at", delay="1 s"))
found = job.window("work", tumbling("1 min"), after=read, group_by="key", aggregate={"hits": Count()})
job.output("write", files("out", format="json"), after=found)
"""
FUNCTIONS = """
import pyarrow as pa
from sardonyx import Job, files
def work(rows: pa.Table) -> pa.Table:
    return rows
job = Job("first")
read = job.input("read", files("in.json", format="json", schema="key long, at timestamp"))
job.output("write", files("out", format="json"), after=job.task("work", work, after=read))
"""


def first_result(_track: Track | None, runs: int) -> list[Row]:
    """Ours in turn: windows, for which no Spark starts, and a function; and the start of a bare Spark session."""
    rows = [
        Row("`sardonyx run` of 10,000 records, start to the first result, windows", "the limit of 3 s", 1, unit="s"),
        Row("the same, a function of tables", "start of a bare Spark session, with a first job", None, unit="s"),
    ]
    ran("warm", WINDOWS)  # the disk, and what is made once for each machine
    beside: list[Callable[[], float]] = [lambda: GOAL, bare_spark]
    for _ in range(runs):
        for row, job, theirs in zip(rows, (WINDOWS, FUNCTIONS), beside, strict=True):
            row.ours.append(ran("first", job))
            row.theirs.append(theirs())
            row.ratios.append(row.theirs[-1] / row.ours[-1])
            print(f"  {row.bench}: {row.ours[-1]:.2f} beside {row.theirs[-1]:.2f} s", flush=True)
    for row in rows:
        print(row.line(), flush=True)
    return rows


def ran(name: str, job: str) -> float:
    """Run a job to its end; the seconds to its first file of results. An output has a file when the rows in it are committed."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("SARDONYX__")}
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as temporary:
        folder = Path(temporary)
        (folder / "job.py").write_text(job)
        seconds = (number * 600 // RECORDS for number in range(RECORDS))
        moments = (f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z" for second in seconds)
        lines = (json.dumps({"key": number % 100, "at": at}) for number, at in enumerate(moments))
        (folder / "in.json").write_text("\n".join(lines))
        began, first = time.perf_counter(), None
        with subprocess.Popen(
            [sys.executable, "-m", "sardonyx", "run", "job.py"],
            cwd=folder,
            env=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while first is None and process.poll() is None:
                if any((folder / "out").glob("part-*")):
                    first = time.perf_counter() - began
                time.sleep(0.005)
            said = process.communicate()[1]
        assert process.returncode == 0, said
        assert first is not None, f"it ended before its results were seen:\n{said}"
        return first
