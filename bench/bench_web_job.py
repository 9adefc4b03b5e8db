"""The job that ``bench_web.py`` looks at: one slow task behind an input that never ends by itself."""

from __future__ import annotations

import time
from typing import Any

from sardonyx import Job, blackhole, generator


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return row


def job_of() -> Job:
    job = Job("watched", partitions=2)
    read = job.input("read", generator(50_000_000, rate=100), batch_size=500)
    job.output("drop", blackhole(), after=job.task("slow", slow, after=read, batch_size=20))
    return job
