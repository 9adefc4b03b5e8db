"""The sink of a connector that is not a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from queues.messages import Outgoing, Records
from sardonyx.connectors.base import Output
from sardonyx.core.graph import Link
from sardonyx.state.times import NOT_KNOWN, InForce


def _nothing(start: int) -> tuple[list[bytes], int]:
    """A list that holds nothing."""
    return [], start


class ConnectorSink:
    """Writes to a connector that is not a topic.

    The sink stages the results, lists them on the task's ``parts`` link, and publishes them after the commit.

    Args:
        output: the connector.
        parts: the link that lists what was staged; None if the connector needs no list.
        listed: reads the whole committed list.
        known: reads the list from an offset on, and gives the next one. It may miss what was committed a moment ago.
        left: publishes of a list what its writers have not; None: that is left to the seal, or to other means.
        unstage: removes what was staged and is not committed; None: that is left to the seal.
    """

    def __init__(
        self,
        output: Output,
        parts: Link | None,
        listed: Callable[[], list[bytes]],
        known: Callable[[int], tuple[list[bytes], int]] = _nothing,
        left: Callable[[Sequence[bytes]], None] | None = None,
        unstage: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self._known, self._left, self._unstage = known, left, unstage
        self._output = output
        self._parts = parts
        self._listed = listed
        self._staged: list[bytes] = []
        self._published = 0
        """The offset in the list up to which all is published."""

    def messages(
        self,
        results: pa.Table,
        failed: pa.Table | None = None,  # noqa: ARG002
        late: pa.Table | None = None,  # noqa: ARG002
        in_force: InForce = NOT_KNOWN,  # noqa: ARG002
    ) -> Iterator[Outgoing | Records]:
        self._staged = self._output.stage(results) if results.num_rows else []
        if self._parts is not None:
            for entry in self._staged:
                yield Outgoing(self._parts.topic, entry, 0)

    def takes(self, failed: pa.Table) -> None:
        """Return None: a record that leaves the job can fail only in the task before the output."""

    def committed(self) -> None:
        if self._staged:
            self._output.publish(self._staged)
            self._staged = []

    def refused(self) -> None:
        """Remove what was staged for a batch: it is known that it is not committed. Else each attempt would leave its files."""
        staged, self._staged = self._staged, []
        if staged and self._unstage is not None:
            self._unstage(staged)

    @property
    def publishes_for_others(self) -> bool:
        """Whether a peer that takes partitions over publishes what their peers have committed. If not, the seal does so."""
        return self._parts is not None and self._left is not None

    def publish_for_others(self) -> int:
        """Publish what the list holds, but for what this has published before. Returns how many entries those are."""
        entries, end = self._known(self._published)
        if self._left is not None and entries:
            self._left(entries)
        self._published = end
        return len(entries)

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        """Seal the output. This also publishes what a predecessor committed but did not publish before it died."""
        self._output.seal(self._listed())
