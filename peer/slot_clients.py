"""The Kafka clients with which a peer holds a slot of its task: a reader and a transactional writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.position_keeper import PositionKeeper
from peer.prepared_task import PreparedTask
from queues.group_clocks import GroupClocks
from queues.quiet_times import OF_PROCESS
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from sardonyx.core.graph import is_endless


@dataclass(frozen=True)
class SlotClients:
    """They are opened and closed together."""

    reader: Reader
    writer: TransactionalWriter
    clocks: GroupClocks | None = None
    """In a job with clocks: asks for those of partitions that other peers hold."""

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        if self.clocks is not None:
            self.clocks.close()


def open_clients(work: PreparedTask, elect: Callable[[str, str], str], store: PositionKeeper | None) -> SlotClients:
    """Take the slot: opening the writer ends what its last holder left open.

    The reader asks meanwhile to be let into the group. It learns where to begin at its first poll, when no former holder can
    move the positions any more.

    Args:
        work: the task.
        elect: the vote on a link's sentinels, see :class:`queues.reader.Reader`.
        store: what keeps the task's positions beside Kafka, if anything does.

    Raises:
        InputError: ``SX-INPUT-RECREATED``: a topic that the task reads on was deleted and created again.
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-DENIED``.
        ProducerLost: the broker does not let the writer in.
    """
    work.check_topics()
    links = {link.name: (link, work.facts[link.name]) for link in work.stage.ingress}
    recover = None if store is None else store.recover
    reader = Reader(
        work.settings,
        work.group,
        work.member,
        links,
        elect,
        work.stage.task.rows_per_batch,
        recover,
        timed=work.timed,
        lineage=work.sources is not None,
        most_rows=work.most_rows,
        bounded=work.bounded,
        quiet_times=OF_PROCESS,
    )
    try:
        growing = [link.topic for link in work.stage.ingress if is_endless(link)]
        clocks = GroupClocks(work.settings, work.group, reader.everything, growing) if work.timed else None
        clients = SlotClients(
            reader, TransactionalWriter(work.settings, work.transactional_id, work.stage.partitioner), clocks
        )
    except BaseException:
        reader.close()
        raise
    try:
        clients.writer.open()
    except BaseException:
        clients.close()
        raise
    return clients


@contextmanager
def sealing_writer(work: PreparedTask) -> Iterator[TransactionalWriter]:
    """The writer of a seal that must be written once. It fences any earlier sealer, and ends what that one left open. So what is
    read from here on stays true until this writer commits, or is fenced itself.

    Raises:
        ProducerLost: the broker does not let the writer in.
    """
    writer = TransactionalWriter(work.settings, work.stage.sealing_id(work.settings.deployment, work.assignment.job))
    try:
        writer.open()
        yield writer
    finally:
        writer.close()
