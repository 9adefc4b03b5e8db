"""Which tasks of a running job a change leaves as they are, so that their peers go on while it is made. Pure.

``docs/design/changes.md`` says why that is safe. Each condition here is about something that a peer has read when it began, and
does not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

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
        rules: by which that is decided. `_CONDITIONS` says which rules know of what.
    """
    before, after = graph_of(old, "", ""), graph_of(new, "", "")
    if old.tags != new.tags or resized(old, new) or _whole(before) != _whole(after):
        return []
    change = _Versions(before, after, facts)
    alike = [condition for since, condition in _CONDITIONS if since <= rules]
    return [
        stage.name
        for stage in before.stages
        if stage.name in same and all(condition(change, stage) for condition in alike)
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


class _Versions(NamedTuple):
    """A job as it runs, and as it is to be."""

    before: Graph
    after: Graph
    facts: Mapping[str, LinkFacts]
    """Of its links so far."""


def _is_as_it_was(change: _Versions, stage: Stage) -> bool:
    """Whether the task itself and its queues are the same."""
    then = next((each for each in change.after.stages if each.name == stage.name), None)
    return then is not None and _as_read(stage) == _as_read(then)


def _as_read(stage: Stage) -> Stage:
    """A stage without the conditions and bounds of the queues that it reads: those concern their writers."""
    return replace(stage, ingress=[replace(link, route=Route(), max_backlog=None) for link in stage.ingress])


def _knows_its_counts(change: _Versions, stage: Stage) -> bool:
    """Whether the task still finds how many rows were written into the queues that it reads."""
    return all(_counts_alike(change, link) for link in inner(stage))


def _knows_counts_of_its_loop(change: _Versions, stage: Stage) -> bool:
    """Whether a task that proves the end of a loop still finds how many rows were written into each of the loop's queues."""
    cycle = change.before.cycle_of(stage.name)
    if cycle is None or not any(link.feedback for link in stage.ingress):
        return True
    return all(_counts_alike(change, link) for link in inner_links(change.before, cycle))


def _counts_alike(change: _Versions, link: Link) -> bool:
    """Whether a reader that knows a writer as it was finds how many rows it has written: in positions on the same queues, and in
    the same place there. The first change of a writer's queues numbers them, which its readers must know. Later ones do not
    number them anew.
    """
    writer, then = change.before.stage(link.source), change.after.stage(link.source)
    return wires(writer) == wires(then) or (
        wires(writer)[0] == wires(then)[0] and all(change.facts[each.name].place is not None for each in writer.counted)
    )


def _cuts_for_its_readers(change: _Versions, stage: Stage) -> bool:
    """Whether the task cuts what it writes into batches as its readers want them."""
    return all(
        change.before.stage(link.target).task.rows_per_batch == change.after.stage(link.target).task.rows_per_batch
        for link in stage.counted
    )


def _knows_what_its_readers_leave_out(change: _Versions, stage: Stage) -> bool:
    """Whether the task still knows what becomes of a row that is too large for a queue that it writes."""
    return all(
        change.before.stage(link.target).isolates == change.after.stage(link.target).isolates for link in stage.counted
    )


def _knows_its_sources(change: _Versions, stage: Stage) -> bool:
    """Whether, in a job that keeps its lineage, rows of the same sources come over each queue that the task reads."""
    return _reached_by(change.before, stage) == _reached_by(change.after, stage)


def _reached_by(graph: Graph, stage: Stage) -> list[frozenset[int]]:
    sources = Sources(graph) if graph.lineage else None
    return [] if sources is None else [sources.over(link.topic) for link in inner(stage)]


def _knows_its_columns(change: _Versions, stage: Stage) -> bool:
    """Whether a join or a lookup still knows before the first rows which columns come over its queues."""
    return _columns_known(change.before, stage) == _columns_known(change.after, stage)


def _columns_known(graph: Graph, stage: Stage) -> list[bool]:
    """Of a join or a lookup, the queues whose rows no function makes."""
    return [] if stage.task.relation is None else [graph.stage(link.source).task.fn is None for link in inner(stage)]


_CONDITIONS: list[tuple[int, Callable[[_Versions, Stage], bool]]] = [
    (0, _is_as_it_was),
    (0, _knows_its_counts),
    (0, _cuts_for_its_readers),
    (4, _knows_counts_of_its_loop),
    (4, _knows_what_its_readers_leave_out),
    (4, _knows_its_sources),
    (4, _knows_its_columns),
]
"""When a task is left as it is, each with the first rules that know of it. The first comes first: the others hold of tasks that
are in both versions."""

__all__ = ["untouched", "used_by"]
