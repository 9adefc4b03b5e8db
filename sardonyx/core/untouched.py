"""Which tasks of a running job a change leaves as they are, so that their peers go on while it is made. Pure.

``docs/design/changes.md`` says why that is safe. Each condition here is about something that a peer has read when it began, and
does not read again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from sardonyx.core.changing import wires
from sardonyx.core.conditions import functions_in
from sardonyx.core.cycles import inner_links
from sardonyx.core.events import RULES, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.resizing import resized
from sardonyx.core.source_fronts import Sources, inner
from sardonyx.core.spec import JobSpec, Route, references_of


def untouched(
    old: JobSpec, new: JobSpec, same: Collection[str], facts: Mapping[str, LinkFacts], rules: int = RULES
) -> list[str]:
    """The stages whose peers work by both versions alike.

    Args:
        old: the job as it runs.
        new: the job as it is to be.
        same: the stages whose functions are known to be the same in the code of both versions.
        facts: of the job's links so far.
        rules: by which that is decided. By rules 3 a task does not know whether its readers leave out bad records,
            nor how the tasks of its loop count, nor which sources reach it,
            nor a join whether a function makes its rows.
    """
    before, after = graph_of(old, "", ""), graph_of(new, "", "")
    if old.tags != new.tags or resized(old, new) or _whole(before) != _whole(after):
        return []
    now = {stage.name: _as_read(stage) for stage in after.stages}
    return [
        stage.name
        for stage in before.stages
        if stage.name in same
        and _as_read(stage) == now.get(stage.name)
        and all(
            _counts_alike(before.stage(link.source), after.stage(link.source), facts)
            for link in _looked_at(before, stage, rules)
        )
        and (
            rules < 4
            or (_reached_by(before, stage), _columns_known(before, stage))
            == (_reached_by(after, stage), _columns_known(after, stage))
        )
        and all(
            _reads_alike(before.stage(link.target), after.stage(link.target), rules)
            for link in stage.egress
            if link.kind == "internal"
        )
    ]


def used_by(stage: Stage) -> list[str]:
    """The functions and classes that the peers of a stage call, as ``module:name``."""
    found = [name for task in (stage.task, *stage.fused) for name in references_of(task)]
    conditions = (link.route.where for link in stage.egress if link.route.where)
    found += [name for where in conditions for name, _ in functions_in(where)]
    found += [link.group_by for link in stage.egress if isinstance(link.group_by, str)]
    return list(dict.fromkeys(found))


def _whole(graph: Graph) -> tuple[object, ...]:
    """What every task knows of its whole job."""
    sources = Sources(graph).names if graph.lineage else None
    return graph.bounded, graph.timed, graph.checkpoint_every, sources


def _reached_by(graph: Graph, stage: Stage) -> list[frozenset[int]]:
    """Of a job that keeps its lineage, the sources whose rows come over each queue that a task reads."""
    sources = Sources(graph) if graph.lineage else None
    return [] if sources is None else [sources.over(link.topic) for link in inner(stage)]


def _columns_known(graph: Graph, stage: Stage) -> list[bool]:
    """Of a join or a lookup, the queues whose columns may be known before their first rows: no function makes these."""
    return [] if stage.task.relation is None else [graph.stage(link.source).task.fn is None for link in inner(stage)]


def _as_read(stage: Stage) -> Stage:
    """A stage without the conditions and bounds of the queues that it reads: those concern their writers."""
    return replace(stage, ingress=[replace(link, route=Route(), max_backlog=None) for link in stage.ingress])


def _reads_alike(reader: Stage, then: Stage, rules: int) -> bool:
    """Whether a writer cuts what it writes alike, and knows what becomes of a row that is too large for the queue."""
    return reader.task.rows_per_batch == then.task.rows_per_batch and (rules < 4 or reader.isolates == then.isolates)


def _looked_at(graph: Graph, stage: Stage, rules: int) -> list[Link]:
    """The queues of which a task wants to know how many rows were written: those that it reads, and all in a loop whose end it
    proves (by rules 3 only those that it reads).
    """
    links = [link for link in stage.ingress if link.kind == "internal"]
    cycle = graph.cycle_of(stage.name)
    if rules < 4 or cycle is None or not any(link.feedback for link in stage.ingress):
        return links
    return [*links, *inner_links(graph, cycle)]


def _counts_alike(writer: Stage, then: Stage, facts: Mapping[str, LinkFacts]) -> bool:
    """Whether a reader that knows a writer as it was finds how many rows it has written: in positions on the same queues, and in
    the same place there. The first change of a writer's queues numbers them, which its readers must know. Later ones do not
    number them anew.
    """
    return wires(writer) == wires(then) or (
        wires(writer)[0] == wires(then)[0] and all(facts[link.name].place is not None for link in writer.counted)
    )


__all__ = ["untouched", "used_by"]
