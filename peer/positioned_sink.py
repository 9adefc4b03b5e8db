"""Write into an output that stores the task's positions itself. Its transaction commits before Kafka's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import structlog

from peer.outbox import pack, unpack
from queues.batch import Recovered
from queues.messages import Outgoing, Records
from sardonyx.connectors.base import PositionedOutput
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position
from sardonyx.state.times import NOT_KNOWN, InForce

log = structlog.get_logger()


class PositionedSink:
    """Writes to a connector that takes rows and positions in one transaction. The results do not go through Kafka.

    It is a :class:`~peer.position_keeper.PositionKeeper`.

    Args:
        output: the connector.
    """

    may_hang = False

    def __init__(self, output: PositionedOutput) -> None:
        self._output = output
        self._table: pa.Table = pa.table({})
        self.reached = False
        self.publishes_first = False

    def recover(self, committed: Mapping[Partition, Position | None]) -> dict[Partition, Recovered]:
        """Return where to start reading each partition, and which messages Kafka still lacks.

        Args:
            committed: the partitions, with the position that Kafka has just returned for each.

        Raises:
            OutputError: ``SX-OUTPUT-POSITIONS-LOST``. It also raises whatever the connector raises.
        """
        kept = self._output.positions(committed)
        self.reached = True
        found: dict[Partition, Recovered] = {}
        for partition, position in committed.items():
            if partition in kept:
                outbox = kept[partition].outbox if kept[partition].position != position else None
                found[partition] = Recovered(kept[partition].position, unpack(outbox))
            elif position is not None:
                raise OutputError(
                    "SX-OUTPUT-POSITIONS-LOST",
                    f"the output has lost its position in {partition.topic}[{partition.number}]",
                    cause="Kafka knows one, and none is committed there before it is in the output: it was removed there",
                    fix="leave the table of positions alone while a job runs; submit the job again, on an output without "
                    "what this one has written",
                    where={"topic": partition.topic, "partition": partition.number},
                )
        return found

    def numbered(self, positions: dict[Partition, Position]) -> dict[Partition, Position]:
        """As they are: the connector compares offsets."""
        return positions

    def begin(
        self,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: Sequence[Outgoing | Records],
    ) -> None:
        """Put the batch's rows and positions into the connector's transaction; see :meth:`PositionedOutput.begin`."""
        self._output.begin(self._table, started, positions, pack(outbox))

    def commit(self) -> None:
        """Do step 3 of a positioned output: commit. If it raises, call :meth:`recover` to learn the outcome."""
        self._output.commit()

    def abandon(self) -> None:
        """Roll back the transaction, if one is open. What the connector raises is no news: its connection may be broken, and why
        the batch is given up is known already.
        """
        self._table = pa.table({})
        try:
            self._output.abandon()
        except Exception as error:  # noqa: BLE001 (a connector of the user's own may raise anything)
            log.warning("rollback_failed", error=f"{type(error).__name__}: {error}")

    def reach(self) -> None:
        """Return if the connector answers. Raises ``SetupError`` if it does not."""
        self._output.reach()

    # --- as a sink ------------------------------------------------------------------------------------------------

    def messages(
        self,
        results: pa.Table,
        failed: pa.Table | None = None,  # noqa: ARG002
        late: pa.Table | None = None,  # noqa: ARG002
        in_force: InForce = NOT_KNOWN,  # noqa: ARG002
    ) -> Iterator[Outgoing | Records]:
        """Return no messages for Kafka. Keep the rows for :meth:`begin`."""
        self._table = results
        return iter(())

    def takes(self, failed: pa.Table) -> None:
        """Return None: a record that leaves the job can fail only in the task before the output."""

    def committed(self) -> None:
        self._table = pa.table({})

    def refused(self) -> None:
        """Nothing is left to do: :meth:`abandon` rolls back."""

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        self._output.seal()
