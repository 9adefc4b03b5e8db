"""The client: hand jobs in, look at them, wait for them, end them.

    with Client("127.0.0.1:2181", "127.0.0.1:9092") as client:
        handle = client.submit(job)
        view = handle.await_completion("5 min")

A client owns nothing in the cluster: it can go at any time, and the job goes on.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import graphlib
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import structlog

from coordinator import layout
from coordinator.events import (
    ENDED,
    AnyEvent,
    Counts,
    JobKilled,
    JobNote,
    JobSubmitted,
    PeerNote,
    PulseNote,
    TaskNote,
    decode_request,
)
from sardonyx.errors import Interrupted, JobFailed, SardonyxError
from sardonyx.graph import Graph, graph_of
from sardonyx.spec import JobSpec, decode_spec
from sardonyx.units import seconds
from sardonyx.views import JobView, PeerView, TaskView, is_untouched, job_view, peer_view, waiting_for

if TYPE_CHECKING:
    from coordinator.tree import Tree
    from sardonyx.config import Settings
    from sardonyx.job import Job
    from sardonyx.loading import LoadedJob

__all__ = ["Client", "JobHandle", "JobView", "PeerView", "TaskView"]

REREAD = 5.0
"""Seconds after which a status is read again although no watch told of a change: a net, not the way."""
LOOK = 5.0
"""Seconds that Kafka may take to tell row counts before they are shown as unknown."""
TAKE_IN = 3.0
"""Seconds that a led deployment may take to begin a job before we say what it waits for."""

log = structlog.get_logger()


class Client:
    """A connection to one deployment. Use it in a ``with``, or close it.

    Args:
        zookeeper: its address, ``host:port``; None: as configured (environment, ``sardonyx.toml``).
        kafka: its address; without one, rows of running tasks are not known (None).
        deployment: name of the cluster.
        settings: a whole settings object instead of the three.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-UNREACHABLE``.
    """

    def __init__(
        self,
        zookeeper: str | None = None,
        kafka: str | None = None,
        deployment: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        if settings is None:
            from sardonyx.config import load_settings

            given = {"zookeeper.hosts": zookeeper, "kafka.bootstrap_servers": kafka, "deployment": deployment}
            settings = load_settings(**given)
        settings.require("zookeeper")
        from coordinator.tree import Tree

        self.settings = settings
        self._tree = Tree.connect(settings, survive_expiry=True)
        self._live = _LiveCounts(settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Jobs go on."""
        self._tree.close()

    def submit(self, job: Job | LoadedJob | str | os.PathLike[str]) -> JobHandle:
        """Hand a job in: checked, its code uploaded, and the request put where the coordinator takes it from.

        Args:
            job: a :class:`~sardonyx.job.Job`, a loaded one, or what ``sardonyx run`` takes (``job.py:job``, ``job.yaml``).

        Raises:
            SpecUnreadable: the file is missing, raises, or holds no job.
            JobInvalid: everything that is wrong with it.
            SardonyxError: ``SX-JOB-NAME-TAKEN``: a job of this name has not ended yet.
        """
        loaded = self._loaded(job)
        self._check_name(loaded.spec.name)
        spec = loaded.spec
        if loaded.code is not None and spec.code is not None:
            self._tree.create(layout.code(spec.code), loaded.code)
        job_id = new_id(spec.name)
        self._tree.request(JobSubmitted(job=job_id, spec=spec))
        log.info("job submitted", job=job_id, tasks=len(spec.catalog))
        return JobHandle(self, job_id, spec)

    def job(self, job: str) -> JobHandle:
        """A handle on a job by its id, the beginning of its id, or its name, as long as it is clear which one is meant.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN`` (names the nearest one), ``SX-JOB-AMBIGUOUS``.
        """
        submitted = self._submitted()
        notes = self._job_notes()  # after the above, so that a job on its way from one to the other is seen
        names = {**{each: spec.name for each, spec in submitted.items()}, **{k: note.name for k, note in notes.items()}}
        running = {each for each in names if each not in notes or notes[each].status not in ENDED}
        found = find_job(job, names, running)
        return JobHandle(self, found, submitted.get(found))

    def jobs(self) -> list[JobView]:
        """Every job that is known, the latest first; rows only where they need no look into Kafka."""
        submitted = self._submitted()
        notes = self._job_notes()
        specs = self._tree.read_many(layout.job_spec(job) for job in notes)
        views = [
            self._view(job, decode_spec(specs[layout.job_spec(job)]), note, live=False)
            for job, note in notes.items()
            if layout.job_spec(job) in specs
        ]
        views += [self._view(job, spec, None, live=False) for job, spec in submitted.items() if job not in notes]
        return sorted(views, key=lambda view: view.submitted_at or math.inf, reverse=True)

    def peers(self) -> list[PeerView]:
        """Every virtual peer that the coordinator knows."""
        names = self._tree.children(layout.PEER_STATE)
        states = self._tree.read_many(layout.peer_state(name) for name in names)
        pulses = self._tree.read_many(layout.pulse(name) for name in names)
        views = []
        for name in names:
            data = states.get(layout.peer_state(name))
            if data is not None:
                note = msgspec.json.decode(data, type=PeerNote)
                views.append(peer_view(name, note, _pulse(pulses.get(layout.pulse(name)))))
        return views

    def led(self) -> bool:
        """Whether any coordinator stands for this deployment."""
        return bool(self._tree.children(layout.ELECTION))

    # Underneath

    def _loaded(self, job: Job | LoadedJob | str | os.PathLike[str]) -> LoadedJob:
        from sardonyx.loading import LoadedJob, load

        if isinstance(job, LoadedJob):
            return job
        return load(os.fspath(job) if isinstance(job, os.PathLike) else job)

    def _check_name(self, name: str) -> None:
        submitted = self._submitted()
        notes = self._job_notes()  # after the above: see there
        known: dict[str, tuple[str, str]] = {job: (spec.name, "submitted") for job, spec in submitted.items()}
        known |= {job: (note.name, note.status) for job, note in notes.items()}
        for job, (taken, status) in known.items():
            if taken == name and status not in ENDED:
                raise SardonyxError(
                    "SX-JOB-NAME-TAKEN",
                    f"a job named {name} is {status} already: {job}",
                    cause="topics and consumer groups derive from a job's name; two of one name would be told apart "
                    "by their ids alone, and mistaken for each other by people",
                    fix=f"wait for it (`sardonyx job await {job}`), end it (`sardonyx job kill {job}`), "
                    "or give this one another name",
                    where={"job": job},
                )

    def _job_notes(self) -> dict[str, JobNote]:
        jobs = self._tree.children(layout.JOB)
        found = self._tree.read_many(layout.job_status(job) for job in jobs)
        return {
            job: msgspec.json.decode(found[layout.job_status(job)], type=JobNote)
            for job in jobs
            if layout.job_status(job) in found
        }

    def _submitted(self) -> dict[str, JobSpec]:
        """Jobs that are asked for but stand in no ``/job`` yet: in the inbox, or logged and not carried out.

        Read in the order in which a request travels, inbox, log, ``/job``, so that none slips by unseen.
        """
        from coordinator.log import read_checkpoint, read_log

        requests = [name for name in self._tree.children(layout.INBOX) if name.startswith("submit-")]
        waiting = self._tree.read_many(f"{layout.INBOX}/{name}" for name in requests)
        asked: list[AnyEvent] = []
        for data in waiting.values():
            with contextlib.suppress(msgspec.DecodeError):  # anybody may write there; the coordinator refuses it
                asked.append(decode_request(data))
        behind = [event for _, event in read_log(self._tree, first=read_checkpoint(self._tree) + 1)]
        return {event.job: event.spec for event in (*behind, *asked) if isinstance(event, JobSubmitted)}

    def _view(self, job: str, spec: JobSpec, note: JobNote | None, *, live: bool) -> JobView:
        try:
            graph = graph_of(spec, self.settings.deployment, job)
        except (graphlib.CycleError, KeyError):  # handed in past the client's validation, and refused
            graph = Graph(order=[], stages=[], bound={}, bounded=True)
        nodes = self._tree.read_many(layout.job_task(job, name) for name in graph.order)
        notes = {
            name: msgspec.json.decode(nodes[layout.job_task(job, name)], type=TaskNote)
            for name in graph.order
            if layout.job_task(job, name) in nodes
        }
        counts = self._live_counts(graph, job, note, notes) if live else None
        return job_view(job, spec, graph, note, notes, counts)

    def _live_counts(
        self, graph: Graph, job: str, note: JobNote | None, notes: dict[str, TaskNote]
    ) -> dict[str, Counts] | None:
        """What Kafka says about tasks that are not complete; None if it need not or cannot be asked."""
        if note is None or note.links != "made" or not self.settings.kafka.bootstrap_servers:
            return None
        if all(each.counts is not None or is_untouched(each) for each in notes.values()):
            return None
        return self._live.counts(graph, job)


class _LiveCounts:
    """Row counts from Kafka, without ever waiting for it longer than people look at a screen.

    A Kafka that is away answers after half a minute or not at all; its question is then left to a thread of its own, and
    until that is through nothing new is asked.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._found: dict[str, Counts] | None = None

    def counts(self, graph: Graph, job: str) -> dict[str, Counts] | None:
        """The counts by task; None if Kafka does not tell in time."""
        if self._thread is None or not self._thread.is_alive():
            self._found = None
            self._thread = threading.Thread(target=self._ask, args=(graph, job), daemon=True, name="live counts")
            self._thread.start()
        self._thread.join(LOOK)
        return None if self._thread.is_alive() else self._found

    def _ask(self, graph: Graph, job: str) -> None:
        from queues.links import counts

        try:
            self._found = counts(self._settings, graph, job)
        except SardonyxError as error:
            log.warning("rows cannot be read from kafka", job=job, code=error.code, error=error.message)


class JobHandle:
    """One job, as far as a client can follow and end it. Made by :class:`Client`."""

    def __init__(self, client: Client, job: str, spec: JobSpec | None = None) -> None:
        self.id = job
        self._client = client
        self._tree: Tree = client._tree  # noqa: SLF001 - the two are one thing in two classes
        self._spec = spec
        self._changed = threading.Event()

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def status(self) -> JobView:
        """The job, its tasks and their rows as they stand now.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN``: it stood in the tree and is gone.
        """
        return self._view_of(self._note(), live=True)

    def await_completion(self, timeout: float | str | None = None) -> JobView:
        """Wait until the job has completed, and give its final view.

        Args:
            timeout: seconds, or a duration such as "5 min"; None: for ever.

        Raises:
            JobFailed: with the code and the first traceback of what failed it.
            Interrupted: ``SX-JOB-KILLED``, or ``SX-JOB-TIMEOUT``: the job goes on.
        """
        for note in self._notes(timeout):
            if note is not None and note.status in ENDED:
                return self._ended(note)
        raise AssertionError("waiting for a job ends with the job")

    def follow(self, interval: float = 1.0, timeout: float | str | None = None) -> Iterator[JobView]:
        """The job's view now, after each change of its status and at least every ``interval`` seconds, to its end.

        Raises:
            Interrupted: ``SX-JOB-TIMEOUT``: the job goes on.
        """
        for note in self._notes(timeout, interval):
            yield self._view_of(note, live=True)

    def kill(self) -> None:
        """Ask for the job's end. Nothing of a batch that is under way is committed; what was committed stays.

        A job that has ended stays as it is. Does not wait; :meth:`await_completion` tells when it is done.
        """
        self._tree.request(JobKilled(job=self.id))

    def waits_for(self, patience: float = TAKE_IN) -> str | None:
        """What the job waits for, in words, once it has begun or ``patience`` seconds have passed; None if for nothing."""
        deadline = time.monotonic() + patience
        note = self._note(watch=True)
        while (note is None or note.status == "planning") and time.monotonic() < deadline:
            if note is None and not self._client.led():
                break
            self._wait(deadline - time.monotonic())
            note = self._note(watch=True)
        return self.waiting(self._view_of(note, live=False))

    def waiting(self, view: JobView) -> str | None:
        """What the job waits for as it stands in this view, in words; None if for nothing but its own work."""
        return waiting_for(view, led=view.ended or self._client.led())

    def spec(self) -> JobSpec:
        """The job as data.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN``: it stood in the tree and is gone.
        """
        if self._spec is None:
            data = self._tree.read(layout.job_spec(self.id))
            self._spec = decode_spec(data) if data is not None else self._client._submitted().get(self.id)  # noqa: SLF001
        if self._spec is None:
            raise unknown_job(self.id, ())
        return self._spec

    # Underneath

    def _notes(self, timeout: float | str | None, interval: float = REREAD) -> Iterator[JobNote | None]:
        """The status node after each change and at least every ``interval`` seconds, until the job has ended."""
        wait = None if timeout is None else seconds(timeout)
        deadline = None if wait is None else time.monotonic() + wait
        while True:
            note = self._note(watch=True)
            yield note
            if note is not None and note.status in ENDED:
                return
            left = interval if deadline is None else min(interval, deadline - time.monotonic())
            if left <= 0:
                raise self._timed_out(note, wait or 0)
            self._wait(left)

    def _note(self, *, watch: bool = False) -> JobNote | None:
        self._changed.clear()  # before reading: a change behind the read sets it again
        data = self._tree.read(layout.job_status(self.id), watch=self._wake if watch else None)
        return None if data is None else msgspec.json.decode(data, type=JobNote)

    def _wait(self, most: float) -> None:
        self._changed.wait(max(most, 0))

    def _wake(self, _event: object) -> None:
        self._changed.set()

    def _view_of(self, note: JobNote | None, *, live: bool) -> JobView:
        return self._client._view(self.id, self.spec(), note, live=live)  # noqa: SLF001

    def _ended(self, note: JobNote) -> JobView:
        if note.status == "failed":
            failure = note.error
            raise JobFailed.from_failure(failure) if failure else JobFailed("SX-JOB-FAILED", f"job {self.id} failed")
        if note.status == "killed":
            raise Interrupted(
                "SX-JOB-KILLED",
                f"job {self.id} was killed",
                cause="somebody asked for its end",
                fix="what it had committed stays; submit it again to run it from its beginning",
                where={"job": self.id},
            )
        return self._view_of(note, live=False)

    def _timed_out(self, note: JobNote | None, waited: float) -> Interrupted:
        view = self._view_of(note, live=False)
        why = waiting_for(view, led=self._client.led())
        return Interrupted(
            "SX-JOB-TIMEOUT",
            f"job {self.id} has not ended within {waited:g} s; it is {view.status} and goes on",
            cause=why or "it is still at work",
            fix=f"wait longer, look at it (`sardonyx job show {self.id}`), or end it (`sardonyx job kill {self.id}`)",
            where={"job": self.id},
        )


def new_id(name: str) -> str:
    """A fresh id for a job of this name: the name and six random base32 characters."""
    return f"{name}-{base64.b32encode(secrets.token_bytes(5))[:6].decode().lower()}"


def find_job(wanted: str, names: dict[str, str], running: set[str]) -> str:
    """The one job that an id, the beginning of an id, or a name means. Pure.

    Args:
        wanted: what the user wrote.
        names: job id -> name.
        running: ids of those that have not ended; among jobs of one name, the one that runs is meant.

    Raises:
        SardonyxError: ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
    """
    if wanted in names:
        return wanted
    named = [job for job, name in names.items() if name == wanted]
    meant = [job for job in named if job in running] or named or [job for job in names if job.startswith(wanted)]
    if len(meant) == 1:
        return meant[0]
    if not meant or not wanted:
        raise unknown_job(wanted, [*names, *names.values()])
    raise SardonyxError(
        "SX-JOB-AMBIGUOUS",
        f"{wanted} may mean {len(meant)} jobs: {', '.join(sorted(meant))}",
        fix="write more of the id",
    )


def unknown_job(wanted: str, known: Sequence[str]) -> SardonyxError:
    """The error for a job that is not there, with the nearest one that is."""
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.4)
    return SardonyxError(
        "SX-JOB-UNKNOWN",
        f"there is no job {wanted}" + (f"; did you mean {near[0]}?" if near else ""),
        cause="no job of this id or name was submitted to this deployment",
        fix="`sardonyx job list` shows all; check the deployment (--deployment) too",
        where={"job": wanted},
    )


def _pulse(data: bytes | None) -> PulseNote | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=PulseNote)
    except msgspec.DecodeError:  # shown without its host rather than not at all
        return None
