"""What an operator may do from the pages. Each action is a request to the coordinator, as the command of the same name makes it.

No action brings code into a cluster. An action that is asked for again under the same key is done once: the key names the
request, and the coordinator takes no request twice.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from coordinator.core.state import Job
from sardonyx.client.client import Client
from sardonyx.client.dead_letters import DeadLetters
from sardonyx.client.ids import asker, unknown_job
from sardonyx.client.stopping import Stop, check_stop
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import JobKilled, JobScaled, JobStopped, Request
from sardonyx.core.names import request_id
from sardonyx.web.access import Visitor
from sardonyx.web.book import Book
from sardonyx.web.queries import NoQuery, StopQuery, read_query

TAKE_IN = 10.0
"""Seconds that an answer waits for the coordinator to take the request in."""
LOOK_EVERY = 0.05
"""Seconds between two looks whether it has."""
_KEY = re.compile(r"[A-Za-z0-9._-]{16,100}")


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an action."""

    job: str
    """The job that it is about; of a redo, the new job."""
    n: int | None
    """The entry of the log by which the coordinator has taken it in; None: it has not yet. Ask again with the same key."""
    by: str
    """Who asked, as the log has it."""


class Wish(NamedTuple):
    """An action that a visitor wants."""

    job: str
    """Its whole id."""
    task: str
    by: str
    token: str
    """The same whenever the same visitor asks for the same under the same key."""
    how: Stop = Stop()
    """If it is a stop: what becomes of what the tasks hold."""


class Actions:
    """Carries out what operators want of a running deployment. Threads may share it.

    Args:
        client: a connection to the deployment.
        book: gives the log as it is known.
    """

    def __init__(self, client: Client, book: Callable[[], Book]) -> None:
        self._client = client
        self._book = book

    def kill(self, wish: Wish) -> Done:
        return self._asked(wish, lambda _: JobKilled(job=wish.job, by=wish.by))

    def stop(self, wish: Wish) -> Done:
        def event(job: Job) -> Request:
            check_stop(wish.job, job.spec, self._client.settings.deployment, how=wish.how, rules=self._rules)
            return JobStopped(job=wish.job, closes=wish.how.close_windows, by=wish.by)

        return self._asked(wish, event)

    def suspend(self, wish: Wish) -> Done:
        return self._asked(wish, lambda _: JobScaled(job=wish.job, suspended=True, by=wish.by))

    def resume(self, wish: Wish) -> Done:
        return self._asked(wish, lambda _: JobScaled(job=wish.job, suspended=False, by=wish.by))

    def redo(self, wish: Wish) -> Done:
        """Raises what :meth:`DeadLetters.redo` raises, and ``SX-DLQ-NONE``."""
        job, task = wish.job, wish.task
        suffix = base64.b32encode(bytes.fromhex(wish.token))[:6].decode().lower()
        again = f"{self._job(job).spec.name[:40]}-redo-{suffix}"

        def redo() -> None:
            handle = DeadLetters(self._client).redo(job, task, redo_id=again, by=wish.by)
            if handle is None:
                raise SardonyxError(
                    "SX-DLQ-NONE",
                    f"task {task} of job {job} has no open dead letters",
                    cause="there are none, or they were redone or dropped",
                    fix=f"`sardonyx dlq list {job}` shows what became of them",
                    where={"job": job, "task": task},
                )

        return Done(job=again, n=self._once(lambda book: book.submitted(again), redo), by=wish.by)

    # Underneath

    def _asked(self, wish: Wish, event: Callable[[Job], Request]) -> Done:
        uuid = request_id(wish.by, wish.token)

        def ask() -> None:
            job = self._job(wish.job)
            if job.ended:
                raise _ended(wish.job, job.status)
            self._client.zk.request(event(job), wish.token)

        return Done(job=wish.job, n=self._once(lambda book: book.of_request(uuid), ask), by=wish.by)

    def _once(self, find: Callable[[Book], int | None], ask: Callable[[], None]) -> int | None:
        """The entry that is looked for. If there is none, ask for it, and wait until it comes; None if it does not in a while."""
        found = self._looked(find)
        if found is not None:
            return found
        try:
            ask()
        except SardonyxError:
            found = self._looked(find)  # the same wish, sent twice, may just have been carried out
            if found is None:
                raise
        deadline = time.monotonic() + TAKE_IN
        while found is None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
            found = self._looked(find)
        return found

    def _looked(self, find: Callable[[Book], int | None]) -> int | None:
        book = self._book()
        with book.lock:
            return find(book)

    def _rules(self) -> int:
        book = self._book()
        with book.lock:
            return book.state.rules

    def _job(self, job: str) -> Job:
        """The job of this id. A name may mean another job than the one that was meant."""
        with self._book().lock:
            jobs = self._book().state.jobs
            if job not in jobs:
                raise unknown_job(job, list(jobs))
            return jobs[job]


class Action(NamedTuple):
    """One address at which an operator changes something."""

    path: str
    summary: str
    handler: Callable[[Actions, Wish], Done]
    query: type[NoQuery | StopQuery] = NoQuery


ACTIONS = (
    Action(
        "/jobs/{job}/kill",
        "End a job at once. Batches in hand are dropped; what was committed stays. It cannot go on.",
        Actions.kill,
    ),
    Action(
        "/jobs/{job}/stop",
        "Stop an unbounded job: what its inputs have read goes through it, then it ends. Another one can go on from there. If "
        "none could go on with what its tasks hold, that is an error, unless close_windows or discard_state is true.",
        Actions.stop,
        StopQuery,
    ),
    Action(
        "/jobs/{job}/suspend",
        "Take all peers off a job, after the batch in hand. Its queues, positions and state stay.",
        Actions.suspend,
    ),
    Action("/jobs/{job}/resume", "Let a suspended job have peers again; it goes on where it was.", Actions.resume),
    Action(
        "/dead-letters/{job}/{task}/redo",
        "Submit a job that redoes the open dead letters of a task, with the code that its job has.",
        Actions.redo,
    ),
)
"""Every address that changes something, by POST. ``{job}`` is the whole id of a job."""


def wish_of(
    visitor: Visitor, action: Action, parts: Mapping[str, str], key: str, raw: Mapping[str, str] = MappingProxyType({})
) -> Wish:
    """What a request wants. ``raw``: its parameters.

    Raises:
        SardonyxError: ``SX-WEB-QUERY``: the key is missing, or cannot be one; of the parameters.
    """
    if not _KEY.fullmatch(key):
        raise SardonyxError(
            "SX-WEB-QUERY",
            "the header Idempotency-Key is missing" if not key else "the header Idempotency-Key cannot be read",
            cause="it tells a request that is sent again from a new one",
            fix="send a new uuid with each action, and the same one when you repeat it",
        )
    same = "\n".join((visitor.name, action.path, *parts.values(), key))
    user, _, version = asker().partition(" ")
    by = f"{visitor.name}@{user.partition('@')[2]} {version} web"
    token = hashlib.sha256(same.encode()).hexdigest()[:32]
    query = read_query(action.query, raw)
    how = Stop(query.close_windows, query.discard_state) if isinstance(query, StopQuery) else Stop()
    return Wish(parts["job"], parts.get("task", ""), by, token, how)


def no_actions(why: str) -> SardonyxError:
    """The error for an action where there is nothing to act on."""
    return SardonyxError("SX-WEB-METHOD", "nothing can be changed here", cause=why, fix="use the command line")


def _ended(job: str, status: str) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-ENDED",
        f"job {job} is {status}",
        cause="only a job that has not ended can be ended, suspended or resumed",
        fix="nothing is left to do",
        where={"job": job},
    )
