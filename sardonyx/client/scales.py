"""What the handle of a job does to give it, or one of its tasks, other peers; and to have it begin anew where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sardonyx.client.ids import asker
from sardonyx.core.events import ENDED, JobScaled
from sardonyx.core.units import seconds

if TYPE_CHECKING:
    import os

    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.job.builder import Job
    from sardonyx.job.load import LoadedJob

CARRY_OUT = 15.0
"""Seconds that the coordinator may take to process a request."""


class Scales:
    """A part of :class:`~sardonyx.client.job_handle.JobHandle`."""

    id: str
    _client: Client

    def scale(
        self,
        *,
        priority: int | None = None,
        weight: float | None = None,
        percentage: float | None = None,
        max_peers: int | None = None,
    ) -> None:
        """Change what the job is entitled to, and wait until a coordinator has processed it. What is not given stays as it is.

        Args:
            priority: jobs of a higher priority get their shares first.
            weight: its share, relative to other jobs of its priority.
            percentage: its share of all peers, where the scheduler is ``percentage``; 0: none of its own.
            max_peers: at most this many peers; 0: no limit.

        Raises:
            SardonyxError: ``SX-JOB-SHARE``: a value is not possible, or none is given. ``SX-JOB-ENDED``; ``SX-JOB-GONE``: the job
                was purged, or never taken in.
            Interrupted: ``SX-JOB-SCALE-PENDING``: no coordinator has processed it in time.
        """
        from sardonyx.client import shares

        wanted = JobScaled(
            job=self.id, priority=priority, weight=weight, percentage=percentage, max_peers=max_peers, by=asker()
        )
        shares.check(wanted)
        self._scale(wanted)

    def scale_task(
        self,
        task: str,
        *,
        min_peers: int | None = None,
        max_peers: int | None = None,
        batch_size: int | None = None,
        timeout: float | str | None = None,
    ) -> int:
        """Give one task of the running job other numbers of peers, or batches of another size. What is not given stays as it is.

        It is a change of the job as :meth:`change` makes it: the peers of the task leave after the batch in hand, and the next
        ones work by the new numbers. No spec is needed, and nothing else changes. A later :meth:`change` sets what its spec says.

        Args:
            task: a task that peers work on by itself: none that runs in the batches of another one, and no topic in place.
            min_peers: the task begins only when so many peers are free for it.
            max_peers: at most so many peers at a time; 0: as many as there are partitions.
            batch_size: how many rows a batch has at most.
            timeout: how long to wait until no peer works by the old numbers; None: without limit.

        Returns:
            The revision that the job then has; the present one if nothing differs.

        Raises:
            JobInvalid: the task cannot have such a number.
            SardonyxError: ``SX-JOB-SCALE-TASK``: there is no such task, or no peer works on it by itself or any more, or nothing
                is given. ``SX-JOB-CHANGE-NOW``; ``SX-JOB-CHANGE-RIVAL``: it was changed otherwise meanwhile. ``SX-JOB-ENDED``;
                ``SX-JOB-GONE``.
            Interrupted: ``SX-JOB-CHANGE-PENDING``: not within the timeout; it goes on.
        """
        from sardonyx.client.change import scale_task

        limit = None if timeout is None else seconds(timeout)
        given = {"min_peers": min_peers, "max_peers": max_peers, "batch_size": batch_size}
        return scale_task(self._client, self.id, task, given, limit)

    def scale_partitions(self, partitions: int, timeout: float | str | None = None) -> int:
        """Give the queues of the running job another number of partitions. Nothing else changes, and no spec is needed.

        Its inputs stand still until its queues are read to their end. See :meth:`~sardonyx.client.job_handle.JobHandle.change`.

        Args:
            partitions: of each queue between two tasks.
            timeout: how long to wait; None: without limit. After that the inputs are read again, and the job goes on as it was.

        Returns:
            The revision that the job then has; the present one if it has so many.

        Raises:
            JobInvalid: ``SX-JOB-PARTITIONS``, ``SX-JOB-PEERS``: a task of the job cannot have so many.
            SardonyxError: ``SX-JOB-CHANGE``: the job has a state, so that it takes :meth:`restart`; or a loop. What else
                ``change`` raises.
            Interrupted: as ``change``.
        """
        from sardonyx.client.resizing import with_partitions

        handle = cast("JobHandle", self)
        return handle.change(with_partitions(handle.spec(), partitions), timeout)

    def restart(
        self,
        job: Job | LoadedJob | str | os.PathLike[str] | None = None,
        *,
        partitions: int | None = None,
        timeout: float | str | None = None,
    ) -> JobHandle:
        """Stop an unbounded job, and have another one go on from where it ended, with its states: each row is worked once.

        It is asked for at once, and the coordinator carries it out, whatever becomes of this process. What the inputs have read
        goes through all tasks first; then the next job begins. It takes all that :meth:`Client.submit` takes with ``resume``.

        Args:
            job: the version that goes on, as :meth:`Client.submit` takes it; None: the same.
            partitions: of each queue between two tasks of the next job; None: as many as that version says.
            timeout: how long to wait until the next job runs; None: without limit.

        Returns:
            A handle on the next job.

        Raises:
            SpecUnreadable, JobInvalid: of ``job``; of its partitions.
            SardonyxError: ``SX-JOB-BOUNDED``: the job ends by itself. ``SX-JOB-RESUME``: the version could not go on from there;
                says why. Then nothing is done. ``SX-JOB-CHANGE-NOW``; ``SX-JOB-CHANGE-RIVAL``: it was changed or stopped
                meanwhile. ``SX-JOB-RESTART-RULES``: a coordinator of the release before may lead. ``SX-JOB-ENDED``;
                ``SX-JOB-GONE``.
            JobFailed: this job failed before it had ended; or the next one did as it began. Then this one is stopped, and can be
                resumed.
            Interrupted: ``SX-JOB-RESTART-PENDING``: not within the timeout; it goes on. ``SX-JOB-KILLED``.
        """
        from sardonyx.client.restarting import restart

        limit = None if timeout is None else seconds(timeout)
        return restart(self._client, cast("JobHandle", self), job, partitions, limit)

    def suspend(self) -> None:
        """Take all peers off the job: they leave after the batch in hand. Its queues, positions and state stay.

        It waits until a coordinator has processed it, and not for the peers. A suspended job may be stopped, which resumes it, or
        killed. The coordinator keeps its positions in Kafka meanwhile; the retention of the topics goes on.

        Raises:
            SardonyxError: ``SX-JOB-ENDED``; ``SX-JOB-GONE``: the job was purged, or never taken in.
            Interrupted: ``SX-JOB-SCALE-PENDING``: no coordinator has processed it in time.
        """
        self._scale(JobScaled(job=self.id, suspended=True, by=asker()))

    def resume(self) -> None:
        """Let a suspended job have peers again: it goes on where it was.

        Raises:
            SardonyxError: ``SX-JOB-POSITIONS-LOST``: the brokers have forgotten where it was, and it can go back to a checkpoint.
                What else :meth:`suspend` raises.
            Interrupted: as :meth:`suspend`.
        """
        from sardonyx.client.going_back import refuse_forgotten

        handle = cast("JobHandle", self)
        refuse_forgotten(self._client, handle, handle.sought())
        self._scale(JobScaled(job=self.id, suspended=False, by=asker()))

    def _scale(self, wanted: JobScaled) -> None:
        from sardonyx.client import shares

        note = cast("JobHandle", self).sought()
        if note is not None and note.status in ENDED:
            raise shares.job_ended(self.id, note.status)
        shares.scale(self._client.zk, wanted, CARRY_OUT)
