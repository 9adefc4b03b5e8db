"""A handle shows one job, waits for it, stops it, kills it or purges it. :class:`sardonyx.client.client.Client` makes it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from sardonyx.client import waiting
from sardonyx.client.asks_kafka import AsksKafka
from sardonyx.client.goes_back import GoesBack
from sardonyx.client.ids import asker, job_gone, job_has_letters, not_ended
from sardonyx.client.reasons import Why
from sardonyx.client.scales import CARRY_OUT, Scales
from sardonyx.client.stopping import Stop, check_stop, held_by, rules_of
from sardonyx.client.views import JobView, lacks_peers, waiting_for
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure, Interrupted, JobFailed, SardonyxError
from sardonyx.core.events import ENDED, JobKilled, JobPurged, JobStopped
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec, decode_spec
from sardonyx.core.text import listed
from sardonyx.core.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from coordinator.history.timeline import TimelineEvent
    from sardonyx.client.client import Client
    from sardonyx.core.job_diff import JobDiff
    from sardonyx.core.trial import TaskTrial
    from sardonyx.job.builder import Job
    from sardonyx.job.load import LoadedJob
    from sardonyx.zookeeper.session import ZooKeeperSession

TAKE_IN = 3.0
"""Seconds that a coordinator may take to begin a job before we say what the job waits for."""


class JobHandle(AsksKafka, GoesBack, Scales):
    """One job that a client can follow and end. :class:`Client` makes it."""

    def __init__(self, client: Client, job: str, spec: JobSpec | None = None) -> None:
        self.id = job
        self._client = client
        self._zk: ZooKeeperSession = client.zk
        self._spec = spec
        self._changed = threading.Event()

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    def status(self, *, live: bool = True) -> JobView:
        """Return the present state of the job, its tasks and their rows.

        Args:
            live: whether to ask Kafka for the rows of tasks that are not complete.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
        """
        return self._view_of(self._sought(self._note()), live=live)

    def await_completion(self, timeout: float | str | None = None) -> JobView:
        """Wait until the job has completed, or has stopped as a user wanted, and return its final view.

        Args:
            timeout: seconds, or a duration such as "5 min"; None: without limit.

        Raises:
            JobFailed: the job failed. It has the code and the first traceback of the error that failed the job.
            Interrupted: ``SX-JOB-KILLED``, or ``SX-JOB-TIMEOUT``: the job continues.
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in. How it ended is not known.
        """
        for note in self._notes(timeout):
            if note is not None and note.status in ENDED:
                return self._ended(note)
        raise AssertionError("waiting for a job ends with the job")

    def follow(self, interval: float = 1.0, timeout: float | str | None = None) -> Iterator[JobView]:
        """Yield the job's view until the job ends.

        It yields a view now, after each change of the job's status, and at least every ``interval`` seconds.

        Raises:
            Interrupted: ``SX-JOB-TIMEOUT``: the job continues.
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
        """
        for note in self._notes(timeout, interval):
            yield self._view_of(note, live=True)

    def stop(self, *, close_windows: bool = False, discard_state: bool = False) -> None:
        """Stop an unbounded job: its inputs end where they are committed, and it ends when all that has gone through it.

        Windows that are open give no result. Another job can go on from there, with these windows and all states:
        :meth:`Client.submit` with ``resume``. A job that has ended stays as it is. This method does not wait;
        :meth:`await_completion` waits for the end.

        Args:
            close_windows: end the job as one whose inputs have an end: open windows give their results, timers fire, joins give
                the rows that wait. No other job can go on with its states then.
            discard_state: stop the job also if no other one could go on with what its tasks hold.

        Raises:
            SardonyxError: ``SX-JOB-BOUNDED``: the job ends by itself. ``SX-JOB-STATE-LOST``: what its tasks hold would be lost;
                says why, and how much it is. ``SX-JOB-CLOSE-RULES``: a coordinator of the release before may lead.
                ``SX-JOB-GONE``: it was purged, or never taken in.
        """
        client, how = self._client, Stop(close_windows, discard_state)
        deployment, rules = client.settings.deployment, lambda: rules_of(client)
        check_stop(self.id, self.spec(), deployment, how=how, rules=rules, count=lambda: held_by(self))
        self._zk.request(JobStopped(job=self.id, closes=close_windows, by=asker()))

    def change(
        self,
        job: Job | LoadedJob | str | os.PathLike[str],
        timeout: float | str | None = None,
        *,
        drop: Sequence[str] = (),
        drain: Sequence[str] = (),
        at: datetime | str | int | None = None,
    ) -> int:
        """Have the running job go on by another version of it, with the queues, positions and states that it has.

        Its peers leave after the batch in hand, and the next ones work by the new version: each batch is of one version. What a
        task does with its rows may change, and how it runs; not what it reads and writes, its keys, windows and stores. Tasks may
        be added: each gets what the tasks before it write from then on. Tasks may be removed, with what is unread on their
        queues. A job without state may get another number of partitions: its inputs stand still until its queues are read to
        their end. A job that fails after a change is suspended, and keeps what it has; if no peer could begin with the new
        version, it goes on by the one before.

        Args:
            job: what :meth:`Client.submit` takes.
            timeout: how long to wait until no peer works by the old version; None: without limit.
            drop: the tasks that go by this change, and queues between tasks that stay. Their unread rows and states are lost.
            drain: those of them whose queues are read to the end first. Nothing comes to them any more while that lasts.
            at: a time of the rows, or the number of a row if they have numbers: those before it go the old way, and those from
                it on the new one. Only tasks that come and go may differ. It waits until the clock has passed that time and the
                old way is read to its end; the tasks that go need not be named. ``"now"``, and None: after the batch in hand.

        Returns:
            The revision that the job then has; the present one if nothing differs.

        Raises:
            SpecUnreadable, JobInvalid: of ``job``.
            SardonyxError: ``SX-JOB-CHANGE``: something else differs; says what. ``SX-JOB-CHANGE-DROP``: ``drop`` and ``drain``
                lack something that goes, or name something that stays. ``SX-JOB-CHANGE-DRAIN``: a queue cannot be read to the
                end. ``SX-JOB-CHANGE-NOW``; ``SX-JOB-CHANGE-RIVAL``: it was changed otherwise meanwhile. ``SX-JOB-ENDED``;
                ``SX-JOB-GONE``; what Kafka says about the new queues. ``SX-JOB-CHANGE-AT``: it cannot be made at a time.
                ``SX-JOB-CHANGE-PASSED``: a row of that time or later is read already. ``SX-JOB-TAKEN-BACK``: no peer could begin
                with the new version.
            Interrupted: ``SX-JOB-CHANGE-PENDING``: not within the timeout; it goes on. ``SX-JOB-CHANGE-UNREAD``: a queue is not
                read to the end; call it again. If partitions were to change, the inputs are read again meanwhile.
        """
        from sardonyx.client.change import change

        return change(self._client, self, job, None if timeout is None else seconds(timeout), drop, drain, at)

    def try_task(
        self, task: str, job: Job | LoadedJob | str | os.PathLike[str], rows: int = 1_000, most: int = 20
    ) -> TaskTrial:
        """Run another version of a task's function on the last rows of the task's links, beside the version that the job runs,
        and say what differs.

        Both run in this process; functions of a ``pyspark.sql.DataFrame`` in a Spark session of it. Nothing is committed or
        written, and the job does not notice. Conditions of edges are not looked at, nor retries.

        Args:
            task: a task with a function and without state.
            job: the other version, as :meth:`Client.submit` takes it.
            rows: how many rows to take, evenly from all partitions.
            most: how many differences to list.

        Raises:
            SpecUnreadable, JobInvalid: of ``job``.
            SardonyxError: ``SX-TRY-TASK``: the task cannot be tried; says why. ``SX-TRY-EMPTY``: no row lies on its links.
                ``SX-TRY-GONE``: the job has no links. ``SX-JOB-GONE``.
            FunctionError: of either version, for all rows: it cannot be imported, or gives what cannot be passed on.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``; of Spark.
        """
        from sardonyx.client.trying import try_task

        return try_task(self._client, self, task, job, rows, most)

    def diff(self, job: Job | LoadedJob | str | os.PathLike[str]) -> JobDiff:
        """Compare this job with one that is to take its place, and say how each difference can be carried out.

        It reads the coordinator's log, and changes nothing. If this job has ended, it waits until another one can go on
        from there, as :meth:`Client.submit` does.

        Args:
            job: what :meth:`Client.submit` takes.

        Raises:
            SpecUnreadable, JobInvalid: of ``job``.
            SardonyxError: ``SX-JOB-GONE``: this job was purged, or never taken in. ``SX-JOB-DIFF``: it was refused, and cannot
                be compared.
        """
        from sardonyx.client.job_diff import diff

        return diff(self._client, self, job)

    def sought(self) -> JobNote | None:
        """The job's status node, read now; None: no coordinator has taken the job in yet. Raises ``SX-JOB-GONE``."""
        return self._sought(self._note())

    def await_resumable(self, timeout: float | None = CARRY_OUT) -> bool:
        """Wait until the positions of a job that has ended are known, and its topics are deleted. No broker may be away for that.

        Args:
            timeout: seconds to wait; None: without limit.

        Returns:
            Whether they are known; False also if the job was purged meanwhile.
        """
        waiting.await_node(
            self._zk,
            node_paths.job_status(self.id),
            lambda data: data is None or not _is_ending(msgspec.json.decode(data, type=JobNote)),
            timeout,
            None,
        )
        note = self._note()
        return note is not None and not _is_ending(note)

    def await_admitted(self, timeout: float = CARRY_OUT) -> None:
        """Wait until a coordinator has accepted or refused the job. Returns after ``timeout`` seconds in any case.

        Raises:
            JobFailed: it was refused.
        """
        waiting.await_node(self._zk, node_paths.job_status(self.id), lambda data: data is not None, timeout, None)
        note = self._note()
        if note is not None and note.status == "failed" and note.links == "none":
            self._ended(note)

    def keep(self, duration: float | str, timeout: float | str | None = CARRY_OUT) -> str | None:
        """Let records stay in the queues between the job's tasks for at least this long, also after all readers have processed
        them.

        Args:
            duration: such as "1 h"; whole seconds. 0: no longer than they are needed.
            timeout: how long to wait until the coordinator has taken it in; None: without limit.

        Returns:
            The duration as the job's spec has it now; None: 0.

        Raises:
            ValueError: it is not a duration.
            SardonyxError: ``SX-JOB-ENDED``; ``SX-JOB-GONE``: it was purged, or never taken in.
            Interrupted: ``SX-JOB-KEEP-PENDING``: no coordinator has processed it within that time.
        """
        from sardonyx.client.link_keep import keep

        return keep(self._client, self.id, self._sought(self._note()), duration, timeout)

    def kill(self) -> None:
        """Kill the job. Its peers commit nothing of an open batch; everything that they have committed stays.

        A job that has ended stays as it is. This method does not wait; :meth:`await_completion` waits for the end.
        """
        self._zk.request(JobKilled(job=self.id, by=asker()))

    def purge(self, timeout: float | str | None = CARRY_OUT, *, with_dead_letters: bool = False) -> list[Failure]:
        """Delete the job: its node, its tasks, its counts, its dead letters, its state. Everything that it has written stays.

        Args:
            timeout: how long to wait until it is gone; None: without limit. If the coordinator is still removing the
                job's topics, it deletes the job after that.
            with_dead_letters: forget the job even if it has dead letters that no user has redone or dropped.

        Returns:
            ``SX-WARN-STATE-ROWS`` for each task whose state stays in a database, with what to do.

        Raises:
            SardonyxError: ``SX-JOB-NOT-ENDED``; ``SX-JOB-LETTERS``: it has such dead letters; ``SX-JOB-STATE-NEEDED``: another
                job goes on with its state; ``SX-JOB-GONE``: it was forgotten before.
            Interrupted: ``SX-JOB-PURGE-PENDING``: it is not gone yet.
        """
        stays = self.ask_purge(with_dead_letters=with_dead_letters)
        self.await_gone(timeout, with_dead_letters=with_dead_letters)
        return stays

    def ask_purge(self, *, with_dead_letters: bool = False) -> list[Failure]:
        """Do the first half of :meth:`purge`: remove its state from databases, request the rest, and do not wait."""
        from sardonyx.client.state_rows import remove_state_rows

        self.require_purgeable(with_dead_letters=with_dead_letters)
        spec = self._zk.read(node_paths.job_spec(self.id))  # it goes with the job, and says which databases they are
        stays = [] if spec is None else list(remove_state_rows(spec, self._client.settings.deployment, self.id))
        self._zk.request(JobPurged(job=self.id, dead_letters=with_dead_letters, by=asker()))
        return stays

    def require_purgeable(self, *, with_dead_letters: bool = False) -> None:
        """Raise ``SX-JOB-NOT-ENDED``, ``SX-JOB-LETTERS``, ``SX-JOB-STATE-NEEDED`` or ``SX-JOB-GONE`` if we cannot purge it so."""
        note = self.require_ended()
        if note.lends:
            others = [view.id for view in self._client.jobs() if view.resumes == self.id and view.status not in ENDED]
            raise SardonyxError(
                "SX-JOB-STATE-NEEDED",
                f"job {self.id} cannot be purged: its state log is needed",
                cause=f"jobs that began with its state have not ended: {listed(others)}",
                fix="purge it when they have ended",
                where={"job": self.id, "needed_by": listed(others)},
            )
        if note.letters and not with_dead_letters:
            raise job_has_letters(self.id, note.letters)

    def require_ended(self) -> JobNote:
        """Return the job's status.

        Raises ``SX-JOB-NOT-ENDED`` while any part of the job may run, and ``SX-JOB-GONE`` if nothing is left of it.
        """
        note = self._sought(self._note())
        if note is None or note.status not in ENDED:
            raise SardonyxError(
                "SX-JOB-NOT-ENDED",
                f"job {self.id} has not ended: it is {note.status if note else 'submitted'}",
                cause="only a job that has ended can be purged",
                fix=f"wait for it (`sardonyx job await {self.id}`) or end it (`sardonyx job kill {self.id}`) first",
                where={"job": self.id},
            )
        return note

    def await_gone(self, timeout: float | str | None = CARRY_OUT, *, with_dead_letters: bool = False) -> None:
        """Do the second half of :meth:`purge`: wait until the job is gone."""
        led = self._client.led()
        kept = 0

        def done(data: bytes | None) -> bool:
            # The coordinator counts a job's letters when it removes its topics, which may be after the request.
            nonlocal kept
            kept = 0 if data is None or with_dead_letters else msgspec.json.decode(data, type=JobNote).letters
            return data is None or kept > 0

        waiting.await_node(
            self._client.zk,
            node_paths.job_status(self.id),
            done,
            timeout,
            Interrupted(
                "SX-JOB-PURGE-PENDING",
                f"Job {self.id} is queued for deletion but still exists.",
                cause="the coordinator is still removing its topics" if led else "no coordinator leads this deployment",
                fix="wait: the coordinator deletes it after that"
                if led
                else "start a coordinator (`sardonyx coordinator`); it deletes the job",
                where={"job": self.id},
            ),
        )
        if kept:
            raise job_has_letters(self.id, kept)

    def waits_for(self, patience: float = TAKE_IN) -> str | None:
        """Say in words what the job waits for; None if it waits for nothing.

        It answers after the job has begun, or after ``patience`` seconds.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
        """
        deadline = time.monotonic() + patience
        note = self._note(watch=True)
        while (note is None or note.status == "planning") and time.monotonic() < deadline:
            if note is None and not self._client.led():
                break
            self._wait(deadline - time.monotonic())
            note = self._note(watch=True)
        view = self._view_of(self._sought(note), live=False)
        words = self.waiting(view, closely=lacks_peers(view))
        tagged = view.status == "running" and (self.spec().tags or any(task.tags for task in self.spec().catalog))
        return (self._said(lambda why: why.lacks) if words is None and tagged else None) or words

    def explain(self, *, look: bool = True) -> Why:
        """Say why the job does not run, or that it runs; see :meth:`sardonyx.client.client.Client.explain`."""
        return self._client.explain(self.id, look=look)

    def timeline(self) -> list[TimelineEvent]:
        """Return in order what has gone wrong with the job, and how it continued. It reads the coordinator's log.

        It reads that log from the job's submission on. This takes a moment for a job that has run for months.
        """
        from coordinator.history import reader

        return reader.timeline(self._zk, self.id)

    def waiting(self, view: JobView, *, closely: bool = False) -> str | None:
        """Say in words what the job waits for in this view; None if it waits only for its own work.

        Of a task that failed and pauses it reads the log, to say what keeps it: a disk or a database may be away for hours.

        Args:
            view: the job.
            closely: read the log also if the view shows nothing that the job waits for, or only that it lacks peers.
        """
        words, lacks = waiting_for(view, led=view.ended or self._client.led()), lacks_peers(view)
        paused = any(task.backing_off for task in view.tasks) and not view.waits_for
        if view.ended or not (paused or (closely and (words is None or lacks))):
            return words
        return self._said(lambda why: why.in_short if paused or not lacks else why.lacks) or words

    def _said(self, of: Callable[[Why], str | None]) -> str | None:
        """What the log says of why the job does not run."""
        try:
            return of(self.explain(look=False))
        except SardonyxError:  # such as a log of a newer release
            return None

    def spec(self) -> JobSpec:
        """Return the job as data, as it is now; once it was purged, as it was last seen.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
        """
        data = self._zk.read(node_paths.job_spec(self.id))
        if data is None and self._spec is None:
            self._spec = self._client.submitted().get(self.id)
            data = self._zk.read(node_paths.job_spec(self.id))  # after the above: a job moves from there to here
        if data is not None:
            self._spec = decode_spec(data)
        if self._spec is None:
            raise job_gone(self.id)
        return self._spec

    # Underneath

    def _notes(self, timeout: float | str | None, interval: float | None = None) -> Iterator[JobNote | None]:
        """Yield the status node after each change and at least every ``interval`` seconds, until the job has ended.

        While there is no node, it looks for the job every ``REREAD`` seconds, and at once if there was a node before.
        """
        interval = waiting.REREAD if interval is None else interval
        wait = None if timeout is None else seconds(timeout)
        deadline = None if wait is None else time.monotonic() + wait
        look_at = time.monotonic() + waiting.REREAD
        while True:
            note = self._note(watch=True)
            if note is not None:
                look_at = 0.0
            elif time.monotonic() >= look_at:
                self._sought(note)
                look_at = time.monotonic() + waiting.REREAD
            yield note
            if note is not None and note.status in ENDED:
                return
            left = interval if deadline is None else min(interval, deadline - time.monotonic())
            if left <= 0:
                raise self._timed_out(note, wait or 0)
            self._wait(left)

    def _note(self, *, watch: bool = False) -> JobNote | None:
        if watch:
            self._changed.clear()  # before reading: a change after the read sets it again
        data = self._zk.read(node_paths.job_status(self.id), watch=self._wake if watch else None)
        return None if data is None else msgspec.json.decode(data, type=JobNote)

    def _sought(self, note: JobNote | None) -> JobNote | None:
        """Return the note. If there is none (yet), look for the job, and raise ``SX-JOB-GONE`` if it is nowhere."""
        if note is None and self._client.is_gone(self.id):
            raise job_gone(self.id)
        return note

    def _wait(self, most: float) -> None:
        self._changed.wait(max(most, 0))

    def _wake(self, _event: object) -> None:
        self._changed.set()

    def _view_of(self, note: JobNote | None, *, live: bool) -> JobView:
        return self._client.view_of(self.id, self.spec(), note, live=live)

    def _ended(self, note: JobNote) -> JobView:
        if note.status == "failed":
            failure = note.error
            raise JobFailed.from_failure(failure) if failure else JobFailed("SX-JOB-FAILED", f"job {self.id} failed")
        if note.status == "killed":
            raise Interrupted(
                "SX-JOB-KILLED",
                f"job {self.id} was killed",
                cause="a user killed it",
                fix="submit it again to run it from its beginning; everything that it has committed stays",
                where={"job": self.id},
            )
        return self._view_of(note, live=False)

    def _timed_out(self, note: JobNote | None, waited: float) -> Interrupted:
        """Make the error to raise. Raises ``SX-JOB-GONE`` itself if there is nothing to wait for."""
        view = self._view_of(self._sought(note), live=False)
        return not_ended(self.id, view.status, waited, self.waiting(view, closely=True))


def _is_ending(note: JobNote) -> bool:
    """Whether a job has ended, and its topics are still to be deleted."""
    return note.status in ENDED and note.links == "made"
