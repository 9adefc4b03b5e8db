"""Which tasks of a running job pause because a queue behind them is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.client.lags import LinkLag
from sardonyx.client.links import facts_of
from sardonyx.client.views import TaskView, laid_out
from sardonyx.core.back_pressure import Hold, bounds_of, goes_on, held

if TYPE_CHECKING:
    from sardonyx.client.client import Client
    from sardonyx.core.events import LinkFacts
    from sardonyx.core.graph import Graph


def held_tasks(client: Client, job: str, lags: Sequence[LinkLag] | None = None) -> list[Hold]:
    """The tasks of a job that are held now, in the order of its tasks. Kafka is asked only if a queue has a bound.

    Args:
        client: of the deployment.
        job: the job's id.
        lags: what is unread on its links, if that was just asked for.

    Raises:
        SardonyxError: as :meth:`~sardonyx.client.job_handle.JobHandle.lag`.
    """
    handle = client.job(job)
    graph, facts = laid_out(handle.spec(), client.settings.deployment, handle.id), facts_of(client.zk, handle.id)
    if facts is None or not bounds_of(graph.links, facts):
        return []
    return holds_of(graph, facts, handle.lag(holds=False) if lags is None else lags, handle.status(live=False).tasks)


def holds_of(
    graph: Graph, facts: Mapping[str, LinkFacts], lags: Sequence[LinkLag], tasks: Sequence[TaskView]
) -> list[Hold]:
    """Return the tasks that are held, from what :func:`held_tasks` has asked for. Pure."""
    unread = {lag.link: lag.records if lag.precision == "exact" else None for lag in lags}
    peers = {task.name: task.peers for task in tasks}
    return held(graph, bounds_of(graph.links, facts), unread, peers, goes_on=goes_on(graph, facts))


__all__ = ["held_tasks", "holds_of"]
