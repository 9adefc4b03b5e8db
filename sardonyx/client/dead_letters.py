"""Dead letters: list them, redo them in a new job, drop them. Each letter is redone or dropped once, whatever happens.

A claim is a node in ZooKeeper that says up to which offset the letters of a task were redone or dropped. One transaction
moves it on, by version, and puts the requests for the coordinator into the inbox: the new job, and how many letters are
claimed by now. So of two redos at the same time the second takes only what the first did not, and a command that dies has done
both or neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from queues.dead_letters import Letter, told
from sardonyx.client import letter_claims
from sardonyx.client.ids import new_id
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.claims import Claim
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.redoing import redo_spec
from sardonyx.core.spec import JobSpec

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.job.load import LoadedJob


class Pile(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one task."""

    job: str
    task: str
    letters: int
    waiting: int
    """How many of them were neither redone nor dropped."""
    dropped: int = 0
    """How many of them were dropped."""
    first_at: float | None = None
    """When the first one was written, seconds since 1970."""
    last_at: float | None = None
    redone_by: list[str] = []
    """Ids of the jobs that redid letters of this task."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter."""

    job: str
    offset: int
    """Its number; within a task it never changes."""
    at: float
    """When it was written, seconds since 1970."""
    letter: Letter
    record: Any
    """The row as a dict; text if it could not be read."""
    redone_by: str | None = None
    """Id of the job that redid it."""
    dropped: bool = False


class DeadLetters:
    """The dead letters of a deployment.

    Args:
        client: a connection; its Kafka is read.
    """

    def __init__(self, client: Client) -> None:
        client.settings.require("kafka")
        self._client = client
        self._zk = client.zk

    def piles(self, job: str | None = None) -> list[Pile]:
        """The dead letters by job and task. Tasks without any are left out.

        Args:
            job: only those of this job; an id, the beginning of one, or a name.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        names = [view.id for view in self._client.jobs()] if job is None else [self._client.job(job).id]
        found = (self._pile(name, task, topic) for name in names for task, topic in self._topics(name))
        return [pile for pile in found if pile.letters]

    def show(self, job: str, offset: int, task: str | None = None) -> Stored:
        """One letter.

        Raises:
            SardonyxError: ``SX-DLQ-NONE``, ``SX-DLQ-TASK``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        found = self.letters(job, task, offset, 1)
        if not found or found[0].offset != offset:
            raise SardonyxError(
                "SX-DLQ-NONE",
                f"there is no dead letter {offset}" + (f" of task {task}" if task else "") + f" of job {job}",
                cause="a letter's number is its offset, and transactions take some of these",
                fix=f"`sardonyx dlq show {job}` shows the numbers of those that there are",
                where={"job": job},
            )
        return found[0]

    def letters(self, job: str, task: str | None = None, first: int = 0, most: int | None = None) -> list[Stored]:
        """Letters of a task, in the order in which they were written.

        Args:
            job: an id, the beginning of one, or a name.
            task: whose; may be None if only one task of the job has any.
            first: number of the first of them.
            most: how many at most.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        name = self._client.job(job).id
        found, topic = self._one_topic(name, task)
        with closing(self._letters(name, found, topic, first)) as stored:
            return list(itertools.islice(stored, most))

    def each(self, job: str, task: str | None = None) -> Iterator[Stored]:
        """All letters of a job, task by task, one after the other.

        Args:
            job: an id, the beginning of one, or a name.
            task: only those of this task.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        name = self._client.job(job).id
        topics = self._topics(name) if task is None else [(task, self._topic(name, task))]
        for each, topic in topics:
            yield from self._letters(name, each, topic)

    def _letters(self, job: str, task: str, topic: str, first: int = 0) -> Generator[Stored, None, None]:
        claims = letter_claims.read(self._zk, job, task)[0].claims
        with closing(self._read(topic, first)) as messages:
            for message in messages:
                letter, offset = told(message), message.offset()
                if letter is None:  # not written by Sardonyx
                    continue
                claim = next((claim for claim in claims if claim.start <= offset < claim.end), None)
                yield Stored(
                    job=job,
                    offset=offset,
                    at=message.timestamp()[1] / 1000,
                    letter=letter,
                    record=_record(letter, message.value()),
                    redone_by=None if claim is None or claim.dropped else claim.job,
                    dropped=claim is not None and claim.dropped,
                )

    def redo_each(
        self, job: str, task: str | None = None, corrected: LoadedJob | None = None, *, restored: bool = False
    ) -> Iterator[tuple[str, JobHandle]]:
        """Submit a job for each task with letters that were neither redone nor dropped; yields each as soon as it is submitted.

        Args:
            job: an id, the beginning of one, or a name.
            task: only for this task.
            corrected: the job with corrections; None: as it was.
            restored: also letters that may have been redone before the deployment was restored.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``: the job or the corrected one has no such task; then nothing is submitted.
                ``SX-DLQ-RESTORED``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``, ``SX-JOB-GONE``.
        """
        piles = self._waiting(job, task)
        if corrected is not None:
            for pile in piles:
                redo_spec(corrected.spec, pile.task, "", "", 0, 0)
        for pile in piles:
            handle = self.redo(pile.job, pile.task, corrected, restored=restored)
            if handle is not None:
                yield pile.task, handle

    def successors(self, job: str, task: str | None = None) -> list[Pile]:
        """Letters that failed again: those that wait in the jobs that redid the letters of this job, and in theirs.

        Args:
            job: an id, the beginning of one, or a name.
            task: only those that come from this task.
        """
        found: list[Pile] = []
        left = [by for pile in self.piles(job) if task in (None, pile.task) for by in pile.redone_by]
        seen: set[str] = set()
        while left:
            name = left.pop(0)
            if name in seen:
                continue
            seen.add(name)
            try:
                piles = self.piles(name)
            except SardonyxError as error:
                if error.code != "SX-JOB-UNKNOWN":
                    raise
                continue  # it was forgotten, which its letters prevent
            found += [pile for pile in piles if pile.waiting]
            left += [by for pile in piles for by in pile.redone_by]
        return found

    def redo(
        self,
        job: str,
        task: str,
        corrected: LoadedJob | None = None,
        *,
        restored: bool = False,
        redo_id: str = "",
        by: str = "",
    ) -> JobHandle | None:
        """Submit a job that reads the task's letters that were neither redone nor dropped; None if there are none.

        Args:
            job: the job's id.
            task: the task that failed on them.
            corrected: the job with corrections; None: as it was.
            restored: also letters that may have been redone before the deployment was restored.
            redo_id: of the job that is submitted; empty: a new one. Asked for again with the same, nothing is redone twice.
            by: who asks; empty: the user of this process.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, the (corrected) job has no such task; ``SX-DLQ-RESTORED``; ``SX-JOB-GONE``.
        """
        corrected = None if corrected is None else self._client.loaded(corrected)
        spec = self._client.job(job).spec() if corrected is None else corrected.spec
        topic = self._topic(job, task)
        redo_id = redo_id or new_id(f"{spec.name[:40]}-redo")
        while True:
            claims, version = letter_claims.read(self._zk, job, task)
            if any(claim.job == redo_id for claim in claims.claims):  # by a transaction whose reply was lost
                return JobHandle(self._client, redo_id)
            end, count = self._after_last(topic, claims.next)
            if not count:
                return None
            if claims.next < claims.restored and not restored:
                raise _perhaps_redone(job, task)
            again = redo_spec(spec, task, redo_id, topic, claims.next, end)
            claim = Claim(redo_id, claims.next, end)
            self._code(again, corrected)
            claimed = claims.plus(claim, count)
            if letter_claims.commit(self._zk, job, task, claimed, version, again, by):
                return JobHandle(self._client, redo_id, again)

    def drop_each(self, job: str, task: str | None = None) -> Iterator[tuple[str, int]]:
        """Drop the letters that were neither redone nor dropped, task by task; yields each task with its number of letters.

        They stay on their topic until the job is forgotten, and a dropped letter is never redone.

        Args:
            job: an id, the beginning of one, or a name.
            task: only those of this task.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``, ``SX-JOB-GONE``.
        """
        for pile in self._waiting(job, task):
            count = self.drop(pile.job, pile.task)
            if count:
                yield pile.task, count

    def drop(self, job: str, task: str) -> int:
        """Drop the task's letters that were neither redone nor dropped, and say how many those were.

        Args:
            job: the job's id.
            task: the task that failed on them.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, ``SX-JOB-GONE``.
        """
        topic = self._topic(job, task)
        name, asked = new_id("drop"), 0
        while True:
            claims, version = letter_claims.read(self._zk, job, task)
            if any(claim.job == name for claim in claims.claims):  # by a transaction whose reply was lost
                return asked
            end, asked = self._after_last(topic, claims.next)
            if not asked:
                return 0
            claim = Claim(name, claims.next, end, dropped=True)
            if letter_claims.commit(self._zk, job, task, claims.plus(claim, asked), version):
                return asked

    def _waiting(self, job: str, task: str | None) -> list[Pile]:
        """The piles with letters that are neither redone nor dropped. Raises ``SX-DLQ-TASK`` for a task without a topic."""
        if task is not None:
            self._topic(self._client.job(job).id, task)
        return [pile for pile in self.piles(job) if pile.waiting and task in (None, pile.task)]

    def _code(self, spec: JobSpec, corrected: LoadedJob | None) -> None:
        """Write the code again, so that the coordinator does not remove it before the new job names it."""
        if spec.code is None:
            return
        path = node_paths.code(spec.code)
        code = self._zk.read(path) if corrected is None else corrected.code
        if code is not None:
            self._client.put_code(path, code)

    def _topics(self, job: str) -> list[tuple[str, str]]:
        """The tasks of a job that keep dead letters, with their topics."""
        graph = graph_of(self._client.job(job).spec(), self._client.settings.deployment, job)
        return [(link.source, link.topic) for link in graph.links if link.kind == "dead"]

    def _one_topic(self, job: str, task: str | None) -> tuple[str, str]:
        topics = dict(self._topics(job))
        if task is None:
            with_any = list(topics) if len(topics) == 1 else [pile.task for pile in self.piles(job)]
            task = with_any[0] if len(with_any) == 1 else None
        if task is None:
            raise _no_task(job, task, list(topics))
        return task, self._topic(job, task)

    def _topic(self, job: str, task: str) -> str:
        topics = dict(self._topics(job))
        if task not in topics:
            raise _no_task(job, task, list(topics))
        return topics[task]

    def _read(self, topic: str, start: int = 0) -> Generator[Any, None, None]:
        from queues.admin import topics
        from queues.dead_letter_topics import read

        if topic not in topics(self._client.settings):  # the job had none, and ended
            return
        yield from read(self._client.settings, topic, start)

    def _after_last(self, topic: str, start: int) -> tuple[int, int]:
        """The offset after the last letter from ``start`` on, and how many there are."""
        end, count = start, 0
        for message in self._read(topic, start):
            end, count = message.offset() + 1, count + 1
        return end, count

    def _pile(self, job: str, task: str, topic: str) -> Pile:
        claims, _ = letter_claims.read(self._zk, job, task)
        dropped = [range(claim.start, claim.end) for claim in claims.claims if claim.dropped]
        first = last = None
        count = waiting = gone = 0
        for message in self._read(topic):
            at = message.timestamp()[1] / 1000
            first, last = (at if first is None else first), at
            count += 1
            waiting += message.offset() >= claims.next
            gone += any(message.offset() in each for each in dropped)
        return Pile(
            job=job,
            task=task,
            letters=count,
            waiting=waiting,
            dropped=gone,
            first_at=first,
            last_at=last,
            redone_by=[claim.job for claim in claims.claims if not claim.dropped],
        )


def _perhaps_redone(job: str, task: str) -> SardonyxError:
    return SardonyxError(
        "SX-DLQ-RESTORED",
        f"dead letters of task {task} of job {job} may have been redone already",
        cause="the deployment was restored from a backup, and which letters were redone after the backup is lost",
        fix=f"look at them with `sardonyx dlq show {job}`; then redo them with --restored, or run `sardonyx dlq drop {job}`",
        where={"job": job, "task": task},
    )


def _record(letter: Letter, value: bytes | None) -> Any:
    if letter.kind == "large":  # the letter does not hold it
        return None
    if letter.kind in ("row", "made") and value is not None:
        from queues.dead_letters import row_of
        from queues.shown_values import records

        (row,) = records(row_of(value))
        return row
    return (value or b"").decode("utf-8", "backslashreplace")


def _no_task(job: str, task: str | None, known: list[str]) -> SardonyxError:
    return SardonyxError(
        "SX-DLQ-TASK",
        f"job {job} has no task {task} that keeps dead letters"
        if task
        else f"several tasks of job {job} keep dead letters",
        cause=f"tasks that keep them: {', '.join(known)}" if known else "no task of this job keeps dead letters",
        fix="name one of them with --task"
        if known
        else 'set on_error to "dead_letter" on a task to keep the records that it fails on',
        where={"job": job},
    )
