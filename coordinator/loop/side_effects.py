"""What decisions cause outside ZooKeeper: the topics of a job are created and deleted, in threads beside the loop.

Nothing here is fenced, so everything is safe to do twice, and by two coordinators at a time. Side effects of one job run in the
order in which they were decided; jobs do not wait for each other. What is not finished when a leadership ends is done again by
the next one (``coordinator.core.decide.unfinished``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import structlog

from coordinator.loop.leader_metrics import SIDE_EFFECTS
from sardonyx.core.effects import ChangeLinks, CreateLinks, DeleteLinks, DropLinks, ReadLinks
from sardonyx.core.errors import Failure, InputError, SardonyxError, SetupError, failure_of
from sardonyx.core.events import (
    AnyEvent,
    Completed,
    Counts,
    LastCommits,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksRead,
    encode_event,
)
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.retrying_worker import RetryingWorker
from sardonyx.zookeeper.transactions import ENTRY_LIMIT

THREADS = 4
"""Jobs whose links are worked on at a time."""
ATTEMPTS = 5
"""How often the creation of links is tried when it fails in a way that is not an answer, before the job fails."""

LinksEffect = CreateLinks | ReadLinks | DeleteLinks | ChangeLinks | DropLinks
_NAMES: dict[type[LinksEffect], str] = {
    CreateLinks: "create",
    ReadLinks: "read",
    DeleteLinks: "delete",
    ChangeLinks: "change",
    DropLinks: "drop",
}
"""The effects, as metrics name them."""
Since = dict[str, dict[str, list[int | None]]]
"""By task and topic, the committed offset in each partition; None where nothing was committed."""
log = structlog.get_logger()


class Rewired(NamedTuple):
    """A job that is changed."""

    before: JobSpec
    """By which it has run so far."""
    facts: dict[str, LinkFacts]
    """Of its links so far."""
    revision: int
    """The revision that takes over, or has taken over."""
    lends: bool = False
    """Whether another job begins with a state that it had, maybe of a task that the change has removed."""
    goes_on: Collection[str] = ()
    """The tasks that keep their peers while it is changed."""


class LinksWork(NamedTuple):
    """An effect on a job's links, and what it takes to carry it out."""

    n: int
    """The entry of the log that decided it."""
    effect: LinksEffect
    spec: JobSpec
    """The job's. Of a change: by which it goes on."""
    rewired: Rewired | None = None
    """Of a change: from what."""
    keeps_states: bool = True
    """Of a job that has ended: whether the logs of its states stay."""


class Trimmed(NamedTuple):
    """What a round over the links of a job has done and found."""

    partitions: int = 0
    """From how many partitions records were deleted."""
    checkpoint: CheckpointPoint | None = None
    """The last one that is complete."""


Needed = Callable[[], Sequence[CheckpointPoint] | None]
"""Tells of which checkpoints a job's logs of states must hold all; None: nothing may be deleted from these."""


class SideEffects(Protocol):
    """Creates and deletes a job's links, and cleans up on Kafka. All may be called again with the same result, at any time and
    from any thread.
    """

    def create_links(self, job: str, spec: JobSpec) -> dict[str, LinkFacts]:
        """Create a job's links. Returns the facts of each.

        A ``SardonyxError`` is an answer and fails the job. Anything else, and a ``SetupError`` (Kafka is away), is tried again
        a few times.
        """

    def topic_ids(self, job: str, spec: JobSpec) -> dict[str, str]:
        """Return the id of each topic that a job reads, as far as Kafka tells them. Raises as :meth:`create_links`."""

    def read_links(self, job: str, spec: JobSpec) -> LastCommits:
        """Return what the groups of an ended job had committed last, as soon as they have no member. Whatever it raises, it is
        tried again.
        """

    def delete_links(self, job: str, spec: JobSpec, *, keeps_states: bool = True) -> LastCommits:
        """Delete a job's links, but not the logs of its states if it keeps these; they go when it is forgotten. Returns what the
        job's groups had committed last. Whatever it raises, it is tried again.
        """

    def change_links(self, job: str, spec: JobSpec, rewired: Rewired) -> tuple[dict[str, LinkFacts], Since]:
        """Create the job's new links, and fence the slots of the tasks that the change touches, so that they commit nothing more
        by the spec before. Returns the facts of all its links, unless they stay as they are, and where these tasks stand.
        Raises as :meth:`create_links`.
        """

    def drop_links(self, job: str, spec: JobSpec, rewired: Rewired) -> None:
        """Delete the links and groups that a job had by the spec before and has no more; but if it lends, no logs of states: they
        go when it is forgotten. Whatever it raises, it is tried again.
        """

    def trim_links(self, job: str, spec: JobSpec, needed: Needed) -> Trimmed:
        """Delete from a running job's links what their readers have committed as read, and keep Kafka from forgetting the
        positions of tasks without peers. ``needed`` is asked once the positions are known. What it raises is logged, and a later
        round tries again.
        """

    def audit_link(self, job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], link: str) -> InputError | None:
        """Compare what was written to a link of a running job with what was read from it, and what stands there unread. Returns
        what is wrong with it; None: nothing, or Kafka does not tell now. What it raises is logged, and a later round looks again.
        """

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        """End what is open under a slot's transactional id. Whatever it raises, it is not tried again."""

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        """Remove a slot's member from the task's consumer group. Whatever it raises, it is not tried again."""

    def forget(self, jobs: Collection[str]) -> None:
        """Remove what purged jobs have left. Whatever it raises, it is tried again."""


class LinksWorker:
    """Creates and deletes links in threads of its own, and hands each result over as an event.

    Args:
        side_effects: how it is done.
        done: takes the event; called from any of the threads.
        abandoned: called with each job whose links were still being created when this was closed; from any of the threads.
        runtime: time and threads.
        pauses: seconds before a failed attempt is repeated, doubled each time, and at most.
    """

    def __init__(
        self,
        side_effects: SideEffects,
        done: Callable[[AnyEvent], None],
        abandoned: Callable[[str, JobSpec], None] = lambda _job, _spec: None,
        runtime: Runtime = REAL,
        pauses: tuple[float, float] = (0.5, 30.0),
    ) -> None:
        self._side_effects = side_effects
        self._done = done
        self._abandoned = abandoned
        first, longest = pauses
        self._worker = RetryingWorker(
            "links", threads=THREADS, first_pause=first, longest_pause=longest, runtime=runtime
        )
        self.begun: set[str] = set()
        """Jobs whose links this one has begun to create and not to delete."""

    @property
    def pending(self) -> int:
        """How many effects are not done."""
        return self._worker.pending

    def submit(self, work: LinksWork) -> None:
        """Have an effect carried out, after those of the same job."""
        self._worker.submit(work.effect.job, partial(self._attempt, work))

    def close(self) -> None:
        """Begin nothing more. What runs is left to end by itself; the next leader finds out how it ended."""
        self._worker.close()

    def _attempt(self, work: LinksWork, attempt: int) -> bool:
        effect = work.effect
        creates = isinstance(effect, CreateLinks)
        (self.begun.add if creates else self.begun.discard)(effect.job)
        failpoint("before-side-effect")
        event = self._run(work, attempt)
        outcome = "again" if event is None else "failed" if isinstance(event, LinksFailed) else "done"
        SIDE_EFFECTS.add(effect=_NAMES[type(effect)], outcome=outcome)
        failpoint("after-side-effect")
        if self._worker.closed:  # `begun` says so too, to a leader that closes this right now
            if creates:
                self._abandoned(effect.job, work.spec)
        elif event is not None:
            self._done(event)
        return event is not None

    def _run(self, work: LinksWork, attempt: int) -> AnyEvent | None:
        """The event that the effect ends as; None if it is to be tried again."""
        n, effect, spec, rewired, keeps_states = work
        job = effect.job
        revision = 0 if rewired is None else rewired.revision
        since: Since = {}
        try:
            if isinstance(effect, ReadLinks):
                return _read(job, self._side_effects.read_links(job, spec))
            if isinstance(effect, DeleteLinks):
                return _with_positions(job, self._side_effects.delete_links(job, spec, keeps_states=keeps_states))
            if rewired is None:
                links = self._side_effects.create_links(job, spec)
            elif isinstance(effect, DropLinks):
                self._side_effects.drop_links(job, spec, rewired)
                return LinksDropped(job=job, revision=revision)
            else:
                links, since = self._side_effects.change_links(job, spec, rewired)
            topics = self._side_effects.topic_ids(job, spec)
            return _fitting(LinksCreated(job=job, links=links, revision=revision, since=since, topics=topics))
        except Exception as error:  # whatever it was, it ends as an event or it is tried again
            answered = isinstance(error, SardonyxError) and not isinstance(error, SetupError)
            if isinstance(effect, CreateLinks | ChangeLinks) and (answered or attempt >= ATTEMPTS):
                return LinksFailed(job=job, error=failure_of(error, where={"job": job}), revision=revision)
            log.warning(
                "links_not_deleted" if isinstance(effect, ReadLinks | DeleteLinks | DropLinks) else "links_not_created",
                n=n,
                job=job,
                attempt=attempt,
                error=str(error),
                exc_info=not isinstance(error, SardonyxError),
            )
            return None


def _read(job: str, last: LastCommits) -> LinksRead:
    """The event, with as much of it as an entry of the log can hold; the newest checkpoints count most."""
    event = LinksRead(job=job, counts=last.counts, positions=last.positions, checkpoints=last.checkpoints, end=last.end)
    while (size := len(encode_event(event))) > ENTRY_LIMIT and event.checkpoints:
        log.warning("checkpoint_not_kept", job=job, size=size, limit=ENTRY_LIMIT, at=event.checkpoints[0].at)
        event = msgspec.structs.replace(event, checkpoints=event.checkpoints[1:])
    if size > ENTRY_LIMIT and event.end is not None:
        log.warning("states_not_kept", job=job, size=size, limit=ENTRY_LIMIT)
        event = msgspec.structs.replace(event, end=None)
        size = len(encode_event(event))
    if size > ENTRY_LIMIT:
        log.warning("positions_not_kept", job=job, size=size, limit=ENTRY_LIMIT, positions=event.positions)
        event = msgspec.structs.replace(event, positions={})
    return event


def _with_positions(job: str, last: LastCommits) -> LinksDeleted:
    """The event; without the positions if an entry of the log cannot hold them, since the topics are gone already."""
    event = LinksDeleted(job=job, counts=last.counts, positions=last.positions, letters=last.letters)
    size = len(encode_event(event))
    if size <= ENTRY_LIMIT:
        return event
    log.warning("positions_not_kept", job=job, size=size, limit=ENTRY_LIMIT, positions=last.positions)
    return LinksDeleted(job=job, counts=last.counts, letters=last.letters)


def for_rules_3(event: AnyEvent) -> AnyEvent:
    """The event without the fields that the release before does not know."""
    if isinstance(event, Completed):
        return msgspec.structs.replace(event, counts=_by_rules_3(event.counts))
    if isinstance(event, LinksRead | LinksDeleted):
        counts = {task: _by_rules_3(each) for task, each in event.counts.items()}
        return msgspec.structs.replace(event, counts=counts)
    if not isinstance(event, LinksCreated):
        return event
    links = {name: msgspec.structs.replace(facts, max_backlog=None) for name, facts in event.links.items()}
    return msgspec.structs.replace(event, topics={}, links=links)


def _by_rules_3(counts: Counts) -> Counts:
    return msgspec.structs.replace(counts, sent=None)


def _fitting(event: LinksCreated) -> AnyEvent:
    """The event, or the job's failure if the facts of its links are too large for the log."""
    size = len(encode_event(event))
    if size > ENTRY_LIMIT and event.since:
        log.warning("positions_not_kept", job=event.job, size=size, limit=ENTRY_LIMIT, positions=event.since)
        event = msgspec.structs.replace(event, since={})
        size = len(encode_event(event))
    if size <= ENTRY_LIMIT:
        return event
    partitions = sum(facts.partitions for facts in event.links.values())
    error = Failure(
        "SX-JOB-TOO-MANY-PARTITIONS",
        f"the job's {len(event.links)} links have {partitions:,} partitions, more than one job can keep track of",
        cause=f"what every reader must know of them takes {size:,} bytes; {ENTRY_LIMIT:,} is the most",
        fix="split the job, or read topics with fewer partitions",
        where={"job": event.job},
    )
    return LinksFailed(job=event.job, error=error, revision=event.revision)
