"""How long the page of the deployment takes to name what is wrong with three jobs: ``bench_web.py --part attention``.

They are what somebody who is new is to find on the page: a task that is too slow, a peer that is missing, and dead letters.
"""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

from bench_web_job import deployment, job_of

from sardonyx import Job, blackhole, generator
from sardonyx.runtime.settings import Settings

WITHIN = 120.0
"""Seconds after which we look no longer."""
NAMED = {
    "a slow task": ("watched", ("task-behind", "task-bottleneck", "task-stuck")),
    "a missing peer": ("waits", ("no-tag",)),
    "dead letters": ("letters", ("dead-letters",)),
}
"""What is wrong, the job, and the codes that say so."""


def refused(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"{row['id']} is not one of ours")


def others() -> tuple[Job, Job]:
    """One that asks for what no peer has, and one whose rows all become dead letters."""
    waits, letters = Job("waits", partitions=1), Job("letters", partitions=1)
    waits.output("drop", blackhole(), after=waits.input("read", generator(5_000_000, rate=20), tags=["gpu"]))
    read = letters.input("read", generator(5_000_000, rate=20))
    letters.output("drop", blackhole(), after=letters.task("refuse", refused, after=read, on_error="dead_letter"))
    return waits, letters


def attention(settings: Settings) -> dict[str, Any]:
    """Seconds until the page of the deployment, which is open all the time, names what is wrong with each job: from the job's
    submission, and for what only shows in rows from its first ones, which come when a peer has started Spark.
    """
    with deployment(settings, 2) as watched:
        while len(watched.client.peers()) < 8:
            time.sleep(0.1)
        handles = {job.name: watched.client.submit(job) for job in (job_of(), *others())}
        submitted = time.time()
        began = dict.fromkeys(handles, submitted)
        idle = {"watched", "letters"}
        found: dict[str, float | None] = dict.fromkeys(NAMED)
        while None in found.values() and time.time() < submitted + WITHIN:
            for name in sorted(idle):
                if handles[name].status().task("read").rows_out:
                    began[name] = time.time()
                    idle.discard(name)
            with urllib.request.urlopen(f"{watched.address}/api/v1/cluster", timeout=30) as answer:  # noqa: S310 - our own
                told = {(each["job"], each["code"]) for each in json.load(answer)["attention"]}
            for what, (name, codes) in NAMED.items():
                if found[what] is None and any((handles[name].id, code) in told for code in codes):
                    found[what] = round(time.time() - began[name], 1)
            time.sleep(0.5)
        for handle in handles.values():
            handle.kill()
    begun = {name: round(at - submitted, 1) for name, at in began.items()}
    return {"seconds": found, "first_rows_after_seconds": begun}
