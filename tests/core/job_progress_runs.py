"""A job with windows, and the progress and the traces of runs of it, as a client sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queues.origins import written
from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.progress import JobProgress, look_of, progress_of
from sardonyx.client.record_trace import RecordTrace, trace_of
from sardonyx.core.events import Counts
from sardonyx.core.graph import Link
from sardonyx.core.notes import TaskNote
from sardonyx.core.positions import Partition
from sardonyx.core.progress import Look
from sardonyx.core.record_way import Seen
from sardonyx.testing import ClockedRun

DAY = "2026-11-23T"


def traffic(window: Any = None, lineage: bool = True, **options: Any) -> Job:
    """Hits in windows, and their results."""
    job = Job("traffic", partitions=2, lineage=lineage)
    hits = job.input("hits", kafka("hits", schema="user string, at timestamp", start="earliest"), time=event_time("at"))
    chosen = tumbling("1 min") if window is None else window
    options = {"aggregate": {"hits": Count()}} | options
    found = job.window("per-user", chosen, after=hits, group_by="user", **options)
    job.output("out", kafka("out"), after=found)
    return job


def hit(at: str, user: str = "a") -> dict[str, Any]:
    return {"user": user, "at": DAY + at}


def progress(run: ClockedRun) -> JobProgress:
    """As a client has it from the groups."""
    return progress_of("j-1", run._engine.graph, looked(run))


def looked(run: ClockedRun) -> Look:
    engine = run._engine
    held = {
        name: {
            place: task.positions.get(place)
            for link in task.stage.ingress
            for place in (Partition(link.topic, number) for number in range(engine.facts[link.name].partitions))
        }
        for name, task in engine.tasks.items()
    }
    ended = {name: TaskNote("complete", 1, counts=Counts()) for name, task in engine.tasks.items() if task.ended}
    return look_of(engine.graph, engine.facts, held, held, ended)


def said(run: ClockedRun) -> list[tuple[int | None, int | None, int | None, list[str]]]:
    """Of each source partition: read, everywhere, pending, held by."""
    return [(each.read, each.everywhere, each.pending, each.held_by) for each in progress(run).sources]


def written_in(run: ClockedRun) -> Callable[..., dict[int, Seen]]:
    """Reads what tasks have written in a run: all of it."""
    engine = run._engine

    def read(link: Link, _enough: Any) -> dict[int, Seen]:
        found = {}
        for number in range(engine.facts[link.name].partitions):
            stored = engine.topics.read(Partition(link.topic, number))
            rows = [each for each in (written(m, listing=link.kind == "parts") for m in stored) if each is not None]
            found[number] = Seen(rows, 0, 0, to_end=True)
        return found

    return read


def values_in(run: ClockedRun) -> Callable[..., list[bytes]]:
    """Gives messages of a run."""

    def values(link: Link, places: Mapping[int, Sequence[int]]) -> list[bytes]:
        return [
            run._engine.topics.read(Partition(link.topic, number), offset)[0].value() or b""
            for number, offsets in places.items()
            for offset in offsets
        ]

    return values


def traced(run: ClockedRun, offset: int, partition: int = 0, end: int | None = None) -> RecordTrace:
    """``end``: of the partition; None: it is not to be asked for."""

    def ends(place: Partition) -> int:
        assert end is not None, "nothing is to be asked for a record that was read"
        assert place == Partition("hits", partition)
        return end

    return trace_of("j-1", run._engine.graph, looked(run), ("hits", partition, offset), ends)
