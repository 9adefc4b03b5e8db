"""A job's graph as it is drawn: places, verdicts, what is unread on each link, and the slowest way. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.core.state import Job, State
from queues.backlog import Precision
from sardonyx.client.held_tasks import holds_of
from sardonyx.client.lags import LinkLag
from sardonyx.client.verdict import LATE, Facts, Verdict, cap_of, drains_in, facts_of, verdict
from sardonyx.client.views import JobView, ShownState, TaskView, laid_out
from sardonyx.core.back_pressure import Hold, bounds_of
from sardonyx.core.changing import failed_after
from sardonyx.core.graph import Graph, LinkKind
from sardonyx.core.spec import TaskType
from sardonyx.web.layout import HEIGHT, MARGIN, WIDTH, Layout, lay_out
from sardonyx.web.sight import Rates, Samples


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One task, and where its box stands. None: not known, or not recorded for that moment."""

    name: str
    type: TaskType
    what: str
    """What it runs: its function, or its connector."""
    x: float
    y: float
    state: ShownState
    verdict: Verdict
    peers: int
    peer_ids: list[str]
    limit: int | None
    """The most peers that it can take; None: not known yet, or it takes none."""
    bound: bool
    fused: bool
    """It runs in the micro-batches of the task before it."""
    failures: int
    rows_in: int | None
    rows_out: int | None
    dead: int | None
    skipped: int | None
    late: int | None
    rates: Rates
    busy: float | None = None
    """The share of the last seconds in which its peers had a batch in hand, from 0 to 1. None: its peers do not tell."""


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """One edge of the job, and what is unread on its link."""

    source: str
    target: str
    link: str | None
    """None: fused tasks have no queue between them."""
    kind: LinkKind | None
    points: list[tuple[float, float]]
    records: int | None = None
    precision: Precision = "unknown"
    seconds: float | None = None
    growth: float | None = None
    """Rows a second."""
    drains_in: float | None = None
    """Seconds until all is read if it goes on like this."""
    verdict: Verdict
    """The verdict of the task that reads it."""
    slowest: bool = False
    """It is on the slowest way."""


class Slowest(msgspec.Struct, frozen=True):
    """The way through the job on which the oldest unread rows have waited longest together."""

    tasks: list[str]
    seconds: float
    worst: str
    """The task before which they wait longest."""
    waits_for: str | None = None
    """If full queues hold that task: the one that it waits for in the end."""


class GraphView(msgspec.Struct, frozen=True, kw_only=True):
    """A job's graph, ready to be drawn."""

    nodes: list[Node]
    """In topological order."""
    edges: list[Edge]
    width: float
    height: float
    box: tuple[int, int] = (WIDTH, HEIGHT)
    bounded: bool
    slowest: Slowest | None = None
    """None: nothing waits for long, or it is not known."""
    held: list[Hold] = []
    """Its tasks that full queues hold."""


LANE = 24
"""Height of the lane of an edge that leads back, and how far its ends are from the boxes."""

_layouts: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], Layout] = {}
REMEMBERED = 256


def laid(graph: Graph, edges: list[tuple[str, str]]) -> Layout:
    """The layout of a graph; made once."""
    key = tuple(graph.order), tuple(edges)
    if key not in _layouts:
        if len(_layouts) >= REMEMBERED:
            _layouts.pop(next(iter(_layouts)))
        _layouts[key] = lay_out(*key)
    return _layouts[key]


def with_feedback(layout: Layout, back: list[tuple[str, str]]) -> Layout:
    """The layout with edges that lead back, each in a lane of its own below all boxes."""
    if not back:
        return layout
    ways = dict(layout.ways)
    for number, (source, target) in enumerate(back):
        lane = layout.height - MARGIN + LANE * (number + 1)
        (x, y), (to, up) = layout.places[source], layout.places[target]
        ways[source, target] = [
            (x + WIDTH, y + HEIGHT / 2),
            (x + WIDTH + LANE, lane),
            (to - LANE, lane),
            (to, up + HEIGHT / 2),
        ]
    return layout._replace(ways=ways, height=layout.height + LANE * len(back))


def graph_view(
    state: State, name: str, job: Job, view: JobView, lags: list[LinkLag] | None, samples: Samples | None
) -> GraphView:
    """Draw a job.

    Args:
        state: the coordinator's state at that moment.
        name: the job's id.
        job: the job in ``state``.
        view: the same for clients, with counts as far as they are known.
        lags: what is unread on its links; None: not known.
        samples: what Kafka said before; None: not known.
    """
    graph = laid_out(job.spec, state.deployment, name)
    edges = [(source, target) for source, target in job.spec.workflow if graph.order]
    back = [(source, target) for source, target in job.spec.feedback if graph.order]
    layout = with_feedback(laid(graph, edges), back)
    samples = samples or Samples()
    limits = state.plans[name].limit if name in state.plans else {}
    by_link = {lag.link: lag for lag in lags or ()}
    held = holds_of(graph, job.facts or {}, lags or (), view.tasks)
    until = _held_until(graph, job, samples)
    known: dict[str, Facts] = {}
    for task in view.tasks:
        read = [lag for lag in lags or () if lag.reader == task.name]
        why = "; ".join(hold.why for hold in held if hold.task == task.name) or None
        known[task.name] = _facts(task, job, limits.get(task.name), read, samples, until.get(task.name), why)
    judged = {name: verdict(facts) for name, facts in known.items()}
    fused = {task.name for stage in graph.stages for task in stage.fused}
    drawn = [_edge(graph, edge, layout, by_link, samples, judged) for edge in edges]
    slowest = slowest_way(graph.order, drawn, {hold.task: hold.last for hold in held})
    if slowest is not None:
        steps = set(zip(slowest.tasks, slowest.tasks[1:], strict=False))
        drawn = [msgspec.structs.replace(edge, slowest=(edge.source, edge.target) in steps) for edge in drawn]
    drawn += [_edge(graph, edge, layout, by_link, samples, judged) for edge in back]  # no way goes on over them
    return GraphView(
        nodes=[
            Node(
                name=task.name,
                type=task.type,
                what=job.spec.task(task.name).fn or job.spec.task(task.name).connector or "",
                x=layout.places[task.name][0],
                y=layout.places[task.name][1],
                state=task.state,
                verdict=judged[task.name],
                peers=task.peers,
                peer_ids=task.peer_ids,
                limit=limits.get(task.name),
                bound=task.bound,
                fused=task.name in fused,
                failures=task.failures,
                rows_in=task.rows_in,
                rows_out=task.rows_out,
                dead=task.dead,
                skipped=task.skipped,
                late=task.late,
                rates=samples.rates(task.name),
                busy=known[task.name].busy,
            )
            for task in view.tasks
        ],
        edges=drawn,
        width=layout.width,
        height=layout.height,
        bounded=graph.bounded,
        slowest=slowest,
        held=held,
    )


def slowest_way(order: list[str], edges: list[Edge], held: Mapping[str, str] = {}) -> Slowest | None:
    """The way with the largest sum of waits, if any of them is late.

    Args:
        order: the tasks, in topological order.
        edges: between them.
        held: the tasks that full queues hold, each with the one that it waits for in the end.
    """
    if not any(edge.seconds is not None and edge.seconds >= LATE for edge in edges):
        return None
    best: dict[str, tuple[float, str | None]] = dict.fromkeys(order, (0.0, None))
    for task in order:
        for edge in edges:
            if edge.target == task and best[edge.source][0] + (edge.seconds or 0.0) > best[task][0]:
                best[task] = best[edge.source][0] + (edge.seconds or 0.0), edge.source
    end = max(order, key=lambda task: best[task][0])
    way: list[str] = [end]
    while (before := best[way[0]][1]) is not None:
        way.insert(0, before)
    waits = {edge.target: edge.seconds or 0.0 for edge in edges if edge.source in way and edge.target in way}
    worst = max(waits, key=lambda task: waits[task])
    return Slowest(way, best[end][0], worst, held.get(worst))


def _held_until(graph: Graph, job: Job, samples: Samples) -> dict[str, float]:
    """For how many seconds no full queue has held a task, of those that one held, as far as we have watched."""
    found: dict[str, float] = {}
    if samples.last is not None and bounds_of(graph.links, job.facts or {}):
        for sample in samples.kept:
            for hold in holds_of(graph, job.facts or {}, sample.lags or (), sample.view.tasks):
                found[hold.task] = samples.last.at - sample.at
    return found


def _facts(
    task: TaskView,
    job: Job,
    limit: int | None,
    lags: list[LinkLag],
    samples: Samples,
    free: float | None,
    held: str | None,
) -> Facts:
    kept = job.tasks.get(task.name)
    backing_off = kept is not None and kept.backing_off and not job.ended
    still = samples.rates(task.name).still
    if still is not None:  # it could not commit before
        still = min(still, samples.able(task.name), still if free is None else free)
    facts = facts_of(
        task,
        lags,
        samples.growth,
        limit,
        suspended=job.suspended,
        backing_off=backing_off,
        still=still,
        held=held,
        cap="" if limit is None else cap_of(job.spec.task(task.name), limit),
    )
    return facts._replace(busy=samples.busy(task.name, task.peers, facts.unread), failed=failed_after(job.error))


def _edge(
    graph: Graph,
    edge: tuple[str, str],
    layout: Layout,
    lags: dict[str, LinkLag],
    samples: Samples,
    judged: dict[str, Verdict],
) -> Edge:
    source, target = edge
    # A bound input or output has its link under the name of the edge, too; a source with a function reads a link of its own.
    link = next((each for each in graph.links if each.name == f"{source}.{target}"), None)
    lag = lags.get(link.name) if link is not None else None
    growth = samples.growth(link.name) if link is not None else None
    facts = Facts("running", unread=lag.records if lag else None, growth=growth)
    return Edge(
        source=source,
        target=target,
        link=None if link is None else link.name,
        kind=None if link is None else link.kind,
        points=layout.ways[edge],
        records=lag.records if lag else None,
        precision=lag.precision if lag else "unknown",
        seconds=lag.seconds if lag else None,
        growth=growth,
        drains_in=drains_in(facts),
        verdict=judged[target],
    )
