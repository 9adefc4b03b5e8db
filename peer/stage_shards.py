"""The shards of a task that keeps a state, with the operator that its rows go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace as replace_fields

from peer.database_keeper import DatabaseKeeper
from peer.failed_records import failed_key
from peer.graph_operator import GraphOperator
from peer.keyed_operator import KeyedOperator
from peer.operators import Operator, WindowOperator
from peer.relation_operator import RelationOperator, declared_columns
from peer.shards import Shards
from peer.state_keeper import LARGE, StateKeeper, StateTopic, TopicKeeper
from peer.store_setup import StoreSetup
from peer.superstep_operator import SuperstepOperator
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.source_fronts import Sources
from sardonyx.core.spec import whole_of
from sardonyx.core.state_points import Adopted
from sardonyx.runtime.clock import Runtime
from sardonyx.state.adopted import AdoptedState
from sardonyx.state.resharding import share_of

if TYPE_CHECKING:
    from spark_tasks.graphs import GraphFunctions
    from spark_tasks.keyed import KeyedFunctions


def shards_of(
    stage: Stage,
    graph: Graph,
    facts: Mapping[str, LinkFacts],
    within: KeyedFunctions | GraphFunctions | None,
    state_topic: Callable[[Link], StateTopic],
    setup: StoreSetup,
    runtime: Runtime,
    keeper: DatabaseKeeper | None = None,
    sources: Sources | None = None,
    adopted: Adopted | None = None,
    peer: str = "",
) -> Shards | None:
    """The shards of a task; None if it keeps no state.

    Args:
        stage: the task.
        graph: of its job.
        facts: of its links.
        within: its functions, if they run while the state is planned.
        state_topic: reads the log of its state.
        setup: what the process has for its stores.
        runtime: time.
        keeper: of its state, if a database keeps it.
        sources: of the job, if it keeps its lineage.
        adopted: the state of an earlier job that it begins with.
        peer: who runs it.
    """
    state = next((link for link in stage.egress if link.kind == "state"), None)
    truth: StateKeeper
    if keeper is not None:
        truth, setup = keeper, replace(setup, kept=None)  # each assignment asks a database anew
    elif state is not None:
        adopts = None
        if adopted is not None:
            known = facts[state.name]
            share = share_of(stage.task, known.partitions) if known.reshards else None
            adopts = AdoptedState(adopted, state_topic(replace_fields(state, topic=adopted.topic)), share)
        changes = stage.task.graph is not None and stage.task.graph.window is not None
        truth = TopicKeeper(state, state_topic(state), adopts, LARGE if changes else None)
    else:
        return None
    most = stage.task.rows_per_batch
    operator: Operator
    if stage.task.keyed is not None:
        keyed = cast("KeyedFunctions", within)
        tell = partial(failed_key, attempts=stage.task.on_error.retries + 1)
        operator = KeyedOperator(stage, keyed.signature, keyed, tell, most)
    elif stage.task.relation is not None:
        operator = RelationOperator(stage, most, declared_columns(stage, graph))
    elif stage.between_shards is not None:
        operator = SuperstepOperator(stage, most, facts[stage.between_shards.name].partitions, peer)
    elif whole_of(stage.task) is not None:
        operator = (
            GraphOperator(stage, most) if within is None else GraphOperator(stage, most, cast("GraphFunctions", within))
        )
    else:
        operator = WindowOperator(stage, most)

    def now() -> int:
        return int(runtime.wall() * 1_000_000)

    # Links that a change has added say nothing of it. All others of a job say the same.
    since = next((time for link in stage.ingress if (time := facts[link.name].since) is not None), None)
    return Shards(stage, operator, truth, setup, now, sources, graph.checkpoint_every, since)
