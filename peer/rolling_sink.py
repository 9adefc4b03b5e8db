"""The sink of an output whose files hold the rows of several batches; :mod:`peer.rolling` merges them."""

from __future__ import annotations

from collections.abc import Callable

from peer.connector_sink import ConnectorSink
from sardonyx.connectors.files.roll import Listing
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition


class RollingSink(ConnectorSink):
    """Writes to files that hold the rows of several batches.

    Args:
        output: the files.
        parts: the link that lists what was staged, and what was merged.
        listed: reads what the link still holds.
    """

    def __init__(self, output: RollingFiles, parts: Link, listed: Callable[[], list[bytes]]) -> None:
        super().__init__(output, parts, listed, unstage=output.unstage)
        self.files = output
        self.parts = Partition(parts.topic, 0)
        self._listed = listed

    def settled(self) -> bool:
        """Whether everything that the task has committed is merged."""
        return not Listing(self._listed()).pending
