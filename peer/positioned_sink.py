"""Writing into an output that keeps the task's positions itself: its transaction comes before Kafka's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from queues.batch import Recovered
from queues.messages import Outgoing, Records
from sardonyx.connectors.base import PositionedOutput
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position


class PositionedSink:
    """To a connector that takes rows and positions in one transaction: nothing of the results goes over Kafka.

    Args:
        output: the connector.
    """

    def __init__(self, output: PositionedOutput) -> None:
        self._output = output
        self._table: pa.Table = pa.table({})
        self.reached = False
        """Whether it has ever answered this peer; what never did is more likely written wrongly than away."""

    def recover(self, committed: Mapping[Partition, Position | None]) -> dict[Partition, Recovered]:
        """Where reading begins, and what is still to be said in Kafka, for partitions of which Kafka has just told its own.

        Raises:
            OutputError: ``SX-OUTPUT-POSITIONS-LOST``; whatever the connector raises.
        """
        kept = self._output.positions(committed)
        self.reached = True
        found: dict[Partition, Recovered] = {}
        for partition, position in committed.items():
            if partition in kept:
                outbox = kept[partition].outbox if kept[partition].position != position else None
                found[partition] = Recovered(kept[partition].position, _read(outbox))
            elif position is not None:
                raise OutputError(
                    "SX-OUTPUT-POSITIONS-LOST",
                    f"the output has lost its position in {partition.topic}[{partition.number}]",
                    cause="Kafka knows one, and none is committed there before it is in the output: somebody removed it",
                    fix="leave the table of positions alone while a job runs; submit the job again, on an output without "
                    "what this one has written",
                    where={"topic": partition.topic, "partition": partition.number},
                )
        return found

    def begin(
        self,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: Sequence[Outgoing | Records],
    ) -> None:
        """The batch's rows and positions into the connector's transaction; see :meth:`PositionedOutput.begin`."""
        self._output.begin(self._table, started, positions, _written(outbox))

    def commit(self) -> None:
        """Step 3 of a positioned output. If it raises, :meth:`recover` tells what came of it."""
        self._output.commit()

    def abandon(self) -> None:
        """Roll back what may be open."""
        self._table = pa.table({})
        self._output.abandon()

    def reach(self) -> None:
        """Return if the connector answers. Raises ``SetupError``."""
        self._output.reach()

    # --- as a sink ------------------------------------------------------------------------------------------------

    def messages(self, results: pa.Table, failed: pa.Table | None = None) -> Iterator[Outgoing | Records]:  # noqa: ARG002
        """Nothing for Kafka; the rows are kept for :meth:`begin`."""
        self._table = results
        return iter(())

    def takes(self, failed: pa.Table) -> None:
        """None: what leaves a job fails in the task before."""

    def committed(self) -> None:
        self._table = pa.table({})

    def sentinels(self, uuid: str) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        self._output.seal()


def _written(messages: Iterable[Outgoing | Records]) -> bytes | None:
    """Messages as bytes; None: there are none."""
    single: list[Outgoing] = []
    for message in messages:
        if isinstance(message, Outgoing):
            single.append(message)
        else:
            single += [Outgoing(message.topic, value, key=key) for key, value in message.records]
    return msgspec.msgpack.encode(single) if single else None


def _read(data: bytes | None) -> list[Outgoing]:
    return [] if data is None else msgspec.msgpack.decode(data, type=list[Outgoing])
