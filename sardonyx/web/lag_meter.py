"""How far jobs are behind, for Prometheus: asked from Kafka now and then as long as something scrapes, whatever the number of
scrapes. A scrape asks nothing: it gets what was last told, and when.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from sardonyx.client.lags import LinkLag
from sardonyx.core.names import job_name
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.metrics import REGISTRY

EVERY = 30.0
"""Seconds between two questions to Kafka about one job, at least."""
SHARE = 4
"""Kafka is asked for at most one part of so many of the time, over all jobs."""
WANTED = 300.0
"""Seconds for which Kafka is asked after a scrape."""
LOOK = 1.0
"""Seconds between two looks whether a job is to be asked about."""
RELEASE_EVERY = 3600.0
"""Seconds between two questions to Kafka about its release."""
LINKS, JOBS = 3_000, 200
"""Series of a metric by link or task, and of one by job."""

log = structlog.get_logger()

UNREAD = REGISTRY.gauge(
    "sardonyx_link_unread_rows",
    "Rows of a link of a running job that its task has not read; exact between tasks, at most so many in a topic of yours.",
    ["sx_job", "link"],
    most=LINKS,
)
OLDEST = REGISTRY.gauge(
    "sardonyx_link_oldest_unread_seconds",
    "How long the oldest unread row of a link has waited; 0 if none does.",
    ["sx_job", "link"],
    most=LINKS,
)
BEHIND = REGISTRY.gauge(
    "sardonyx_task_event_time_behind_seconds",
    "How far the clock of a task is behind the time of day, in jobs whose inputs have times.",
    ["sx_job", "task"],
    most=LINKS,
)
SAMPLED = REGISTRY.gauge(
    "sardonyx_job_lag_timestamp_seconds",
    "When Kafka told what the three metrics above say of a job, in seconds since 1970.",
    ["sx_job"],
    most=JOBS,
)
LOSES_ENDS = REGISTRY.gauge(
    "sardonyx_kafka_loses_ends",
    "1 if the brokers are of a release that loses the ends of transactions when it restarts (4.3.0 or later), else 0.",
    most=1,
)

Values = Mapping[tuple[str, ...], float]


class JobLag(msgspec.Struct, frozen=True):
    """How far a job is behind, as Kafka said at one moment. What is not known is left out."""

    unread: dict[str, int]
    """By link, how many rows are unread."""
    oldest: dict[str, float]
    """By link, how many seconds the oldest of them has waited."""
    behind: dict[str, float]
    """By task, how many seconds its clock is behind the time of day."""


NOTHING = JobLag({}, {}, {})


def job_lag(lags: Iterable[LinkLag], behind: Mapping[str, float]) -> JobLag:
    """How far a job is behind, by what is unread on its links. A split is no row, and waits since the job began, however fast it
    reads: its age says nothing.
    """
    of_rows = [lag for lag in lags if lag.unit == "records"]
    return JobLag(
        {lag.link: lag.records for lag in of_rows if lag.records is not None},
        {lag.link: lag.seconds for lag in of_rows if lag.seconds is not None},
        dict(behind),
    )


class LagMeter:
    """Asks about all running jobs, one after the other. :meth:`run` needs a thread of its own; all else may be called from any.

    Args:
        jobs: gives the running jobs.
        ask: asks Kafka about one.
        loses_ends: asks Kafka whether it is of a release that loses the ends of transactions; None: it does not tell.
        runtime: time and threads.
    """

    def __init__(
        self,
        jobs: Callable[[], Mapping[str, JobSpec]],
        ask: Callable[[str, JobSpec], JobLag],
        loses_ends: Callable[[], bool | None],
        runtime: Runtime = REAL,
    ) -> None:
        self._jobs = jobs
        self._ask = ask
        self._loses_ends = loses_ends
        self._release: bool | None = None
        self._release_at = -math.inf
        self._runtime = runtime
        self._lock = threading.Lock()
        self._wanted = runtime.signal()
        self._closed = runtime.signal()
        self._wanted_until = 0.0
        self._asked: dict[str, float] = {}
        """When Kafka was asked about each job last, by the clock that only goes forwards."""
        self._known: dict[str, tuple[float, JobLag]] = {}
        """What it said last, and when, in seconds since 1970. Of a job about which the last question got no answer, when only."""

    def follow(self) -> None:
        """Have the metrics of this process read from here."""
        UNREAD.follow(lambda: self._values(lambda lag: lag.unread, sum))
        OLDEST.follow(lambda: self._values(lambda lag: lag.oldest, max))
        BEHIND.follow(lambda: self._values(lambda lag: lag.behind, max))
        SAMPLED.follow(self._times)
        LOSES_ENDS.follow(self._of_release)

    def close(self) -> None:
        """Make :meth:`run` return soon."""
        self._closed.set()
        self._wanted.set()

    def run(self) -> None:
        """Ask while something scrapes, until :meth:`close`."""
        while not self._closed.is_set():
            if not self._is_wanted:
                self._wanted.wait()
                self._wanted.clear()
                continue
            began = self._runtime.now()
            self.step()
            took = self._runtime.now() - began
            self._closed.wait(max((SHARE - 1) * took, LOOK))

    def step(self) -> None:
        """Ask about the job that was asked about the longest ago, if it is time to."""
        jobs, now = self._jobs(), self._runtime.now()
        if now - self._release_at >= RELEASE_EVERY:
            self._release_at, self._release = now, self._loses_ends()
        with self._lock:
            self._asked = {job: at for job, at in self._asked.items() if job in jobs}
            self._known = {job: known for job, known in self._known.items() if job in jobs}
            due = [(at, job) for job in jobs if (at := self._asked.get(job, -math.inf)) <= now - EVERY]
            if not due:
                return
            job = min(due)[1]
            self._asked[job] = now
        try:
            known = self._runtime.wall(), self._ask(job, jobs[job])
        except Exception as error:  # noqa: BLE001 - it asks again later, and a scrape gets the time of the last answer
            log.info("lag_unknown", job=job, error=f"{type(error).__name__}: {error}")
            with self._lock:
                at, _ = self._known.get(job, (0.0, NOTHING))
                self._known[job] = at, NOTHING
            return
        with self._lock:
            self._known[job] = known

    @property
    def _is_wanted(self) -> bool:
        return self._runtime.now() < self._wanted_until

    def _samples(self) -> dict[str, tuple[float, JobLag]]:
        """What is known; and ask for more, as long as it is read."""
        with self._lock:
            if not self._is_wanted:  # what was known then is too old by now
                self._asked, self._known = {}, {}
            self._wanted_until = self._runtime.now() + WANTED
            self._wanted.set()
            return dict(self._known)

    def _values(
        self, part: Callable[[JobLag], Mapping[str, float]], together: Callable[[Iterable[float]], float]
    ) -> Values:
        """By the name of a job, and of a link or task. Runs of one job that go at the same time stand together."""
        found: dict[tuple[str, ...], list[float]] = {}
        for job, (_, lag) in self._samples().items():
            for name, value in part(lag).items():
                found.setdefault((job_name(job), name), []).append(value)
        return {labels: together(values) for labels, values in found.items()}

    def _of_release(self) -> Values:
        self._samples()
        return {} if self._release is None else {(): float(self._release)}

    def _times(self) -> Values:
        found: dict[tuple[str, ...], float] = {}
        for job, (at, _) in self._samples().items():
            if at:
                labels = (job_name(job),)
                found[labels] = min(at, found.get(labels, at))
        return found
