"""Prepares a task for a virtual peer, before it accepts the assignment: fetches job and code, builds all parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from peer.allowed import check_allowed, open_code, takes_code
from peer.assignment import RunnerLost
from peer.connector_sink import ConnectorSink, PartsList, Staging
from peer.database_keeper import DatabaseKeeper
from peer.kept_shards import KeptShards
from peer.lifecycle import Context, Hooks
from peer.loops import loop_of
from peer.peer_metrics import count_retry
from peer.positioned_sink import PositionedSink
from peer.prepared_task import PreparedTask
from peer.rolling_sink import RollingSink
from peer.sinks import LinkSink, Sink, TopicSink
from peer.stage_shards import shards_of
from peer.standby import StandbyShards
from peer.state_keeper import StateTopic
from peer.store_setup import StoreSetup
from queues.lost import ReaderLost
from sardonyx.connectors import registry
from sardonyx.connectors.base import Output, PositionedOutput, SplitInput
from sardonyx.connectors.files.output import FilesOutput
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.connectors.sql.state import StateDatabase
from sardonyx.core import node_paths
from sardonyx.core.back_pressure import bounds_of, goes_on
from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.events import TOO_OLD, LinkFacts
from sardonyx.core.going_back import state_link
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.source_fronts import Sources
from sardonyx.core.spec import TaskSpec, database_of, decode_spec, whole_of
from sardonyx.core.state_points import Adopted
from sardonyx.core.version import VERSION
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.functions import import_function
from sardonyx.runtime.lazy import lazy_module
from sardonyx.runtime.secret_values import resolved
from sardonyx.runtime.settings import Settings
from spark_tasks.applied import Function, NoFunction
from spark_tasks.code import CodeBundle, free_unused

if TYPE_CHECKING:
    from queues import confirmed_end, group_clocks, marked_topics, state_topics, topic_log
    from sardonyx.zookeeper.session import ZooKeeperSession
    from spark_tasks import apply, on_demand
    from spark_tasks import graphs as graph_functions
    from spark_tasks import keyed as keyed_functions
    from spark_tasks.graphs import GraphFunctions
    from spark_tasks.keyed import KeyedFunctions
    from spark_tasks.on_demand import SparkOnDemand, TaskSpark
else:  # as in `peer.prepared_task`
    confirmed_end, group_clocks = map(lazy_module, ("queues.confirmed_end", "queues.group_clocks"))
    marked_topics, state_topics = map(lazy_module, ("queues.marked_topics", "queues.state_topics"))
    apply, keyed_functions = map(lazy_module, ("spark_tasks.apply", "spark_tasks.keyed"))
    on_demand, topic_log = map(lazy_module, ("spark_tasks.on_demand", "queues.topic_log"))
    graph_functions = lazy_module("spark_tasks.graphs")


def prepare(
    settings: Settings,
    zk: ZooKeeperSession,
    spark: SparkOnDemand,
    peer: str,
    assignment: Assignment,
    code_cache: Path,
    kept: KeptShards[Any] | None = None,
    standby: StandbyShards | None = None,
) -> PreparedTask:
    """Fetch the job and its code, and do every preparation that can fail because of the job itself. ``kept``: what earlier
    assignments of this process left of their state. ``standby``: what this process follows of the state of other processes.

    Raises:
        SardonyxError: the task cannot run here. The peer declines the assignment with this error.
        RunnerLost: the task needs Spark, whose JVM has ended.
    """
    job = assignment.job
    try:
        spec = decode_spec(_must(zk, node_paths.job_spec(job)))
        links = msgspec.json.decode(_must(zk, node_paths.job_links(job)), type=LinksNote)
    except msgspec.ValidationError as error:
        raise _too_old(error) from error
    free_unused(None if spark.has_ended else spark.running)
    graph = graph_of(spec, settings.deployment, job)
    stage = graph.stage(assignment.task)
    brings = spec.code if takes_code(settings.peer, stage) else None
    code = open_code(settings.peer, _must(zk, node_paths.code(brings)), brings, code_cache) if brings else None
    check_allowed(settings.peer, stage, code)
    if needs_spark := _uses_spark(stage):
        if spark.has_ended:
            raise RunnerLost("Spark has ended")
        spark.begin()  # it gets ready while the task is accepted, joins its group, restores its state and reads
    folder = code_cache / "state"
    return assemble(
        settings,
        spark if needs_spark else None,
        peer,
        assignment,
        graph,
        links.links,
        code,
        state_folder=folder,
        kept=kept,
        standby=standby,
        topics=links.topics,
    )


def assemble(
    settings: Settings,
    spark: SparkOnDemand | None,
    peer: str,
    assignment: Assignment,
    graph: Graph,
    facts: dict[str, LinkFacts],
    code: CodeBundle | None,
    state_topic: Callable[[Link], StateTopic] | None = None,
    state_folder: Path | None = None,
    runtime: Runtime = REAL,
    kept: KeptShards[Any] | None = None,
    standby: StandbyShards | None = None,
    topics: Mapping[str, str] = MappingProxyType({}),
) -> PreparedTask:
    """Build a task that is ready to run from its job's data. It needs no cluster (:mod:`sardonyx.testing`).

    ``state_topic``: gives the log of a task's state, for its link; None: in Kafka. ``state_folder``: for stores on disk; None:
    the one for temporary files. ``spark``: None only for a task without functions. ``topics``: ids of topics that the job reads.

    Raises:
        SardonyxError: the task cannot run here.
    """
    stage = resolved(graph.stage(assignment.task))
    splits = any(link.kind == "splits" for link in stage.ingress)
    isolate = stage.isolates
    load = import_function if code is None else code.load
    retried = partial(count_retry, assignment.job, assignment.task)
    group = None if spark is None else on_demand.TaskSpark(spark, f"{peer}/{assignment.id}", code)
    within = _within(group, stage.task, retried, isolate=isolate)
    context = Context(settings.deployment, assignment.job, assignment.task, peer, assignment.slot)
    sinks = list(_sinks(settings, graph, stage, facts, peer, assignment, code))
    database = _database(settings, stage, facts, assignment.job)
    sources = Sources(graph) if graph.lineage else None
    bounds = bounds_of(stage.egress, facts)
    return PreparedTask(
        settings=settings,
        peer=peer,
        assignment=assignment,
        stage=stage,
        facts=facts,
        function=_function(group, stage, retried, isolate=isolate),
        spark=group,
        sinks=sinks,
        source=_source(stage, code) if splits else None,
        isolate=isolate,
        hooks=None if stage.task.lifecycle is None else Hooks(stage.task.lifecycle, load, context),
        timed=graph.timed or graph.lineage,
        bounded=graph.bounded,
        sources=sources,
        shards=shards_of(
            stage,
            graph,
            facts,
            within,
            state_topic or partial(state_topics.StateTopic, settings),
            StoreSetup(state_folder, load, kept, standby),
            runtime,
            database,
            sources,
            _adopted(stage, facts),
            peer,
        ),
        keeper=database or next((sink for sink in sinks if isinstance(sink, PositionedSink)), None),
        within=within,
        writers={link.name: graph.stage(link.source) for link in stage.ingress if link.kind == "internal"},
        loop=loop_of(graph, stage.name),
        runtime=runtime,
        bounds=bounds,
        readers={link.name: graph.stage(link.target) for link in stage.egress if link.name in bounds},
        goes_on=goes_on(graph, facts),
        checkpoint_every=graph.checkpoint_every,
        topics={link.topic: topics[link.topic] for link in stage.ingress if link.topic in topics},
        code=code,
    )


def _uses_spark(stage: Stage) -> bool:
    """Whether a task needs Spark: it has a function, or reads splits that the peer does not read itself. Windows, joins and
    outputs run in the peer.
    """
    reads_there = any(link.kind == "splits" for link in stage.ingress) and not registry.read_by_peers(stage.task)
    return bool(stage.functions) or reads_there


def _adopted(stage: Stage, facts: Mapping[str, LinkFacts]) -> Adopted | None:
    """The state of an earlier job that a task begins with; None: it begins with nothing."""
    link = state_link(stage)
    return None if link is None else facts[link.name].adopts


def _database(settings: Settings, stage: Stage, facts: Mapping[str, LinkFacts], job: str) -> DatabaseKeeper | None:
    """The database that keeps the state of a task; None: none does."""
    store = database_of(stage.task)
    if store is None:
        return None
    sizes = {link.topic: facts[link.name].partitions for link in stage.ingress}

    def confirm(told: Mapping[Partition, Position | None]) -> None:
        now = group_clocks.committed_by(settings, stage, job, sizes)
        if any(now.get(partition) != position for partition, position in told.items()):
            raise ReaderLost("another peer has gone on with partitions of this one")

    state = StateDatabase(store, settings.deployment, job, stage.name)
    return DatabaseKeeper(state, stage.ingress[0].topic, confirm)


def _task_of_results(task: TaskSpec) -> TaskSpec:
    """The task as its results meet it: a function with keyed state, a program over a graph, or rounds have made them."""
    made = task.keyed is not None or whole_of(task) is not None
    return msgspec.structs.replace(task, fn=None, keyed=None, graph=None, iterate=None) if made else task


def _within(
    spark: TaskSpark | None,
    task: TaskSpec,
    retried: Callable[[], None],
    *,
    isolate: bool,
) -> KeyedFunctions | GraphFunctions | None:
    """The functions of a task that run while its state is planned; None: it has none."""
    if task.fn is None or (task.keyed is None and whole_of(task) is None):
        return None
    assert spark is not None  # noqa: S101 (for the type checker: the task has a function)
    if task.keyed is not None:
        return keyed_functions.KeyedFunctions(spark, task, isolate=isolate, retried=retried)
    return graph_functions.GraphFunctions(spark, task)


def _function(
    spark: TaskSpark | None,
    stage: Stage,
    retried: Callable[[], None],
    *,
    isolate: bool,
) -> Function:
    if spark is None:
        return NoFunction()
    task = _task_of_results(stage.task)
    return apply.TaskFunction(spark, task, isolate=isolate, fused=stage.fused, retried=retried)


def _sinks(
    settings: Settings,
    graph: Graph,
    stage: Stage,
    facts: dict[str, LinkFacts],
    peer: str,
    assignment: Assignment,
    code: CodeBundle | None,
) -> Iterator[Sink]:
    load = import_function if code is None else code.load
    for link in stage.egress:
        if link.kind == "output":
            form = registry.topic_format(link.options, settings.kafka.registry)
            yield TopicSink(link, form, load, assignment.job, partial(_partitions_of, settings, link.topic))
        elif link.kind == "internal" and link != stage.between_shards:
            reader = graph.stage(link.target)
            yield LinkSink(
                link,
                partitions=facts[link.name].partitions,
                writer=peer,
                load=load,
                first=assignment.slot,
                rows=reader.task.rows_per_batch,  # otherwise its small batch_size has no effect on large blocks
                leaves_out=reader.isolates,
            )
    if stage.last.type == "output" and stage.last.connector != "kafka":
        parts = next((_parts_list(settings, link) for link in stage.egress if link.kind == "parts"), None)
        made = registry.output(stage.last, assignment.job, settings.deployment, load, bounded=graph.bounded)
        if isinstance(made, PositionedOutput):
            yield PositionedSink(made)
        elif isinstance(made, RollingFiles) and parts is not None:
            yield RollingSink(made, parts)
        else:
            yield ConnectorSink(_staging(made), parts)


def _staging(output: Output) -> Staging:
    if isinstance(output, FilesOutput):
        return Staging(output, output.publish_left, output.unstage)
    return Staging(output, output.publish)


def _partitions_of(settings: Settings, topic: str) -> int:
    return marked_topics.partitions(settings, topic)


def _source(stage: Stage, code: CodeBundle | None) -> SplitInput:
    return registry.split_input(stage.task) if code is None else registry.split_input(stage.task, code.load)


def _parts_list(settings: Settings, parts: Link) -> PartsList:
    topic = parts.topic
    return PartsList(topic, lambda: confirmed_end.read_all(settings, topic), partial(_read_parts_from, settings, topic))


def _read_parts_from(settings: Settings, topic: str, start: int) -> tuple[list[bytes], int]:
    """What the list of parts holds from an offset on, and its end. It does not ask for the end as :mod:`queues.confirmed_end`
    does: several peers ask at the same moment, and would be in each other's way.
    """
    end = topic_log.ends(settings, topic)[1]
    return [message.value() for message in topic_log.read_messages(settings, topic, start, end)], max(start, end)


def _must(zk: ZooKeeperSession, path: str) -> bytes:
    data = zk.read(path)
    if data is None:
        raise InternalError("SX-TREE-MISSING", f"{path} is not there, though a task was offered that needs it")
    return data


def _too_old(error: msgspec.ValidationError) -> SetupError:
    return SetupError(
        TOO_OLD,
        f"release {VERSION} of this peer cannot read the task: {error}",
        cause="a newer release of Sardonyx wrote it",
        fix="upgrade the peers; `sardonyx upgrade --check` shows who runs which release",
    )
