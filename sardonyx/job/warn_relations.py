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


__all__ = ["warnings_of_relations"]
