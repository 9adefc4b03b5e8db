"""What it costs to be looked at: the first job of the page with metrics that are scraped and with telemetry, and without."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence

from performance_track import Track, filter_job
from performance_watch import Daemons, daemons
from races import Row, paired

from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job
from sardonyx.runtime.settings_sections import MetricsSettings
from sardonyx.web.targets import Targets

GOAL = 0.99
"""Of the processor time without it."""
EVERY = 5.0
"""Seconds between two scrapes of each daemon; Prometheus' default is a minute."""
PART = 0.9
"""Of the records that the job writes."""


def observed(track: Track, runs: int) -> Sequence[Row]:
    """By the clock, and by the time on a processor that the peer daemon, its JVM and its workers take. Two runs of one job differ
    by a tenth and more by the clock, so the goal is about the other; and runs are nearly twice as many as elsewhere.
    """
    shown = MetricsSettings(listen="127.0.0.1:0", telemetry=True)
    watched = dataclasses.replace(track, settings=track.settings.model_copy(update={"metrics": shown}))
    title = "topic to topic, filter and map, with metrics and telemetry"
    return paired(
        [
            Row(title, "the same without", None),
            Row(f"{title}, processor", "the same without", GOAL, unit="µs a record", fine=True),
        ],
        2 * runs - 1,
        functools.partial(once, watched),
        functools.partial(once, track.beside),
    )


def once(track: Track) -> tuple[float, float]:
    """Records a second, and microseconds of processor time of each, in one run."""
    target, began = track.target(), time.time()
    with daemons(track, track.peers, quiet=True) as found, scraped(track, found):
        before = found.processor_seconds()
        view = found.client.submit(load_job(filter_job(track.source, target))).await_completion(900)
        ended, spent = time.time(), found.processor_seconds() - before
    assert view.status == "completed", view
    return track.landed(target, began, ended, PART).steady, spent / track.records * 1e6


@contextlib.contextmanager
def scraped(track: Track, found: Daemons) -> Iterator[None]:
    """Ask each daemon for its metrics as long as the block runs, if it serves them."""
    if track.settings.metrics.listen is None:
        yield
        return
    targets, over, answers = Targets(found.client.zk, track.settings.deployment), threading.Event(), list[int]()

    def run() -> None:
        while not over.wait(EVERY):
            with contextlib.suppress(SardonyxError, OSError):
                for place in (place for each in targets.now() for place in each.targets):
                    with urllib.request.urlopen(f"http://{place}/metrics", timeout=EVERY) as answer:
                        answers.append(len(answer.read()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        assert answers, "no daemon was scraped: let the run take longer"
    finally:
        over.set()
        thread.join()
