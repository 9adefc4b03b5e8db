"""An output that forgets what it is given: for measuring everything but the writing."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


class Blackhole:
    """Stages nothing, so there is nothing to publish either; the rows are counted where all rows are."""

    def stage(self, table: pa.Table) -> list[bytes]:  # noqa: ARG002 - the protocol's own argument
        """No entries."""
        return []

    def publish(self, entries: Sequence[bytes]) -> None:
        """Nothing to do."""

    def seal(self, entries: Sequence[bytes]) -> None:
        """Nothing to do."""
