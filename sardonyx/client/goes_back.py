"""What the handle of a job does to work rows once more: rollback, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sardonyx.core.units import seconds

if TYPE_CHECKING:
    from datetime import datetime

    from sardonyx.client.client import Client
    from sardonyx.client.going_back import GoingBack
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.client.replay import Replay


class GoesBack:
    """A part of :class:`~sardonyx.client.job_handle.JobHandle`."""

    _client: Client

    def going_back(self, at: datetime | str | None = None) -> GoingBack:
        """Say what it means to go back to a checkpoint of this job: to which one, what is read again and what is published again.

        Args:
            at: to the last complete checkpoint at or before this time. Without a zone it is UTC. None: to the last one.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-CHECKPOINT-UNKNOWN``: there is none.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.going_back import going_back

        return going_back(self._client, cast("JobHandle", self), at)

    def rollback(self, to: datetime | str | None = None, timeout: float | str | None = None) -> JobHandle:
        """Let the running job go back: it ends at once, and a job of the same spec goes on from one of its checkpoints, with the
        state of that time. Results for rows of that time or later are published again: :meth:`going_back` tells what.

        Args:
            to: as ``at`` of :meth:`going_back`.
            timeout: how long to wait until the new job is taken in; None: without limit.

        Returns:
            A handle on the new job.

        Raises:
            SardonyxError: what :meth:`going_back` raises; ``SX-JOB-ENDED``, also if it ends before the coordinator has processed
                this: submit with ``resume`` and ``at``. ``SX-JOB-CHANGE-NOW``: a user has stopped it.
            JobFailed: the new job was refused, with the reason.
            Interrupted: ``SX-JOB-ROLLBACK-PENDING``: not within the timeout; it goes on.
        """
        from sardonyx.client.going_back import rollback

        return rollback(self._client, cast("JobHandle", self), to, None if timeout is None else seconds(timeout))

    def replaying(
        self,
        since: datetime | str,
        until: datetime | str,
        *,
        with_state: bool = False,
        outputs: str = "again",
        kept: bool = False,
    ) -> Replay:
        """Say what :meth:`replay` would do: what is read, to which outputs results go, and which of them may lack rows. It takes
        what :meth:`replay` takes, and raises what that raises.
        """
        from sardonyx.client.replay import replaying

        handle = cast("JobHandle", self)
        return replaying(self._client, handle, since, until, with_state=with_state, outputs=outputs, kept=kept)

    def replay(
        self,
        since: datetime | str,
        until: datetime | str,
        *,
        with_state: bool = False,
        outputs: str = "again",
        kept: bool = False,
    ) -> JobHandle:
        """Have another job work, once more, the rows that this one has read whose time is in a range. This one stays as it is.

        The other job has the same spec and ends by itself. It takes exactly these rows, however much they are out of order.

        Args:
            since: the first time of the range. Without a zone it is UTC.
            until: the end of the range: rows of exactly this time are not of it.
            with_state: begin with the states of the checkpoint at ``since``.
            outputs: ``same``: give the results to the outputs of this job, which then have them twice. Any other word is added to
                the names of the outputs: topic ``totals.again``, table ``totals_again``.
            kept: go on though records are deleted which may be of the range.

        Returns:
            A handle on the other job.

        Raises:
            SardonyxError: ``SX-REPLAY-RANGE``: no time is in the range, it cuts windows, or the job has left out rows of it;
                ``SX-JOB-REPLAY``: the job cannot be replayed; ``SX-REPLAY-GONE``: records are deleted; ``SX-CHECKPOINT-UNKNOWN``,
                ``SX-JOB-GONE``, ``SX-USAGE``.
            JobFailed: the other job was refused, with the reason.
            InputError: ``SX-INPUT-RECREATED``, ``SX-RESUME-TOPIC``: a topic was deleted, or created again.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.replay import replay

        handle = cast("JobHandle", self)
        return replay(self._client, handle, since, until, with_state=with_state, outputs=outputs, kept=kept)


__all__ = ["GoesBack"]
