"""The shards of assignments that are over, kept for a moment by the process that had them.

When peers take turns, or a slot comes back to its process (:mod:`coordinator.core.homes`), the next assignment finds the shard
here and need not read its log. A shard is taken only if the committed position says that its last commit is the last one of all.
So it may lie here however long: if another process went on with it meanwhile, it is given up, and the log is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.state.messages import Mark

SECONDS = 30.0
"""How long a shard is kept."""
ENTRIES = 500_000
"""How many entries all kept shards have together, at most; the oldest goes first. In memory an entry takes some 250 bytes."""


class Place(NamedTuple):
    """Which shard it is. Job ids are never used again."""

    job: str
    task: str
    number: int


class Keepable(Protocol):
    """What is kept of a shard."""

    @property
    def mark(self) -> Mark:
        """Of its last commit."""
        ...

    def __len__(self) -> int:
        """Its entries."""
        ...


S = TypeVar("S", bound=Keepable)


class _Kept(NamedTuple, Generic[S]):
    shard: S
    discard: Callable[[S], None]
    until: float


class KeptShards(Generic[S]):
    """Those of one process. Its methods may be called by any thread.

    Args:
        runtime: time and threads.
        seconds: how long a shard is kept.
        entries: how many all together have at most.
    """

    def __init__(self, runtime: Runtime = REAL, seconds: float = SECONDS, entries: int = ENTRIES) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._entries = entries
        self._kept: OrderedDict[Place, _Kept[S]] = OrderedDict()
        self._changed = runtime.condition()
        self._is_swept = False

    def put(self, place: Place, shard: S, discard: Callable[[S], None]) -> None:
        """Keep a shard that nothing else uses any more.

        Args:
            place: which one it is.
            shard: all of it is committed.
            discard: gives back what it holds, once, if nothing takes it.
        """
        with self._changed:
            gone = [self._kept.pop(place)] if place in self._kept else []
            self._kept[place] = _Kept(shard, discard, self._runtime.now() + self._seconds)
            while sum(len(kept.shard) for kept in self._kept.values()) > self._entries:
                gone.append(self._kept.popitem(last=False)[1])
            begins, self._is_swept = bool(self._kept) and not self._is_swept, self._is_swept or bool(self._kept)
        _give_up(gone)
        if begins:
            self._runtime.spawn("kept-state", self._sweep)

    def take(self, place: Place, mark: Mark) -> S | None:
        """The shard, if it is kept as of this commit. It is not kept any more; one of another commit is given up."""
        with self._changed:
            found = self._kept.pop(place, None)
        if found is None:
            return None
        if found.shard.mark == mark:
            return found.shard
        _give_up([found])
        return None

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


def _give_up(gone: list[_Kept[S]]) -> None:
    """Without the lock: to close a store on disk takes time."""
    for kept in gone:
        kept.discard(kept.shard)
