"""Checks of loops: that their edges close them, and that each task of them can be in a loop.

A part of :mod:`sardonyx.job.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.core import structure
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Cycle, Graph, graph_of, has_end
from sardonyx.core.positions import COUNTED
from sardonyx.core.spec import JobSpec, TaskSpec, database_of, whole_of
from sardonyx.core.text import listed
from sardonyx.job.validate_edges import problem


def problems_of_cycles(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong with the loops of a job."""
    if not spec.cycles or structure.cycle_in(spec):
        return
    found = list(structure.loop_problems(spec))
    for wrong in found:
        yield SardonyxError(
            wrong.code,
            f"loop {wrong.cycle!r}: {wrong.message}",
            fix=wrong.fix,
            where={"cycle": wrong.cycle} | ({"task": wrong.task} if wrong.task else {}),
        )
    yield from _job(spec)
    if found or structure.repeated_names(spec) or structure.repeated_edges(spec) or any(structure.unknown_tasks(spec)):
        return  # of which another check reports what is wrong
    graph = graph_of(spec, "d", "j")
    tasks = {task.name: task for task in spec.catalog}
    for cycle in graph.cycles:
        for name in cycle.stages:
            yield from _task(graph, cycle, tasks[name])
        yield from _after(spec, cycle)


def _job(spec: JobSpec) -> Iterator[SardonyxError]:
    for field, what in (("lineage", "keeps its lineage"), ("checkpoint_every", "has checkpoints")):
        if getattr(spec, field):
            yield SardonyxError(
                "SX-CYCLE-JOB",
                f"the job {what}, and has the loop {spec.cycles[0].name!r}",
                cause="both say up to where rows have gone through the whole job, and a row in a loop may always come again",
                fix=f"remove {field}, or the loop",
            )


def _task(graph: Graph, cycle: Cycle, task: TaskSpec) -> Iterator[SardonyxError]:
    """A task of a loop works on each row by itself, or with the state of its key: it waits for no time and for no end."""
    keyed = task.keyed
    why = fix = ""
    if task.window is not None or task.relation is not None or whole_of(task) is not None:
        what = (
            "windows"
            if task.window
            else "a graph"
            if task.graph
            else "rounds"
            if task.iterate
            else "a join or the like"
        )
        why, fix = (
            f"it has {what}, which wait for a time or for the end of their rows",
            "let it come before or after the loop",
        )
    elif keyed is not None and (keyed.on_timer or keyed.ttl or keyed.time):
        why = "its state goes by times, and the clock stands still in a loop until its end"
        fix = "remove on_timer, ttl and time"
    elif database_of(task) is not None:
        why = "its state is in a database, which commits rows before Kafka does"
        fix = 'give it store="memory" or "rocksdb"'
    elif len(graph.stage(task.name).counted) > COUNTED:
        why = (
            f"it writes to more than {COUNTED} queues, so it does not count the rows of each, and no end can be proven"
        )
        fix = "let fewer tasks come after it"
    if why:
        yield problem("SX-CYCLE-TASK", task.name, f"it cannot be in the loop {cycle.name!r}: {why}", fix=fix)


def _after(spec: JobSpec, cycle: Cycle) -> Iterator[SardonyxError]:
    """Nothing after a loop waits for a time before the loop has ended."""
    endless = [task.name for task in spec.catalog if task.type == "input" and not has_end(task)]
    if not endless:
        return
    after = structure.reach_of(spec).after(cycle.stages[0])
    for task in spec.catalog:
        timed = task.window is not None or task.relation is not None or (task.keyed is not None and task.keyed.on_timer)
        if timed and task.name in after and task.name not in cycle.stages:
            yield problem(
                "SX-CYCLE-TIME",
                task.name,
                f"it would get no further: it goes by times, and comes after the loop {cycle.name!r}",
                cause=f"the clock stands still after a loop until it ends, and {listed([repr(endless[0])])} has none",
                fix="let it come before the loop, or give the inputs an end",
            )


__all__ = ["problems_of_cycles"]
