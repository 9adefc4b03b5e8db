"""Checks of the bounds of queues: that each is a number of rows, and of a queue that can have one.

A part of :mod:`sardonyx.job.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.core import structure
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import listed, near

CODE = "SX-JOB-BACKLOG"


def problems_of_backlogs(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong with ``max_backlog``."""
    said = spec.max_backlog
    by_link = said if isinstance(said, dict) else {} if said is None else {"": said}
    for link, bound in by_link.items():
        if bound < 0:
            where = f" of {link}" if link else ""
            yield SardonyxError(
                CODE, f"max_backlog{where} cannot be {bound}", fix="give a number of rows; 0: any number may be unread"
            )
    broken = structure.repeated_names(spec) or structure.repeated_edges(spec) or any(structure.unknown_tasks(spec))
    if not isinstance(said, dict) or broken or structure.cycle_in(spec):
        return  # of which another check reports what is wrong
    links = {link.name: link for link in graph_of(spec, "d", "j").links}
    queues = [name for name, link in links.items() if link.kind == "internal"]
    for name, bound in said.items():
        if name not in queues:
            yield SardonyxError(
                CODE,
                f"max_backlog: {name!r} is not a queue between two tasks{near(name, queues)}",
                cause="only these have bounds: an input's topic is another program's, and fused tasks have no queue between them",
                fix=f"name one of its queues: {listed(queues) or 'it has none'}",
            )
        elif bound and links[name].max_backlog == 0:
            yield SardonyxError(
                CODE,
                f"max_backlog: the queue {name} lies within a loop, and can have no bound",
                cause="each task of a loop waits for another one of it, so a full queue there could hold them all permanently",
                fix="bound the queues that lead into the loop",
            )


__all__ = ["problems_of_backlogs"]
