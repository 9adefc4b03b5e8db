"""The error for a change of a running job that cannot be made at a time, with what a user has to write so that it can. Pure.

A change at a time takes only tasks that come and go. So the function of a task is replaced under another name of the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sardonyx.core.changing_at import problems_at
from sardonyx.core.errors import Failure
from sardonyx.core.graph import Graph, Stage, graph_of
from sardonyx.core.spec import JobSpec, database_of, stateful
from sardonyx.core.spec_fields import kind_of_field, task_changes
from sardonyx.core.text import listed, plural
from sardonyx.core.untouched import used_by

_LONGEST = 60
"""Characters of a name."""


def failure_at(
    job: str, old: JobSpec, new: JobSpec, same: Collection[str], retired: Collection[str] = ()
) -> Failure | None:
    """The error for a user who wants a change at a time that cannot be made so; None: it can.

    Args:
        job: its id, for the texts.
        old: the job as it runs.
        new: the job as it is to be. The change can be made at once.
        same: the stages of the old one whose functions are the same in the code of both.
        retired: names that earlier changes have removed from the job.
    """
    problems = list(dict.fromkeys(problems_at(old, new, same)))
    if not problems:
        return None
    way = way_out(old, new, same, retired)
    return Failure(
        "SX-JOB-CHANGE-AT",
        f"job {job} cannot be changed at a time like that: {'; '.join(problems)}",
        cause="each row goes the old way or the new one by its own time, so only tasks that come or go can differ, and the rows "
        "before them must have times",
        fix=f"{way + '. Otherwise: ' if way else ''}make the other differences by a change without `--at` first; "
        "give the input `time=`; or leave out `--at`",
        where={"job": job},
    )


def replaced(old: JobSpec, new: JobSpec, same: Collection[str]) -> list[str]:
    """The stages of the old version that the new one has, too, with another function, or another code of it.

    Args:
        old: the job as it runs.
        new: the job as it is to be.
        same: the stages of the old one whose functions are the same in the code of both.
    """
    after = {task.name: task for task in new.catalog}
    return [
        stage.name
        for stage in graph_of(old, "", "").stages
        if stage.name in after
        and (
            stage.name not in same
            or any(
                kind_of_field(field, task) == "function"
                for task in (stage.task, *stage.fused)
                if task.name in after
                for field, _, _ in task_changes(task, after[task.name])
            )
        )
    ]


def way_out(old: JobSpec, new: JobSpec, same: Collection[str], retired: Collection[str] = ()) -> str:
    """What to write in the new version to have functions replaced at a time; empty: none is replaced.

    Args:
        old: the job as it runs.
        new: the job as it is to be.
        same: the stages of the old one whose functions are the same in the code of both.
        retired: names that earlier changes have removed from the job: no task can have them again.
    """
    graph = graph_of(old, "", "")
    stages = [graph.stage(name) for name in replaced(old, new, same)]
    if not stages:
        return ""
    names = [task.name for stage in stages for task in (stage.task, *stage.fused)]
    follow = [name for name in _must_follow(graph, stages) if name not in names]
    taken = {*graph.order, *(task.name for task in new.catalog), *retired}
    called = {}
    for name in [*names, *follow]:
        called[name] = another_name(name, taken)
        taken.add(called[name])
    text = f"to replace {listed(names)} at that time, have {_pairs(names, called)} in the new version"
    if follow:
        verb = plural(len(follow), "keeps", "keep")
        text += f", and {_pairs(follow, called)}, which {verb} a state and can read no other queue (the new state begins empty)"
    kept = sorted({name for stage in stages for name in used_by(stage)})
    if kept:
        text += f"; leave {listed(kept)} as {plural(len(kept), 'it is', 'they are')} in the code, with all that is used there, "
        text += "until the change is complete, and give the new code a name of its own"
    return text


def another_name(name: str, taken: Collection[str]) -> str:
    """A name for what takes the place of a task: ``price-2`` for ``price``, ``price-3`` for ``price-2``, and so on."""
    base, dash, end = name.rpartition("-")
    number = 2
    if dash and end.isdecimal() and end.isascii() and len(end) < 4:
        number = int(end) + 1
    else:
        base = name
    while True:
        suffix = f"-{number}"
        found = base[: _LONGEST - len(suffix)] + suffix
        if found not in taken:
            return found
        number += 1


def _pairs(names: Collection[str], called: dict[str, str]) -> str:
    return listed(f"{called[name]} in place of {name}" for name in names)


def _must_follow(graph: Graph, stages: Collection[Stage]) -> Iterator[str]:
    """The tasks after these that cannot stay when what they read has another name: the queues of a state are fixed. What comes
    after them the same way follows, too.
    """
    look, seen = list(stages), {stage.name for stage in stages}
    while look:
        for link in look.pop(0).egress:
            if link.kind != "internal" or link.target in seen:
                continue
            reader = graph.stage(link.target)
            if stateful(reader.task) or database_of(reader.task) is not None or graph.cycle_of(reader.name) is not None:
                seen.add(reader.name)
                look.append(reader)
                yield from (task.name for task in (reader.task, *reader.fused))


__all__ = ["another_name", "failure_at", "way_out"]
