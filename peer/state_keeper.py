"""Where the truth about a task's state is: a log in Kafka, or a database (:mod:`peer.database_keeper`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa
import structlog

from peer.operators import Stores
from queues.messages import Logged
from sardonyx.core.errors import InputError
from sardonyx.core.going_back import FIRST_COMMIT
from sardonyx.core.graph import Link
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.base import Store
from sardonyx.state.log import LogState, ShardLog
from sardonyx.state.messages import Mark, Message
from sardonyx.state.restore import Restore
from sardonyx.state.undo import Undo, UndoChange

log = structlog.get_logger()


class Entries(NamedTuple):
    """What :class:`~sardonyx.state.log.ShardLog` goes by to keep a log short, in entries."""

    spare: int
    piece: int


LARGE = Entries(200, 50)
"""Of entries of up to half a megabyte, which are written again and again: the log of a graph that changes."""


class StateTopic(Protocol):
    """The log of a task's state; see :mod:`queues.state_topics`."""

    def end(self, partition: int) -> int:
        """The offset after the last record, open transactions included."""
        ...

    def end_beyond(self, partition: int, end: int) -> int:
        """The same, of a log that should go on after ``end``: it waits a while for that, and otherwise returns ``end``."""
        ...

    def read(self, partition: int, start: int, end: int) -> Iterable[Logged]:
        """All committed messages from one offset to another."""
        ...


class ShardKeeper(Protocol):
    """Keeps the commits of one shard. Each is planned, and then either committed or dropped."""

    @property
    def mark(self) -> Mark:
        """Of the last commit."""
        ...

    @property
    def planned(self) -> Mark:
        """To commit with what was planned last."""
        ...

    @property
    def undo(self) -> Mapping[int, Undo]:
        """What was kept of checkpoints when the shard was restored, by their times."""
        ...

    @property
    def moves(self) -> bool:
        """Whether the state is that of an earlier job, and its own log does not hold all of it yet."""
        ...

    def messages(
        self, changes: Mapping[str, pa.Table], stores: Mapping[str, Store], undo: UndoChange | None = None
    ) -> list[Message]:
        """Plan a commit: see :meth:`sardonyx.state.log.ShardLog.messages`."""
        ...

    def committed(self) -> None:
        """What was planned is committed."""
        ...

    def dropped(self) -> None:
        """It is not, or that is not known."""
        ...


class StateKeeper(Protocol):
    """Keeps the state of a task."""

    topic: str
    """Where the messages go that a shard plans."""
    begun: int | None
    """It has no checkpoint at this time or before, as it began with the state of an earlier job; None: it began with nothing."""

    def restored(self, number: int, mark: Mark | None, stores: Stores, by_rows: Collection[str]) -> ShardKeeper:
        """Read the state of a shard.

        Args:
            number: which shard.
            mark: of its last commit, as its position says; None: there is no position.
            stores: of the shard, empty: those whose columns are known.
            by_rows: the others that it may have.

        Raises:
            InputError: it is lost, or has other columns.
        """
        ...


class TopicKeeper:
    """Keeps state in a log in Kafka, in the transaction of each batch.

    Args:
        link: of kind ``state``.
        topic: its records.
        adopts: the state of an earlier job that it begins with, if its job goes on with that.
        entries: how the log is kept short, if not as for most tasks; the size of the entries decides.
    """

    def __init__(
        self,
        link: Link,
        topic: StateTopic,
        adopts: AdoptedState | None = None,
        entries: Entries | None = None,
    ) -> None:
        self.topic = link.topic
        self._entries = entries
        self._log = topic
        self._adopts = adopts
        self.begun = None if adopts is None else adopts.begun

    def may_follow(self, mark: Mark) -> bool:
        """Whether its own log holds all of the state of a shard."""
        return self._adopts is None or mark.base > 0

    def restored(self, number: int, mark: Mark | None, stores: Stores, by_rows: Collection[str]) -> ShardLog:
        """See :meth:`StateKeeper.restored`."""
        left: LogState | None = None
        if self._adopts is not None and (mark is None or mark.base == 0):
            left = self._adopts.fill(number, stores, by_rows)
            mark = mark or (Mark(*FIRST_COMMIT) if left is not None else None)
            log.info("state_adopted", partition=number, count=len(stores), at=self._adopts.at)
        end = self._log.end(number)  # after the position was asked for: see `queues.state_topics`
        restore = Restore(
            mark, stores.all, topic=self.topic, partition=number, others=by_rows, make=stores.open, begun=left
        )
        begun = restore.start
        try:
            restore.read(self._log.read(number, begun, end))
            # The position is true, and the end may be one that a broker told that had been replaced, and did not know it yet.
            while not restore.reached and (further := self._log.end_beyond(number, end)) > end:
                restore.read(self._log.read(number, end, further))
                end = further
            return self._shard_log(number, restore, adopted=left is not None)
        except InputError as error:
            # One that goes beyond the position is mostly that of a shard which another peer has by now: see `peer.shards`.
            tell = log.debug if error.code == "SX-STATE-AHEAD" else log.warning
            tell("state_log_refused", code=error.code, topic=self.topic, partition=number, start=begun, end=end)
            raise

    def end(self, number: int) -> int:
        """The offset after the last record of a shard's log. Ask after the position is known: see :mod:`queues.state_topics`."""
        return self._log.end(number)

    def goes_on(self, number: int, mark: Mark, restore: Restore) -> ShardLog | None:
        """Go on with a shard whose log was followed up to its end.

        Args:
            number: which shard.
            mark: of its last commit, as its position says.
            restore: what has followed its log.

        Returns:
            None: it is not what the position says, so the log must be read from its beginning.
        """
        if not restore.ends_at(mark) or not restore.reached:
            return None
        return self._shard_log(number, restore)

    def _shard_log(self, number: int, restore: Restore, *, adopted: bool = False) -> ShardLog:
        given = {} if self._entries is None else self._entries._asdict()
        end = partial(self._log.end, number)
        return ShardLog(end, restore.finish(), **given, undo=restore.undo, adopted=adopted)


__all__ = ["LARGE", "Entries", "ShardKeeper", "StateKeeper", "StateTopic", "TopicKeeper"]
