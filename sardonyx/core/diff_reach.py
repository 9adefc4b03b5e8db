"""Which inputs' rows come to a task in one version of a job and not in the other. Pure."""

from __future__ import annotations

import msgspec

from sardonyx.core.graph import order_of
from sardonyx.core.reach import Reach
from sardonyx.core.spec import JobSpec


class OtherInputs(msgspec.Struct, frozen=True, kw_only=True):
    """A task of both versions to which rows of other inputs come, over any path."""

    task: str
    gone: list[str]
    """The inputs of the old version whose rows no longer come to it."""
    new: list[str]
    """The inputs of the new version whose rows did not come to it."""


def other_inputs(old: JobSpec, new: JobSpec) -> list[OtherInputs]:
    """The tasks to which a change brings rows of other inputs, in the order of the new version.

    It is asked of the graph and not of the edges that differ: a task far behind them may be cut off from an input, or still be
    reached over another path.
    """
    reach = Reach((task.name for task in old.catalog), old.edges)
    before = _inputs(old, reach)
    change(reach, old, new)
    after = _inputs(new, reach)
    found = [
        OtherInputs(
            task=name,
            gone=[each for each in before[name] if each not in after[name]],
            new=[each for each in after[name] if each not in before[name]],
        )
        for name in order_of(new)
        if name in before
    ]
    return [each for each in found if each.gone or each.new]


def change(reach: Reach[str], old: JobSpec, new: JobSpec) -> None:
    """Make the tables of one version those of another one: only what comes and goes is looked at."""
    known, stay = {task.name for task in old.catalog}, {task.name for task in new.catalog}
    for name in sorted(known - stay):
        reach.remove(name)
    for source, target in {*old.edges} - {*new.edges}:
        if {source, target} <= stay:
            reach.unlink(source, target)
    for name in order_of(new):
        if name not in known:
            reach.add(name)
    for source, target in new.edges:
        reach.link(source, target)


def _inputs(spec: JobSpec, reach: Reach[str]) -> dict[str, list[str]]:
    """By task, the inputs whose rows come to it; an input has its own."""
    inputs = [task.name for task in spec.catalog if task.type == "input"]
    return {task.name: [name for name in inputs if name in reach.before(task.name)] for task in spec.catalog}


__all__ = ["OtherInputs", "change", "other_inputs"]
