"""Membership of a slot's holder in its task's consumer group: a static member (KIP-345), so a slot moves without a rebalance.

The member belongs to the slot, not to the peer. The next holder of a slot gets the partitions of the one before at once, and
fences it. The other members keep theirs and notice nothing. A holder that leaves in order says so (:func:`leave`), which the
client of a static member does not do by itself. The member of a holder that died goes in one of two ways. If no peer takes the
slot, the coordinator removes it (:func:`remove_static_member`); otherwise the broker does after ``peer.session_timeout``.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

import structlog
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription

from queues.admin_client import NEVER, admin_client
from queues.client import CLIENT_LOG, RECONNECT_MS, client_config
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_KNOWN = 2.0
"""Seconds to wait for a client that does not know yet whether it joined. It may be in the group already."""

_LEAVE = 5.0
"""Seconds that a group may take to let a member leave. After that we close the client anyway."""

_SERVED = 2.0
"""Seconds to serve what still waits in a client's queue before it closes. It takes far less: nothing more comes in."""

_CLOSE = 10.0
"""Seconds to wait for a client to close: it waits for answers of its own."""

_ANSWER = 10.0
"""Seconds that the broker has to list a group's members. A complete group has as long to let a new member join."""

_SETTLED = 2.0
"""Seconds after which a group that reassigns partitions in two rounds has finished the second round."""

_TICK = 0.02

_AT_ONCE = 1000
"""Largest number of messages taken from a client that leaves, in one call."""


def leave(consumer: Consumer) -> None:
    """Leave the group at once, so that the others need not wait until its heartbeat is missed, and close the client.

    Closing alone would keep a static member in its group: librdkafka sends the leave request only when it unsubscribes.
    Closing may take long, as the client waits for answers of its own. So it goes on without us after a while.
    """
    try:
        if _poll(consumer, lambda: bool(consumer.memberid()), _KNOWN):
            consumer.unsubscribe()
            _poll(consumer, lambda: not consumer.memberid(), _LEAVE)
    except (KafkaException, RuntimeError) as error:  # it was fenced, so it has no membership to end
        log.debug("group_leave_failed", error=str(error))
    _serve_queue(consumer)
    background = BackgroundThread("consumer-ends")
    try:
        background.submit(consumer.close).result(_CLOSE)
    except TimeoutError:
        log.warning("consumer_close_hangs", seconds=_CLOSE)
    except (KafkaException, RuntimeError) as error:
        log.debug("consumer_close_failed", error=str(error))
    finally:
        background.close()


def _serve_queue(consumer: Consumer) -> None:
    """Serve what still waits in the client's queue; drop messages. A client that was fenced must not close before that.

    An assignment that comes waits in this queue until the client is polled. Another peer may take the slot meanwhile. The next
    heartbeat then tells the client that it is fenced, which is fatal, and so :func:`leave` fails before it polls. A client
    with a fatal error does not serve its queue when it closes. librdkafka 2.16 (rdkafka_cgrp.c, rd_kafka_cgrp_terminate0) gives
    back what was assigned, but goes on waiting for the application's answer to the assignment, which can no longer come.
    Its main thread waits without a pause, because timers that are due no longer run (rdkafka_timer.c, rd_kafka_timers_run):
    it takes a whole core. This happens with cooperative assignment only. To serve the queue gives the answer, whatever our
    callbacks do. librdkafka takes the answer of a fenced client as giving everything back.
    """
    deadline = time.monotonic() + _SERVED
    with contextlib.suppress(KafkaException, RuntimeError):  # RuntimeError: it is closed already
        while consumer.consume(_AT_ONCE, 0) and time.monotonic() < deadline:
            pass


def remove_static_member(settings: Settings, group: str, member: str, links: Collection[Link]) -> bool:
    """Remove a member that will not return from its group, so that the other members share its partitions.

    Only the member itself can leave, so this function joins as that member and leaves. If a peer has just joined as the
    same member, Kafka fences that peer, which then starts again.

    Args:
        settings: where Kafka is.
        group: the task's.
        member: the instance id that the slot's holders use in the group.
        links: the links that the group reads.

    Returns: whether the member was still in the group.

    Raises:
        KafkaException: the broker refuses.
        TimeoutError: the broker does not answer, or the group does not let the member join in order to leave.
    """
    if all(known.group_instance_id != member for known in described(settings, group).result(_ANSWER).members):
        return False
    came: list[list[TopicPartition]] = []
    consumer = Consumer(
        {
            **client_config(settings),
            **as_member(settings, group, member, links),
            "enable.auto.commit": False,
        },
        logger=CLIENT_LOG,
    )
    try:
        consumer.subscribe([link.topic for link in links], on_assign=lambda _, partitions: came.append(partitions))
        # A rebalance in progress waits for every member whose session has not timed out yet.
        if not _poll(consumer, lambda: bool(came), settings.peer.session_timeout + _ANSWER):
            raise TimeoutError(f"group {group} did not let {member} in, to leave it")
    finally:
        leave(consumer)
    return True


def described(settings: Settings, group: str) -> Future[ConsumerGroupDescription]:
    """Return a future of a group's members and their assignments."""
    admin = admin_client(settings)
    answer: Future[ConsumerGroupDescription] = admin.describe_consumer_groups([group], request_timeout=NEVER)[group]
    return answer


class _Audit(enum.Enum):
    """The state of an audit."""

    SETTLING = "waits until partitions that are on their way have arrived"
    ASKED = "waits for the broker's answer"
    DONE = "found every partition held, or has told which are not"


class AssignmentAudit:
    """Whether some member holds each of a task's partitions. Make one when a member is let in, and ask it from then on.

    A member that has released partitions asks for the round in which others get them (KIP-429). If it dies in between,
    the
    next holder of its slot gets only the partitions it still had, without a round.
    No member would ever get the released ones.

    A partition missing once may be moving from a busy member to another one. So the audit looks twice.

    Args:
        settings: where Kafka is.
        group: the task's.
        partitions: all partitions that members must hold.
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
        """Partitions that no member owns, reported once. Empty until two consecutive looks agree. Does not wait."""
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
        """The partitions that no member owns. None if a broker is unavailable or the group is rebalancing."""
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
    return len(links) > 1 and any(link.by_key for link in links)


def group_strategy(links: Collection[Link]) -> str:
    """How the partitions of these links are shared among the members of a group. All members must say the same."""
    return "range" if requires_copartitioning(links) else "cooperative-sticky"


def as_member(settings: Settings, group: str, member: str, links: Collection[Link]) -> dict[str, str | int]:
    """The client's settings for this member of the group that reads these links."""
    return {
        "group.id": group,
        "group.instance.id": member,
        "partition.assignment.strategy": group_strategy(links),
        "session.timeout.ms": int(settings.peer.session_timeout * 1000),
        "heartbeat.interval.ms": int(settings.peer.heartbeat * 1000),
        "max.poll.interval.ms": 600_000,
    }


def open_consumer(
    settings: Settings, group: str, member: str, links: Collection[Link], *, bounded: bool = False
) -> Consumer:
    """The client of a member of a task's group, which reads what is committed, and keeps no positions by itself.

    ``bounded``: the job waits for the ends of its queues. The client learns of an end by an empty answer, for which the broker
    waits so long; a reader without rows asks as often.
    """
    return Consumer(
        {
            "fetch.wait.max.ms": 20 if bounded else 100,
            "reconnect.backoff.max.ms": RECONNECT_MS,
            "queued.max.messages.kbytes": 32_768,
            "fetch.queue.backoff.ms": 20,  # when that is full: by default the client waits 1 s, and we run dry
            **client_config(settings),
            **as_member(settings, group, member, links),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        },
        logger=CLIENT_LOG,
    )


def _poll(consumer: Consumer, over: Callable[[], bool], patience: float) -> bool:
    """Poll the client until ``over()`` is true; drop messages. False after ``patience`` or a fatal error."""
    deadline = time.monotonic() + patience
    while not over():
        message = consumer.poll(_TICK)
        error = message and message.error()
        if time.monotonic() > deadline or (error and error.code() == KafkaError._FATAL):
            return False
    return True
