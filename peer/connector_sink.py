"""The sink of a connector that is not a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from queues.messages import Outgoing, Records
from sardonyx.connectors.base import Output
from sardonyx.state.times import NOT_KNOWN, InForce


class Staging(NamedTuple):
    """An output, and what it can do with what is staged besides; None: it cannot, and that is left to the seal."""

    output: Output
    publish_left: Callable[[Sequence[bytes]], None] | None = None
    """Publishes of these entries what other peers have committed and not published."""
    unstage: Callable[[Sequence[bytes]], None] | None = None
    """Removes what was staged and is not committed."""


class PartsList(NamedTuple):
    """The list of all that a task has staged and committed: its ``parts`` link."""

    topic: str
    read: Callable[[], list[bytes]]
    """Reads the whole list."""
    read_from: Callable[[int], tuple[list[bytes], int]]
    """Reads the list from an offset on, and returns the next offset. It may miss what was committed a moment ago."""


class ConnectorSink:
    """Writes to a connector that is not a topic.

    The sink stages the results, lists them on the task's ``parts`` link, and publishes them after the commit.

    Args:
        staging: the connector.
        parts: where it lists what it stages; None if the connector needs no list.
    """

    may_hang = True

    def __init__(self, staging: Staging, parts: PartsList | None) -> None:
        self._staging = staging
        self._parts = parts
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
        self._staged = self._staging.output.stage(results) if results.num_rows else []
        if self._parts is not None:
            for entry in self._staged:
                yield Outgoing(self._parts.topic, entry, 0)

    def takes(self, failed: pa.Table) -> None:
        """Return None: a record that leaves the job can fail only in the task before the output."""

    def committed(self) -> None:
        if self._staged:
            self._staging.output.publish(self._staged)
            self._staged = []

    def refused(self) -> None:
        """Remove what was staged for a batch. Otherwise each attempt would leave its files."""
        staged, self._staged = self._staged, []
        if staged and self._staging.unstage is not None:
            self._staging.unstage(staged)

    @property
    def publishes_for_others(self) -> bool:
        """Whether a peer that takes partitions over publishes what their peers have committed. If not, the seal does so."""
        return self._parts is not None and self._staging.publish_left is not None

    def publish_for_others(self) -> int:
        """Publish what the list holds, but for what this has published before. Returns how many entries those are."""
        if self._parts is None or self._staging.publish_left is None:
            return 0
        entries, end = self._parts.read_from(self._published)
        if entries:
            self._staging.publish_left(entries)
        self._published = end
        return len(entries)

    def settled(self) -> bool:
        return True

    def sentinels(self, uuid: str, *, stopped: bool = False) -> Iterator[Outgoing]:  # noqa: ARG002
        return iter(())

    def sealed(self) -> None:
        """Seal the output. This also publishes what a predecessor committed but did not publish before it died."""
        self._staging.output.seal([] if self._parts is None else self._parts.read())
