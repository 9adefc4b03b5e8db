"""How far the results of a task may lie behind the clock with which they come. Pure.

What a task states in its links is its clock less this. So no result of it is late for the task behind.
"""

from __future__ import annotations

from sardonyx.core.joining import RelationSpec
from sardonyx.core.spec import TaskSpec, stateful
from sardonyx.core.timing import length
from sardonyx.state.emits import Emit
from sardonyx.state.joins import bounds


def held_back(task: TaskSpec) -> int | None:
    """Microseconds (on an ordinal time, rows); None: the task keeps no state, so its results are as old as its rows."""
    if not stateful(task):
        return None
    if task.window is not None:
        return length(task.window.grace) + length(task.window.allowed_lateness)
    return 0 if task.relation is None else _of_relation(task.relation)


def _of_relation(relation: RelationSpec) -> int:
    """A left row without a partner comes when the clock has passed it by ``upper + grace``; the latest rows of a key, when it has
    gone on by ``every``. All other results are no older than a row that has just come and was not late.
    """
    grace = length(relation.grace)
    if relation.kind == "join" and relation.keeps_unmatched:
        return grace + max(bounds(relation)[1], 0)
    return grace + (Emit(relation.emit).every or 0)


__all__ = ["held_back"]
