"""The shards of assignments that are over, kept for a moment by the process that had them.

When peers take turns, or a slot comes back to its process (:mod:`coordinator.core.homes`), the next assignment finds the shard
here and need not read its log. A shard is taken only if the committed position says that its last commit is the last one of all.
So it may lie here however long: if another process went on with it meanwhile, this one gives it up, and reads the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from sardonyx.core.positions import Partition
from sardonyx.runtime.clock import REAL, Runtime, Worker
from sardonyx.state.messages import Mark

log = structlog.get_logger()

SECONDS = 30.0
"""How long a shard is kept."""
MEMORY = 256 << 20
"""Bytes of memory that all kept shards take together, at most; the oldest goes first."""


class Keepable(Protocol):
    """What is kept of a shard."""

    @property
    def mark(self) -> Mark:
        """Of its last commit."""
        ...


S = TypeVar("S", bound=Keepable)


class _Kept(NamedTuple, Generic[S]):
    shard: S
    memory: int
    discard: Callable[[S], None]
    until: float


class KeptShards(Generic[S]):
    """Those of one process, by their partition of the task's state log. Its methods may be called by any thread.

    Args:
        runtime: time and threads.
        seconds: how long a shard is kept.
        memory: bytes that all together take, at most.
    """

    def __init__(self, runtime: Runtime = REAL, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._memory = memory
        self._kept: OrderedDict[Partition, _Kept[S]] = OrderedDict()
        self._changed = runtime.condition()
        self._is_swept = False
        self._sweeper: Worker | None = None
        self._is_closed = False

    def put(self, place: Partition, shard: S, memory: int, discard: Callable[[S], None]) -> None:
        """Keep a shard that nothing else uses any more. Of two of one place, the one with the later commit is kept.

        Args:
            place: its partition of the state log.
            shard: all of it is committed.
            memory: bytes that it takes.
            discard: gives back what it holds, once, if nothing takes it.
        """
        new = _Kept(shard, memory, discard, self._runtime.now() + self._seconds)
        with self._changed:
            before = self._kept.get(place)
            if self._is_closed or memory > self._memory or (before and before.shard.mark.seq > shard.mark.seq):
                gone, begins = [new], False
            else:
                gone = [self._kept.pop(place)] if before else []
                self._kept[place] = new
                while sum(kept.memory for kept in self._kept.values()) > self._memory:
                    gone.append(self._kept.popitem(last=False)[1])
                begins, self._is_swept = not self._is_swept, True
        _give_up(gone)
        if begins:
            self._sweeper = self._runtime.spawn("kept-state", self._sweep)

    def take(self, place: Partition, mark: Mark) -> S | None:
        """The shard, if it is kept as of this commit. It is not kept any more; one of another commit is given up."""
        with self._changed:
            found = self._kept.pop(place, None)
        if found is None:
            return None
        if found.shard.mark == mark:
            return found.shard
        _give_up([found])
        return None

    def close(self) -> None:
        """Give all up, and from now on each one that comes. Waits until those are given back whose time is over."""
        with self._changed:
            self._is_closed = True
            gone = list(self._kept.values())
            self._kept.clear()
            self._changed.notify_all()
        _give_up(gone)
        if self._sweeper is not None:
            self._sweeper.join()

    def _sweep(self) -> None:
        """Give shards up when their time is over; ends when none is left."""
        while True:
            with self._changed:
                now = self._runtime.now()
                gone = [self._kept.pop(place) for place, kept in list(self._kept.items()) if kept.until <= now]
                if not gone:
                    if not self._kept:
                        self._is_swept = False
                        return
                    self._changed.wait(max(next(iter(self._kept.values())).until - now, 0.0))
            _give_up(gone)


def _give_up(gone: Iterable[_Kept[S]]) -> None:
    """Without the lock: to close a store on disk takes time. One that cannot be given back holds up no other."""
    for kept in gone:
        try:
            kept.discard(kept.shard)
        except Exception as error:  # noqa: BLE001 - what it held is in the log
            log.warning("state_not_given_back", error=str(error))
