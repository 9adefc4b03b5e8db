"""What ``bench_web.py`` looks at: daemons and pages, and a job with a slow task behind an input without an end."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sardonyx import Job, blackhole, generator
from sardonyx.client.client import Client
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import Settings

PLACES = 4
"""Virtual peers of a daemon."""
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return row


def job_of() -> Job:
    job = Job("watched", partitions=2)
    read = job.input("read", generator(50_000_000, rate=100), batch_size=500)
    job.output("drop", blackhole(), after=job.task("slow", slow, after=read, batch_size=20))
    return job


class Watched(NamedTuple):
    """A deployment with pages, as a user starts them."""

    start: Callable[..., ChildProcess]
    """Starts one more process, by its name and the words of its command."""
    crew: list[ChildProcess]
    """Its peer daemons."""
    client: Client
    address: str
    """Of the pages."""


@contextlib.contextmanager
def deployment(settings: Settings, daemons: int) -> Iterator[Watched]:
    """A coordinator, so many peer daemons, and the pages, as processes of their own; they end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="sardonyx-bench-web-"))
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str) -> ChildProcess:
            words = [sys.executable, "-m", "sardonyx", *command]
            log = folder / f"{name}.log"
            return stack.enter_context(start_child(words, name=name, log_path=log, env=settings.environment()))

        start("coordinator", "coordinator")
        crew = [start(f"peer-{n}", "peer", "--virtual-peers", str(PLACES)) for n in range(daemons)]
        web = start("web", "web", "--port", "0")
        client = stack.enter_context(Client(settings=settings))
        while (address := ADDRESS.search(web.log_tail(50))) is None:
            time.sleep(0.2)
        yield Watched(start, crew, client, address[0])
    shutil.rmtree(folder, ignore_errors=True)
