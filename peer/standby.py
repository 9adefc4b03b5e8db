"""Shards of tasks that other processes work on, kept up to date by this one, so that a peer here can take them over at once.

Nothing is written anywhere. A shard that is followed is at any time the state as of some commit. A peer that takes it waits until
the rest of the log is read, and checks it against the position as a restore does. Whatever is wrong with it, the log is read from
its beginning, as without a standby. Which tasks a process follows: :mod:`peer.standby_tasks`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from peer.operators import Stores
from peer.shard_stores import discard
from queues.lost import ReaderLost
from queues.messages import Followed
from sardonyx.core.errors import SardonyxError
from sardonyx.core.positions import Partition, Position
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore

log = structlog.get_logger()

READ = 0.2
"""Seconds that a call for messages waits."""
AGAIN = 5.0
"""Seconds after which a shard that could not be followed is tried again."""
PATIENCE = 5.0
"""Seconds without a message after which a peer no longer waits for its shard to catch up."""


class Follower(Protocol):
    """Reads state logs: see :class:`queues.state_follower.StateFollower`."""

    def begin(self, place: Partition, offset: int) -> None:
        """Follow a partition from an offset on."""
        ...

    def end(self, place: Partition) -> None:
        """Follow it no more."""
        ...

    def read(self, timeout: float) -> Mapping[Partition, Followed]:
        """What has come."""
        ...

    def close(self) -> None:
        """Release the client."""
        ...


class EmptyShards(Protocol):
    """The shards of a task as a peer has them before it holds any: :class:`peer.shards.Shards`."""

    @property
    def by_rows(self) -> Collection[str]:
        """The names of the stores whose columns follow from the rows."""
        ...

    def may_follow(self, mark: Mark) -> bool:
        """Whether the log of a shard holds all of its state, so that it can be followed."""
        ...

    def empty(self) -> tuple[Stores, Path | None]:
        """The stores of a shard without entries, and their folder."""
        ...


class Wanted(Protocol):
    """A task that this process is to follow."""

    topic: str
    """Of its state log."""
    partitions: int

    def positions(self) -> Mapping[int, Position | None]:
        """Ask for the committed position of each shard."""
        ...

    def shards(self) -> EmptyShards:
        """The shards of the task."""
        ...


@dataclass
class FollowedShard:
    """A shard as of some commit, and how far its log was read."""

    place: Partition
    """Of the state log."""
    restore: Restore
    stores: Stores
    folder: Path | None = None
    """Of stores on disk."""
    reached: int = -1
    """All committed messages of the log before this offset are applied."""
    is_ready: bool = False
    """It has been at the end of its log."""
    over: bool = False
    """It is taken, or given up."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take_in(self, came: Followed) -> bool:
        """Apply what has come. False: it is over, or cannot go on."""
        with self.changed:
            if self.over:
                return False
            try:
                self.restore.follow(came.messages)
            except SardonyxError as error:  # the restore that reads all of the log says whether it is torn
                log.info("standby_given_up", code=error.code, error=error.message, cause=error.cause)
                self._give_up()
                return False
            except BaseException:
                self._give_up()
                raise
            self.reached = max(self.reached, came.reached)
            self.changed.notify_all()
            if came.at_end and not self.is_ready:
                self.is_ready = True
                log.info("standby_ready", topic=self.place.topic, partition=self.place.number, count=len(self.stores))
            return True

    def ready(self, end: int, patience: float) -> bool:
        """Wait until it is read up to an offset. From then on it is the caller's. False: it cannot be used, and is given back.

        Args:
            end: the offset.
            patience: seconds for which it waits although nothing comes.
        """
        with self.changed:
            while not self.over and self.reached < end:
                before = self.reached
                if not self.changed.wait_for(lambda before=before: self.over or self.reached > before, patience):  # type: ignore[misc]
                    self._give_up()
            if self.over:
                return False
            self.over = True
            return True

    def give_up(self) -> None:
        """It is not followed any more."""
        with self.changed:
            if not self.over:
                self._give_up()

    def _give_up(self) -> None:
        self.over = True
        self.changed.notify_all()
        discard(self.stores, self.folder)


class StandbyShards:
    """What a process follows. :meth:`hold`, :meth:`let_go` and :meth:`take` may be called by any thread.

    Args:
        follower: makes the client that reads the logs. It is called on the thread of :meth:`run`, when the first log is followed.
        patience: see :data:`PATIENCE`.
    """

    def __init__(self, follower: Callable[[], Follower], patience: float = PATIENCE) -> None:
        self._make = follower
        self._patience = patience
        self._lock = threading.Lock()
        self._shards: dict[Partition, FollowedShard] = {}
        self._held: dict[Partition, int] = {}
        """Partitions of state logs whose shards peers of this process have: how many peers. One comes before another has left."""
        self._begun: dict[Partition, int] = {}
        """Partitions that the client is to read from an offset on."""
        self._ended: set[Partition] = set()
        """Partitions that the client is to read no more. They end before others begin."""
        self._not_before: dict[Partition, float] = {}
        self._news = threading.Event()
        self._is_closed = False

    # --- peers ---

    def hold(self, place: Partition) -> None:
        """A peer of this process has the shard of a partition of a state log: it is not followed here."""
        with self._lock:
            self._held[place] = self._held.get(place, 0) + 1
        self._forget([place])

    def let_go(self, place: Partition) -> None:
        """It does not have it any more."""
        with self._lock:
            left = self._held.pop(place, 1) - 1
            if left > 0:
                self._held[place] = left

    def take(self, place: Partition, end: Callable[[], int]) -> FollowedShard | None:
        """The shard of a partition, read up to the end of its log; None: it is not followed, or does not come so far.

        Args:
            place: the partition of the state log.
            end: asks for the offset after its last record.
        """
        with self._lock:
            shard = self._shards.get(place)
        if shard is None:
            return None
        is_ready = shard.ready(end(), self._patience)
        self._forget([place])
        return shard if is_ready else None

    def _forget(self, places: Iterable[Partition]) -> None:
        """Follow these no more."""
        with self._lock:
            gone = {place: shard for place in places if (shard := self._shards.pop(place, None)) is not None}
            for place in gone:
                self._begun.pop(place, None)
                self._ended.add(place)
            self._news.set()
        for shard in gone.values():  # without the lock: it may just apply what has come
            shard.give_up()

    # --- the thread that knows which tasks there are ---

    def follow(self, tasks: Iterable[Wanted]) -> None:
        """Follow the shards of these tasks that no peer of this process has, and no others.

        Raises:
            SardonyxError: positions cannot be asked for, or a task cannot be prepared here. Other tasks are followed.
        """
        wanted = {task.topic: task for task in tasks}
        with self._lock:
            gone = [place for place in self._shards if place.topic not in wanted]
            self._not_before = {place: at for place, at in self._not_before.items() if place.topic in wanted}
        self._forget(gone)
        problem: SardonyxError | None = None
        for task in wanted.values():
            try:
                self._follow(task)
            except SardonyxError as error:
                problem = error
        if problem is not None:
            raise problem

    def _follow(self, task: Wanted) -> None:
        now = time.monotonic()
        with self._lock:
            places = [
                place
                for place in (Partition(task.topic, number) for number in range(task.partitions))
                if place not in self._shards and place not in self._held and self._not_before.get(place, 0.0) <= now
            ]
            self._not_before.update(dict.fromkeys(places, now + AGAIN))
        if not places:
            return
        positions, shards = task.positions(), task.shards()
        for place in places:
            position = positions.get(place.number)
            mark = None if position is None or position.state is None else Mark(*position.state)
            if mark is not None and shards.may_follow(mark):  # else there is nothing yet, or not all of it
                self._begin(place, mark, shards)

    def _begin(self, place: Partition, mark: Mark, shards: EmptyShards) -> None:
        stores, folder = shards.empty()
        restore = Restore(
            mark, stores.all, topic=place.topic, partition=place.number, others=shards.by_rows, make=stores.open
        )
        made = FollowedShard(place, restore, stores, folder)
        with self._lock:
            refused = self._is_closed or place in self._held or place in self._shards
            if not refused:
                self._shards[place] = made
                self._begun[place] = restore.start
                self._news.set()
        if refused:
            made.give_up()
        else:
            log.info("standby_begun", topic=place.topic, partition=place.number, start=restore.start)

    # --- the thread that reads ---

    def run(self) -> None:
        """Read the logs, until :meth:`close`."""
        try:
            while not self._is_closed:
                try:
                    self._read()
                except ReaderLost as error:
                    log.warning("standby_interrupted", error=str(error))
                self._forget(list(self._shards))
        finally:
            self.close()  # a peer must not wait for a thread that has ended

    def _read(self) -> None:
        with self._lock:
            self._begun.clear()
            self._ended.clear()
        reading: set[Partition] = set()
        client: Follower | None = None
        try:
            while not self._is_closed:
                with self._lock:
                    self._news.clear()
                    begun, self._begun = self._begun, {}
                    ended, self._ended = self._ended & reading, set()
                if client is None and begun:
                    client = self._make()
                if client is not None:
                    for place in ended:
                        client.end(place)
                    for place, offset in begun.items():
                        client.begin(place, offset)
                    reading = (reading - ended) | begun.keys()
                if client is None or not reading:
                    self._news.wait()
                else:
                    self._take_in(client.read(READ))
        finally:
            if client is not None:
                client.close()

    def _take_in(self, found: Mapping[Partition, Followed]) -> None:
        for place, came in found.items():
            shard = self._shards.get(place)
            if shard is not None and place not in self._begun and not shard.take_in(came):
                self._forget([place])

    def close(self) -> None:
        """Give everything up. The threads end by themselves."""
        self._is_closed = True
        self._forget(list(self._shards))


__all__ = ["FollowedShard", "Follower", "StandbyShards", "Wanted"]
