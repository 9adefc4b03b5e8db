"""The shards of a task that keeps a state, with the operator that its rows go through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.database_keeper import DatabaseKeeper
from peer.failed_records import failed_key
from peer.kept_shards import KeptShards
from peer.keyed_operator import KeyedOperator
from peer.operators import Operator, WindowOperator
from peer.relation_operator import RelationOperator, declared_columns
from peer.shards import Shards, StateTopic
from sardonyx.core.fronts import Sources
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.functions import import_function

if TYPE_CHECKING:
    from spark_tasks.keyed import KeyedFunctions


def shards_of(
    stage: Stage,
    graph: Graph,
    keyed: KeyedFunctions | None,
    state_topic: Callable[[Link], StateTopic],
    folder: Path | None,
    runtime: Runtime,
    keeper: DatabaseKeeper | None = None,
    load: Callable[[str], Any] = import_function,
    sources: Sources | None = None,
    kept: KeptShards[Any] | None = None,
    job: str = "",
) -> Shards | None:
    """The shards of a task; None if it keeps no state.

    Args:
        stage: the task.
        graph: of its job.
        keyed: its functions, if it has keyed state.
        state_topic: reads the log of its state.
        folder: for stores on disk.
        runtime: time.
        keeper: of its state, if a database keeps it.
        load: finds a store of the user's own.
        sources: of the job, if it keeps its lineage.
        kept: shards of earlier assignments of this process, if any are kept.
        job: its id.
    """
    state = next((link for link in stage.egress if link.kind == "state"), None)
    if state is None and keeper is None:
        return None
    most = stage.task.batch_size
    operator: Operator
    if keyed is not None:
        tell = partial(failed_key, attempts=stage.task.on_error.retries + 1)
        operator = KeyedOperator(stage, keyed.signature, keyed, tell, most)
    elif stage.task.relation is not None:
        operator = RelationOperator(stage, most, declared_columns(stage, graph))
    else:
        operator = WindowOperator(stage, most)
    topic = None if state is None else state_topic(state)
    kept = kept if keeper is None else None
    place = (job, stage.name)

    def now() -> int:
        return int(runtime.wall() * 1_000_000)

    return Shards(stage, operator, topic, folder, now, keeper, load, sources, kept, place)
