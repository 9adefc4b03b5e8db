"""Which tasks pause because a queue behind them is full. Pure.

A queue between two tasks may have a bound, in rows. As long as that many of its rows are unread, the task that writes it begins
no batch. So its own queues fill, and if they have bounds, too, the tasks before it pause in their turn, up to the inputs.

**The rule.** A full queue holds the task that writes it, except

1. a queue within a loop, which holds no task: of two tasks that wait for each other none would ever go on;
2. in a job that ends by itself, or is being stopped: a queue whose reader has no peer. Such a job may work its tasks off one
   after the other, each with all the peers that there are, and then the reader gets one only when the writer is complete.
   A user may stop a job while peers hold its tasks: a peer asks anew as long as a full queue without a reader holds it.

In a job that goes on, a task that is held counts as one that has nothing to read: it gives its peers to tasks of the job that
have none (``docs/coordination.md``, "Taking turns"), so also to the reader that it waits for.

**Why no job ever stands still by it.** A task reads from each of its queues, whatever comes over the others: rows that wait for
others, as in a join, do so in its state, and count as read. So only a full queue after it keeps a task with a peer from reading.
Without the queues of loops no task comes after itself. So of all tasks that are held, there is one after which no other one is
held. The reader of its full queue is not held, and has a peer, or gets one, by 2. It reads, and the queue has room again.

Rows are those that the writer has committed as written, less those that the reader has committed as read
(:mod:`sardonyx.core.link_counts`). Where that is not known, a queue holds no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link
from sardonyx.core.text import counted


def bounds_of(links: Iterable[Link], facts: Mapping[str, LinkFacts]) -> dict[str, int]:
    """The links that hold their writers when they are full, and how many rows that is.

    Args:
        links: of a job, or those that a task writes.
        facts: of the job's links.
    """
    found: dict[str, int] = {}
    for link in links:
        if link.kind == "internal":
            said = link.max_backlog
            bound = facts[link.name].max_backlog if said is None and link.name in facts else said
            if bound:
                found[link.name] = bound
    return found


def with_default(graph: Graph, facts: Mapping[str, LinkFacts], bound: int | None) -> dict[str, LinkFacts]:
    """The facts of new links: those between two tasks get the cluster's default.

    Args:
        graph: of the job.
        facts: of its links.
        bound: the default; None: there is none.
    """
    queues = {link.name for link in graph.links if link.kind == "internal"} if bound is not None else set()
    return {
        name: msgspec.structs.replace(known, max_backlog=bound) if name in queues else known
        for name, known in facts.items()
    }


def holds(unread: int | None, bound: int, *, is_read: bool, goes_on: bool) -> bool:
    """Whether a link holds the task that writes it.

    Args:
        unread: its unread rows; None: it is not known how many.
        bound: how many it may have.
        is_read: whether the task that reads it has a peer.
        goes_on: whether the job neither ends by itself nor is being stopped.
    """
    return unread is not None and unread >= bound and (is_read or goes_on)


def goes_on(graph: Graph, facts: Mapping[str, LinkFacts]) -> bool:
    """Whether a job neither ends by itself nor is being stopped: then its peers take turns at its tasks."""
    return not graph.bounded and not is_stopping(facts)


def is_stopping(facts: Mapping[str, LinkFacts]) -> bool:
    """Whether a job with these links is being stopped."""
    return any(known.stops for known in facts.values())


class Hold(msgspec.Struct, frozen=True):
    """A task that a full link holds."""

    task: str
    link: str
    unread: int
    bound: int
    reader: str
    """The task that reads the link."""
    last: str
    """The task that is waited for in the end: the reader, or if that is held, too, the one that it waits for in the end."""

    @property
    def text(self) -> str:
        """Say it in a sentence."""
        return f"task {self.task} pauses: {self.why}"

    @property
    def why(self) -> str:
        """Say what holds it, in words that follow its name."""
        words = f"{self.link} is full, with {counted(self.unread, 'unread row')} of at most "
        words += f"{self.bound:,}, and waits for task {self.reader}"
        return (
            words
            if self.last == self.reader
            else f"{words}, which is held itself; all of them wait for task {self.last}"
        )


def held(
    graph: Graph,
    bounds: Mapping[str, int],
    unread: Mapping[str, int | None],
    peers: Mapping[str, int],
    *,
    goes_on: bool,
) -> list[Hold]:
    """The tasks of a job that are held, by each link that does so, in the order of the tasks.

    Args:
        graph: of the job.
        bounds: by link, as of :func:`bounds_of`.
        unread: by link, its unread rows; None: not known.
        peers: by task, how many peers it has.
        goes_on: as of :func:`holds`.
    """
    full: dict[str, list[Link]] = {}
    for stage in graph.stages:
        for link in stage.counted:
            is_read = peers.get(link.target, 0) > 0
            if link.name in bounds and holds(
                unread.get(link.name), bounds[link.name], is_read=is_read, goes_on=goes_on
            ):
                full.setdefault(stage.name, []).append(link)

    def last(task: str) -> str:
        return last(full[task][0].target) if task in full else task

    return [
        Hold(task, link.name, unread[link.name] or 0, bounds[link.name], link.target, last(link.target))
        for task, links in full.items()
        for link in links
    ]


__all__ = ["Hold", "bounds_of", "goes_on", "held", "holds", "is_stopping", "with_default"]
