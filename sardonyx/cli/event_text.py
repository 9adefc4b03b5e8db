"""Events of the log in one line of plain words. Pure."""

from __future__ import annotations

from datetime import datetime

from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Counts,
    Declined,
    Evicted,
    Exhausted,
    GraceEnded,
    JobKilled,
    JobPurged,
    JobSubmitted,
    Left,
    LettersClaimed,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    PeerBorn,
    PeerDied,
    TaskFailed,
)
from sardonyx.core.text import counted


def summary(event: AnyEvent) -> str:
    """What happened, in one line."""
    match event:
        case PeerBorn():
            return f"peer {event.peer} is there" + (f", on {event.host}, process {event.pid}" if event.host else "")
        case PeerDied():
            return f"peer {event.peer} is gone"
        case Left():
            return f"peer {event.peer} wants to leave"
        case Evicted():
            return f"a user takes peer {event.peer} out"
        case GraceEnded():
            return f"peer {event.peer} did not withdraw in time after its task was taken away"
    return _of_a_job(event)


def _of_a_job(event: AnyEvent) -> str:
    match event:
        case JobSubmitted():
            return f"job {event.job} is handed in: {counted(len(event.spec.catalog), 'task')}"
        case JobKilled():
            return f"a user ends job {event.job}"
        case JobPurged():
            return f"job {event.job} is to be forgotten"
        case LettersClaimed():
            verb = "has" if event.letters == 1 else "have"
            letters = counted(event.letters, "dead letter")
            return f"{letters} of task {event.job}/{event.task} {verb} been redone or dropped so far"
        case BackoffEnded():
            return f"the back-off of task {event.job}/{event.task} is over after {counted(event.failures, 'failure')}"
    return _of_links(event)


def _of_links(event: AnyEvent) -> str:
    match event:
        case LinksCreated():
            return f"job {event.job} has its {counted(len(event.links), 'link')}"
        case LinksFailed():
            return f"job {event.job} gets no links: {failure_words(event.error)}"
        case LinksDeleted():
            return f"the links of job {event.job} are gone"
    return _of_an_assignment(event)


def _of_an_assignment(event: AnyEvent) -> str:
    match event:
        case Acked():
            return f"peer {event.peer} takes assignment {event.assignment}"
        case Declined():
            return f"peer {event.peer} cannot take assignment {event.assignment}: {failure_words(event.error)}"
        case AckTimedOut():
            return f"peer {event.peer} did not answer the offer of assignment {event.assignment}"
        case Exhausted():
            return f"peer {event.peer} has read all there is for assignment {event.assignment}; seal?"
        case Completed():
            return f"peer {event.peer} has sealed assignment {event.assignment}; complete! ({rows(event.counts)})"
        case TaskFailed():
            end = "for good" if event.fatal else "may be tried again"
            return f"peer {event.peer} gives assignment {event.assignment} up, {end}: {failure_words(event.error)}"
    raise AssertionError(f"no words for {type(event).__name__}")


def rows(counts: Counts) -> str:
    """Row counts in words."""
    words = f"{counts.rows_in:,} rows in, {counts.rows_out:,} out"
    words += f", {counts.skipped:,} skipped" if counts.skipped else ""
    return words + (f", {counts.dead:,} dead letters" if counts.dead else "")


def clock(at: float) -> str:
    """A wall clock time (seconds since 1970) in local time, to the millisecond."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def failure_words(error: Failure) -> str:
    """An error in one line."""
    return f"{error.code}: {error.message}".splitlines()[0]
