"""The beginning of a bounded input: one peer lists its splits and writes them onto the task's own link."""

from __future__ import annotations

import time
import uuid

import msgspec
import structlog

from peer.batch_result import BatchDropped
from peer.sinks import sentinel_message
from peer.task_session import TaskSession
from queues.confirmed_end import read_all
from queues.messages import DUE_HEADER, ROWS_HEADER, Outgoing
from sardonyx.connectors.base import Split, SplitInput
from sardonyx.core.errors import InputError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.failpoints import failpoint

log = structlog.get_logger()


class InputSplitter:
    """Writes the splits of an input that is read in splits, once. Does nothing for other tasks.

    Args:
        session: of the assignment.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session

    def split_if_due(self) -> None:
        """Write the splits if no peer has, and if this peer is the one to write them.

        Raises:
            InputError: ``SX-INPUT-POSITIONS-LOST``; whatever the connector raises.
            BatchDropped: it is for another peer, or another one has done it.
            ReaderLost: the broker did not answer.
        """
        source = self._session.work.source
        if source is not None and self._is_due():
            self._split(source)

    def _is_due(self) -> bool:
        """Whether nothing was ever committed for the first partition, and it is ours."""
        first = Partition(self._session.work.stage.ingress[0].topic, 0)
        held = self._session.reader.held
        return first in held and held[first] is None

    def _split(self, source: SplitInput) -> None:
        """Write all splits and then a sentinel onto the task's own link, with a position that says it is done.

        One transaction does it: either all splits are there, or none, and then another peer begins again.
        """
        session, work = self._session, self._session.work
        (link,) = work.stage.ingress
        first = Partition(link.topic, 0)
        if session.meanwhile(lambda: read_all(work.settings, link.topic)):
            # A peer that the group has put out, and that has not heard of it, still takes the partition for its own and for
            # one without a position. Its successor may have split the input, so Kafka is asked, and not what we hold.
            if session.reader.committed_at(first) is not None:
                raise BatchDropped("another peer has split the input")
            raise InputError(
                "SX-INPUT-POSITIONS-LOST",
                f"Input {link.target} was split before, and what its readers had committed since is gone.",
                cause="The job was without peers for longer than the brokers keep positions (offsets.retention.minutes).",
                fix="Submit the job again; going on would publish the results so far a second time.",
                where={"topic": link.topic},
            )
        splits = session.meanwhile(lambda: list(source.splits()))
        partitions = work.facts[link.name].partitions
        began = time.time()
        messages = [
            Outgoing(link.topic, msgspec.json.encode(split), number % partitions, headers=_headers(split, began))
            for number, split in enumerate(splits)
        ]
        sentinel = str(uuid.uuid4())
        ends = [sentinel_message(link, number, sentinel, work.peer) for number in range(partitions)]
        if not self._is_due() or not session.handle.may_commit:
            raise BatchDropped("the input is for another peer to split")
        failpoint("split")
        session.write([*messages, *ends], {first: Position(0)})
        log.info("input_split", count=len(splits))


def _headers(split: Split, began: float) -> list[tuple[str, bytes]]:
    """What readers must know of a split before they read it: its rows and, of a paced input, when it may be read."""
    headers = [] if split.rows is None else [(ROWS_HEADER, str(split.rows).encode())]
    due = split.data.get("due")
    return headers if due is None else [*headers, (DUE_HEADER, f"{began + due:.3f}".encode())]
