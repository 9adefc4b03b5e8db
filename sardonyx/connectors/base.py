"""The inputs and outputs of a job: the small protocols that a connector implements.

Everything that must happen exactly once happens in Kafka transactions. A connector therefore only does idempotent
things. It lists what there is to read. It reads a split with the same result every time. It stages rows, and makes
visible what a committed transaction lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from queues.record_columns import RecordColumns
from sardonyx.core.errors import Failure, refuse_newer
from sardonyx.core.positions import Partition, Position
from sardonyx.core.wire_types import ready_for_threads

SPLIT_FORMAT = 1


@ready_for_threads
class Split(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a bounded input that is read in one go. The input task's own link carries it in this form."""

    data: dict[str, Any]
    """What the connector needs to find the piece again, as plain JSON data."""
    rows: int | None = None
    """The number of rows, if it is known. A split of unknown size becomes a batch of its own."""
    format: int = SPLIT_FORMAT
    """Version of this form. Splits of version 1 do not say it."""


def read_split(data: bytes) -> Split:
    """A split as a link carries it. Raises ``SX-BLOCK-FORMAT`` if a newer release wrote it."""
    split = msgspec.json.decode(data, type=Split)
    refuse_newer("splits", split.format, SPLIT_FORMAT)
    return split


class SplitInput(Protocol):
    """A bounded input. Its instances are sent to Spark workers, so they hold plain data only."""

    def splits(self) -> Iterator[Split]:
        """List everything there is to read, in pieces and in a fixed order. Called once per job, on one peer.

        Raises:
            InputError: the input does not exist or does not fit its schema.
        """
        ...

    def read(self, data: dict[str, Any]) -> pa.Table:
        """Read the rows of one split: the same rows at every call, on any machine. Runs on a Spark worker, or in
        the peer.

        Raises:
            InputError: the piece does not hold what the job says.
        """
        ...


@runtime_checkable
class DivisibleInput(SplitInput, Protocol):
    """A bounded input whose splits several workers can read together: each worker reads one part.

    A task that reads such an input runs its function on the worker that reads the rows. For an input that is not
    divisible, the rows of a large split go to the peer first. The peer then deals them out to all workers.
    """

    def divide(self, data: dict[str, Any], most: int) -> Sequence[dict[str, Any]] | None:
        """Cut a split into parts that :meth:`read` accepts too. Runs on the peer for each batch, so it must be quick.

        Args:
            data: the data of the split.
            most: the number of workers.

        Returns:
            At most ``most`` parts. Their rows, in this order, are the rows of the split. One part means that the split
            is too small to be worth several workers. None means that this split cannot be divided.
        """
        ...


class Output(Protocol):
    """Where an output task writes its results, if it does not write them to a topic."""

    def stage(self, table: pa.Table) -> list[bytes]:
        """Write rows durably and invisibly. Return one entry per piece for the list that the transaction commits."""
        ...

    def publish(self, entries: Sequence[bytes]) -> None:
        """Make committed pieces visible. Called after the commit, and again by later peers, so it is idempotent."""
        ...

    def seal(self, entries: Sequence[bytes]) -> None:
        """Finish the task, which has ended. ``entries`` are all entries that were ever committed.

        Publish what is left, and remove what no commit lists. Idempotent.
        """
        ...


class StoredPosition(NamedTuple):
    """What an output that keeps its own positions has stored for a partition."""

    position: Position
    outbox: bytes | None
    """What the Kafka transaction of the batch that reached this position has to write.

    It is kept until it is known that the transaction has written it.
    """


class PositionsMoved(Exception):
    """The stored position of a partition is not the one that the batch began at.

    Another peer has committed the batch. Nothing was written.
    """


@runtime_checkable
class PositionedOutput(Protocol):
    """An output, such as a database, that stores rows and the task's positions in ONE transaction of its own.

    If it has a position for a partition, reading begins there, whatever Kafka says. ``docs/connectors.md`` gives the
    order of the two commits, and explains why nothing is lost or doubled between them. One batch at a time uses the
    output, but not always on the same thread.
    """

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, StoredPosition]:
        """Return what is stored for these partitions. Partitions without a stored position are left out."""
        ...

    def begin(
        self,
        table: pa.Table,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: bytes | None,
    ) -> None:
        """Open a transaction and write the rows, and the new positions in place of the old ones. Do not commit it.

        The old positions are those that the batch began at.

        Args:
            table: the rows. It may have none.
            started: for each partition of ``positions``, the offset that must be stored for it now. None means that
                nothing may be stored.
            positions: the positions to store.
            outbox: stored with them, and kept until the next batch of these partitions.

        Raises:
            PositionsMoved: a different position is stored.
        """
        ...

    def commit(self) -> None:
        """Commit what was begun. If this raises, only :meth:`positions` can tell whether it committed."""
        ...

    def abandon(self) -> None:
        """Roll back what was begun, if anything was. Any thread may call this, even while :meth:`begin` or :meth:`commit` runs:
        then the outcome of that commit stands.
        """
        ...

    def seal(self) -> None:
        """Finish the task, which has ended and has committed all its rows. Idempotent."""
        ...

    def reach(self) -> None:
        """Return if the output answers.

        Raises:
            SetupError: the output does not answer.
        """
        ...


class Decoded(NamedTuple):
    """Records of a user's topic as rows, and the records that could not be read, by their index."""

    table: pa.Table
    bad: list[tuple[int, Failure]]


class TopicFormat(Protocol):
    """How rows are written to a user's topic, one record a row, and how they are read back. A reader keeps one: where nothing
    declares the types, the records that it has read settle them.
    """

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, /) -> Decoded:
        """Return the rows of the records that can be read, in order. Only raw reads keys; None: the records have none."""
        ...

    def encode(self, table: pa.Table) -> RecordColumns:
        """Return key and value of each row, in order. A value that is null is a tombstone (raw only)."""
        ...
