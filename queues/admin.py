"""Administer a job's topics: create them at planning, look them up, count rows, delete them when the job has ended.

Every function is idempotent, because the coordinator runs it again after every takeover.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from queues import committed
from queues.admin_client import CALL, NEVER, Needs, admin_client, error_of, errors_of_groups, failed, refused, within
from queues.awaited_topics import await_topics, refuse_missing
from queues.client import CLIENT_LOG, Message, client_config
from queues.connectivity import LOGIN_SAID, check_login, kafka_unreachable
from queues.denied import is_denial
from queues.marked_topics import refuse_compacted
from queues.topic_log import ends, read_messages, resolve_offsets
from sardonyx.core.errors import InputError, SetupError
from sardonyx.core.events import Counts, LastCommits, LinkFacts
from sardonyx.core.going_back import end_of, points_of
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position, next_offsets, of_inputs, total
from sardonyx.core.spec import JobSpec
from sardonyx.core.telemetry import KEPT as TELEMETRY_KEPT
from sardonyx.core.telemetry import topic_of as telemetry_topic
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

_AT_A_TIME = 8
"""Number of groups whose positions this module asks for concurrently."""
_PROMPT = 2.0
"""Seconds after which we ask again for an answer: it may come from a broker that had stood still."""
_ATTEMPTS = 3
"""How often we ask, on a machine where each answer takes so long."""
_GROUP = ConsumerGroupState
_MEMBERS = frozenset({_GROUP.STABLE, _GROUP.PREPARING_REBALANCING, _GROUP.COMPLETING_REBALANCING})
"""States of a consumer group that has members."""
OUTPUT_PARTITIONS = 4
"""Number of partitions of an output topic that the coordinator creates, unless the job sets it."""

_KEPT = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete", "segment.bytes": str(16 << 20)}
"""Kafka keeps a link's records until :mod:`queues.trim` deletes them: readers may read it late. A broker frees a segment as a
whole, and never the last one, so segments are small."""


def create_links(settings: Settings, graph: Graph, spec: JobSpec) -> dict[str, LinkFacts]:
    """Create the job's topics where they are missing, look up the user's topics, and return what readers must know of each link.

    Raises:
        InputError: ``SX-KAFKA-TOPIC-MISSING``, an input topic does not exist; ``SX-KAFKA-OFFSETS``, it lacks the start;
            ``SX-JOB-LIMIT``, it has more tasks than one job may have, or needs more partitions than one job or all jobs may have.
        SetupError: ``SX-KAFKA-REFUSED``, the broker refuses a topic; ``SX-KAFKA-DENIED``, this client may not create or see one;
            ``SX-KAFKA-UNREACHABLE``.
    """
    admin = admin_client(settings)
    partitions = {link.topic: _wanted_partitions(link, spec) for link in graph.links if link.kind != "input"}
    _refuse_too_much(settings, spec, partitions)
    owned = {link.topic for link in graph.links if link.owned}
    exist = topics(settings)  # a client that may create no topics can run a job whose topics are there
    inputs = {link.topic for link in graph.links} - set(partitions)
    refuse_missing(admin, settings, inputs, set(exist), beside=partitions)  # before anything is created
    new = [
        NewTopic(
            topic,
            num_partitions=count,
            replication_factor=settings.kafka.replication_factor,
            config=_KEPT if topic in owned else {},
        )
        for topic, count in partitions.items()
        if topic not in exist
    ]
    telemetry = telemetry_topic(settings.deployment)
    if settings.metrics.telemetry and telemetry not in exist:
        new.append(NewTopic(telemetry, 1, settings.kafka.replication_factor, config=TELEMETRY_KEPT))
    for topic, future in (admin.create_topics(new) if new else {}).items():
        error = error_of(future)
        if topic == telemetry and error is not None:
            log.info("telemetry_topic_refused", error=str(error))  # a job can do without
        elif error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise refused(settings, f"create topic {topic}", error, ("Create", f"topic {topic}"))
        failpoint("in-create-links")
    found = await_topics(admin, settings, set(partitions), inputs)
    refuse_compacted(
        settings, [link.topic for link in graph.links if link.ends_at_marker or link.options.get("end_marker")]
    )
    return {link.name: _facts(admin, settings, link, found[link.topic]) for link in graph.links}


def _refuse_too_much(settings: Settings, spec: JobSpec, partitions: Mapping[str, int]) -> None:
    """Raises ``SX-JOB-LIMIT``."""
    limits = settings.coordinator
    if len(spec.catalog) > limits.max_tasks:
        raise InputError(
            "SX-JOB-LIMIT",
            f"the job has {len(spec.catalog):,} tasks; the limit is {limits.max_tasks:,}",
            cause="each task has a consumer group and topics of its own",
            fix="split the job, or set coordinator.max_tasks higher",
        )
    needed = sum(partitions.values())
    if needed > limits.max_partitions:
        raise InputError(
            "SX-JOB-LIMIT",
            f"the topics of the job would have {needed:,} partitions; the limit is {limits.max_partitions:,}",
            cause=f"it has {len(partitions)} topics, most of them with {spec.partitions:,} partitions",
            fix="give the job fewer partitions or fewer tasks, or set coordinator.max_partitions higher",
        )
    ours = f"{settings.deployment}."
    others = sum(
        len(numbers)
        for topic, numbers in topics(settings).items()
        if topic.startswith(ours) and topic.count(".") in (2, 3) and topic not in partitions
    )
    if others + needed > limits.max_all_partitions:
        raise InputError(
            "SX-JOB-LIMIT",
            f"the topics of all jobs would have {others + needed:,} partitions; the limit is {limits.max_all_partitions:,}",
            cause=f"other jobs have {others:,}, and this one needs {needed:,}",
            fix="wait until other jobs have ended; purge ended ones, whose dead letters and states are kept until then; or set "
            "coordinator.max_all_partitions higher",
        )


def last_commits(settings: Settings, graph: Graph, job: str) -> LastCommits:
    """Return what the groups of an ended job have committed. Call it before the groups are deleted.

    It waits until every peer has left the groups. No peer can commit after that, so these positions are the last ones.
    It leaves out a stage whose group does not exist: the positions may be deleted, which does not mean zero commits.

    Raises:
        SetupError: ``SX-KAFKA-REFUSED``, a peer is still in one of the groups; ``SX-KAFKA-UNREACHABLE``.
    """
    by_group = {stage.group(settings.deployment, job): stage for stage in graph.stages}
    standing = _without_members(settings, set(by_group))
    stages = [stage for group, stage in by_group.items() if group in standing]
    for _ in range(_ATTEMPTS):
        # A broker that slept while another one took its place answers what waited for it, with positions of before.
        began = time.monotonic()
        held = held_positions(settings, stages, job)
        if time.monotonic() < began + _PROMPT:
            break
    positions = {stage.name: of_inputs(stage, held[stage.name]) for stage in stages}
    return LastCommits(
        {name: total(found.values()) for name, found in held.items()},
        {name: found for name, found in positions.items() if found},
        checkpoints=points_of(graph, held),
        end=end_of(graph, held),
    )


def input_positions(
    settings: Settings, graph: Graph, job: str, facts: Mapping[str, LinkFacts]
) -> dict[str, dict[str, list[int]]]:
    """Return how far each task of a running job has read the user's topics. For an ended job, read the task notes.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        job: id of the job.
        facts: the facts of the job's links, by link name.

    Returns:
        The next offset to read per partition, by task and topic: see :func:`sardonyx.core.positions.next_offsets`.
        It excludes what an open transaction would commit, and tasks that read none of the user's topics.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    stages = [stage for stage in graph.stages if any(link.kind == "input" for link in stage.ingress)]
    held = held_positions(settings, stages, job, stable=False)
    return {stage.name: next_offsets(stage, facts, of_inputs(stage, held[stage.name])) for stage in stages}


def _without_members(settings: Settings, wanted: set[str]) -> set[str]:
    """Wait until none of the wanted groups has a member. Return those of them that exist."""
    deadline, pause = time.monotonic() + CALL, 0.1
    while True:
        states = {group: state for group, state in _group_states(settings).items() if group in wanted}
        busy = sorted(group for group, state in states.items() if state in _MEMBERS)
        if not busy:
            return set(states)
        if time.monotonic() > deadline:
            raise SetupError(
                "SX-KAFKA-REFUSED",
                f"consumer group {busy[0]} of an ended job still has members after {CALL:.0f} s",
                cause="a peer has not left the group yet, or it died and the broker still waits for it",
                fix="wait until the session timeout of the consumers has passed, or stop the peers that still run",
            )
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def delete_links(
    settings: Settings,
    graph: Graph,
    job: str,
    settle: Callable[[], Collection[str]] = lambda: (),
    *,
    keeps_states: bool = True,
) -> None:
    """Delete the job's groups and topics. Topics that hold dead letters stay until the job is forgotten.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        job: id of the job.
        settle: called while the topics still exist, after every peer has left the groups and can commit no more. Returns
            topics that are to stay, too.
        keeps_states: whether the logs of its states stay as well, because another job has begun with them, or can.

    Raises:
        SetupError: the broker refuses or does not answer. It may have deleted some already; a second call continues.
    """
    first, *others = [stage.group(settings.deployment, job) for stage in graph.stages]
    # The first one alone: while it stands, nothing of the job is deleted (coordinator.core.restoring).
    delete_groups(settings, [first])
    delete_groups(settings, others)
    failpoint("in-delete-links")
    stays = set(settle())
    stays |= {link.topic for link in graph.links if link.kind == "state" and keeps_states}
    stays |= {link.topic for link in graph.links if link.kind == "dead" and holds_any(settings, link.topic)}
    delete_topics(settings, sorted({link.topic for link in graph.links if link.owned} - stays))


def holds_any(settings: Settings, topic: str) -> bool:
    """Whether a topic of one partition holds committed records, or an open transaction. A missing topic holds none."""
    if topic not in topics(settings):
        return False
    stable, end = ends(settings, topic)
    return stable < end or next(read_messages(settings, topic, 0, stable), None) is not None


def delete_groups(settings: Settings, groups: list[str]) -> None:
    """Delete consumer groups, after waiting until their members have left. A missing group counts as deleted.

    Raises:
        SetupError: the broker refuses or does not answer.
    """
    admin = admin_client(settings)
    deadline = time.monotonic() + CALL
    while groups:
        asked = admin.delete_consumer_groups(groups, request_timeout=NEVER)
        errors = errors_of_groups(settings, admin, asked)
        groups = [
            group
            for group, error in errors.items()
            if error is not None and error.code() != KafkaError.GROUP_ID_NOT_FOUND
        ]
        hopeless = next((group for group in groups if is_denial(errors[group])), None)
        if groups and (hopeless or time.monotonic() > deadline):
            group = hopeless or groups[0]
            raise refused(settings, f"delete group {group}", errors[group], ("Delete", f"group {group}"))
        if groups:  # the groups still have members, which are leaving
            time.sleep(0.2)


def delete_topics(settings: Settings, topics: list[str]) -> None:
    """Delete topics. A missing topic counts as deleted.

    Raises:
        SetupError: the broker refuses or does not answer.
    """
    for topic, future in (admin_client(settings).delete_topics(topics) if topics else {}).items():
        error = error_of(future)
        if error is not None and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise refused(settings, f"delete topic {topic}", error, ("Delete", f"topic {topic}"))
        failpoint("in-delete-links")


def widen_topics(settings: Settings, wanted: Mapping[str, int]) -> None:
    """Give topics the partitions that they lack. One that has more keeps them.

    Raises:
        SetupError: ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``, ``SX-KAFKA-UNREACHABLE``. Some may have them already; a second call
            continues.
    """
    admin, known = admin_client(settings), topics(settings)
    lacking = [NewPartitions(topic, count) for topic, count in wanted.items() if len(known.get(topic, ())) < count]
    if not lacking:
        return
    for topic, future in admin.create_partitions(lacking, request_timeout=CALL).items():
        error = error_of(future)
        # INVALID_PARTITIONS: another coordinator has done so meanwhile.
        if error is not None and error.code() != KafkaError.INVALID_PARTITIONS:
            raise refused(settings, f"give topic {topic} more partitions", error, ("Alter", f"topic {topic}"))
        failpoint("change-widening")
    began = time.monotonic()
    while any(found < wanted[topic] for topic, found in await_topics(admin, settings, wanted).items()):
        if time.monotonic() > began + CALL:
            raise kafka_unreachable(settings, began, "it does not tell the new partitions of topics")
        time.sleep(0.05)


def counts(settings: Settings, graph: Graph, job: str) -> dict[str, Counts]:
    """Count the rows that each stage has committed so far, from its group's positions. No commit yet counts as zero.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    return {name: total(found.values()) for name, found in held_positions(settings, graph.stages, job).items()}


def held_positions(
    settings: Settings, stages: list[Stage], job: str, *, stable: bool = True
) -> dict[str, dict[Partition, Position | None]]:
    """Return the committed positions on all that each stage reads, and its list of files; ``stable`` as in :func:`positions`."""
    if not stages:
        return {}
    partitions = topics(settings)

    def ask(stage: Stage) -> dict[Partition, Position | None]:
        places = [TopicPartition(link.topic, n) for link in stage.positioned for n in partitions.get(link.topic, ())]
        return positions(settings, stage.group(settings.deployment, job), places, stable=stable)

    with ThreadPoolExecutor(min(len(stages), _AT_A_TIME), thread_name_prefix="positions") as pool:
        return dict(zip([stage.name for stage in stages], pool.map(ask, stages), strict=True))


def topics(settings: Settings) -> dict[str, list[int]]:
    """Return the partition numbers of every topic on the broker. Mostly this is the first that a process asks of Kafka.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, after ``kafka.connect_timeout``. ``SX-KAFKA-DENIED``: the brokers refuse the
            credentials; this error comes within some seconds, however long that timeout is.
    """
    began, patience = time.monotonic(), settings.kafka.connect_timeout
    found = _listed(settings, min(patience, LOGIN_SAID))
    if isinstance(found, KafkaError) and patience > LOGIN_SAID:
        check_login(settings)
        found = _listed(settings, max(began + patience - time.monotonic(), 0.1))
    if isinstance(found, KafkaError):
        raise kafka_unreachable(settings, began, str(found))
    return found


def _listed(settings: Settings, timeout: float) -> dict[str, list[int]] | KafkaError:
    try:
        known = admin_client(settings).list_topics(timeout=timeout).topics
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        return reason
    return {topic: list(about.partitions) for topic, about in known.items()}


def first_offsets(settings: Settings, topic: str, time_stamped: str | None) -> tuple[list[int], list[int]]:
    """Return, for each partition of a topic, the first offset that is left, and one before which no record has that
    timestamp or a later one.

    Args:
        settings: connection to Kafka.
        topic: the topic; of one that does not exist, both are empty.
        time_stamped: the timestamp, as an ISO time; None: the second ones are all 0.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    began, partitions = time.monotonic(), len(topics(settings).get(topic, ()))
    look = functools.partial(resolve_offsets, admin_client(settings), settings, topic, partitions)
    try:
        first = look("earliest") if partitions else []
        return first, [0] * partitions if time_stamped is None or not partitions else look(time_stamped)
    except KafkaException as error:
        raise failed(
            settings, began, "tell where topics begin", error.args[0], ("Describe", f"topic {topic}")
        ) from error


def _wanted_partitions(link: Link, spec: JobSpec) -> int:
    if link.kind in ("parts", "dead"):
        return 1
    if link.kind == "output":
        return int(link.options.get("partitions") or OUTPUT_PARTITIONS)
    return spec.partitions


def _error_of(message: Message | None) -> KafkaError | None:
    return None if message is None else message.error()


def _right_of(error: KafkaError, group: str, places: list[TopicPartition]) -> Needs:
    """What it takes to ask for a group's positions."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return "Describe", f"topic {', '.join(sorted({place.topic for place in places}))}"
    return "Describe", f"group {group}"


def _facts(admin: AdminClient, settings: Settings, link: Link, partitions: int) -> LinkFacts:
    if link.kind != "input":
        return LinkFacts(partitions)
    look = functools.partial(resolve_offsets, admin, settings, link.topic, partitions)
    end = None if link.ends_at_marker else link.options.get("end")
    return LinkFacts(
        partitions,
        start=look(link.options.get("start", "earliest")),
        end=None if end is None else look(end),
    )


def positions(
    settings: Settings, group: str, places: list[TopicPartition], *, stable: bool = True
) -> dict[Partition, Position | None]:
    """Return a group's committed positions, None where it has none. A consumer asks that never joins the group.

    The admin client would need no consumer, but librdkafka's ends the whole process (librdkafka issue 5040) when
    the broker answers that another one coordinates the group. A fresh cluster answers its first request like that.

    Args:
        settings: connection to Kafka.
        group: name of the group.
        places: the partitions to ask about.
        stable: wait until open transactions that would move a position end; if false, return the positions before them.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    if not places:
        return {}
    isolation = "read_committed" if stable else "read_uncommitted"
    consumer = Consumer(
        {**client_config(settings), "group.id": group, "enable.auto.commit": False, "isolation.level": isolation},
        logger=CLIENT_LOG,
    )
    began = time.monotonic()
    try:
        # An open transaction ends at the latest when the broker ends it.
        patience = CALL + (settings.peer.transaction_timeout if stable else 0)
        found = committed.ask(consumer, places, patience, CALL, lambda: _error_of(consumer.poll(0)))
    finally:
        consumer.close()
    if isinstance(found, KafkaError):
        raise failed(settings, began, f"tell the positions of group {group}", found, _right_of(found, group, places))
    return dict(found)


def groups(settings: Settings) -> set[str]:
    """Return the names of all consumer groups on the broker: also groups without members that still have positions.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    return set(_group_states(settings))


def _group_states(settings: Settings) -> dict[str, ConsumerGroupState]:
    began = time.monotonic()
    try:
        listed = within(settings, began, admin_client(settings).list_consumer_groups(request_timeout=CALL))
    except KafkaException as error:
        raise kafka_unreachable(settings, began, str(error)) from error
    if listed.errors:
        raise kafka_unreachable(settings, began, str(listed.errors[0]))
    return {group.group_id: group.state for group in listed.valid}
