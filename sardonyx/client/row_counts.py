"""How many rows a job's tasks have worked, and written over the edges to outputs that are topics in place. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.core.events import Counts
from sardonyx.core.graph import Graph, Link
from sardonyx.core.notes import TaskNote
from sardonyx.core.spec import Route


def is_untouched(note: TaskNote) -> bool:
    """Whether no peer can have committed anything for the task yet. Then its rows are zero, without asking Kafka."""
    return note.state == "pending" and not note.peers and not note.failures


def still_known(live: Mapping[str, Counts], *, ended: bool) -> dict[str, Counts]:
    """Return those counts of Kafka that are true. Kafka forgets the counts of a job that has ended when its topics are deleted,
    which may take long. So a count of zero does not mean then that nothing was committed.

    Args:
        live: by stage, the counts as they stand in Kafka.
        ended: whether the job has ended.
    """
    return {stage: counts for stage, counts in live.items() if not ended or counts != Counts()}


def counts_of(stage: str, note: TaskNote | None, live: Mapping[str, Counts]) -> Counts | None:
    """What a stage has committed; None: not known.

    Args:
        stage: its name.
        note: of the task; None: there is none yet.
        live: by stage, counts as they stand now in Kafka, as far as it was asked.
    """
    if note is not None and note.counts is not None:
        return note.counts
    return live.get(stage, Counts() if note is None or is_untouched(note) else None)


def written_in_place(graph: Graph, counts: Mapping[str, Counts | None], output: str, *, changed: bool) -> int | None:
    """Rows on the topic of an output that its neighbours write; None: not known.

    Args:
        graph: of the job.
        counts: by stage, what it has committed; None: not known.
        output: its name.
        changed: whether the job has had another spec before.
    """
    edges = [(counts[stage.name], link) for stage in graph.stages for link in stage.in_place if link.target == output]
    found = [_over(link, known, changed=changed) for known, link in edges]
    rows = [each for each in found if each is not None]
    return sum(rows) if len(rows) == len(found) else None


def _over(link: Link, counts: Counts | None, *, changed: bool) -> int | None:
    """Rows over one edge. Where a release has worked that does not count them, they are the results of the task, if the edge has
    been there from the beginning and takes all of them.
    """
    if counts is None or counts == Counts():
        return None if counts is None else 0
    if counts.sent is not None:
        return counts.sent.get(link.name, 0)
    return None if changed or link.route != Route() else counts.rows_out
