"""Trims the queues of running jobs: deletes the records that every reader has processed.

Without this, the queues of an unbounded job would grow until the disks of the brokers are full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import admin, topic_log
from queues.admin_client import CALL, admin_client, error_of, failed
from sardonyx.core import units
from sardonyx.core.going_back import points_of, state_logs
from sardonyx.core.graph import Graph
from sardonyx.core.positions import Partition
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.runtime.settings import Settings


def trim_links(
    settings: Settings, graph: Graph, job: str, spec: JobSpec, needed: Callable[[], Sequence[CheckpointPoint] | None]
) -> tuple[dict[Partition, int], CheckpointPoint | None]:
    """Delete from a job's internal links what all their readers have committed as read.

    A committed position never moves back, and a reader starts at its committed position. So no reader can miss a deleted record.
    The record at the position stays, because a drained partition's position is that of its sentinel. The position on a ``parts``
    link is that from which the listing of files is still needed (:mod:`peer.rolling`). The log of a task's state is needed from
    the offset on that the task has committed with its position, or that of its oldest checkpoint, also of those that the
    coordinator keeps. While another job begins with such a checkpoint, all of the log stays. Dead letters and the users' own
    topics are left alone. A partition without a committed position is left alone too.

    The positions are read before ``needed`` is asked: a checkpoint that is needed only later was among those that the positions
    keep, or it was not made yet.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        job: id of the job.
        spec: its spec; ``keep`` says how long a record stays at least.
        needed: tells of which checkpoints its logs of states must hold all; None: nothing may be deleted from these.

    Returns:
        The first offset that is left in each partition from which records were deleted; and the job's last complete checkpoint.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``. Some partitions may be trimmed already.
    """
    links = {link.topic for link in graph.links if link.kind in ("internal", "splits", "parts")}
    keeps = graph.checkpoint_every is not None
    stages = [stage for stage in graph.stages if keeps or any(link.topic in links for link in stage.positioned)]
    if not stages:
        return {}, None
    # Without waiting for open transactions: the positions before them are lower, which is safe.
    held = admin.held_positions(settings, stages, job, stable=False)
    read: dict[Partition, int] = {}
    unread: set[Partition] = set()
    for found in held.values():
        for partition, position in found.items():
            if partition.topic not in links:
                continue
            if position is None:
                unread.add(partition)
            else:
                read[partition] = min(read.get(partition, position.offset), position.offset)
    wanted = {partition: offset for partition, offset in read.items() if partition not in unread and offset > 0}
    points = needed()
    logs = {} if points is None else state_logs(stages, held, points)
    before = delete_before(settings, _kept(settings, wanted, spec.keep) | logs)
    return before, next(reversed(points_of(graph, held)), None)


def _kept(settings: Settings, wanted: Mapping[Partition, int], keep: str | None) -> dict[Partition, int]:
    """The offsets before which records may go, if those of the last ``keep`` must stay."""
    if keep is None or not wanted:
        return dict(wanted)
    since = int((time.time() - units.seconds(keep)) * 1000)
    young = _offsets(settings, wanted, OffsetSpec.for_timestamp(since), "find records by their time")
    return {p: offset if young[p] < 0 else min(offset, young[p]) for p, offset in wanted.items()}


def delete_before(settings: Settings, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
    """Delete the records of each partition before an offset.

    Returns:
        As :func:`trim_links`.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    if not wanted:
        return {}
    first = _offsets(settings, wanted, OffsetSpec.earliest(), "tell where topics begin")
    places = [TopicPartition(*partition, offset) for partition, offset in wanted.items() if offset > first[partition]]
    if not places:
        return {}
    began = time.monotonic()
    for future in admin_client(settings).delete_records(places, request_timeout=CALL).values():
        error = error_of(future)
        if error is not None:
            raise failed(settings, began, "delete records that were read", error, ("Delete", topic_log.named(places)))
    return {Partition(place.topic, place.partition): place.offset for place in places}


def _offsets(settings: Settings, wanted: Mapping[Partition, int], spec: OffsetSpec, what: str) -> dict[Partition, int]:
    began = time.monotonic()
    places = [TopicPartition(*partition) for partition in wanted]
    try:
        return topic_log.offsets_of(admin_client(settings), settings, places, spec, IsolationLevel.READ_COMMITTED)
    except KafkaException as error:
        raise failed(settings, began, what, error.args[0], ("Describe", topic_log.named(places))) from error
