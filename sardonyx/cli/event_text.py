"""Events of the log in one line of plain words. Pure."""

from __future__ import annotations

from datetime import datetime

from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Checkpointed,
    Completed,
    Counts,
    Declined,
    Drained,
    Evicted,
    Exhausted,
    GraceEnded,
    JobChanged,
    JobKilled,
    JobPurged,
    JobRestarted,
    JobRolledBack,
    JobScaled,
    JobStopped,
    JobSubmitted,
    Left,
    LettersClaimed,
    LinkLost,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksKept,
    LinksRead,
    PeerBorn,
    PeerDied,
    PolicySet,
    Rebalanced,
    Restored,
    RulesRaised,
    SetAside,
    TaskFailed,
    TurnEnded,
    UserEvent,
    Yielded,
)
from sardonyx.core.notes import Assignment
from sardonyx.core.text import counted, listed, plural, time_text
from sardonyx.core.units import written


def summary(event: AnyEvent, held: Assignment | None = None) -> str:
    """What happened, in one line.

    Args:
        event: an entry of the log.
        held: what the peer of the event worked on when it came: gives an assignment the names of its job and task.
    """
    text = _summary(event, held)
    return f"{text} (asked by {event.by})" if isinstance(event, UserEvent) and event.by else text


def _summary(event: AnyEvent, held: Assignment | None) -> str:
    match event:
        case PeerBorn():
            return f"peer {event.peer} registered" + (f" on {event.host}, process {event.pid}" if event.host else "")
        case PeerDied():
            return f"peer {event.peer} is gone"
        case Left():
            return f"peer {event.peer} leaves"
        case Evicted() | Drained():
            return _taken_out(event)
        case GraceEnded():
            return f"peer {event.peer} did not withdraw in time after its task was revoked"
    return _of_a_job(event, held)


def _taken_out(event: Evicted | Drained) -> str:
    if isinstance(event, Evicted):
        return f"a user evicts peer {event.peer}"
    who = f"the peers of host {event.host}" if event.host else f"peer {event.peer}"
    return f"a user takes {who} in again" if event.back else f"a user drains {who}"


def _of_a_job(event: AnyEvent, held: Assignment | None) -> str:
    match event:
        case JobSubmitted():
            at = "" if event.resumes_at is None else f" at {time_text(event.resumes_at)} or before"
            resumes = f", and resumes {event.resumes}{at}" if event.resumes else ""
            if event.resumes and event.replays is not None:
                resumes = (
                    f", and works rows of {event.resumes} once more with its states at {time_text(event.replays.at)}"
                )
            return f"job {event.job} is submitted: {counted(len(event.spec.catalog), 'task')}{resumes}"
        case JobStopped() | JobKilled() | JobRolledBack() | JobRestarted():
            return _of_its_end(event)
        case JobPurged():
            return f"job {event.job} is purged" + (" with its dead letters" if event.dead_letters else "")
        case LettersClaimed():
            verb = plural(event.letters, "has", "have")
            letters = counted(event.letters, "dead letter")
            return f"{letters} of task {event.job}/{event.task} {verb} been redone or dropped so far"
        case BackoffEnded():
            return f"the back-off of task {event.job}/{event.task} is over after {counted(event.failures, 'failure')}"
    return _of_shares(event, held)


def _of_its_end(event: JobStopped | JobKilled | JobRolledBack | JobRestarted) -> str:
    if isinstance(event, JobRolledBack):
        return f"a user has job {event.job} go back to {time_text(event.to)} or before, as job {event.into}"
    if isinstance(event, JobRestarted):
        return f"a user stops job {event.job}, from which job {event.into} goes on when it has ended"
    if isinstance(event, JobKilled):
        return f"a user kills job {event.job}"
    return f"a user stops job {event.job}{', and its windows close' if event.closes else ''}"


def _of_shares(event: AnyEvent, held: Assignment | None) -> str:
    match event:
        case JobScaled() | JobChanged():
            return _job_scaled(event)
        case Rebalanced():
            return f"job {event.job} is to give {counted(event.peers, 'peer')}, which it has beyond its share"
        case PolicySet():
            return f"a user has peers divided by the scheduler {event.scheduler}"
        case Yielded():
            return f"peer {event.peer} gives up {_place(event, held)} after its batch"
        case TurnEnded():
            return f"the turn of peer {event.peer} at {_place(event, held)} is over"
    return _of_links(event, held)


def _job_scaled(event: JobScaled | JobChanged) -> str:
    if isinstance(event, JobChanged):
        drop = f", and drops {listed(event.drop)}" if event.drop else ""
        return f"a user changes revision {event.revision} of job {event.job}{drop}"
    given = {name: getattr(event, name) for name in ("priority", "weight", "percentage", "max_peers")}
    words = ", ".join(_scaled(name, value) for name, value in given.items() if value is not None)
    if event.suspended is None:
        return f"a user scales job {event.job}: {words or 'nothing changes'}"
    return (
        f"a user {'suspends' if event.suspended else 'resumes'} job {event.job}{words and f', and scales it: {words}'}"
    )


def _scaled(name: str, value: float) -> str:
    if not value and name in ("percentage", "max_peers"):
        return "no limit of peers" if name == "max_peers" else "no percentage"
    return f"{name.replace('_', ' ')} {value:.15g}"


def _place(event: AnyEvent, held: Assignment | None) -> str:
    place = f"assignment {getattr(event, 'assignment', '')}"
    if held is not None and held.id == getattr(event, "assignment", None):
        place += f" ({held.job}/{held.task})"
    return place


def _of_links(event: AnyEvent, held: Assignment | None) -> str:
    match event:
        case LinksCreated() | LinksFailed() | LinksDropped() if event.revision or isinstance(event, LinksDropped):
            return _of_changed_links(event)
        case LinksCreated():
            return f"job {event.job} has its {counted(len(event.links), 'link')}"
        case LinksFailed() | LinkLost():
            what = f"the links of job {event.job} cannot be created"
            if isinstance(event, LinkLost):
                what = f"an audit of link {event.link} of job {event.job} has failed"
            return f"{what}: {failure_words(event.error)}"
        case LinksKept():
            kept = f"at least {written(event.seconds)}" if event.seconds else "no longer than they are needed"
            return f"records stay in the links of job {event.job} {'for ' if event.seconds else ''}{kept}"
        case LinksRead() | LinksDeleted():
            return f"the links of job {event.job} are {'read for the last time' if isinstance(event, LinksRead) else 'deleted'}"
    return _of_the_deployment(event, held)


def _of_changed_links(event: LinksCreated | LinksFailed | LinksDropped) -> str:
    match event:
        case LinksCreated():
            return f"job {event.job} has the links of revision {event.revision}, which takes over{_took_over(event)}"
        case LinksFailed():
            return f"job {event.job} cannot have the links of revision {event.revision}: {failure_words(event.error)}"
        case LinksDropped():
            return f"what revision {event.revision} of job {event.job} has removed is deleted"


def _took_over(event: LinksCreated) -> str:
    """Say at which offsets of the topics that each task reads a new version took over."""
    places = [
        f"{task} {topic}[{number}]@{offset}"
        for task, topics in event.since.items()
        for topic, offsets in topics.items()
        for number, offset in enumerate(offsets)
        if offset is not None
    ]
    return f" at {', '.join(places)}" if places else ""


def _of_the_deployment(event: AnyEvent, held: Assignment | None) -> str:
    match event:
        case Restored():
            return f"the deployment was restored from a backup; job {event.job}: {failure_words(event.error)}"
        case SetAside():
            fails = f", and job {event.job} fails" if event.job else ""
            left = "decided without it" if event.decided else "left out"
            return f"an entry is set aside{fails}; {left}: {_summary(event.event, held)}. {failure_words(event.error)}"
        case Checkpointed():
            return f"job {event.job} has a checkpoint at {time_text(event.point.at)}"
        case RulesRaised():
            return f"all coordinators know rules {event.rules}: decisions follow these from here on"
    return _of_an_assignment(event, held)


def _of_an_assignment(event: AnyEvent, held: Assignment | None) -> str:
    place = _place(event, held)
    match event:
        case Acked():
            return f"peer {event.peer} accepts {place}"
        case Declined():
            return f"peer {event.peer} declines {place}: {failure_words(event.error)}"
        case AckTimedOut():
            return f"peer {event.peer} did not answer the offer of {place}"
        case Exhausted():
            return f"peer {event.peer} has read all input of {place}"
        case Completed():
            return f"peer {event.peer} has completed {place}: {rows(event.counts)}"
        case TaskFailed():
            end = "for good" if event.fatal else "it may be tried again"
            return f"peer {event.peer} gives up {place}, {end}: {failure_words(event.error)}"
    raise AssertionError(f"no words for {type(event).__name__}")


def rows(counts: Counts) -> str:
    """Row counts in words."""
    words = f"{counts.rows_in:,} rows in, {counts.rows_out:,} out"
    words += f", {counts.skipped:,} skipped" if counts.skipped else ""
    words += f", {counts.late:,} late" if counts.late else ""
    return words + (f", {counts.dead:,} dead letters" if counts.dead else "")


def clock(at: float) -> str:
    """A wall clock time (seconds since 1970) in local time, to the millisecond."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def failure_words(error: Failure) -> str:
    """An error in one line."""
    return f"{error.code}: {error.message}".splitlines()[0]
