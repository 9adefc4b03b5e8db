"""What keeps a task's positions beside Kafka, and is the truth about them: an output, or the database of the task's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from queues.batch import Recovered
from queues.messages import Outgoing, Records
from sardonyx.core.positions import Partition, Position


class PositionKeeper(Protocol):
    """Its transaction of a batch commits before Kafka's. What Kafka's has to write is kept with the positions until then."""

    reached: bool
    """Whether it has ever answered this peer. If not, a wrong setting is more likely than an outage."""
    publishes_first: bool
    """Whether what an earlier batch still owes to Kafka is written before anything else; if not, the next batch writes it."""

    def recover(self, committed: Mapping[Partition, Position | None]) -> Mapping[Partition, Recovered]:
        """Where to start reading, and which messages Kafka still lacks; partitions are left out where Kafka is right.

        Args:
            committed: the partitions, with the position that Kafka has just returned for each.

        Raises:
            SardonyxError: positions are lost, or the keeper cannot be reached.
        """
        ...

    def numbered(self, positions: dict[Partition, Position]) -> dict[Partition, Position]:
        """The positions as both transactions of the batch are to commit them."""
        ...

    def begin(
        self,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: Sequence[Outgoing | Records],
    ) -> None:
        """Open a transaction, and write the batch and its positions.

        Args:
            started: for each of the positions, the offset that the batch began at; None: nothing was committed before.
            positions: of the batch, as :meth:`numbered` gives them.
            outbox: what Kafka's transaction will write.

        Raises:
            PositionsMoved: another peer has gone on.
        """
        ...

    def commit(self) -> None:
        """Commit. If it raises, only :meth:`recover` tells whether it did."""
        ...

    def abandon(self) -> None:
        """Roll back the transaction, if one is open. Any thread may call this."""
        ...

    def reach(self) -> None:
        """Return if it answers. Raises ``SetupError`` if it does not."""
        ...
