"""Where the truth about a task's state is: a log in Kafka, or a database (:mod:`peer.database_keeper`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

import pyarrow as pa
import structlog

from peer.operators import Stores
from queues.messages import Logged
from sardonyx.core.errors import InputError
from sardonyx.core.graph import Link
from sardonyx.state.base import Store
from sardonyx.state.log import ShardLog
from sardonyx.state.messages import Mark, Message
from sardonyx.state.restore import Restore

log = structlog.get_logger()


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

    def messages(self, changes: Mapping[str, pa.Table], stores: Mapping[str, Store]) -> list[Message]:
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
    """

    def __init__(self, link: Link, topic: StateTopic) -> None:
        self.topic = link.topic
        self._log = topic

    def restored(self, number: int, mark: Mark | None, stores: Stores, by_rows: Collection[str]) -> ShardLog:
        """See :meth:`StateKeeper.restored`."""
        end = self._log.end(number)  # after the position was asked for: see `queues.state_topics`
        restore = Restore(mark, stores.all, topic=self.topic, partition=number, others=by_rows, make=stores.open)
        begun = restore.start
        try:
            restore.read(self._log.read(number, begun, end))
            # The position is true, and the end may be one that a broker told that had been replaced, and did not know it yet.
            while not restore.reached and (further := self._log.end_beyond(number, end)) > end:
                restore.read(self._log.read(number, end, further))
                end = further
            return ShardLog(partial(self._log.end, number), restore.finish())
        except InputError as error:
            # One that goes beyond the position is mostly that of a shard which another peer has by now: see `peer.shards`.
            tell = log.debug if error.code == "SX-STATE-AHEAD" else log.warning
            tell("state_log_refused", code=error.code, topic=self.topic, partition=number, start=begun, end=end)
            raise


__all__ = ["ShardKeeper", "StateKeeper", "StateTopic", "TopicKeeper"]
