"""What a coordinator counts and measures while it leads. Gauges are read from the leader when a client asks for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from coordinator.core.peer_states import STATES
from coordinator.core.state import State
from sardonyx.core.events import AnyEvent
from sardonyx.core.names import job_name
from sardonyx.runtime.metrics import REGISTRY, Gauge, Read

if TYPE_CHECKING:
    from coordinator.loop.side_effect_queue import SideEffectQueue
    from coordinator.loop.snapshots import SnapshotSchedule

JOBS = 200
"""Jobs that have series of their own."""

TURN_SECONDS = REGISTRY.histogram(
    "sardonyx_coordinator_turn_seconds",
    "Duration of the leader's turns: read what happened, log it, decide it.",
    most=1,
)
DECIDE_SECONDS = REGISTRY.counter(
    "sardonyx_coordinator_decide_seconds_total",
    "Seconds in which this process, as leader, decided about events.",
    most=1,
)
APPEND_SECONDS = REGISTRY.histogram(
    "sardonyx_coordinator_append_seconds",
    "Time from sending entries to the log until the leader has ZooKeeper's answer.",
    most=1,
)
EFFECTS_SECONDS = REGISTRY.histogram(
    "sardonyx_coordinator_effects_seconds",
    "Time from sending effects to the tree until the leader has ZooKeeper's answer.",
    most=1,
)
TAKEOVERS = REGISTRY.counter("sardonyx_coordinator_takeovers_total", "Leaderships that this process began.", most=1)
TAKEOVER_SECONDS = REGISTRY.histogram(
    "sardonyx_coordinator_takeover_seconds",
    "Duration of taking over: from the election to the first turn.",
    bounds=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    most=1,
)
SET_ASIDE = REGISTRY.counter(
    "sardonyx_coordinator_events_set_aside_total",
    "Events that this process has set aside as leader, because a defect kept it from deciding about them.",
    most=1,
)
STEPPED_DOWN = REGISTRY.counter(
    "sardonyx_coordinator_stepped_down_total",
    "Leaderships that the watchdog ended, because the leader decided nothing.",
)
"""Counted by :mod:`coordinator.loop.watchdog`, as what follows of the inbox."""

REFUSED = REGISTRY.counter(
    "sardonyx_coordinator_requests_refused_total",
    "Requests that the leader took out of the inbox without deciding about them, by reason: unreadable, or repeated (its writer "
    "had lost the answer, and sent it again).",
    ["reason"],
    most=2,
)
SNAPSHOT_SECONDS = REGISTRY.histogram(
    "sardonyx_coordinator_snapshot_seconds",
    "Time from the begin of a snapshot until it is complete and what it makes superfluous is removed.",
    bounds=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    most=1,
)
SIDE_EFFECTS = REGISTRY.counter(
    "sardonyx_coordinator_side_effects_total",
    "Attempts to create, change, read or delete the topics of a job, by outcome: done, failed (so does the job), again (it is "
    "repeated).",
    ["effect", "outcome"],
    most=15,
)
FENCES = REGISTRY.counter(
    "sardonyx_coordinator_fences_total",
    "Steps to end what a lost peer left open in Kafka, by outcome: done or failed (Kafka ends it after a timeout).",
    ["outcome"],
    most=2,
)

DECIDED: Counter[type[AnyEvent]] = Counter()
"""Events that this process decided as leader, by kind. Only the leader's thread changes it, without a lock."""


def _decided() -> Mapping[tuple[str, ...], float]:
    return {(str(kind.__struct_config__.tag),): count for kind, count in DECIDED.copy().items()}


EVENTS = REGISTRY.counter(
    "sardonyx_coordinator_events_total", "Events that this process decided as leader, by kind.", ["kind"], most=60
)
EVENTS.follow(_decided)


class Measured(Protocol):
    """What the gauges read of a leader: :class:`coordinator.loop.leader.Leader`."""

    state: State
    turned_at: float | None
    """When its last turn ended, in seconds since 1970."""
    snapshots: SnapshotSchedule
    outside: SideEffectQueue

    @property
    def epoch(self) -> int:
        """Number of the leadership."""
        ...

    @property
    def checkpoint(self) -> int:
        """The entry of the log up to which all effects are in the tree."""
        ...


_ONE: dict[Gauge, Callable[[Measured], float | None]] = {}
_MANY: dict[Gauge, Callable[[Measured], Mapping[tuple[str, ...], float]]] = {}


def _one(name: str, help_text: str, read: Callable[[Measured], float | None]) -> None:
    _ONE[REGISTRY.gauge(f"sardonyx_{name}", help_text, most=1)] = read


def _many(
    name: str, help_text: str, label: str, most: int, read: Callable[[Measured], Mapping[tuple[str, ...], float]]
) -> None:
    _MANY[REGISTRY.gauge(f"sardonyx_{name}", help_text, [label], most=most)] = read


def _jobs(leader: Measured) -> Mapping[tuple[str, ...], float]:
    return Counter((job.status,) for job in list(leader.state.jobs.values()))


def _missing_peers(leader: Measured) -> Mapping[tuple[str, ...], float]:
    found: Counter[tuple[str, ...]] = Counter()
    for name in list(leader.state.plans):
        job = leader.state.jobs.get(name)
        if job is not None and job.waits_for:
            found[job_name(name),] += job.waits_for
    return found


def _waiting_since(leader: Measured) -> Mapping[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for name in list(leader.state.plans):
        job = leader.state.jobs.get(name)
        if job is not None and job.waits_for and job.waits_since is not None:
            labels = (job_name(name),)
            found[labels] = min(job.waits_since, found.get(labels, job.waits_since))
    return found


LEADING = REGISTRY.gauge("sardonyx_coordinator_leading", "1 while this coordinator leads, else 0.", most=1)
_one("coordinator_epoch", "Number of the leadership. It grows with each election.", lambda leader: leader.epoch)
_one("coordinator_log_last", "The last entry of the log that is decided.", lambda leader: leader.state.n)
_one("coordinator_log_first", "The oldest entry of the log that is kept.", lambda leader: leader.snapshots.log_begins)
_one(
    "coordinator_checkpoint",
    "The entry of the log up to which all effects are in the tree.",
    lambda leader: leader.checkpoint,
)
_one(
    "coordinator_snapshot_last",
    "The entry of the log after which the last snapshot was taken.",
    lambda leader: leader.snapshots.last,
)
_one(
    "coordinator_snapshot_bytes",
    "Bytes of the state in the last snapshot, which is stored compressed.",
    lambda leader: leader.snapshots.size,
)
_one(
    "coordinator_side_effects_waiting",
    "Topics to be created, changed or deleted, and lost peers to be fenced, that are not done.",
    lambda leader: leader.outside.waiting,
)
_one(
    "coordinator_last_turn_timestamp_seconds",
    "When the leader's last turn ended, in seconds since 1970. An idle leader takes a turn every few seconds.",
    lambda leader: leader.turned_at,
)
INBOX = REGISTRY.gauge(
    "sardonyx_coordinator_inbox_requests", "Requests in the inbox, as the watchdog saw them last.", most=1
)
INBOX_OLDEST = REGISTRY.gauge(
    "sardonyx_coordinator_inbox_oldest_seconds",
    "Seconds for which the watchdog has seen the oldest request of the inbox wait.",
    most=1,
)
_many(
    "peers",
    "Virtual peers by state, as the coordinator has decided it.",
    "state",
    len(STATES),
    lambda leader: {(state,): len(leader.state.by_state[state]) for state in STATES if state != "dead"},
)
_many("jobs", "Jobs that the coordinator keeps, by status.", "status", 10, _jobs)
_many(
    "job_missing_peers",
    "Virtual peers that a running job lacks to go on, for jobs that lack any.",
    "sx_job",
    JOBS,
    _missing_peers,
)
_many(
    "job_waiting_since_timestamp_seconds",
    "Since when a running job has lacked virtual peers to go on, in seconds since 1970, for jobs that lack any.",
    "sx_job",
    JOBS,
    _waiting_since,
)
GAUGES = (*_ONE, *_MANY)


def follow(leader: Callable[[], Measured | None]) -> None:
    """Have the gauges read from the leader of this process; without one they have no value.

    Args:
        leader: gives the leader that is leading now; None while this process does not lead.
    """

    def one(read: Callable[[Measured], float | None]) -> Read:
        def values() -> Mapping[tuple[str, ...], float]:
            now = leader()
            value = None if now is None else read(now)
            return {} if value is None else {(): value}

        return values

    def many(read: Callable[[Measured], Mapping[tuple[str, ...], float]]) -> Read:
        def values() -> Mapping[tuple[str, ...], float]:
            now = leader()
            return {} if now is None else read(now)

        return values

    LEADING.follow(lambda: {(): float(leader() is not None)})
    for gauge, read_one in _ONE.items():
        gauge.follow(one(read_one))
    for gauge, read_many in _MANY.items():
        gauge.follow(many(read_many))
