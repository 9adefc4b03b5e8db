"""The ends of a job: the small protocols that a connector implements.

Everything that must happen exactly once happens in Kafka transactions, so a connector is only asked for idempotent things: to
say what there is to read, to read one split again and again with the same result, to stage rows, and to make
visible what a committed transaction lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from sardonyx.core.errors import Failure
from sardonyx.core.positions import Partition, Position


class Split(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a bounded input that is read at one go, as it travels over the input task's own link."""

    data: dict[str, Any]
    """What the connector needs to find the piece again: plain JSON data."""
    rows: int | None = None
    """How many rows it holds, if that is known; a split of unknown size makes a batch of its own."""


class SplitInput(Protocol):
    """A bounded input. Instances travel to Spark workers, so they hold plain data only."""

    def splits(self) -> Iterator[Split]:
        """Everything there is to read, in pieces, in a fixed order. Called once per job, on one peer.

        Raises:
            InputError: it is not there or does not fit its schema.
        """
        ...

    def read(self, data: dict[str, Any]) -> pa.Table:
        """The rows of one split: the same at every call, on any machine. Runs on a Spark worker.

        Raises:
            InputError: the piece does not hold what the job says.
        """
        ...


@runtime_checkable
class DivisibleInput(SplitInput, Protocol):
    """A bounded input whose splits several workers can read together, each a part of it.

    A task that reads such an input runs its function on the worker that reads the rows. An input that is not divisible sends
    the rows of a large split to the peer first, which deals them out to all workers.
    """

    def divide(self, data: dict[str, Any], most: int) -> Sequence[dict[str, Any]] | None:
        """A split as parts that :meth:`read` takes too. Runs on the peer for each batch, so it must be quick.

        Args:
            data: of the split.
            most: the number of workers.

        Returns:
            At most ``most`` parts. Their rows in this order are the rows of the split. One part means that the split is too
            small to be worth several workers. None means that this split cannot be divided.
        """
        ...


class Output(Protocol):
    """Where an output task's results go, if not into a topic."""

    def stage(self, table: pa.Table) -> list[bytes]:
        """Write rows durably and invisibly. Return one entry per piece for the list that the transaction commits."""
        ...

    def publish(self, entries: Sequence[bytes]) -> None:
        """Make committed pieces visible. Called after the commit, and again by successors: idempotent."""
        ...

    def seal(self, entries: Sequence[bytes]) -> None:
        """The task has ended; ``entries`` are all that were ever committed.

        Publish what is left, remove what no commit lists. Idempotent.
        """
        ...


class StoredPosition(NamedTuple):
    """What an output with positions of its own holds for a partition."""

    position: Position
    outbox: bytes | None
    """What the Kafka transaction of the batch that got there had to say, until it is known to have said it."""


class PositionsMoved(Exception):
    """The held position of a partition is not the one that the batch began at: another peer committed it. Nothing was written."""


@runtime_checkable
class PositionedOutput(Protocol):
    """An output that takes rows and the task's positions in ONE transaction of its own, such as a database.

    Where it holds a position, that is where reading begins, whatever Kafka says; see ``docs/connectors.md`` for the order of
    the two commits and why nothing is lost or doubled between them. Used by one batch at a time, not always on the same
    thread.
    """

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, StoredPosition]:
        """What is held for those of these partitions that it knows of."""
        ...

    def begin(
        self,
        table: pa.Table,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: bytes | None,
    ) -> None:
        """A transaction with these rows, and these positions in place of those that the batch began at; not committed.

        Args:
            table: the rows; may have none.
            started: for each partition of ``positions``, the offset that must be held for it; None: nothing may be.
            positions: what is to be held.
            outbox: to be kept until the next batch of these partitions.

        Raises:
            PositionsMoved: something else is held.
        """
        ...

    def commit(self) -> None:
        """Commit what was begun. If this raises, only :meth:`positions` tells whether it did."""
        ...

    def abandon(self) -> None:
        """Roll back what was begun, if anything was; from any thread, also while :meth:`begin` is at it."""
        ...

    def seal(self) -> None:
        """The task has ended, and all its rows are committed. Idempotent."""
        ...

    def reach(self) -> None:
        """Return if it answers.

        Raises:
            SetupError: it does not.
        """
        ...


class Decoded(NamedTuple):
    """Records of a user's topic as rows, and those that could not be read, by their index."""

    table: pa.Table
    bad: list[tuple[int, Failure]]


class TopicFormat(Protocol):
    """How rows are written as single records on a user's topic, and read back."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Rows of the records that can be read, in order."""
        ...

    def encode(self, table: pa.Table) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Key and value of each row, in order; a value of None is a tombstone (raw only)."""
        ...
