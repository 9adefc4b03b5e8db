"""What the nodes of coordinators, peers, jobs and tasks hold in ZooKeeper. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.core.errors import Failure
from sardonyx.core.events import Counts, JobStatus, LinkFacts, PeerState, TaskState, Yields
from sardonyx.core.wire_types import ready_for_threads

UNREADABLE = (ValueError, RecursionError)
"""What msgspec raises for data that is no note: also for a text that is no UTF-8, and for one that is nested too deeply."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A peer's place on a task. ``id`` is the number of the event that made it: with the peer, it is never used again."""

    id: int
    job: str
    task: str
    slot: int


@ready_for_threads
class EpochNote(msgspec.Struct, frozen=True):
    """``/epoch``: the number of the leadership, and whose it is. ``token`` tells two attempts of one process apart."""

    epoch: int
    leader: str
    token: str


@ready_for_threads
class CandidateNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/election/<token>-<seq>``: a coordinator, and what it can read."""

    name: str
    """``host:pid``."""
    version: str = ""
    """Of the release."""
    format: int = 0
    """The newest :data:`FORMAT` that it reads; 0: it does not say so."""
    rules: int = 0
    """The newest :data:`RULES` that it knows; 0: it does not say so."""
    metrics: str = ""
    """``host:port`` where it serves its metrics; empty if it serves none, or did not say so."""

    @classmethod
    def read(cls, data: bytes) -> CandidateNote:
        """The note in a node. What is not a note, since any program may write there, counts as its name."""
        try:
            return msgspec.json.decode(data, type=cls)
        except UNREADABLE:
            return cls(data.decode(errors="replace"))


class BatchInHand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch on which a peer has worked for long."""

    assignment: int
    rows: int
    """Read for it; of an input that is read in pieces, how many of these."""
    since: float
    """Seconds since 1970, by the clock of the peer's machine."""
    starts_spark: bool = False
    """Whether Spark has to start for it first."""


class ServiceAway(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a peer waits for with the task that it has, such as a database that does not answer."""

    assignment: int
    code: str
    """Of the error."""
    message: str
    since: float
    """Seconds since 1970, by the clock of the peer's machine."""


@ready_for_threads
class PulseNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/pulse/<peer>``, written by the peer itself: where it runs, and what it is."""

    daemon: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of the release."""
    format: int = 0
    """The newest :data:`FORMAT` that it reads; 0: it does not say so."""
    tags: tuple[str, ...] = ()
    metrics: str = ""
    """``host:port`` where its daemon serves metrics; empty if it serves none, or did not say so."""
    batch: BatchInHand | None = None
    """Only once it has worked on the batch for some seconds, so that short ones write nothing."""
    away: ServiceAway | None = None
    """Only once it has waited for some seconds."""

    @classmethod
    def read(cls, data: bytes) -> PulseNote | None:
        """The note in a node; None if it is none, as any program may write there."""
        try:
            return msgspec.json.decode(data, type=cls)
        except UNREADABLE:
            return None


@ready_for_threads
class PeerNote(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """``/peer-state/<peer>``: what the peer is to be, and the number of the event that decided so."""

    state: PeerState
    n: int
    assignment: Assignment | None = None
    yields: Yields = ""
    drained: bool = False
    """Whether a user has taken it out: it gets no further task."""
    joins: bool = False
    """Whether others work on the task already. It may soon be complete, so the peer takes its time to accept it."""


@ready_for_threads
class JobNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/job/<job>/status``."""

    name: str
    status: JobStatus
    n: int
    submitted_at: float
    ended_at: float | None = None
    error: Failure | None = None
    waits_for: int = 0
    """How many more virtual peers it needs: a bounded job, before it can go on; an unbounded one, for a peer on each of its
    tasks."""
    waits_since: float | None = None
    """Since when it needs any, seconds since 1970."""
    links: Literal["none", "made", "gone"] = "none"
    """Whether its topics stand."""
    letters: int = 0
    """Dead letters that were neither redone nor dropped. Known once the links are gone; 0 until then."""
    stopping: bool = False
    """A user has stopped it. It ends when all that its inputs have read has gone through it."""
    resumes: str = ""
    """The job from whose positions this one goes on, or whose rows it works once more with their states."""
    resumes_at: int | None = None
    """If it begins with a checkpoint of that job: its time, in microseconds since 1970."""
    replays: bool = False
    """It works rows of that job once more, and takes nothing over: other jobs can resume that one, too."""
    resumed_by: str = ""
    """The job that goes on from the positions of this one. No other can, but from a checkpoint when that one has ended. After a
    restore :data:`UNKNOWN_JOB`."""
    lends: bool = False
    """A job has not ended that began with the state of this one. So this one cannot be purged."""
    checkpoints: list[int] = []
    """The times of the complete checkpoints that it had kept when it ended, ascending, in microseconds since 1970."""
    by: str = ""
    """The user who submitted it, as ``user@host``, and the version of the client."""
    suspended: bool = False
    """Whether it has no peers until it is resumed, because a user wants that, or because it failed after a change."""
    revision: int = 1
    """How many specs it has had, the first included."""
    changing: bool = False
    """Whether its peers leave, so that the next ones work by another spec."""
    queued: bool = False
    """Whether it runs and gets no peers now, because those that there are have been promised to other jobs."""


@ready_for_threads
class TaskNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/job/<job>/task/<task>``."""

    state: TaskState
    n: int
    peers: dict[str, int] = {}
    """Peers on the task -> slot."""
    failures: int = 0
    backing_off: bool = False
    """It has failed and waits for its back-off to end: no further peer gets it until then."""
    counts: Counts | None = None
    """Known once the task is complete or its job's links are gone; until then they stand in the group's positions."""
    positions: dict[str, list[int]] = {}
    """Of a task that is complete, or whose job has ended: by Kafka topic that it read as an input, the next offset to read in
    each partition. Empty if it reads no such topic, if it is not complete and the links are not gone yet, or if no coordinator
    could read the positions in time."""


@ready_for_threads
class LinksNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/job/<job>/links``: the facts of each link, by link name."""

    links: dict[str, LinkFacts]
    topics: dict[str, str] = {}
    """The ids of the users' topics that the job reads, where Kafka tells them: a topic of another id is another one."""
