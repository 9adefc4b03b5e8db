"""A running job goes on by another spec."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sardonyx.client.ids import asker, job_gone
from sardonyx.core import node_paths
from sardonyx.core.changing import TAKEN_BACK, change_failure, draining, finished, rewiring
from sardonyx.core.changing_at import settled
from sardonyx.core.errors import Interrupted, JobInvalid, SardonyxError
from sardonyx.core.events import JobChanged, LinksFailed, PlainEvent, happened
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote
from sardonyx.core.resizing import resized
from sardonyx.core.scaling import scaled
from sardonyx.core.text import listed, plural
from sardonyx.core.untouched import used_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from coordinator.core.state import Job as KnownJob
    from coordinator.history.revisions import RevisionMade
    from sardonyx.client.client import Client
    from sardonyx.client.job_handle import JobHandle
    from sardonyx.core.spec import JobSpec
    from sardonyx.job import builder
    from sardonyx.job.load import LoadedJob

LOOK_EVERY = 0.1
NOW = "now"
"""Given as a time, this means: after the batch in hand, as without a time."""
_QUIET = 2
"""How many looks, one after the other, must find nothing unread."""


def change(
    client: Client,
    handle: JobHandle,
    job: builder.Job | LoadedJob | str | os.PathLike[str],
    timeout: float | None,
    drop: Sequence[str] = (),
    drain: Sequence[str] = (),
    at: datetime | str | int | None = None,
) -> int:
    """What :meth:`sardonyx.client.job_handle.JobHandle.change` does."""
    loaded = client.loaded(job)
    making = Making(client, handle.id, timeout)
    known = making.known
    if at not in (None, NOW):
        from sardonyx.client.changing_at import change_at

        return change_at(client, handle, making, loaded, at, [*drop, *drain])
    if settled(known.spec) == loaded.spec:  # a command that was ended before it saw that, and is given again
        return making.written(known.revision)
    failure = change_failure(handle.id, known.spec, loaded.spec, [*drop, *drain], known.retired)
    if failure is not None:
        raise SardonyxError.from_failure(failure)
    refuse_finished(handle.id, known, loaded.spec)
    if loaded.code is not None and loaded.spec.code is not None:
        client.put_code(node_paths.code(loaded.spec.code), loaded.code)
    if resized(known.spec, loaded.spec):
        from sardonyx.client.resizing import change_partitions

        return change_partitions(handle, making, loaded)
    if drain and known.next_spec != loaded.spec:  # else all was read, and the change itself is being made
        cut, links = draining(known.spec, loaded.spec, drain)
        gone = [name for name in drop if name in rewiring(graph_of(known.spec, "", ""), graph_of(cut, "", "")).names]
        _require_drainable(client, handle.id, known, cut, drain, gone, loaded)
        making.make(cut, gone, loaded)
        making.await_read(handle, links)
    found = rewiring(graph_of(making.known.spec, "", ""), graph_of(loaded.spec, "", "")).names
    return making.make(loaded.spec, [name for name in (*drop, *drain) if name in found], loaded)


def scale_task(client: Client, job: str, task: str, given: Mapping[str, int | None], timeout: float | None) -> int:
    """What :meth:`sardonyx.client.job_handle.JobHandle.scale_task` does."""
    from sardonyx.job.validate import validate

    making = Making(client, job, timeout)
    known = making.known
    wanted = scaled(job, known.spec, task, **given, complete=known.complete)
    validate(wanted, import_functions=False)
    refuse_finished(job, known, wanted)
    return making.make(wanted, [], None)


def revisions(client: Client, job: str) -> list[RevisionMade]:
    """The changes of a job that were taken in, in their order; see :class:`coordinator.history.revisions.RevisionMade`."""
    from coordinator.history import reader

    return reader.revisions(client.zk, job)


class Making:
    """Changes of one job, which a client asks for and waits for.

    Args:
        client: of the deployment.
        job: the id of the job.
        timeout: seconds for everything; None: without limit.
    """

    def __init__(self, client: Client, job: str, timeout: float | None) -> None:
        from coordinator.history import reader

        self._client, self._job = client, job
        self._reader = reader
        self._state = reader.present(client.zk)
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def known(self) -> KnownJob:
        """The job as the log has it up to where it was read. Raises if it cannot be changed now."""
        return _running(self._job, self._state.jobs.get(self._job))

    def make(self, spec: JobSpec, drop: Sequence[str], loaded: LoadedJob | None) -> int:
        """Have the job changed. Returns its revision then; the present one if nothing differs. ``loaded``: with the code of the
        new version; None: it is the code that the job has.
        """
        known = self.known
        if known.spec == spec:
            return self.written(known.revision)
        wanted = self.ask(spec, drop, loaded)
        taken_in = made = False
        while True:
            for event in map(happened, self._reader.advance(self._client.zk, self._state)):
                if isinstance(event, JobChanged) and replace(event, at=0.0) == wanted:
                    taken_in = True
                if isinstance(event, LinksFailed) and (event.job, event.revision) == (self._job, wanted.revision + 1):
                    raise SardonyxError.from_failure(event.error)
            found = self.known
            made = made or (found.revision > wanted.revision and found.spec == spec)
            if made and found.error is not None and found.error.code == TAKEN_BACK:
                raise SardonyxError.from_failure(found.error)
            if made and (self.over or not (self._begins(found) or self._unwritten(wanted.revision + 1))):
                return wanted.revision + 1
            if taken_in and not made and found.next_spec != spec:
                if found.revision == wanted.revision and found.next_spec is None:
                    refuse_finished(self._job, found, spec)
                raise rival(self._job)
            if self.over:
                raise Interrupted(
                    "SX-JOB-CHANGE-PENDING",
                    f"the change of job {self._job} was requested, and is not made yet",
                    cause=_what_it_waits_for(found) if taken_in else "no coordinator has processed it",
                    fix=f"wait: it goes on. `sardonyx job explain {self._job}` says what it waits for",
                    where={"job": self._job},
                )
            time.sleep(LOOK_EVERY)

    def _begins(self, known: KnownJob) -> bool:
        """Whether peers are about to be the first to work by a new version. If they cannot, it is taken back."""
        peers = (self._state.peers[peer].state for task in known.tasks.values() for peer in task.peers)
        begins = "acking" in peers or any(task.backing_off for task in known.tasks.values())
        return begins and known.former is not None and not known.suspended

    def _unwritten(self, revision: int) -> bool:
        """Whether the nodes of the job are still of an earlier revision."""
        data = self._client.zk.read(node_paths.job_status(self._job))
        return data is not None and msgspec.json.decode(data, type=JobNote).revision < revision

    def written(self, revision: int) -> int:
        """Wait until the nodes of the job are of this revision, and return it: an entry is in the log before it is done."""
        while self._unwritten(revision) and not self.over:
            time.sleep(LOOK_EVERY)
        return revision

    def ask(self, spec: JobSpec, drop: Sequence[str], loaded: LoadedJob | None) -> JobChanged:
        """Ask for a change, as :meth:`make` does, and do not wait for it."""
        known = self.known
        same = self.same(known.spec, spec, loaded)
        wanted = JobChanged(
            job=self._job, spec=spec, revision=known.revision, drop=sorted({*drop}), same=same, by=asker()
        )
        self._client.zk.request(wanted)
        return wanted

    def await_read(self, handle: JobHandle, links: Sequence[str], rests: JobSpec | None = None) -> None:
        """Wait until queues are read to their end, to which nothing new comes from outside. It takes two looks: what a task has
        written while it read the rest of one queue may be unread on the next one.

        Args:
            handle: of the job.
            links: the queues.
            rests: of a job whose inputs stand still, the version that must stand meanwhile; None: another one may come.

        Raises:
            SardonyxError: ``SX-JOB-CHANGE-DRAIN``: that cannot be known; ``SX-JOB-CHANGE-RIVAL``: the job became another one
                meanwhile; ``SX-JOB-CHANGE-NOW``: it was suspended.
            Interrupted: ``SX-JOB-CHANGE-UNREAD``: not within the timeout.
        """
        quiet = 0
        while quiet < _QUIET:
            audits = {audit.link: audit.unread for audit in handle.audit()}
            unknown = sorted(name for name in links if name in audits and audits[name] is None)
            if unknown:
                cause = "it is not known how many rows were written there"
                if rests is None:
                    raise undrainable(self._job, unknown, cause)
                fix = "say `--restart`: the job is stopped, and another one goes on from there"
                raise undrainable(self._job, unknown, cause, fix)
            left = sorted(name for name in links if audits.get(name) != 0)
            quiet = 0 if left else quiet + 1
            self._reader.advance(self._client.zk, self._state)
            if self.known.suspended:
                raise not_now(self._job, "it is suspended, so nothing reads its queues", "resume it, and try again")
            if rests not in (None, self.known.spec):
                raise rival(self._job)
            if left and self.over:
                raise Interrupted(
                    "SX-JOB-CHANGE-UNREAD",
                    f"job {self._job} is not changed yet: {listed(left)} {plural(len(left), 'is', 'are')} not read to the end",
                    cause="nothing new comes there any more, and its tasks still read what was there",
                    fix="give the same command again, and more time; or change the job to what it was",
                    where={"job": self._job},
                )
            if quiet < _QUIET:
                time.sleep(LOOK_EVERY)

    def same(self, old: JobSpec, new: JobSpec, loaded: LoadedJob | None) -> list[str]:
        """The tasks whose functions are the same in the code of both versions."""
        from sardonyx.job.same_code import same_functions

        stages = graph_of(old, "", "").stages
        if old.code == new.code:
            return [stage.name for stage in stages]
        before = None if old.code is None else self._client.zk.read(node_paths.code(old.code))
        if before is None and old.code is not None:
            return []
        after = None if new.code is None or loaded is None else loaded.code
        same = same_functions(before, after, old.references())
        return [stage.name for stage in stages if same.issuperset(used_by(stage))]

    def look(self) -> list[PlainEvent]:
        """Read what the log says by now; gives what has happened since."""
        return [happened(event) for event in self._reader.advance(self._client.zk, self._state)]

    @property
    def job(self) -> str:
        """The id of the job."""
        return self._job

    @property
    def jobs(self) -> Mapping[str, KnownJob]:
        """All jobs, as far as the log was read."""
        return self._state.jobs

    @property
    def rules(self) -> int:
        """The rules by which the coordinator decides."""
        return self._state.rules

    @property
    def present(self) -> KnownJob | None:
        """The job as far as the log was read, whatever has become of it; None: it was purged."""
        return self._state.jobs.get(self._job)

    @property
    def completed(self) -> bool:
        """Whether the job has come to its end."""
        known = self._state.jobs.get(self._job)
        return known is not None and known.status == "completed"

    @property
    def revision(self) -> int:
        """Return the revision of the job, which may have ended."""
        return self._state.jobs[self._job].revision

    @property
    def over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline


def _running(job: str, known: KnownJob | None) -> KnownJob:
    if known is None:
        raise job_gone(job)
    if known.ended:
        from sardonyx.client.shares import job_ended

        raise job_ended(job, known.status)
    if known.status != "running":
        raise not_now(job, "its topics are still being made")
    if known.stopping:
        raise not_now(job, "a user has stopped it", "submit the new version with `--resume` when it has ended")
    return known


def not_now(job: str, cause: str, fix: str = "try again in a moment") -> SardonyxError:
    return SardonyxError(
        "SX-JOB-CHANGE-NOW", f"job {job} cannot be changed now", cause=cause, fix=fix, where={"job": job}
    )


def refuse_finished(job: str, known: KnownJob, spec: JobSpec) -> None:
    """Raises SX-JOB-CHANGE-NOW if the job is past what is to be changed, or an earlier change is not over."""
    if known.gone_spec is not None:
        raise not_now(job, "what the change before has removed is still being deleted")
    before, after = (graph_of(each, "", "") for each in (known.spec, spec))
    name = finished(before, after, known.complete, resizes=resized(known.spec, spec))
    if name:
        cause = (
            f"task {name} is complete: what it has read is past, and a new queue after it or before it would never end"
        )
        raise not_now(job, cause, "change it before that task is complete, or submit a job of its own")


def _what_it_waits_for(known: KnownJob) -> str:
    return "Kafka is being prepared for it" if known.switching else "its peers are still at their batches"


def _require_drainable(
    client: Client,
    job: str,
    known: KnownJob,
    cut: JobSpec,
    drain: Sequence[str],
    drop: Sequence[str],
    loaded: LoadedJob,
) -> None:
    """Raises SX-JOB-CHANGE-DRAIN if a job cannot go on for a while by a version in which no row comes to what goes."""
    from sardonyx.job.bundle import lost_names
    from sardonyx.job.validate import validate

    failure = change_failure(job, known.spec, cut, drop, known.retired)
    if failure is not None:
        raise undrainable(job, drain, failure.message)
    try:
        validate(cut, import_functions=False)
    except JobInvalid as error:
        raise undrainable(job, drain, error.message) from error
    if cut.code is not None and cut.code != known.spec.code:
        old = None if known.spec.code is None else client.zk.read(node_paths.code(known.spec.code))
        lost = lost_names(old, loaded.code, cut.references())
        if lost:
            cause = f"the new version adds queues, so it comes first, and its code has no {listed(lost)} any more"
            raise undrainable(job, drain, cause, "leave these functions in the new version's code until then")


def undrainable(
    job: str,
    names: Sequence[str],
    cause: str,
    fix: str = "drop it with `--drop`, if what is unread there may be lost",
) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-CHANGE-DRAIN",
        f"job {job} was not changed: {listed(names)} cannot be read to the end first",
        cause=cause,
        fix=fix,
        where={"job": job},
    )


def rival(job: str) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-CHANGE-RIVAL",
        f"job {job} was not changed",
        cause="it was changed otherwise meanwhile, or is being changed",
        fix=f"see what it is now (`sardonyx job diff {job} SPEC`), and change it again if you still want to",
        where={"job": job},
    )
