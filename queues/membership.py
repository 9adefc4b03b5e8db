"""Membership of a slot's holder in its task's consumer group: a static member (KIP-345), so a slot moves without a rebalance.

The member belongs to the slot, not to the peer. The next holder of a slot gets the partitions of the one before at once, and
fences it. The other members keep theirs and notice nothing. A holder that leaves in order says so (:func:`leave`), which the
client of a static member does not do by itself. The member of a holder that died goes in one of two ways. If nobody takes the
slot, the coordinator removes it (:func:`remove_static_member`); otherwise the broker does after ``peer.session_timeout``.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

import structlog
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription

from queues.admin_client import NEVER, admin_client
from queues.client import CLIENT_LOG
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_KNOWN = 2.0
"""Seconds that a client is waited for that has not been told whether it was let in: it may be in the group already."""

_LEAVE = 5.0
"""Seconds that a group may take to let a member go, before its client is closed all the same."""

_ANSWER = 10.0
"""Seconds that the broker has to tell who is in a group, and the group, once all its members are there, to let somebody in."""

_SETTLED = 2.0
"""Seconds after which a group that gives partitions away in two rounds is through with the second."""

_TICK = 0.02


def leave(consumer: Consumer) -> None:
    """Leave the group at once, so that the others need not wait until its heartbeat is missed, and close the client.

    Closing alone would leave a static member in its group: librdkafka says goodbye for it only when it unsubscribes.
    """
    try:
        if _poll(consumer, lambda: bool(consumer.memberid()), _KNOWN):
            consumer.unsubscribe()
            _poll(consumer, lambda: not consumer.memberid(), _LEAVE)
    except (KafkaException, RuntimeError) as error:  # it was fenced, and has no place to leave
        log.debug("group_leave_failed", error=str(error))
    try:
        consumer.close()
    except (KafkaException, RuntimeError) as error:
        log.debug("consumer_close_failed", error=str(error))


def remove_static_member(settings: Settings, group: str, member: str, links: Collection[Link]) -> bool:
    """Take a member that will not be heard of again out of its group, so that the others share its partitions.

    Only the member itself can leave, so this opens it and leaves. Should somebody have just opened it, he is fenced and
    begins afresh.

    Args:
        settings: where Kafka is.
        group: the task's.
        member: as which the slot's holders are in it.
        links: what the group reads.

    Returns: whether it was still there.

    Raises:
        KafkaException: the broker refuses.
        TimeoutError: it does not answer, or the group did not let the member in, to leave it.
    """
    if all(known.group_instance_id != member for known in described(settings, group).result(_ANSWER).members):
        return False
    came: list[list[TopicPartition]] = []
    consumer = Consumer(
        {
            **settings.kafka.client(),
            **as_member(settings, group, member, links),
            "enable.auto.commit": False,
        },
        logger=CLIENT_LOG,
    )
    try:
        consumer.subscribe([link.topic for link in links], on_assign=lambda _, partitions: came.append(partitions))
        # A round that is under way waits for every member that has not been given up yet.
        if not _poll(consumer, lambda: bool(came), settings.peer.session_timeout + _ANSWER):
            raise TimeoutError(f"group {group} did not let {member} in, to leave it")
    finally:
        leave(consumer)
    return True


def described(settings: Settings, group: str) -> Future[ConsumerGroupDescription]:
    """Who is in a group, and what they were given: an answer to come."""
    admin = admin_client(settings)
    answer: Future[ConsumerGroupDescription] = admin.describe_consumer_groups([group], request_timeout=NEVER)[group]
    return answer


class _Audit(enum.Enum):
    """Where an audit stands."""

    SETTLING = "waits until partitions that are on their way have arrived"
    ASKED = "waits for the broker's answer"
    DONE = "found every partition held, or has told which are not"


class AssignmentAudit:
    """Whether some member holds each of a task's partitions. Make one when a member is let in, and ask it from then on.

    A member that has let partitions go calls for the round in which others get them (KIP-429). If it dies in between, the next
    holder of its slot gets what it still had, without any round, and nobody would ever hold what it had let go.

    What is missing once may be on its way from one member, who is just busy, to another. So the audit looks twice.

    Args:
        settings: where Kafka is.
        group: the task's.
        partitions: all that must be held.
    """

    def __init__(self, settings: Settings, group: str, partitions: Collection[Partition]) -> None:
        self._settings = settings
        self._group = group
        self._partitions = frozenset(partitions)
        self._answer: Future[ConsumerGroupDescription] | None = None
        self._first_look: frozenset[Partition] | None = None
        self._state = _Audit.SETTLING
        self._look_at = time.monotonic() + _SETTLED

    def missing(self) -> frozenset[Partition]:
        """Partitions that no member owns, told once. Empty until two consecutive looks agree. Does not wait."""
        if self._state is _Audit.SETTLING and time.monotonic() > self._look_at:
            self._answer = described(self._settings, self._group)
            self._state = _Audit.ASKED
        elif self._state is _Audit.ASKED and self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            return self._judge(self._unheld(answer))
        return frozenset()

    def _settle(self) -> None:
        self._state = _Audit.SETTLING
        self._look_at = time.monotonic() + _SETTLED

    def _unheld(self, answer: Future[ConsumerGroupDescription]) -> frozenset[Partition] | None:
        """What no member owns; None if a broker is away, or the group is in the midst of a round."""
        if answer.exception() is not None or answer.result().state is not ConsumerGroupState.STABLE:
            return None
        owned = {place for member in answer.result().members for place in member.assignment.topic_partitions}
        return self._partitions - {Partition(place.topic, place.partition) for place in owned}

    def _judge(self, unheld: frozenset[Partition] | None) -> frozenset[Partition]:
        if unheld is None:
            self._settle()
            return frozenset()
        if unheld and self._first_look is None:
            self._first_look = unheld
            self._settle()
            return frozenset()
        self._state = _Audit.DONE
        return unheld & (self._first_look or frozenset())


def requires_copartitioning(links: Collection[Link]) -> bool:
    """Whether a reader must hold all halves of a key: the partition of that number on every link, which only "range" gives."""
    return len(links) > 1 and any(link.group_by for link in links)


def as_member(settings: Settings, group: str, member: str, links: Collection[Link]) -> dict[str, str | int]:
    """The client's settings for this member of the group that reads these links."""
    return {
        "group.id": group,
        "group.instance.id": member,
        "partition.assignment.strategy": "range" if requires_copartitioning(links) else "cooperative-sticky",
        "session.timeout.ms": int(settings.peer.session_timeout * 1000),
        "heartbeat.interval.ms": int(settings.peer.heartbeat * 1000),
        "max.poll.interval.ms": 600_000,
    }


def _poll(consumer: Consumer, over: Callable[[], bool], patience: float) -> bool:
    """Serve the group until something is so; what is read meanwhile is dropped. False: it did not come to be, or never will."""
    deadline = time.monotonic() + patience
    while not over():
        message = consumer.poll(_TICK)
        error = message and message.error()
        if time.monotonic() > deadline or (error and error.code() == KafkaError._FATAL):
            return False
    return True
