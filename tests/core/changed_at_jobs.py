"""Two versions of a job, for changes at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from peer.sinks import EdgeFilter
from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.functions import import_function

AT = 1_000
TIME = event_time("at", unit="us", delay="0.01 ms")
MINUTE = 60_000_000
NOON = int(datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()) * 1_000_000


def same(row: dict) -> dict:
    return row


def other(row: dict) -> dict:
    return row


def a_job(*parts: str, time: Any = TIME, **settings: Any) -> JobSpec:
    """``read -> label -> out``, and what is named: ``old``, ``new`` and ``more`` after label, each with an output; ``counted``:
    windows after label; ``copy`` and ``copy2``: tasks that read the topic of ``plain``, another input, in place; ``first`` or
    ``second`` between label and out; ``changed``: label has another function.
    """
    job = Job("job", **{"partitions": 2, **settings})
    read = job.input("read", kafka("in", schema="n long, at long", start="earliest"), fn=same, time=time)
    last = job.task("label", other if "changed" in parts else same, after=read)
    for name in ("old", "new", "more"):
        if name in parts:
            job.output(f"{name}-out", kafka(name), after=job.task(name, same, after=last))
    if "counted" in parts:
        window = job.window("counted", tumbling("1 min"), after=last, aggregate={"hits": Count()})
        job.output("counted-out", kafka("counted"), after=window)
    if "plain" in parts:
        plain = job.input("plain", kafka("plain", schema="n long, at long", start="earliest"), time=time)
        job.output("kept", kafka("kept"), after=job.task("keep", same, after=plain))
        for name in ("copy", "copy2"):
            if name in parts:
                job.output(f"{name}-out", kafka(name), after=job.task(name, same, after=plain))
    for name in ("first", "second"):
        if name in parts:
            last = job.task(name, same, after=last)
    job.output("out", kafka("out"), after=last)
    return job.spec()


def stages(spec: JobSpec) -> list[str]:
    """The names of its tasks."""
    return [stage.name for stage in graph_of(spec, "", "").stages]


def over(spec: JobSpec, name: str) -> EdgeFilter:
    """What of a task's rows goes over a link."""
    (link,) = (link for stage in graph_of(spec, "", "").stages for link in stage.egress if link.name == name)
    return EdgeFilter(link, import_function)


def table(rows: list[tuple[int, int]]) -> pa.Table:
    """Rows with a number and a time."""
    return pa.table({"n": pa.array([n for n, _ in rows], pa.int64()), "at": pa.array([t for _, t in rows], pa.int64())})
