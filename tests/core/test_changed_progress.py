"""How far a job is, and where a record is, after a change has added a task that reads a topic."""

from __future__ import annotations

from typing import Any

from sardonyx import Job, kafka
from sardonyx.client.progress import look_of, progress_of
from sardonyx.client.record_trace import trace_of
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position


def test_what_a_new_reader_leaves_out_is_not_pending() -> None:
    """Nothing has come since the change: the task that it has added has read nothing, and will read nothing of before."""
    made, place = Job("copy", partitions=1), Partition("in", 0)
    read = made.input("in", kafka("in", schema="n long", start="earliest"))
    for task in ("one", "two"):
        made.output(f"{task}-out", kafka(f"{task}-out"), after=made.task(task, lambda row: row, after=read))
    after = graph_of(made.spec(), "d", "copy-1")
    facts = {link.name: LinkFacts(1, start=[5]) for link in after.links}
    (new,) = after.stage("two").ingress
    facts[new.name] = LinkFacts(1, start=[40])
    held: dict[str, Any] = {"one": {place: Position(40)}, "two": {place: None}}
    look = look_of(after, facts, held, held, {})
    (found,) = progress_of("copy-1", after, look).sources
    assert (found.read, found.everywhere, found.pending, found.held_by) == (40, 40, 0, [])

    def states(offset: int) -> dict[str, tuple[str, str]]:
        traced = trace_of("copy-1", after, look, ("in", 0, offset), lambda _: 100)
        return {task.task: (task.state, task.why) for task in traced.tasks}

    assert states(10) == {"one": ("through", ""), "two": ("through", "")}
    unread = ("unread", "it has read up to 40")
    assert states(45) == {"one": unread, "two": unread}
    held["one"][place] = Position(50)
    (found,) = progress_of("copy-1", after, look_of(after, facts, held, held, {})).sources
    assert (found.read, found.everywhere, found.pending, found.held_by) == (50, 40, 10, ["two"])
