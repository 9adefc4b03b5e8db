"""The closed set of events, and their wire form. Pure.

The coordinator decides on one event after the other; each has its number ``n`` in the log. Peers and clients request an event
by writing its wire form to ``/inbox``. The coordinator itself makes the others, from a pulse, a timer or a completed effect.
Time and ids are stamped into an event before it is logged, so a replay gives the same decisions. The set is closed, so this one
module holds all of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sardonyx.core.errors import Failure
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import Adopted, CheckpointPoint, EndPoint

FORMAT = 7
"""Version of the wire form that this release writes. It reads every version from :data:`OLDEST` on. A log or snapshot of a later
version is refused, never misread.
"""
OLDEST = 7
"""The oldest version that this release reads: that of the release before it."""
RULES = 4
"""The newest rules of :func:`coordinator.core.decide.decide` that this release knows."""
OLDEST_RULES = 3
"""The oldest rules that it knows: those of the release before it."""

Scheduler = Literal["turns", "balanced", "greedy", "percentage"]
"""How virtual peers are divided among jobs; ``docs/coordination.md`` says what each does."""
Yields = Literal["", "idle", "turn", "share"]
"""When a peer gives its task up. Empty: not at all. ``idle``: as soon as it has nothing to read. ``turn`` and ``share``: after
the batch in hand, because its turn at the task is over, or because its job has more than its share of the peers."""
TOO_OLD = "SX-VERSION-PEER"
"""The code with which a peer declines a task that its release cannot read."""
NEWER = frozenset({TOO_OLD, "SX-BLOCK-FORMAT", "SX-POSITION-UNREADABLE"})
"""The codes that say of a peer that its release is too old for what it was to read: a task, a queue, or positions."""

PeerState = Literal["idle", "acking", "active", "waiting", "sealing", "revoked", "dead"]
JobStatus = Literal["planning", "running", "completed", "stopped", "killed", "failed"]
TaskState = Literal["pending", "running", "complete"]

UNKNOWN_JOB = "?"
"""Stands where the id of a job should, if no coordinator can know it: after a restore, for the job that may have resumed one."""

ENDED: frozenset[str] = frozenset({"completed", "stopped", "killed", "failed"})
"""Job statuses that are final. ``stopped``: a user stopped an unbounded job, and all that its inputs had read went through
it."""


class LinkFacts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The facts about a link from when its job was planned, or the link was added. They change only when the job is stopped or
    changed. All readers agree on them, because they are offered their task after the change.
    """

    partitions: int
    start: list[int] | None = None
    """Per partition the first offset to read; None: from the beginning."""
    end: list[int] | None = None
    """Per partition the offset after the last one to read; None: sentinels mark the end, or the link never ends."""
    stops: bool = False
    """The job is being stopped: each partition ends where the task's group had committed it."""
    closes: bool = False
    """With ``stops``: the clock ends there, too, so that all windows close. Else it stays where it is."""
    place: int | None = None
    """Internal, of a job whose queues were changed: the number under which the task that writes it counts the rows of this link
    (:attr:`sardonyx.core.positions.Position.told`). None: its place among the internal links of that task."""
    revision: int = 0
    """Internal: the revision of the job that has added it; 0: it had it from the beginning."""
    carried: int | None = 0
    """Internal: rows that were written to it and that positions on links counted which are gone; None: it is not known how
    many.
    """
    since: int | None = None
    """Of a job that goes on from a checkpoint: its time, in microseconds. Input, and internal into a task with state: rows before
    it are left out. The clock of each partition begins there."""
    clocks: list[tuple[int, int]] | None = None
    """Of a job that goes on with the states of a stopped one: with which greatest time and clock each partition begins."""
    max_backlog: int | None = None
    """Internal: how many of its rows may be unread before its writer pauses, if the job does not say so: the cluster's default
    when the link was made. None: any number."""
    adopts: Adopted | None = None
    """State, of a job that goes on with the states of another one: what the task begins with."""
    reshards: bool = False
    """With ``adopts``: the earlier job had another number of partitions, so each shard takes its keys from all shards of that."""


class Counts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rows that a task has read, written and skipped, as committed with its positions.

    ``dead``: skipped, but kept. ``late``: rows that came after their windows had closed, and that nothing else took. ``sent``: by
    link, the rows written to topics in the place of outputs (:attr:`sardonyx.core.graph.Stage.in_place`); links without rows are
    left out. None: it is not known, unless nothing at all was counted.
    """

    rows_in: int = 0
    rows_out: int = 0
    skipped: int = 0
    dead: int = 0
    late: int = 0
    sent: dict[str, int] | None = None


class LastCommits(msgspec.Struct, frozen=True):
    """What the consumer groups of an ended job had committed when their last member had left."""

    counts: dict[str, Counts] = {}
    """By task."""
    positions: dict[str, dict[str, list[int | None]]] = {}
    """By task, by topic of the user's that it reads, the next offset to read in each partition; None: nothing was committed."""
    letters: dict[str, int] = {}
    """Dead letters on the topic of each task whose group was gone before its counts could be read; only tasks that have any."""
    checkpoints: list[CheckpointPoint] = []
    """The complete ones, in the order of time."""
    end: EndPoint | None = None
    """If it has tasks with state, all with a log of it."""


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True
):
    """Root of all events. ``at``: the wall clock when the coordinator took the event in, seconds since 1970."""

    at: float = 0.0


class UserEvent(Event, frozen=True, kw_only=True):
    """Root of the events that a user asks for. ``by``: the user, as ``user@host``, and the version of the client."""

    by: str = ""


class PeerBorn(Event, frozen=True, kw_only=True, tag="born"):
    """A pulse appeared. The fields are those of :class:`PulseNote`."""

    peer: str
    daemon: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    format: int = 0
    tags: tuple[str, ...] = ()
    """What the peer offers; a task with tags goes only to peers that have all of them."""


class PeerDied(Event, frozen=True, kw_only=True, tag="died"):
    """A pulse vanished."""

    peer: str


class Left(Event, frozen=True, kw_only=True, tag="leave"):
    """A peer leaves, after its last batch."""

    peer: str


class JobSubmitted(UserEvent, frozen=True, kw_only=True, tag="submit"):
    """A client submits a job, under an id that the client made. ``resumes``: the ended job from whose positions it goes on.
    ``resumes_at``: from its last complete checkpoint at or before this time, in microseconds, with its state; None: from where it
    ended, without. ``replays``: in place of both, a checkpoint of that job, which need not have ended. This one works rows of it
    once more, with the states of the checkpoint, and takes nothing over.
    """

    job: str
    spec: JobSpec
    resumes: str = ""
    resumes_at: int | None = None
    replays: CheckpointPoint | None = None


class LinksCreated(Event, frozen=True, kw_only=True, tag="links-created"):
    """Every topic of the job exists; ``links`` holds the facts by link name. Empty after a change by which they stay as they are.

    ``revision``: the one that a job is changed to; 0: the job is new. ``since``: then, by touched task and topic, where each
    partition stood when its group had no member and no batch of the old revision could be committed any more; None where nothing
    was. What comes from there on is worked by the new revision. Empty if the log could not hold it. ``topics``: the ids of the
    topics that the job reads, by name; a topic that is deleted and created again has another one.
    """

    job: str
    links: dict[str, LinkFacts]
    revision: int = 0
    since: dict[str, dict[str, list[int | None]]] = {}
    topics: dict[str, str] = {}


class LinksFailed(Event, frozen=True, kw_only=True, tag="links-failed"):
    """A topic could not be created or found. ``revision``: as of :class:`LinksCreated`; the job goes on as it was."""

    job: str
    error: Failure
    revision: int = 0


class LinksDropped(Event, frozen=True, kw_only=True, tag="links-dropped"):
    """The topics and groups that a change has removed from a job are gone. ``revision``: the one without them."""

    job: str
    revision: int


class Checkpointed(Event, frozen=True, kw_only=True, tag="checkpointed"):
    """A checkpoint of a running job is complete: all its tasks have the state of that time. If Kafka forgets the positions, in
    which checkpoints stand otherwise, the job can go back to this one. ``revision``: of the job whose positions were read.
    """

    job: str
    revision: int
    point: CheckpointPoint


class LinkLost(Event, frozen=True, kw_only=True, tag="link-lost"):
    """An audit has found that rows are missing on a link of a running job, or there twice. ``revision``: of the job, then."""

    job: str
    link: str
    error: Failure
    revision: int = 1


class LinksRead(Event, frozen=True, kw_only=True, tag="links-read"):
    """What the groups of an ended job had committed when their last member had left. Nothing of it is deleted before this is in
    the log, if the job has states or checkpoints. The fields are those of :class:`LastCommits`.
    """

    job: str
    counts: dict[str, Counts] = {}
    positions: dict[str, dict[str, list[int | None]]] = {}
    checkpoints: list[CheckpointPoint] = []
    end: EndPoint | None = None


class LinksDeleted(Event, frozen=True, kw_only=True, tag="links-deleted"):
    """The job's topics, groups and sentinels are gone. The fields are those of :class:`LastCommits`. ``counts`` and
    ``positions`` lack a task whose group was gone before a coordinator could read it.
    """

    job: str
    counts: dict[str, Counts] = {}
    positions: dict[str, dict[str, list[int | None]]] = {}
    letters: dict[str, int] = {}


class Acked(Event, frozen=True, kw_only=True, tag="ack"):
    """A peer accepts the task that it was offered. ``assignment``, here and below: the id of the offer."""

    peer: str
    assignment: int


class Declined(Event, frozen=True, kw_only=True, tag="decline"):
    """A peer cannot run the task (its code does not import ...)."""

    peer: str
    assignment: int
    error: Failure
    passing: bool = False
    """As of :class:`TaskFailed`."""


class AckTimedOut(Event, frozen=True, kw_only=True, tag="ack-timed-out"):
    """A peer did not answer an offer in time."""

    peer: str
    assignment: int


class GraceEnded(Event, frozen=True, kw_only=True, tag="grace-ended"):
    """A revoked peer did not withdraw its pulse in time."""

    peer: str


class Exhausted(Event, frozen=True, kw_only=True, tag="exhausted"):
    """The question "seal?": a peer has read all its input, and has committed that."""

    peer: str
    assignment: int


class Completed(Event, frozen=True, kw_only=True, tag="completed"):
    """The answer "complete!": the sealing peer has committed the sentinels. ``counts`` and ``positions``: of the whole task."""

    peer: str
    assignment: int
    counts: Counts = Counts()
    positions: dict[str, list[int | None]] = {}
    """By topic of the user's that the task reads, the next offset to read in each partition; None: nothing was committed. Empty
    if the coordinator's log could not hold it."""


class TaskFailed(Event, frozen=True, kw_only=True, tag="failed"):
    """A task failed on a peer. ``fatal``: another attempt cannot help (the user's function raised, or the input does not
    fit).
    """

    peer: str
    assignment: int
    error: Failure
    fatal: bool = False
    passing: bool = False
    """The cause lies outside and may pass (a full disk, a broker that refuses). The task backs off, and the failure does not
    count for the job's ``failure_limit``."""


class Yielded(Event, frozen=True, kw_only=True, tag="yielded"):
    """A peer has committed its last batch and gives its task up, as its state node asks."""

    peer: str
    assignment: int


class TurnEnded(Event, frozen=True, kw_only=True, tag="turn-ended"):
    """A peer has worked on its task for ``coordinator.quantum``, while another task of its job has no peer."""

    peer: str
    assignment: int


class Rebalanced(Event, frozen=True, kw_only=True, tag="rebalance"):
    """A job has more than its share while others lack peers: so many of its peers give their tasks up."""

    job: str
    peers: int
    gave: int
    """How many times it had given peers before; an event that comes twice or too late changes nothing."""


class PolicySet(UserEvent, frozen=True, kw_only=True, tag="policy"):
    """A user chooses how peers are divided among jobs."""

    scheduler: Scheduler


class JobScaled(UserEvent, frozen=True, kw_only=True, tag="job-scaled"):
    """A user changes what a job is entitled to. What is None stays as it is."""

    job: str
    priority: int | None = None
    weight: float | None = None
    percentage: float | None = None
    """0: none from now on."""
    max_peers: int | None = None
    """0: no limit from now on."""
    suspended: bool | None = None
    """Whether it gets no peers at all. It keeps its queues, positions and state, and goes on from them when it may have peers."""


class BackoffEnded(Event, frozen=True, kw_only=True, tag="backoff-ended"):
    """The back-off of a failed task is over. ``failures``: its count of failures when the timer ran out."""

    job: str
    task: str
    failures: int


class JobChanged(UserEvent, frozen=True, kw_only=True, tag="change"):
    """A user changes a job that has not ended: its peers leave after the batch in hand, and the next ones work by the new spec.

    ``revision`` is that of the job which the new spec was compared with. If the job has another one, nothing changes. ``drop``:
    the tasks and queues that go, and whose unread rows go with them. ``same``: the tasks whose functions are the same in the code
    of both versions; if the specs say the same of them, too, their peers stay.
    """

    job: str
    spec: JobSpec
    revision: int
    drop: list[str] = []
    same: list[str] = []


class JobStopped(UserEvent, frozen=True, kw_only=True, tag="stop"):
    """A user stops an unbounded job: its inputs end at what is committed, and it ends when that has gone through all tasks.

    ``closes``: its windows close, as those of a bounded job do at its end.
    """

    job: str
    closes: bool = False


class LinksKept(UserEvent, frozen=True, kw_only=True, tag="keep"):
    """A user says how long a record stays in the links of a running job at least, read or not. ``seconds``: 0, not at all."""

    job: str
    seconds: Annotated[int, msgspec.Meta(ge=0, le=10**10)]


class JobRolledBack(UserEvent, frozen=True, kw_only=True, tag="rollback"):
    """A user has a running job go back: it ends at once, and another one goes on from its last complete checkpoint at or before a
    time. ``into``: the id of that one, which the client made. ``to``: the time, in microseconds.
    """

    job: str
    into: str
    to: int


class JobRestarted(UserEvent, frozen=True, kw_only=True, tag="restart"):
    """A user has an unbounded job stopped, and another one go on from where it ended, with its states. ``into``: the id of that
    one, which the client made. ``spec``: of that one. ``revision``: as of :class:`JobChanged`.
    """

    job: str
    into: str
    spec: JobSpec
    revision: int


class JobKilled(UserEvent, frozen=True, kw_only=True, tag="kill"):
    """A user kills a job."""

    job: str


class JobPurged(UserEvent, frozen=True, kw_only=True, tag="purge"):
    """A user, or the limit on how many are kept, has an ended job forgotten."""

    job: str
    dead_letters: bool = False
    """Forget the job even if it has dead letters that were neither redone nor dropped. Only a user may say so."""


class RulesRaised(Event, frozen=True, kw_only=True, tag="rules-raised"):
    """All coordinators that stand say that they know these rules. From here on, decisions follow them."""

    rules: int


class LettersClaimed(UserEvent, frozen=True, kw_only=True, tag="letters-claimed"):
    """A user redoes or drops dead letters of a task.

    ``letters`` is the total over all claims on the task so far, so an event that comes twice or too late does no harm.
    """

    job: str
    task: str
    letters: int


class Restored(Event, frozen=True, kw_only=True, tag="restored"):
    """The deployment was restored from a backup, which holds the entries before this one. Kafka may have gone past what it
    says of this job: what was logged of the job after the backup is lost.

    A job that had not ended at the backup cannot go on; it fails with the error. No job can resume it, or one that had ended:
    since the backup another job may have.
    """

    job: str
    error: Failure


class Evicted(UserEvent, frozen=True, kw_only=True, tag="evict"):
    """A user evicts a peer."""

    peer: str


class Drained(UserEvent, frozen=True, kw_only=True, tag="drain"):
    """A user takes one peer out, or all of a host with those that join there later: they get no further task. ``back``: or takes
    them in again.
    """

    peer: str = ""
    host: str = ""
    back: bool = False


Request = (
    Acked
    | Declined
    | Exhausted
    | Completed
    | TaskFailed
    | JobSubmitted
    | JobStopped
    | LinksKept
    | JobRolledBack
    | JobRestarted
    | JobKilled
    | JobPurged
    | LettersClaimed
    | Evicted
    | Drained
    | Left
    | Yielded
    | PolicySet
    | JobChanged
    | JobScaled
)
"""Events that peers and clients may put into the inbox."""

PlainEvent = (
    PeerBorn
    | PeerDied
    | LinksCreated
    | LinksFailed
    | Checkpointed
    | LinkLost
    | LinksRead
    | LinksDeleted
    | LinksDropped
    | AckTimedOut
    | GraceEnded
    | Acked
    | Declined
    | Exhausted
    | Completed
    | TaskFailed
    | BackoffEnded
    | JobSubmitted
    | JobStopped
    | LinksKept
    | JobRolledBack
    | JobRestarted
    | JobKilled
    | JobPurged
    | LettersClaimed
    | Restored
    | Evicted
    | Drained
    | Left
    | Yielded
    | TurnEnded
    | Rebalanced
    | PolicySet
    | JobChanged
    | JobScaled
    | RulesRaised
)


class SetAside(Event, frozen=True, kw_only=True, tag="set-aside"):
    """Takes the place of an entry of the log when its decision ended in an error, which is a defect of the coordinator.

    ``job``: the one that fails because of it, if any does. ``decided``: the event is about something else, and is decided once
    that job has failed; otherwise it is left out. ``traceback``: of the error.
    """

    event: PlainEvent
    error: Failure
    job: str = ""
    decided: bool = False
    traceback: str = ""


AnyEvent = PlainEvent | SetAside

WithSpec = JobSubmitted | JobChanged | JobRestarted
"""Events that bring a spec."""

_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def kind_of(event: Event) -> str:
    """The event's name on the wire."""
    return str(type(event).__struct_config__.tag)


def happened(event: AnyEvent) -> PlainEvent:
    """What has happened, also if it was set aside."""
    return event.event if isinstance(event, SetAside) else event


def encode_event(event: Event) -> bytes:
    """An event as JSON bytes, as it stands in the log and in the inbox."""
    return msgspec.json.encode(event, order="deterministic")


def decode_event(data: bytes) -> AnyEvent:
    """The reverse of :func:`encode_event`. Raises ``msgspec.ValidationError`` on anything else."""
    return _events.decode(data)


def decode_request(data: bytes) -> Request:
    """Like :func:`decode_event`, but only for what peers and clients may ask."""
    return _requests.decode(data)
