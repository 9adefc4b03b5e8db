"""What faults are done to: all processes of a run and its jobs, and what else is being done to them at the moment."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.faults.cluster import Cluster, Seat
from tests.faults.flow import Flow
from tests.waiting import until


class NotNow(Exception):
    """The fault could not strike: there was no process to hit."""


@dataclass
class Scene:
    """What a fault is done to.

    Args:
        cluster: all processes.
        flows: the jobs that run.
        finishing: set when the last records are going in.
        ended: set when the jobs have all ended.
    """

    cluster: Cluster
    flows: list[Flow]
    finishing: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    services: threading.Lock = field(default_factory=threading.Lock)
    """One service at a time is down."""
    feeding: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that gives records to Kafka."""
    up: float = 0.0
    """When the last service that was down was up again: nothing is got over before."""
    points: dict[str, threading.Lock] = field(default_factory=dict)
    """One fault at a time lies in wait at a failpoint."""
    supersteps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))
    """Faults at a time that strike in supersteps, so that these go on in between."""
    stale: list[tuple[str, float]] = field(default_factory=list)
    """(process, when it woke up, in seconds since 1970) of those stopped before a commit and past every timeout."""

    def hold(self, seconds: float) -> None:
        """Let things take their course for so long."""
        threading.Event().wait(seconds)

    @contextmanager
    def fasting(self) -> Iterator[None]:
        """Nothing goes in meanwhile, and nothing is on its way: what spins then (see :meth:`Flow.step`) would leave the broker no
        processor to start with.
        """
        with self.feeding:
            for flow in self.flows:
                flow.feed.arrived()
            yield

    @contextmanager
    def seat(self, rng: random.Random, *, spark: bool | None = None) -> Iterator[Seat]:
        """A peer that nothing else is being done to."""
        wanted = [seat for seat in self.cluster.peers if not seat.spared and (spark is None or seat.spark == spark)]
        rng.shuffle(wanted)
        taken = until(lambda: next((seat for seat in wanted if seat.busy.acquire(blocking=False)), None), what="a seat")
        try:
            yield taken
        finally:
            taken.busy.release()


Verb = Callable[[Scene, random.Random], str]
"""Brings the fault about, returns when it is over, and says whom it hit."""
