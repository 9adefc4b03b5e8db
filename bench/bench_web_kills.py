"""How long it takes from a decision until a browser shows it, while a job runs under kills: ``bench_web.py --part decision``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_web_job import PLACES, deployment, job_of

from sardonyx.runtime.child_process import ChildProcess
from sardonyx.runtime.settings import Settings

SEED = 11
GOAL = 0.5
"""Seconds from a decision to the page, of 99 in 100."""
WATCH = """() => {
  window.seen = [];
  let last = 0;
  const look = () => {
    const newest = document.querySelector(".entries a.n");
    const n = newest ? Number(newest.textContent.replaceAll(",", "")) : 0;
    if (n > last) seen.push([(last = n), (performance.timeOrigin + performance.now()) / 1000]);
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
  look();
}"""
"""Writes down when the newest entry about the job comes into the page."""


def decision(settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """By how many look: seconds from a decision about the job to the page of one browser. All run on this machine."""
    with deployment(settings, 2) as watched:
        handle = watched.client.submit(job_of())
        while (handle.status().task("slow").rows_in or 0) < 100:
            time.sleep(0.2)
        found = {}
        for count in (1, args.viewers):
            with _crowd(watched.address, handle.id, count - 1):
                found[str(count)] = _watched(watched.address, handle.id, watched.crew, watched.start, args)
        handle.kill()
    return {"by_viewers": found, "goal_s": GOAL, "seconds": args.seconds, "kill_every_s": args.kill_every}


@contextlib.contextmanager
def _crowd(address: str, job: str, count: int) -> Iterator[None]:
    """So many others that look at the job."""
    if not count:
        yield
        return
    port = address.rpartition(":")[2]
    script = Path(__file__).with_name("bench_web.py")
    looking = subprocess.Popen(
        [sys.executable, str(script), "--look", str(count), "--port", port, "--job", job], stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        looking.terminate()
        looking.wait()


def _watched(address: str, job: str, crew: list[ChildProcess], start: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Kill one of two daemons every few seconds, and start another, while a browser looks."""
    from playwright.sync_api import sync_playwright

    rng = random.Random(SEED)  # noqa: S311 - repeatable, not secret
    path = os.environ.get("SARDONYX_TEST_BROWSER") or shutil.which("chromium")
    kills = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{address}/jobs/{job}")
        page.locator(".entries a.n").first.wait_for(timeout=60_000)
        page.evaluate(WATCH)
        begin = time.monotonic()
        while time.monotonic() - begin < args.seconds:
            page.wait_for_timeout(args.kill_every * 1000)
            doomed = crew.pop(rng.randrange(len(crew)))
            doomed.signal(signal.SIGKILL)
            kills += 1
            crew.append(start(f"peer-{time.monotonic_ns()}", "peer", "--virtual-peers", str(PLACES)))
        page.wait_for_timeout(3000)
        seen = page.evaluate("seen")
        browser.close()
    return {**latencies(seen, _entries(address, job)), "kills": kills}


def _entries(address: str, job: str) -> list[tuple[int, float]]:
    """The entries about the job, and when the coordinator took each in."""
    found: list[tuple[int, float]] = []
    path: str | None = f"/api/v1/log?job={job}&limit=1000"
    while path:
        with urllib.request.urlopen(address + path, timeout=30) as answer:  # noqa: S310 - our own server
            page = json.load(answer)
        found += [(line["n"], line["at"]) for line in page["items"]]
        path = page["next"]
    return sorted(found)


def latencies(seen: list[tuple[int, float]], entries: list[tuple[int, float]]) -> dict[str, Any]:
    """From when each entry was taken in until the page first showed it, or a later one.

    Args:
        seen: newest entry in the page, and when it came; in order.
        entries: those about the job, and when each was taken in.
    """
    took = []
    for n, at in entries:
        if seen[0][0] < n <= seen[-1][0]:
            took.append(next(when for newest, when in seen if newest >= n) - at)
    took.sort()
    return {
        "entries": len(took),
        "ms_median": round(statistics.median(took) * 1e3),
        "ms_p99": round(took[int(0.99 * (len(took) - 1))] * 1e3),
        "ms_most": round(took[-1] * 1e3),
        "met": took[int(0.99 * (len(took) - 1))] <= GOAL,
    }
