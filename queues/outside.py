"""What to say of a position that is outside its topic. Pure."""

from __future__ import annotations

from sardonyx.core.errors import InputError
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition


def outside(link: Link, partition: Partition, position: int, first: int, last: int) -> InputError:
    """Records that were to be read were deleted: of a user's topic by its retention, of a queue because they were read before. Or
    the topic was made anew.

    Args:
        link: what is read.
        partition: of its topic.
        position: the next offset to read.
        first: the first offset that the partition has.
        last: the offset after its last record.
    """
    where = {"task": link.target, "topic": partition.topic, "partition": partition.number, "offset": position}
    if position > last:
        return InputError(
            "SX-INPUT-RECREATED",
            f"Task {link.target} has read up to offset {position} of {partition.topic}[{partition.number}], but the topic ends "
            f"at {last}.",
            cause="The topic was deleted and created again, or its brokers have lost its last records.",
            fix="Submit the job again with the `start=` that you want; its positions belong to the former topic.",
            where=where,
        )
    if link.kind == "input":
        return InputError(
            "SX-INPUT-DELETED",
            f"Task {link.target} reads on at offset {position} of {partition.topic}[{partition.number}], but the topic begins "
            f"at {first} by now.",
            cause="The topic's retention has deleted records that the task has not read.",
            fix="Give the topic a longer retention, then submit the job with the `start=` that you want.",
            where=where,
        )
    return InputError(
        "SX-INPUT-POSITIONS-LOST",
        f"Queue {link.name} was read before, and what its readers had committed since is gone.",
        cause="The job was without peers for longer than the brokers keep positions (offsets.retention.minutes).",
        fix="Submit the job again; going on would publish the results so far a second time.",
        where=where,
    )
