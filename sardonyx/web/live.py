"""A running deployment, followed as a reader: one session with ZooKeeper, however many look. Kafka is asked about a job while its
page, or that of the deployment, is open.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec
import structlog

from coordinator.history import reader
from coordinator.loop import event_log
from queues.client import client_config
from queues.kafka_release import loses_ends
from sardonyx.client.client import Client
from sardonyx.client.clocks import counts_rows, seconds_behind
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.lags import LinkLag
from sardonyx.client.waiting import requests_waiting
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.notes import EpochNote
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.certificates import ends
from sardonyx.runtime.daemon_metrics import CERTIFICATES
from sardonyx.runtime.settings import Settings
from sardonyx.web.actions import Actions
from sardonyx.web.batches import Batches, LiveBatches, NoBatches
from sardonyx.web.book import Book, Words
from sardonyx.web.lag_meter import JobLag, LagMeter, job_lag
from sardonyx.web.page_metrics import READ_AT, SHOWN
from sardonyx.web.partitions import LivePartitions, NoPartitions, Partitions
from sardonyx.web.rows import Rows
from sardonyx.web.sight import Sample, Samples, Standing
from sardonyx.web.targets import Targets
from sardonyx.web.watching import Watching

REREAD = 5.0
"""Seconds after which it looks again even if no watch has fired."""
LEAST = 0.2
"""Seconds between two looks at most five times a second, however fast the log grows."""
HIDDEN = "`sardonyx web` was started without --rows"
"""Why rows are not shown behind a proxy."""
HOLDS_EVERY = 60.0
"""Seconds between two questions what the topics of a job hold."""

log = structlog.get_logger()


class LiveSource:
    """A deployment, followed by one session with ZooKeeper, whatever the number of those that look at it.

    Args:
        settings: of the deployment. Without an address of Kafka, rows and lags are not known.
        words: how to tell entries.
        rows: whether rows of links and dead letters are shown.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-UNREACHABLE``, ``SX-ZOOKEEPER-DENIED``.
    """

    def __init__(self, settings: Settings, words: Words, *, rows: bool = True) -> None:
        self._changed: Callable[[], None] = lambda: None
        self._settings = settings
        self._words = words
        self._client = Client(settings=settings)
        self._zk = self._client.zk
        self.batches: Batches = (
            LiveBatches(settings) if settings.kafka.bootstrap_servers else NoBatches("the address of Kafka is not set")
        )
        self.partitions: Partitions = (
            LivePartitions(lambda job, spec, task: JobHandle(self._client, job, spec).partitions(task))
            if settings.kafka.bootstrap_servers
            else NoPartitions("the address of Kafka is not set")
        )
        self.rows: Rows | str = Rows(self._client) if rows else HIDDEN
        self.actions: Actions | str = Actions(self._client, lambda: self.book)
        self.targets: Targets | str = Targets(self._zk, settings.deployment)
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._watching = Watching()
        self._held: dict[str, _Held] = {}
        """By job what its topics hold; only the thread that asks Kafka uses it."""
        self._asking = threading.Event()
        self._epoch: EpochNote | None = None
        self._candidates: list[str] = []
        self._requests = 0
        self._oldest: float | None = None
        self._away: float | None = None
        self._problem = ""
        self._seen = (-1, -1, "")
        self._log: tuple[int, int] | None = None
        """Which log the book holds: a deployment that is deleted and made anew has another one, with the same numbers."""
        try:
            self.book = self._begin()
            self._look()
        except BaseException:
            self._client.close()
            raise
        self._threads = [
            threading.Thread(target=self._follow, daemon=True, name="web log"),
            threading.Thread(target=self._ask, daemon=True, name="web kafka"),
        ]
        CERTIFICATES.follow(partial(ends, settings))
        of_release = partial(loses_ends, client_config(settings), settings.kafka.connect_timeout)
        self._meter = LagMeter(self._running, self._lag, of_release)
        if settings.kafka.bootstrap_servers:
            self._meter.follow()
            self._threads.append(threading.Thread(target=self._meter.run, daemon=True, name="web lag"))
        for thread in self._threads:
            thread.start()

    def standing(self) -> Standing:
        book, epoch = self.book, self._epoch
        leads = epoch is not None and any(node.startswith(f"{epoch.token}-") for node in self._candidates)
        return Standing(
            source="live",
            deployment=self._settings.deployment,
            first=book.first,
            last=book.last,
            at=book.time_of(book.last),
            connected=self._away is None,
            since=self._away,
            problem=self._problem,
            leader=epoch.leader if epoch is not None and leads else None,
            epoch=epoch.epoch if epoch is not None else 0,
            standbys=len(self._candidates) - leads,
            rows=not isinstance(self.rows, str),
            requests=self._requests,
            oldest_request=self._oldest,
        )

    def on_change(self, call: Callable[[], None]) -> None:
        self._changed = call

    def samples(self, job: str) -> Samples | None:
        if not self._settings.kafka.bootstrap_servers:
            return None
        watched = self._watching.look(job, time.monotonic())
        watched.samples.worked = self.batches.worked(job)
        self._asking.set()
        return watched.samples

    def glances(self, jobs: Iterable[str]) -> Mapping[str, Samples]:
        if not self._settings.kafka.bootstrap_servers:
            return {}
        found = self._watching.glance(jobs, time.monotonic())
        for job, watched in found.items():
            watched.samples.worked = self.batches.worked(job)
        self._asking.set()
        return {job: watched.samples for job, watched in found.items()}

    def every(self, job: str) -> float | None:
        return self._watching.period(job, time.monotonic())

    def close(self) -> None:
        self._closed.set()
        self._woken.set()
        self._asking.set()
        self._meter.close()
        self.batches.close()
        self._client.close()

    # The log

    def _begin(self) -> Book:
        """A book with all that the log holds."""
        while True:
            made = self._zk.creation(node_paths.LOG)
            first = event_log.begins(self._zk)
            try:
                book = Book(reader.at(self._zk, first - 1), self._words)
                self._read(book)
            except SardonyxError as error:
                if error.code not in ("SX-LOG-COMPACTED", "SX-LOG-RANGE") or event_log.begins(self._zk) == first:
                    raise
            else:
                self._log = made  # if there is another one by now, the next look finds it
                return book

    def _read(self, book: Book) -> bool:
        before = book.last
        for n, entry in event_log.read_entries(self._zk, book.last + 1):
            book.take(n, entry.event, entry.request, entry.leader)
        return book.last > before

    def _follow(self) -> None:
        while not self._closed.is_set():
            self._woken.wait(REREAD if self._zk.connected else LEAST)
            self._woken.clear()
            if self._closed.is_set():
                return
            try:
                told = self._look() if self._zk.connected else self._lost("ZooKeeper does not answer")
            except SardonyxError as error:
                told = self._recover(error)
            except Exception as error:
                told = self._lost(f"{type(error).__name__}: {error}")
                log.exception("web_log_unread")
            if told:
                self._changed()
            self._closed.wait(LEAST)

    def _look(self) -> bool:
        """Read what is new; whether anything is."""
        zk = self._zk
        self._candidates = zk.children(node_paths.ELECTION, watch=self._wake)
        epoch = zk.read(node_paths.EPOCH, watch=self._wake)
        self._epoch = msgspec.json.decode(epoch, type=EpochNote) if epoch else None
        zk.read(node_paths.CHECKPOINT, watch=self._wake)
        other = zk.creation(node_paths.LOG) != self._log
        if other:
            self.book = self._begin()
        grown = self._read(self.book) or other
        self._requests, oldest = requests_waiting(zk)
        change = None if oldest is None else zk.last_change(oldest)
        self._oldest = None if change is None else change[1]
        SHOWN.set(self.book.last)
        READ_AT.set(time.time())
        back, self._away, self._problem = self._away is not None, None, ""
        seen = (len(self._candidates), self._requests, str(self._epoch))
        told, self._seen = seen != self._seen, seen
        return grown or back or told

    def _lost(self, why: str) -> bool:
        first = self._away is None
        if first:
            self._away = time.time()
        told, self._problem = first or why != self._problem, why
        return told

    def _recover(self, error: SardonyxError) -> bool:
        """The log has been trimmed over what was still unread, an entry is to be set aside, or ZooKeeper is away."""
        if error.code in ("SX-LOG-COMPACTED", "SX-LOG-UNDECIDED"):
            with contextlib.suppress(SardonyxError):
                self.book = self._begin()
                return True
        return self._lost(f"{error.code}: {error.message}")

    def _wake(self, _event: object) -> None:
        self._woken.set()

    # Kafka

    def _ask(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            watched = self._watching.due(began)
            if watched is None:
                self._asking.wait(0.2 if self._watching else REREAD)
                self._asking.clear()
                continue
            sample = None
            try:
                sample = self._sample(watched.job)
            except Exception:
                log.exception("web_job_not_counted", job=watched.job)  # other jobs are asked about, and this one again
            now = time.monotonic()
            self._watching.told(watched, began, now)
            if sample is not None:
                with self.book.lock:
                    watched.samples.add(sample)
                if watched.is_open(now):  # the page of the deployment is made anew often enough
                    self._changed()

    def _running(self) -> dict[str, JobSpec]:
        """The jobs whose lag is metered: a suspended one is behind because a user wants it."""
        with self.book.lock:
            return {name: job.spec for name, job in self.book.state.jobs.items() if not (job.ended or job.suspended)}

    def _lag(self, job: str, spec: JobSpec) -> JobLag:
        """How far a job is behind. Raises ``SardonyxError``: ZooKeeper or Kafka does not tell, or it has just ended."""
        handle = JobHandle(self._client, job, spec)
        lags = handle.lag(holds=False)
        try:
            behind = {} if counts_rows(spec) else seconds_behind(handle.clock(), time.time())
        except SardonyxError as error:
            if error.code not in ("SX-CLOCK-NONE", "SX-CLOCK-GONE"):
                raise
            behind = {}
        return job_lag(lags, behind)

    def _sample(self, job: str) -> Sample | None:
        with self.book.lock:
            jobs = self.book.state.jobs
            found = jobs.get(job)
            spec = None if found is None or found.ended else found.spec
            self._held = {name: held for name, held in self._held.items() if name in jobs and not jobs[name].ended}
        if spec is None:
            return None
        try:
            handle = JobHandle(self._client, job, spec)
            view = handle.status()
        except SardonyxError as error:
            log.info("web_job_not_counted", job=job, code=error.code)
            return None
        try:
            return Sample(at=time.time(), view=view, lags=self._held.setdefault(job, _Held()).lags(handle))
        except SetupError as error:
            return Sample(at=time.time(), view=view, problem=f"{error.code}: {error.message}")
        except SardonyxError as error:
            log.info("web_lag_unknown", job=job, code=error.code)
            return None


class _Held:
    """What the topics of a job hold."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int | None, float | None]] = {}
        self._held_at: float | None = None

    def lags(self, handle: JobHandle) -> list[LinkLag]:
        """What is unread. What topics hold takes a look at each partition's first messages, so it is asked for less often."""
        now = time.monotonic()
        if self._held_at is None or now - self._held_at > HOLDS_EVERY:
            found = handle.lag()
            self._held = {lag.topic: (lag.kept_bytes, lag.kept_seconds) for lag in found}
            self._held_at = now
            return found
        return [_with_held(lag, self._held) for lag in handle.lag(holds=False)]


def _with_held(lag: LinkLag, held: dict[str, tuple[int | None, float | None]]) -> LinkLag:
    size, seconds = held.get(lag.topic, (None, None))
    return msgspec.structs.replace(lag, kept_bytes=size, kept_seconds=seconds)
