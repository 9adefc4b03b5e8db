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
    """Seconds from the submission of each job until the page of the deployment, which is open, names what is wrong."""
    with deployment(settings, 2) as watched:
        while len(watched.client.peers()) < 8:
            time.sleep(0.1)
        submitted = {}
        for job in (job_of(), *others()):
            submitted[job.name] = time.time(), watched.client.submit(job)
        found: dict[str, float | None] = dict.fromkeys(NAMED)
        end = time.time() + WITHIN
        while None in found.values() and time.time() < end:
            with urllib.request.urlopen(f"{watched.address}/api/v1/cluster", timeout=30) as answer:  # noqa: S310 - our own
                told = {(each["job"], each["code"]) for each in json.load(answer)["attention"]}
            for what, (name, codes) in NAMED.items():
                began, handle = submitted[name]
                if found[what] is None and any((handle.id, code) in told for code in codes):
                    found[what] = round(time.time() - began, 1)
            time.sleep(0.5)
        for _, handle in submitted.values():
            handle.kill()
    return {"seconds": found}
