"""What is to happen in a history, and what it came to."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.core.spec import JobSpec

Kind = Literal[
    "kill",
    "crash",
    "stop",
    "cut",
    "break",
    "mute",
    "expire",
    "usurp",
    "evict",
    "end",
    "halt",
    "purge",
    "policy",
    "scale",
    "suspend",
    "change",
    "close",
    "resize",
    "drain",
    "lag",
    "kafka",
    "say",
    "tear",
    "erase",
    "forget",
    "rollback",
    "restart",
]


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that goes wrong, or that a user does.

    kill: SIGKILL. crash: SIGKILL right before (``count`` even) or behind one of its next writes. stop: SIGSTOP, SIGCONT after
    ``seconds``. cut: no ZooKeeper. break: the connection breaks. mute: replies are lost. expire: ZooKeeper ends its session.
    usurp: the leader's place in the election is taken from it while its session lives. drain: SIGTERM of a peer daemon.
    lag: a ZooKeeper server falls behind. kafka: administrative calls fail. evict, end (kill a job), halt (stop a job), purge,
    policy, scale, suspend (and resume after ``seconds``), change (tasks are added and removed), close (no row goes over an edge
    any more, or over all again), resize (another number of partitions): a user's requests. say: a client puts
    something into the inbox that fits nothing (:mod:`tests.simulation.nonsense`). Of jobs with clocks: tear, erase:
    Kafka loses one record, or all, of a log of state. forget: it loses the positions of a task with state, while it has no peer.
    rollback, restart: a user has the job go back to one of its last checkpoints, or stop, and another one go on from there.
    """

    at: float
    kind: Kind
    who: str = ""
    """``c0`` or ``d1``: a coordinator's or a peer daemon's place; a new process comes up there when one is gone."""
    seconds: float = 0.0
    count: int = 0


class Cue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens when a peer of a daemon comes to a point in its work (``SimRunner.pass_point``)."""

    who: str
    point: str
    count: int = 1
    """The how manieth time."""
    kill: bool = False
    hold: float = 0.0
    """Seconds that the peer stays there."""
    start: str = ""
    """A place at which a process comes up only now."""


class Submission(msgspec.Struct, frozen=True):
    at: float
    job: str
    spec: JobSpec


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of a history that is not left to its seed."""

    seed: str
    servers: int = 1
    coordinators: int = 1
    daemons: tuple[int, ...] = (1,)
    """Virtual peers of each."""
    growing: int = 0
    """How many more each may start when jobs wait for them."""
    jobs: list[Submission] = []
    faults: list[Fault] = []
    cues: list[Cue] = []
    until: float = 30.0
    """When the last fault is over."""
    snapshot_every: int = 1000
    keep_log: int = 100_000
    keep_jobs: int = 1000
    trim_every: float = 60.0
    audit_every: float = 60.0
    quantum: float = 5.0
    rebalance_after: float = 60.0
    declines: float = 0.0
    fails: float = 0.0
    fails_for_good: float = 0.0
    slow: float = 0.2
    """Seconds, at most, that a peer takes to answer an offer."""
    memory: int = 1000
    """Dead peers and forgotten jobs whose ids are remembered."""
    forgiven: float = 600.0
    """Seconds after which a task's failures count no more."""
    doubled: float = 0.0
    """How often a request is put in twice, as by a client that repeats itself after a lost reply."""
    dies: float = 0.0
    """How often a peer dies at one of the points of a batch (:mod:`tests.simulation.timed`)."""
    lost: float = 0.0
    """How often the answer to a commit of a batch is lost."""


class Tally(msgspec.Struct):
    """What a history came to."""

    steps: int = 0
    decisions: int = 0
    depositions: int = 0
    refused: int = 0
    """Writes of deposed leaders that ZooKeeper refused."""
    accepted: int = 0
    """Writes of deposed leaders that it took: a failure each."""
    lost_replies: int = 0
    requests: int = 0
    rollbacks: int = 0
    """Jobs that went on from a checkpoint of another one."""
    restarts: int = 0
    """Jobs that went on where another one was stopped."""

    def add(self, other: Tally) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
