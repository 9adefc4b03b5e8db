"""The sink of an output whose files hold the rows of several batches; :mod:`peer.rolling` merges them."""

from __future__ import annotations

from peer.connector_sink import ConnectorSink, PartsList, Staging
from sardonyx.connectors.files.roll import Listing
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.core.positions import Partition


class RollingSink(ConnectorSink):
    """Writes to files that hold the rows of several batches.

    Args:
        output: the files.
        parts: the list of what was staged, and what was merged.
    """

    def __init__(self, output: RollingFiles, parts: PartsList) -> None:
        super().__init__(Staging(output, unstage=output.unstage), parts)
        self.files = output
        self.parts = Partition(parts.topic, 0)
        self._read = parts.read

    def settled(self) -> bool:
        """Whether everything that the task has committed is merged."""
        return not Listing(self._read()).pending
