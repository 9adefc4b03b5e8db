"""What of a running job can be changed in place: it keeps its queues, positions and state. Pure.

The client says what stands in the way, and the coordinator carries out no other change. Both ask here, so that they cannot
disagree.

A change may alter what a task does with its rows, and how it runs. It may add tasks, and remove tasks with what is unread on
their queues. It may alter nothing by which a queue, a position or an entry of a state that stays is found or read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sardonyx.core.changing_at import follows, pending
from sardonyx.core.errors import Failure
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage, graph_of, is_bounded
from sardonyx.core.resizing import hindrances, queues
from sardonyx.core.source_fronts import Sources
from sardonyx.core.spec import JobSpec, Route, database_of, stateful
from sardonyx.core.spec_fields import JOB_FIELDS, DifferenceKind, job_changes, kind_of_field, task_changes
from sardonyx.core.text import listed, plural

_KINDS: frozenset[DifferenceKind] = frozenset({"function", "share", "doc"})
"""The kinds of differences of which any field may change."""
_FIELDS = frozenset(
    {
        *("failure_limit", "max_backlog", "keep", "tags", "next_partitions"),
        *("consumption", "min_peers", "max_peers", "batch_size", "batch_timeout", "standby", "where"),
        *("window.state_limit", "keyed.state_limit", "relation.state_limit"),
        "time.ahead",
    }
)
"""Other fields that may change: of a job, a task or an edge."""


NOTHING = "spark_tasks.conditions:nothing"
"""The condition of an edge over which no row goes."""
TAKEN_BACK = "SX-JOB-TAKEN-BACK"


def may_change(kind: DifferenceKind, field: str) -> bool:
    """Whether a difference of this kind and field can be made in a running job."""
    return kind in _KINDS or field in _FIELDS or field.startswith("on_error.")


class Obstacle(NamedTuple):
    """What stands in the way of a change."""

    text: str
    task: str = ""
    """The task that it is about."""
    field: str = ""
    """The field that differs, of the task, or of the job."""
    link: str = ""
    """The queue that it is about."""


class Rewiring(NamedTuple):
    """Which queues and tasks a change adds to a job and removes from it."""

    new: list[Link]
    gone: list[Link]
    ended: list[Stage]
    """The stages that are removed."""
    touched: list[Stage]
    """The stages, as they were, that stay and read or write other queues from then on."""
    removed: list[str]
    """The tasks that are removed."""

    @property
    def names(self) -> list[str]:
        """The tasks and queues that are removed."""
        return sorted({*self.removed, *(link.name for link in self.gone)})

    @property
    def retired(self) -> list[str]:
        """Those of them whose names no other may have: what is in Kafka under these names is deleted. Topics of users are not."""
        return sorted({*self.removed, *(link.name for link in self.gone if link.owned)})


def rewiring(before: Graph, after: Graph) -> Rewiring:
    """Compare two graphs of a job."""
    old, new = ({link.name: link for link in graph.links} for graph in (before, after))
    stand = {stage.name: stage for stage in after.stages}
    return Rewiring(
        [link for name, link in new.items() if name not in old],
        [link for name, link in old.items() if name not in new],
        [stage for stage in before.stages if stage.name not in stand],
        [stage for stage in before.stages if stage.name in stand and wires(stage) != wires(stand[stage.name])],
        [name for name in before.order if name not in after.order],
    )


def wires(stage: Stage) -> list[list[str]]:
    """The queues that a stage reads and writes."""
    return [[link.name for link in links] for links in (stage.ingress, stage.egress)]


def rewired(before: Graph, after: Graph) -> bool:
    """Whether any task reads or writes other queues than before, or the same in another order."""
    found = rewiring(before, after)
    return bool(found.new or found.gone or found.touched)


def changes_queues(before: Graph, after: Graph, *, resizes: bool) -> bool:
    """Whether queues come, go or close by a change, or have another number of partitions by it (``resizes``)."""
    return rewired(before, after) or bool(closing(before, after)) or resizes


def closing(before: Graph, after: Graph) -> list[Stage]:
    """The stages, as they were, of which no batch may come after the change by the version before, although their queues stay:
    they write to a queue to which no row comes by the new version, or rows of other times; or they read other times of a topic.
    """
    links = {link.name: link for link in after.links}
    return [
        stage
        for stage in before.stages
        if any(_narrows(link, links.get(link.name)) for link in stage.egress)
        or any(_reads_other_times(link, links.get(link.name)) for link in stage.ingress)
    ]


def _narrows(link: Link, now: Link | None) -> bool:
    if now is None:
        return False
    nothing = now.route.where == NOTHING != link.route.where
    return nothing or (now.route.bounds is not None and now.route.bounds != link.route.bounds)


def _reads_other_times(link: Link, now: Link | None) -> bool:
    if now is None or link.time is None or now.time is None:
        return False
    return (link.time.since, link.time.until) != (now.time.since, now.time.until)


def numbered(
    before: Graph, after: Graph, facts: Mapping[str, LinkFacts], places: int, revision: int
) -> tuple[dict[str, LinkFacts], int]:
    """Give the rows of internal links numbers under which their writers count them, and which no other link of theirs ever had.
    Only tasks that read or write other queues from now on get them. All others go on to count in the order of their links.

    Args:
        before: the graph so far.
        after: the graph from now on.
        facts: of all links of ``after``. Those of both graphs are as they were.
        places: how many numbers were given out; 0: none yet.
        revision: the one that adds the links that are new.

    Returns:
        The facts, and how many numbers are given out now.
    """
    found = dict(facts)
    known = {link.name: number for stage in before.stages for number, link in enumerate(stage.counted)}
    places = places or max(known.values(), default=-1) + 1
    as_before = {stage.name: wires(stage) for stage in before.stages}
    for stage in after.stages:
        for link in stage.counted if wires(stage) != as_before.get(stage.name) else ():
            if found[link.name].place is not None:
                continue
            if link.name in known:
                found[link.name] = replace(found[link.name], place=known[link.name])
            else:
                found[link.name] = replace(found[link.name], place=places, revision=revision)
                places += 1
    return found, places


def obstacles(old: JobSpec, new: JobSpec, retired: Collection[str] = ()) -> Iterator[Obstacle]:
    """What stands in the way of a change; nothing: it can be made, if the user gives up what is unread on the queues that go.

    Args:
        old: the job as it runs. Both specs must be valid.
        new: the job as it is to be.
        retired: names of tasks and queues that earlier changes have removed from the job.
    """
    waits = pending(old)
    if waits is not None and not follows(old, new):
        yield Obstacle(f"its change at {waits.time} is not complete, and this is neither of its two versions")
    for field, _, _ in job_changes(old, new):
        if field == "partitions":
            for each in hindrances(old, new):
                yield Obstacle(each.text, field=field)
        elif not may_change(JOB_FIELDS[field], field):
            yield Obstacle(f"{field} of the job differs", field=field)
    before, after = ({task.name: task for task in spec.catalog} for spec in (old, new))
    for name, task in after.items():
        for field, _, _ in task_changes(before[name], task) if name in before else ():
            if not may_change(kind_of_field(field, task), field):
                yield Obstacle(f"{field} of task {name} differs", task=name, field=field)
    graphs = graph_of(old, "", ""), graph_of(new, "", "")
    yield from _of_queues(*graphs)
    yield from _of_places(*graphs)
    yield from _of_states(*graphs)
    yield from _of_loops(*graphs)
    yield from _of_whole(old, new, *graphs)
    names = {*after, *(link.name for link in graphs[1].links)}
    for name in sorted(names & {*retired}):
        yield Obstacle(
            f"{name} was removed from the job before, so another task or edge cannot have its name",
            task=name if name in after else "",
            link="" if name in after else name,
        )


def _of_queues(before: Graph, after: Graph) -> Iterator[Obstacle]:
    old = {link.name: link for link in before.links}
    for link in after.links:
        if link.name in old and _plain(old[link.name]) != _plain(link):
            yield Obstacle(f"the queue {link.name} would be another one", link=link.name)


def _plain(link: Link) -> Link:
    """A link without what may change of it."""
    window = link.window and replace(link.window, state_limit=None)
    time = link.time and replace(link.time, ahead=None, since=None, until=None)
    route = replace(link.route, where=None, bounds=None)
    return replace(link, route=route, window=window, time=time, rests=False, max_backlog=None)


def _of_places(before: Graph, after: Graph) -> Iterator[Obstacle]:
    """Where tasks run: as a stage of their own, within the batches of another one, or not at all."""
    known, now = _places(before), _places(after)
    for name, place in now.items():
        if name in known and known[name] != place:
            yield Obstacle(f"task {name} {known[name]}; by the new version it {place}", task=name)
    for stage in after.stages:
        stays = [other.name for other in before.stages if other.name == stage.name]
        for task in stage.fused:
            if stays and task.name not in known:
                yield Obstacle(
                    f"the new task {task.name} would run in the batches of task {stage.name}", task=task.name
                )
    for stage in before.stages:
        for task in stage.fused:
            if task.name not in now and stage.name in now:
                yield Obstacle(
                    f"task {task.name} runs in the batches of task {stage.name}, which stays", task=task.name
                )


def _places(graph: Graph) -> dict[str, str]:
    fused = {task.name: stage.name for stage in graph.stages for task in stage.fused}
    found = dict.fromkeys(graph.bound, "is a topic in place")
    found |= {stage.name: "has a queue of its own" for stage in graph.stages}
    return found | {name: f"runs in the batches of task {first}" for name, first in fused.items()}


def _of_states(before: Graph, after: Graph) -> Iterator[Obstacle]:
    """A state, or a position in a database, is found by the first queue that its task reads, and rests on all of them."""
    stages = {stage.name: stage for stage in before.stages}
    for stage in after.stages:
        if stage.name in stages and (stateful(stage.task) or database_of(stage.task) is not None):
            old, new = ([link.name for link in each.ingress] for each in (stages[stage.name], stage))
            for name in sorted({*old} ^ {*new}) or ([new[0]] if old != new else []):
                yield Obstacle(f"task {stage.name} keeps a state, so the queues that it reads must stay", link=name)


def _of_loops(before: Graph, after: Graph) -> Iterator[Obstacle]:
    """Over a queue that is new, rows could come into a loop that is proven to have ended."""
    stages = {stage.name: stage for stage in before.stages}
    for stage in after.stages:
        if stage.name in stages and before.cycle_of(stage.name) is not None:
            old, new = ({link.name for link in each.ingress} for each in (stages[stage.name], stage))
            for name in sorted(old ^ new):
                yield Obstacle(f"task {stage.name} is in a loop, so the queues that it reads must stay", link=name)


def _of_whole(old: JobSpec, new: JobSpec, before: Graph, after: Graph) -> Iterator[Obstacle]:
    if before.bounded != after.bounded:
        yield Obstacle(f"the job {_ends(before)}, and would be one that {_ends(after)}", task=_other_input(old, new))
    kept = {task.name for task in old.catalog} & {task.name for task in new.catalog}
    if before.timed != after.timed and any(
        task.type == "input" and is_bounded(task) for task in old.catalog if task.name in kept
    ):
        names = [task.name for task in (*new.catalog, *old.catalog) if stateful(task)]
        yield Obstacle(
            "it has an input that ends, and all its clocks would begin or end", task=names[0] if names else ""
        )
    if old.lineage:
        known = Sources(before).names
        if Sources(after).names[: len(known)] != known:
            yield Obstacle(
                "it keeps its lineage, in which sources are known by their order", task=_other_input(old, new)
            )


def _ends(graph: Graph) -> str:
    return "ends by itself" if graph.bounded else "never ends by itself"


def _other_input(old: JobSpec, new: JobSpec) -> str:
    """An input that only one of the two has; empty if they have the same."""
    names = [{task.name for task in spec.catalog if task.type == "input"} for spec in (old, new)]
    return next(iter(sorted(names[0] ^ names[1])), "")


def not_given_up(old: JobSpec, new: JobSpec, drop: Collection[str]) -> tuple[list[str], list[str]]:
    """What goes by a change although the user has not said so, and what the user has named that does not go.

    A removed task must be named. A queue between tasks that stay must be named; the others go with their tasks. What was written
    to a user's topic stays there, so nothing is given up.
    """
    found = rewiring(graph_of(old, "", ""), graph_of(new, "", ""))
    queues = [
        link.name
        for link in found.gone
        if link.kind != "output" and not {link.source, link.target, *link.name.split(".")} & {*found.removed}
    ]
    missing = [name for name in [*found.removed, *queues] if name not in drop]
    return missing, sorted({*drop} - {*found.names})


def draining(old: JobSpec, new: JobSpec, drain: Collection[str]) -> tuple[JobSpec, list[str]]:
    """What comes before a change by which tasks or queues go that are to be read to their end.

    If the change adds queues, they come with it: rows that no longer come to what goes may take the new ways at once, and none is
    left out. So they do if a change at a time is ended, whose new ways have bounds.

    Args:
        old: the job as it runs.
        new: the job as it is to be.
        drain: the tasks and queues that go and are to be read first.

    Returns:
        The job as it runs, or as it is to be with what is to be read first, but that no row comes to these tasks and queues any
        more; and the queues that must be read to their end then.
    """
    found = rewiring(graph_of(old, "", ""), graph_of(new, "", ""))
    base = _with_both(old, new, drain) if found.new or pending(old) is not None else old
    inputs = {task.name for task in old.catalog if task.type == "input"}
    routes = dict(base.routes)
    for source, target in base.workflow:
        name = f"{source}.{target}"
        fed_by_itself = source in drain and source not in inputs
        if name in drain or (target in drain and not fed_by_itself):
            routes[name] = replace(base.route(source, target), where=NOTHING)
    links = [
        link.name
        for link in found.gone
        if link.kind == "internal" and {link.name, link.target, *link.name.split(".")} & {*drain}
    ]
    return replace(base, routes=routes), links


def is_draining(graph: Graph) -> bool:
    """Whether the change of the job waits until tasks or queues that go are read to their end, or to a time, or until all queues
    are. They need peers until then, also where tasks before them still have work.
    """
    return any(_is_closing(link.route) or link.rests for link in graph.links)


def _is_closing(route: Route) -> bool:
    bounds = route.bounds
    return route.where == NOTHING or (bounds is not None and (bounds.before is not None or not bounds.over))


def _with_both(old: JobSpec, new: JobSpec, stays: Collection[str]) -> JobSpec:
    """The new version, with the tasks and queues of the old one that stay for a while."""
    names = {task.name for task in new.catalog}
    kept = [task for task in old.catalog if task.name in stays and task.name not in names]
    names |= {task.name for task in kept}
    edges = [
        (source, target)
        for source, target in old.workflow
        if (source, target) not in new.workflow
        and {source, target} <= names
        and {source, target, f"{source}.{target}"} & {*stays}
    ]
    routes = {f"{source}.{target}": old.route(source, target) for source, target in edges}
    routes = {name: route for name, route in routes.items() if name in old.routes}
    return replace(
        new,
        catalog=[*new.catalog, *kept],
        workflow=[*new.workflow, *edges],
        routes={**new.routes, **routes},
    )


def change_failure(
    job: str, old: JobSpec, new: JobSpec, drop: Collection[str] = (), retired: Collection[str] = ()
) -> Failure | None:
    """The error for a user who wants a change that cannot be made; None: it can be.

    Args:
        job: its id, for the texts.
        old: the job as it runs.
        new: the job as it is to be.
        drop: the tasks and queues of which the user gives up what is unread.
        retired: names that earlier changes have removed from the job.
    """
    problems = [found.text for found in obstacles(old, new, retired)]
    if problems:
        return Failure(
            "SX-JOB-CHANGE",
            f"job {job} cannot be changed like that: {'; '.join(problems)}",
            cause="its queues, positions or states would no longer fit, or be found",
            fix=f"`sardonyx job diff {job} SPEC` says how each difference can be carried out",
            where={"job": job},
        )
    missing, stay = not_given_up(old, new, drop)
    if stay:
        return Failure(
            "SX-JOB-CHANGE-DROP",
            f"job {job} was not changed: {listed(stay)} {plural(len(stay), 'does', 'do')} not go by this change",
            cause="only what the new version no longer has can be dropped",
            fix="leave it out of what is dropped, or remove it from the job",
            where={"job": job},
        )
    if missing:
        flags = " ".join(f"--drop {name}" for name in missing)
        return Failure(
            "SX-JOB-CHANGE-DROP",
            f"job {job} was not changed: the new version no longer has {listed(missing)}",
            cause="rows that are unread on their queues, and their states, would be lost, and nothing has said that they may be",
            fix=f"add {flags}; or --drain in place of --drop, to have what is unread read first",
            where={"job": job},
        )
    return None


def finished(before: Graph, after: Graph, complete: Collection[str], *, resizes: bool = False) -> str:
    """A complete task that stays and would read or write a new queue, which would never end; empty: there is none.

    Args:
        before: the graph of the job as it runs.
        after: its graph after the change.
        complete: the tasks that are complete.
        resizes: the queues get another number of partitions, so that new ones have no end.
    """
    links = [*rewiring(before, after).new, *(queues(before) if resizes else [])]
    for link in links:
        for name in (link.source, link.target):
            if name in complete and name in before.order:
                return name
    return ""


def taken_back(job: str, revision: int, error: Failure | None) -> Failure:
    """Tell that a change was taken back.

    Args:
        job: its id.
        revision: the one that it had made.
        error: why no peer could begin with it.
    """
    why = error or Failure("SX-JOB-FAILED", "")
    return replace(
        why,
        code=TAKEN_BACK,
        message=f"revision {revision} of job {job} was taken back: no peer could begin with it, and none has worked by it",
        cause=f"{why.code}: {why.message}" + (f"; {why.cause}" if why.cause else ""),
        fix=f"the job goes on by the version before; mend the new one, and give `sardonyx job change {job} SPEC` again",
    )


def failed_after(error: Failure | None) -> bool:
    """Whether a suspended job with this error is so because it failed after a change, and not because a user wants it: as it is,
    it would fail again.
    """
    return error is not None and error.code != TAKEN_BACK


__all__ = [
    "NOTHING",
    "TAKEN_BACK",
    "Obstacle",
    "Rewiring",
    "change_failure",
    "changes_queues",
    "closing",
    "draining",
    "failed_after",
    "finished",
    "is_draining",
    "may_change",
    "not_given_up",
    "numbered",
    "obstacles",
    "rewired",
    "rewiring",
    "taken_back",
    "wires",
]
