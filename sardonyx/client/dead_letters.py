"""Dead letters again: what there is of them, and a new job that reads those of one task, each once, whatever happens.

A redo is claimed and handed in by one transaction in ZooKeeper: the node that says up to where the letters of a task were
redone moves on, by version, with the request that submits the new job. So there is no moment between the two: of two redos at
the same time the second takes only what the first did not, and a command that dies has done both or neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from queues.dead_letters import FORMAT, FORMATS, Letter, told
from sardonyx.client.ids import job_gone, new_id
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import Create, JobSubmitted, encode_event, kind_of
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, Append, Check, SetIf

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.job.load import LoadedJob

LETTERS = "letters"
"""Name of the input task that a redo reads its letters by, if the job has none of that name."""


class Claim(msgspec.Struct, frozen=True):
    """Letters that were handed to a new job."""

    job: str
    start: int
    end: int
    """The offset behind the last one."""


class Claims(msgspec.Struct, frozen=True):
    """``/redo/<job>.<task>``."""

    next: int = 0
    """The first offset that was not redone."""
    claims: list[Claim] = []


class Pile(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one task."""

    job: str
    task: str
    letters: int
    waiting: int
    """How many of them were not redone."""
    first_at: float | None = None
    """When the first one was written, seconds since 1970."""
    last_at: float | None = None
    redone_by: list[str] = []
    """Ids of the jobs that it was redone by."""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter where it lies."""

    job: str
    offset: int
    """Its number; within a task it never changes."""
    at: float
    """When it was written, seconds since 1970."""
    letter: Letter
    record: Any
    """The row as a dict; text where it could not be read."""
    redone_by: str | None = None


class DeadLetters:
    """The dead letters of a deployment.

    Args:
        client: a connection; its Kafka is read.
    """

    def __init__(self, client: Client) -> None:
        client.settings.require("kafka")
        self._client = client
        self._zk = client._zk  # noqa: SLF001 - a part of the client in a module of its own

    def piles(self, job: str | None = None) -> list[Pile]:
        """All that there are, by job and task; tasks without any are left out.

        Args:
            job: only of this one; an id, the beginning of one, or a name.

        Raises:
            SardonyxError: ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``.
        """
        names = [view.id for view in self._client.jobs()] if job is None else [self._client.job(job).id]
        found = (self._pile(name, task, topic) for name in names for task, topic in self._topics(name))
        return [pile for pile in found if pile.letters]

    def show(self, job: str, offset: int, task: str | None = None) -> Stored:
        """One letter whole.

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
        claims = self._claims(name, found)[0].claims
        with closing(self._read(topic, first)) as messages:
            stored = (self._stored(name, claims, message) for message in messages)
            return list(itertools.islice((each for each in stored if each is not None), most))

    def _stored(self, job: str, claims: Sequence[Claim], message: Any) -> Stored | None:
        letter, offset = told(message), message.offset()
        if letter is None:  # somebody else's, on a topic of ours
            return None
        return Stored(
            job=job,
            offset=offset,
            at=message.timestamp()[1] / 1000,
            letter=letter,
            record=_record(letter, message.value()),
            redone_by=next((claim.job for claim in claims if claim.start <= offset < claim.end), None),
        )

    def redo_each(
        self, job: str, task: str | None = None, mended: LoadedJob | None = None
    ) -> Iterator[tuple[str, JobHandle]]:
        """Hand in a job for each task with letters that were not redone yet, and give each with its task as soon as it is.

        Args:
            job: an id, the beginning of one, or a name.
            task: only for this one.
            mended: the job as it should have been; None: as it was.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``: the job or the mended one has no such task; then none is handed in.
                ``SX-JOB-UNKNOWN``, ``SX-JOB-AMBIGUOUS``, ``SX-JOB-GONE``.
        """
        if task is not None:
            self._topic(self._client.job(job).id, task)
        piles = [pile for pile in self.piles(job) if pile.waiting and task in (None, pile.task)]
        if mended is not None:
            for pile in piles:
                redo_spec(mended.spec, pile.task, "", "", 0, 0)
        for pile in piles:
            handle = self.redo(pile.job, pile.task, mended)
            if handle is not None:
                yield pile.task, handle

    def redo(self, job: str, task: str, mended: LoadedJob | None = None) -> JobHandle | None:
        """Hand in a job that reads the task's letters that were not redone yet; None if there are none.

        Args:
            job: the job's id.
            task: whose letters.
            mended: the job as it should have been; None: as it was.

        Raises:
            SardonyxError: ``SX-DLQ-TASK``, the (mended) job has no such task; ``SX-JOB-GONE``.
        """
        spec = self._client.job(job).spec() if mended is None else mended.spec
        topic = self._topic(job, task)
        redo_id = new_id(f"{spec.name[:40]}-redo")
        while True:
            claims, version = self._claims(job, task)
            if any(claim.job == redo_id for claim in claims.claims):  # by a transaction whose reply was lost
                return JobHandle(self._client, redo_id)
            end = self._behind_last(topic, claims.next)
            if end is None:
                return None
            again = redo_spec(spec, task, redo_id, topic, claims.next, end)
            claim = Claim(redo_id, claims.next, end)
            self._code(again, mended)
            if self._commit(job, task, Claims(end, [*claims.claims, claim]), version, again):
                return JobHandle(self._client, redo_id, again)

    def _commit(self, job: str, task: str, claims: Claims, version: int | None, spec: JobSpec) -> bool:
        """Claim and submit; False if it was not done, or nobody knows: the claims tell."""
        from sardonyx.zookeeper.errors import OutcomeUnknown, TransactionFailed

        event = JobSubmitted(job=spec.name, spec=spec)
        request = encode_event(event)
        if len(request) > ENTRY_LIMIT:
            self._zk.request(event)  # raises: it says what is too large
        path, data = node_paths.redo(job, task), msgspec.json.encode(claims)
        failpoint("redo-claim")
        try:
            self._zk.commit(
                [
                    Check(node_paths.job_status(job)),  # or the claim would outlive the job
                    Create(path, data) if version is None else SetIf(path, data, version),
                    Append(node_paths.inbox_prefix(kind_of(event), self._zk.runtime.token()), request),
                ]
            )
        except TransactionFailed:
            if self._zk.read(node_paths.job_status(job)) is None:
                raise job_gone(job) from None
            return False
        except OutcomeUnknown:
            self._zk.sync()
            return False
        failpoint("redo-claimed")
        return True

    def _code(self, spec: JobSpec, mended: LoadedJob | None) -> None:
        """Put the code there, or touch it, so that it is not swept before the new job names it."""
        if spec.code is None:
            return
        path = node_paths.code(spec.code)
        code = self._zk.read(path) if mended is None else mended.code
        if code is not None:
            self._client._put_code(path, code)  # noqa: SLF001

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

    def _behind_last(self, topic: str, start: int) -> int | None:
        """The offset behind the last letter from ``start`` on; None if there is none."""
        last = None
        for message in self._read(topic, start):
            last = message.offset()
        return None if last is None else last + 1

    def _claims(self, job: str, task: str) -> tuple[Claims, int | None]:
        found = self._zk.read_version(node_paths.redo(job, task))
        return (Claims(), None) if found is None else (msgspec.json.decode(found[0], type=Claims), found[1])

    def _pile(self, job: str, task: str, topic: str) -> Pile:
        claims, _ = self._claims(job, task)
        first = last = None
        count = waiting = 0
        for message in self._read(topic):
            at = message.timestamp()[1] / 1000
            first, last = (at if first is None else first), at
            count += 1
            waiting += message.offset() >= claims.next
        return Pile(
            job=job,
            task=task,
            letters=count,
            waiting=waiting,
            first_at=first,
            last_at=last,
            redone_by=[claim.job for claim in claims.claims],
        )


def redo_spec(spec: JobSpec, task: str, name: str, topic: str, start: int, end: int) -> JobSpec:
    """The job that works on dead letters: the task and everything behind it, with the letters in front. Pure.

    Args:
        spec: the job that they come from, or a mended one.
        task: whose letters.
        name: of the new job, which is its id too.
        topic: of the letters.
        start: the first of them.
        end: the offset behind the last one.

    Raises:
        SardonyxError: ``SX-DLQ-TASK``, there is no such task.
    """
    tasks = {each.name: each for each in spec.catalog}
    if task not in tasks:
        raise _no_task(spec.name, task, list(tasks))
    kept = {task}
    while more := {target for source, target in spec.workflow if source in kept} - kept:
        kept |= more
    edges = [(source, target) for source, target in spec.workflow if source in kept]
    before = [tasks[source] for source, target in spec.workflow if target == task]
    formats: dict[str, Any] = {}
    for each in (*before, tasks[task]):
        formats |= _formats(each)
    options = {"topic": topic, "format": FORMAT, "start": {"0": start}, "end": {"0": end}, FORMATS: formats}
    catalog = [_again(each) for each in spec.catalog if each.name in kept]
    if tasks[task].type == "input":
        changed = {"connector": "kafka", "options": options}
        catalog = [msgspec.structs.replace(each, **changed) if each.name == task else each for each in catalog]
    else:
        letters = next(n for n in (LETTERS, *(f"{LETTERS}{i}" for i in range(2, len(kept) + 3))) if n not in kept)
        catalog.insert(0, TaskSpec(name=letters, type="input", connector="kafka", options=options))
        edges.insert(0, (letters, task))
    links = {f"{source}.{target}" for source, target in edges}
    return msgspec.structs.replace(
        spec,
        name=name,
        workflow=edges,
        catalog=catalog,
        routes={link: route for link, route in spec.routes.items() if link in links},
    )


def _formats(task: TaskSpec) -> dict[str, Any]:
    """By topic, how records of a Kafka input are to be read; of one that reads dead letters, as it says itself."""
    if task.type != "input" or task.connector != "kafka":
        return {}
    if task.options.get("format") == FORMAT:
        return dict(task.options[FORMATS])
    return {str(task.options["topic"]): task.options}


def _again(task: TaskSpec) -> TaskSpec:
    """A folder that the job has written to is written to again, beside what is there."""
    if task.type == "output" and task.connector == "files":
        return msgspec.structs.replace(task, options={**task.options, "mode": "append"})
    return task


def _record(letter: Letter, value: bytes | None) -> Any:
    if letter.kind == "large":  # it stayed where it came from
        return None
    if letter.kind == "row" and value is not None:
        from queues.dead_letters import row_of

        (row,) = row_of(value).to_pylist()
        return row
    return (value or b"").decode("utf-8", "backslashreplace")


def _no_task(job: str, task: str | None, known: list[str]) -> SardonyxError:
    return SardonyxError(
        "SX-DLQ-TASK",
        f"job {job} has no task {task}" if task else f"several tasks of job {job} keep dead letters",
        cause=f"those that it could be are {', '.join(known) or 'none: no task of it keeps dead letters'}",
        fix="name one of them with --task"
        if known
        else 'set on_error to "dead_letter" on a task to keep what it fails on',
        where={"job": job},
    )
