"""What is probably not meant about joins and the like, and graphs, in a job that can run: a part of :mod:`sardonyx.job.warn`."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.core.errors import Failure
from sardonyx.core.graph import has_end
from sardonyx.core.joining import RelationSpec
from sardonyx.core.spec import JobSpec, TaskSpec, whole_of
from sardonyx.core.text import listed
from sardonyx.job.validate_windows import inputs_of
from sardonyx.job.warn_windows import store_missing, warning

_KEEPS = {
    "distinct": "remembers each {}",
    "latest": "keeps a row for each {}",
    "lookup": "keeps a value for each {} of its table",
}


def warnings_of_relations(spec: JobSpec) -> Iterator[Failure]:
    """Everything to warn about, in the order of the catalog."""
    for task in spec.catalog:
        if task.relation is not None:
            yield from _state(spec, task, task.relation)
            yield from _silent_table(spec, task, task.relation)
            yield from _wait_in_the_past(spec, task, task.relation)
            yield from store_missing(task, task.relation.store)
        elif (whole := whole_of(task)) is not None:
            yield from store_missing(task, whole.store)


def _state(spec: JobSpec, task: TaskSpec, relation: RelationSpec) -> Iterator[Failure]:
    """A join cannot be without ``within``, so its state has an end."""
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    if relation.kind not in _KEEPS or relation.within is not None or relation.state_limit is not None or not endless:
        return
    yield warning(
        "SX-WARN-STATE",
        task,
        "its state grows as long as the job runs, unless its keys are few",
        f"without within it {_KEEPS[relation.kind].format(listed(task.group_by or ()))}, and input {endless[0]!r} has no end",
        "give within, or give state_limit, so that the job fails before memory does",
    )


def _silent_table(spec: JobSpec, task: TaskSpec, relation: RelationSpec) -> Iterator[Failure]:
    """A table whose clock moves with its rows alone holds up the rows that are looked up in it."""
    if relation.kind != "lookup" or relation.right is None or relation.wait is not None:
        return
    for source in inputs_of(spec, relation.right):
        if (
            source.time is not None
            and source.time.kind != "wall"
            and source.time.at_rest == "hold"
            and not has_end(source)
        ):
            yield warning(
                "SX-WARN-SILENT-TABLE",
                task,
                f"its rows wait until the next row of {source.name!r}, however late that comes",
                "a row is looked up when the clock of the table has passed its time, and that clock moves with rows of the table",
                f'give {source.name!r} idle="1 min" and at_rest="wall" in its time=, unless the table always has new rows',
            )


def _wait_in_the_past(spec: JobSpec, task: TaskSpec, relation: RelationSpec) -> Iterator[Failure]:
    """Rows of the past come as fast as they can be read, so the clock of their side runs away from that of the table."""
    if relation.kind != "lookup" or relation.wait is None or relation.left is None:
        return
    for source in inputs_of(spec, relation.left):
        if source.connector == "kafka" and (start := source.options.get("start")) != "latest":
            yield warning(
                "SX-WARN-WAIT",
                task,
                f"rows of {source.name!r} that are there already may find no value, or an old one",
                f"they are read from start={start!r} on as fast as they can be, which may be long before their values; "
                "with wait= they do not wait for these",
                'leave out wait=, and give the table idle="1 min" and at_rest="wall" in its time=; or begin at start="latest"',
            )


__all__ = ["warnings_of_relations"]
