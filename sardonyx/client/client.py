"""The client submits jobs, shows them, waits for them and kills them.

    with Client("127.0.0.1:2181", "127.0.0.1:9092") as client:
        handle = client.submit(job)
        view = handle.await_completion("5 min")

A client owns nothing in the cluster. It can end at any time, and the job continues.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from sardonyx.client.checkpoints import moment
from sardonyx.client.cluster_views import PeerView, peer_view
from sardonyx.client.ids import (
    LaterAttempt,
    asker,
    find_job,
    find_peer,
    later_attempt,
    name_taken,
    new_id,
    refused_attempts,
    superseded_attempts,
    unknown_peer,
)
from sardonyx.client.job_handle import JobHandle
from sardonyx.client.live_counts import LiveCounts
from sardonyx.client.policy import Policy
from sardonyx.client.reasons import Why
from sardonyx.client.row_counts import is_untouched, still_known
from sardonyx.client.scales import CARRY_OUT
from sardonyx.client.stopping import require_resumable
from sardonyx.client.views import JobView, TaskView, job_view, laid_out, task_notes
from sardonyx.client.waiting import await_node
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.errors import Failure, Interrupted, SardonyxError
from sardonyx.core.events import ENDED, AnyEvent, Counts, Evicted, JobSubmitted, Scheduler, decode_request, happened
from sardonyx.core.graph import Graph
from sardonyx.core.notes import UNREADABLE, JobNote, PeerNote, PulseNote, TaskNote
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.stopping import may_follow

if TYPE_CHECKING:
    from datetime import datetime

    from coordinator.history.replay import Decided
    from sardonyx.client.draining import Draining
    from sardonyx.job.builder import Job
    from sardonyx.job.load import LoadedJob
    from sardonyx.runtime.settings import Settings

__all__ = ["Client", "JobHandle", "JobView", "PeerView", "TaskView"]

log = structlog.get_logger()


class Client:
    """A connection to one deployment. Use it in a ``with``, or close it.

    Args:
        zookeeper: its address, ``host:port``; None: from the configuration (environment, ``sardonyx.toml``).
        kafka: its address. Without one, the rows of running tasks are not known (None).
        deployment: name of the cluster.
        settings: a whole settings object instead of the other three arguments.

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
            from sardonyx.runtime.settings import load_settings

            given = {"zookeeper.hosts": zookeeper, "kafka.bootstrap_servers": kafka, "deployment": deployment}
            settings = load_settings(**given)
        settings.require("zookeeper")
        from sardonyx.zookeeper.session import ZooKeeperSession

        self.settings = settings
        self.zk = ZooKeeperSession.connect(settings, survive_expiry=True)
        """The session, for the other modules of this package."""
        self._live = LiveCounts(partial(_counts, settings))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Jobs continue."""
        self.zk.close()

    def submit(
        self,
        job: Job | LoadedJob | str | os.PathLike[str],
        resume: str | None = None,
        at: datetime | str | None = None,
    ) -> JobHandle:
        """Submit a job: check it, upload its code, and put the request into the coordinator's inbox.

        What is probably not meant, though the job can run, is logged as a warning (``job_warning``).

        Args:
            job: a :class:`~sardonyx.job.builder.Job`, a loaded one, or what ``sardonyx run`` takes
                (``job.py:job``, ``job.yaml``).
            resume: a job that was stopped or has completed, as :meth:`job` takes it; a name means the last job of that name
                that began to read. The new job reads each Kafka input from where the task of the same name ended, whatever
                its ``start``. Only one job can resume another.
            at: with ``resume``, of a job that has ended in any way: go on from its last complete checkpoint at or before this
                time, with the state of that time. What it had given for later rows is given again. Without a zone it is UTC.

        Raises:
            SpecUnreadable: the file is missing, raises, or holds no job.
            JobInvalid: the job is not valid. The error lists everything that is wrong with it.
            SardonyxError: ``SX-JOB-NAME-TAKEN``: a job of this name has not ended yet. ``SX-JOB-UNKNOWN``,
                ``SX-JOB-AMBIGUOUS``: of ``resume``.
            JobFailed: ``SX-JOB-RESUME``: the job cannot go on from where the other one ended; says why.
                ``SX-CHECKPOINT-UNKNOWN``: the other one has no such checkpoint.
        """
        loaded = self.loaded(job)
        before = None if resume is None else self.job_to_resume(resume)
        time = None if at is None else moment(at)
        self._check_name(loaded.spec)
        if before is not None:
            require_resumable(before)
        spec = loaded.spec
        if loaded.code is not None and spec.code is not None:
            self.put_code(node_paths.code(spec.code), loaded.code)
        job_id = new_id(spec.name)
        resumes = "" if before is None else before.id
        self.zk.request(JobSubmitted(job=job_id, spec=spec, resumes=resumes, resumes_at=time, by=asker()))
        log.info("job_submitted", job=job_id, tasks=len(spec.catalog))
        handle = JobHandle(self, job_id, spec)
        if before is not None:
            handle.await_admitted()
        return handle

    def job(self, job: str) -> JobHandle:
        """Return a handle on a job. The argument is its id, the beginning of its id, or its name.

        A name means the running job of that name, or else the job of that name that users submitted last. One that was refused,
        as what it would have resumed cannot be resumed, counts only if there is no other.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN`` (names the nearest one), ``SX-JOB-AMBIGUOUS``.
        """
        submitted = self.submitted()
        notes = self._job_notes()  # after the above, to see a job that moves meanwhile
        names = {**{each: spec.name for each, spec in submitted.items()}, **{k: note.name for k, note in notes.items()}}
        running = {each for each in names if each not in notes or notes[each].status not in ENDED}
        since = {each: note.submitted_at for each, note in notes.items()}
        found = find_job(job, names, running, since, refused_attempts(notes))
        return JobHandle(self, found, submitted.get(found))

    def read_before(self, spec: JobSpec) -> tuple[JobHandle, dict[str, Any]] | None:
        """Return the latest ended job of the same name, if it has read some of the same Kafka topics as this one.

        A new job has consumer groups of its own, so it reads these topics again.

        Args:
            spec: a job that the user wants to submit.

        Returns:
            The ended job, and the topics with the ``start`` that ``spec`` gives them; None if there is no such job. The
            result omits a topic whose start names offsets, because the user who wrote them knows where it begins.
        """
        latest = self._latest_that_began(
            {job: note for job, note in self._job_notes().items() if note.name == spec.name}
        )
        if latest is None:
            return None
        handle = JobHandle(self, latest)
        before = _topics_of(handle.spec())
        again = {
            topic: start for topic, start in _topics_of(spec).items() if topic in before and isinstance(start, str)
        }
        return (handle, again) if again else None

    def job_to_resume(self, job: str) -> JobHandle:
        """Return a handle on the job that :meth:`submit` resumes.

        As :meth:`job`. But a name means no attempt that was refused, or failed while it was planned: it has read nothing, and
        another attempt goes on where the job before it ended.
        """
        found = self.job(job)
        notes = {each: note for each, note in self._job_notes().items() if note.name == job != each}
        if found.id not in notes or notes[found.id].status not in ENDED:
            return found
        latest = self._latest_that_began(notes)
        return found if latest is None else JobHandle(self, latest)

    def _latest_that_began(self, notes: Mapping[str, JobNote]) -> str | None:
        """Of these jobs, the last one whose links were created; None if there is none."""
        links = self.zk.read_many(node_paths.job_links(job) for job in notes)
        began = [(note.submitted_at, job) for job, note in notes.items() if node_paths.job_links(job) in links]
        return max(began)[1] if began else None

    def jobs(self) -> list[JobView]:
        """Return every known job, the latest first. It does not ask Kafka, so the rows of running tasks are unknown."""
        submitted = self.submitted()
        notes = self._job_notes()
        specs = self.zk.read_many(node_paths.job_spec(job) for job in notes)
        views = [
            self.view_of(job, decode_spec(specs[node_paths.job_spec(job)]), note, live=False)
            for job, note in notes.items()
            if node_paths.job_spec(job) in specs
        ]
        views += [self.view_of(job, spec, None, live=False) for job, spec in submitted.items() if job not in notes]
        return sorted(views, key=lambda view: view.submitted_at or math.inf, reverse=True)

    def superseded_attempts(self) -> set[str]:
        """Return the ids of the refused attempts after which there was a later one of the same name, refused or not."""
        return superseded_attempts(self._job_notes())

    def later_attempt(self, wanted: str, meant: str) -> LaterAttempt | None:
        """Return the newest attempt under a name (``id``, ``submitted_at``, ``code`` of its error) if it was refused, so that
        the name means an earlier job; otherwise None.

        Args:
            wanted: what :meth:`job` was given; of an id the result is None.
            meant: the id of the job that it returned.
        """
        return None if wanted == meant else later_attempt(wanted, meant, self._job_notes())

    def peers(self, *, since: bool = False) -> list[PeerView]:
        """Return every virtual peer that is alive.

        Args:
            since: also return since when each peer has been in its state. This replays the end of the log.
        """
        names = self.zk.children(node_paths.PEER_STATE)
        states = self.zk.read_many(node_paths.peer_state(name) for name in names)
        pulses = self.zk.read_many(node_paths.pulse(name) for name in names)
        notes = {
            name: msgspec.json.decode(states[node_paths.peer_state(name)], type=PeerNote)
            for name in names
            if node_paths.peer_state(name) in states
        }
        times = self._since(notes) if since and notes else {}
        return [
            peer_view(name, note, _pulse(pulses.get(node_paths.pulse(name))), times.get(name))
            for name, note in notes.items()
        ]

    def evict(self, peer: str, timeout: float | str | None = CARRY_OUT) -> Decided:
        """Evict a peer. A working peer first drops its open batch.

        Its daemon then starts a new peer with a new id. To have fewer peers, stop a daemon, or :meth:`drain` them.

        Args:
            peer: its id, or the beginning of its id.
            timeout: how long to wait until the coordinator has evicted the peer; None: without limit.

        Returns:
            The coordinator's decision about the peer and its task.

        Raises:
            SardonyxError: ``SX-PEER-UNKNOWN``, ``SX-PEER-AMBIGUOUS``, ``SX-PEER-REVOKED``: it was evicted already.
            Interrupted: ``SX-PEER-EVICT-PENDING``: no coordinator has processed it within that time.
        """
        from coordinator.history import reader
        from coordinator.loop.event_log import last

        name = find_peer(peer, self.zk.children(node_paths.PEER_STATE))
        before = self.zk.read(node_paths.peer_state(name))
        if before is not None and msgspec.json.decode(before, type=PeerNote).state == "revoked":
            raise SardonyxError(
                "SX-PEER-REVOKED",
                f"peer {name} was evicted already",
                cause="its task was revoked, and it is about to end",
                fix=f"`sardonyx peers show {name}` shows why",
                where={"peer": name},
            )
        first = last(self.zk) + 1
        self.zk.request(Evicted(peer=name, by=asker()))
        await_node(
            self.zk,
            node_paths.peer_state(name),
            lambda data: data is None or msgspec.json.decode(data, type=PeerNote).state == "revoked",
            timeout,
            Interrupted(
                "SX-PEER-EVICT-PENDING",
                f"Eviction of peer {name} was requested, but no coordinator has processed it yet.",
                cause="" if self.led() else "no coordinator leads this deployment",
                fix="start a coordinator (`sardonyx coordinator`) if none leads; it then evicts the peer",
                where={"peer": name},
            ),
        )
        # The peer may have gone for another reason. Then the request is still on its way, and has no effect.
        for decided in reader.decided(self.zk, first):
            node = [change for change in decided.changes if change.path == node_paths.peer_state(name)]
            if node and (node[-1].after is None or b'"revoked"' in node[-1].after):
                return decided
        raise unknown_peer(name, ())

    def drain(self, wanted: str, *, back: bool = False) -> Draining:
        """Give peers no further task: of a host, with all that join there later, or one. They finish their batches.

        Args:
            wanted: a host, or a peer's id or the beginning of it.
            back: take them in again instead.

        Raises:
            SardonyxError: ``SX-PEER-UNKNOWN``, ``SX-PEER-AMBIGUOUS``, ``SX-PEER-DRAIN-RULES``.
            Interrupted: ``SX-PEER-DRAIN-PENDING``: no coordinator has processed it yet.
        """
        from sardonyx.client.draining import drain

        return drain(self.zk, wanted, CARRY_OUT, back=back)

    def explain(self, job: str, *, look: bool = True) -> Why:
        """Say why a job does not run, in any of its states: what is missing, which peers hold it, and since when.

        Args:
            job: its id.
            look: also check whether Kafka answers, if the job needs Kafka. Without an answer this takes a few seconds.
        """
        from sardonyx.client.why import why

        return why(self, job, look=look)

    def policy(self) -> Policy:
        """Say how virtual peers are divided among jobs: the scheduler, and what each running job is entitled to and has."""
        from sardonyx.client import shares

        return shares.policy(self.zk)

    def set_policy(self, scheduler: Scheduler) -> Policy:
        """Choose how virtual peers are divided among jobs: ``turns``, ``balanced``, ``greedy`` or ``percentage``.

        Raises:
            SardonyxError: ``SX-POLICY-PENDING``: no coordinator has processed it in time. ``SX-POLICY-REPLACED``: another one was
                chosen since.
        """
        from sardonyx.client import shares

        return shares.set_policy(self.zk, scheduler, CARRY_OUT)

    def led(self) -> bool:
        """Whether a coordinator runs for this deployment."""
        return bool(self.zk.children(node_paths.ELECTION))

    # Underneath

    def is_gone(self, job: str) -> bool:
        """Whether a job is nowhere: not in the inbox, not in the tree, and unknown after a replay of the whole log.

        It looks in the order in which a job travels (inbox, log, ``/job``), so that it misses no job. A job may be in
        the log but not in the tree, because its leader died in between. Such a job is not gone: the next leader
        processes it.
        """
        from coordinator.history import reader

        self.zk.sync()
        if job in self.submitted() or self.zk.read(node_paths.job_status(job)) is not None:
            return False
        return job not in reader.present(self.zk).jobs

    def loaded(self, job: Job | LoadedJob | str | os.PathLike[str]) -> LoadedJob:
        """Return the job that :meth:`submit` takes, validated, its code signed if ``client.signer`` is set. Its warnings are
        logged (``job_warning``).
        """
        from sardonyx.job.load import LoadedJob, load

        if isinstance(job, LoadedJob):
            return job.signed(self.settings.client.signer)
        loaded = load(os.fspath(job) if isinstance(job, os.PathLike) else job)
        for warning in loaded.warnings:
            log.warning("job_warning", code=warning.code, warning=warning.message, fix=warning.fix, **warning.where)
        return loaded.signed(self.settings.client.signer)

    def put_code(self, path: str, code: bytes) -> None:
        """Put a job's code where peers find it. It writes the code again even if it is already there.

        The leader removes code that no job names and that no client has written for an hour. It removes only the
        version that it saw. So our write comes first and the code stays, or the code is gone and we write it again.
        """
        from sardonyx.zookeeper.errors import OutcomeUnknown, TransactionFailed

        while not self.zk.create(path, code):
            try:
                self.zk.commit([Set(path, code)])
            except (TransactionFailed, OutcomeUnknown):
                continue  # it was just removed, or the reply was lost; a second write is safe
            else:
                return

    def _since(self, notes: dict[str, PeerNote]) -> dict[str, float]:
        """Return when each peer entered the state that its node shows. Omits peers that have moved on meanwhile."""
        from coordinator.history import reader

        known = reader.present(self.zk).peers
        return {name: known[name].since for name in notes if name in known and known[name].note() == notes[name]}

    def _check_name(self, spec: JobSpec) -> None:
        submitted = self.submitted()
        notes = self._job_notes()  # after the above: see there
        known: dict[str, tuple[str, str]] = {job: (spec.name, "submitted") for job, spec in submitted.items()}
        known |= {job: (note.name, note.status) for job, note in notes.items()}
        for job, (taken, status) in known.items():
            if taken == spec.name and status not in ENDED:
                follows = may_follow(job, JobHandle(self, job, submitted.get(job)).spec(), spec)
                raise name_taken(job, taken, status, follows=follows)

    def _job_notes(self) -> dict[str, JobNote]:
        jobs = self.zk.children(node_paths.JOB)
        found = self.zk.read_many(node_paths.job_status(job) for job in jobs)
        return {
            job: msgspec.json.decode(found[node_paths.job_status(job)], type=JobNote)
            for job in jobs
            if node_paths.job_status(job) in found
        }

    def submitted(self) -> dict[str, JobSpec]:
        """Return the submitted jobs that are not in ``/job`` yet: in the inbox, or in the log and not yet processed.

        Callers read ``/job`` after this. A request travels in the same order (inbox, log, ``/job``), so they miss none.
        """
        from coordinator.loop.event_log import read_checkpoint, read_log

        requests = [name for name in self.zk.children(node_paths.INBOX) if name.startswith("submit-")]
        waiting = self.zk.read_many(f"{node_paths.INBOX}/{name}" for name in requests)
        asked: list[AnyEvent] = []
        for data in waiting.values():
            with contextlib.suppress(*UNREADABLE):  # any program may write there; the coordinator refuses it
                asked.append(decode_request(data))
        behind = [happened(event) for _, event in read_log(self.zk, first=read_checkpoint(self.zk) + 1)]
        return {event.job: event.spec for event in (*behind, *asked) if isinstance(event, JobSubmitted)}

    def view_of(self, job: str, spec: JobSpec, note: JobNote | None, *, live: bool) -> JobView:
        graph = laid_out(spec, self.settings.deployment, job)
        notes = task_notes(self.zk.read_many, graph, job)
        counts, error = self._live_counts(graph, job, note, notes) if live else (None, None)
        view = job_view(job, spec, graph, note, notes, counts)
        return view if error is None else msgspec.structs.replace(view, rows_error=error)

    def _live_counts(
        self, graph: Graph, job: str, note: JobNote | None, notes: dict[str, TaskNote]
    ) -> tuple[dict[str, Counts] | None, Failure | None]:
        """Ask Kafka about tasks that are not complete, and say why it did not tell; nothing if we need not or cannot ask it."""
        if note is None or note.links != "made" or not self.settings.kafka.bootstrap_servers:
            return None, None
        if all(each.counts is not None or is_untouched(each) for each in notes.values()):
            return None, None
        found = self._live.counts(graph, job)
        if found is None:
            return None, self._live.error(job)
        return still_known(found, ended=note.status in ENDED), None


def _topics_of(spec: JobSpec) -> dict[str, Any]:
    """Return the user's topics that a job reads, and where it starts to read each."""
    inputs = [task for task in spec.catalog if task.type == "input" and task.connector == "kafka"]
    return {str(task.options.get("topic")): task.options.get("start") for task in inputs}


def _counts(settings: Settings, graph: Graph, job: str) -> dict[str, Counts]:
    from queues.admin import counts

    return counts(settings, graph, job)


def _pulse(data: bytes | None) -> PulseNote | None:
    return PulseNote.read(data) if data else None  # better to show a peer without its host than not at all
