"""Rows over the edges to outputs that are topics in place: counted in each batch, kept with positions, and shown."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.loop.side_effects import for_rules_3
from queues.messages import Outgoing, Records, rows_over
from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.views import job_view
from sardonyx.core.events import Completed, Counts, LinksDeleted, LinksRead, decode_event, encode_event
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, TaskNote
from sardonyx.core.positions import Position, add, total
from sardonyx.testing import ClockedRun
from sardonyx.zookeeper.latest_batch import rules_in_force

Row = dict[str, Any]


def large(row: Row) -> bool:
    return row["n"] >= 10


def shop() -> Job:
    """Every way of results, failed records and late rows to a topic."""
    job = Job("shop", partitions=2)
    form = "n long, at timestamp"
    read = job.input("read", kafka("in", schema=form, start="earliest"), time=event_time("at"), on_error="skip")
    job.output("all", kafka("all"), after=read)
    job.output("large", kafka("large"), after=read.where(large))
    job.output("bad", kafka("bad"), after=read.failed)
    sums = job.window("sums", tumbling("1 min"), after=read, aggregate={"n": Count()})
    job.output("both", kafka("both"), after=[sums, read.where(large)])
    job.output("late", kafka("late"), after=sums.late)
    return job


def rows_at(*rows: tuple[int, str]) -> list[Row]:
    return [{"n": n, "at": f"2026-11-23T{at}"} for n, at in rows]


def shown(run: ClockedRun) -> dict[str, int | None]:
    """Rows of the outputs as a client shows them."""
    engine = run._engine
    live = {name: total(task.positions.values()) for name, task in engine.tasks.items()}
    note = JobNote(name="shop", status="running", n=3, submitted_at=10.0)
    notes = {name: TaskNote("running", 3) for name in engine.tasks}
    view = job_view("shop", engine.spec, engine.graph, note, notes, live)
    return {task.name: task.rows_in for task in view.tasks if task.type == "output"}


def test_rows_are_counted_edge_by_edge_through_crashes(sardonyx_clocked: Callable[..., ClockedRun]) -> None:
    """What is shown of each output is what stands on its topic, whenever a peer crashes."""
    run = sardonyx_clocked(shop(), batch_size=2)
    assert set(shown(run).values()) == {0}
    for point in ("applied", "committed", "settled"):
        for task in ("read", "sums"):
            run.crash(task, point)
        run.give("read", rows_at((1, "10:00:10"), (12, "10:00:20")))
        run.give("read", [b"not json"])
        run.give("read", rows_at((11, "10:05:00")))
    found = shown(run)
    assert found == {"all": 9, "large": 6, "bad": 3, "late": 4, "both": 7}
    assert found == {name: len(run.messages(name)) for name in found}


def test_edges_to_one_topic_are_told_apart() -> None:
    """Records are counted by the edge that they go over. What a peer before has left to write was counted by it."""
    sent = [Records("some", [(None, b"1")] * n, link=link) for n, link in ((3, "a.b"), (2, "a.c"), (1, "a.b"), (9, ""))]
    assert rows_over([*sent, Outgoing("some", b"2")], {"a.b", "a.c", "a.d"}) == {"a.b": 4, "a.c": 2}


def test_what_was_not_counted_is_not_known() -> None:
    """A release that does not count edges has worked on a partition before or since: no number comes of it again."""
    old = Counts(5, 4)
    assert add(old, Counts(1, 1, sent={"a.b": 1})).sent is None
    assert add(Counts(1, 1, sent={"a.b": 1}), old).sent is None
    assert add(Counts(), Counts(1, 1, sent={"a.b": 1})) == Counts(1, 1, sent={"a.b": 1})
    assert total([Position(1, old), Position(1, Counts(1, 1, sent={"a.b": 1})), None]).sent is None
    assert Position.read(7, '{"in":5,"out":4}').counts == old


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 2**50), max_size=5))
def test_positions_and_events_hold_the_rows_of_edges(sent: dict[str, int]) -> None:
    counts = Counts(9, 8, sent=sent)
    position = Position(7, counts)
    assert Position.read(7, position.metadata()) == position
    done = Completed(peer="p", assignment=1, counts=counts)
    assert decode_event(encode_event(done)) == done


def test_very_many_edges_are_not_counted() -> None:
    """A position must stay short: then the rows are not known, and never others."""
    text = Position(7, Counts(9, 8, sent={f"task.output-{n}": n for n in range(60)})).metadata()
    assert len(text) < 100
    assert Position.read(7, text).counts == Counts(9, 8)


@pytest.mark.parametrize(
    ("counts", "revision", "rows"),
    [
        (Counts(9, 8, sent={"read.large": 3}), 1, {"all": 0, "large": 3, "bad": 0}),
        (Counts(9, 8, sent={"read.all": 8}), 2, {"all": 8, "large": 0, "bad": 0}),
        (Counts(9, 8), 1, {"all": 8, "large": None, "bad": None}),
        (Counts(9, 8), 2, {"all": None, "large": None, "bad": None}),
        (Counts(), 1, {"all": 0, "large": 0, "bad": 0}),
        (None, 1, {"all": None, "large": None, "bad": None}),
    ],
)
def test_what_is_shown_of_outputs(counts: Counts | None, revision: int, rows: dict[str, int | None]) -> None:
    """Where edges were not counted, only one that gets all results shows a number; and only if no change can have added it."""
    spec = shop().spec()
    note = JobNote(name="shop", status="running", n=3, submitted_at=10.0, revision=revision)
    notes = {"read": TaskNote("complete" if counts else "running", 3, counts=counts)}
    view = job_view("shop-1", spec, graph_of(spec, "d", "shop-1"), note, notes, None)
    assert {name: view.task(name).rows_in for name in rows} == rows


@pytest.mark.parametrize("rules", [[], [3], [4], [3, 4], [3, None, 4]])
def test_which_rules_are_in_force_stands_in_the_log(rules: list[int | None]) -> None:
    """Also while no coordinator stands. Its last node says it; a bucket may be empty for a moment."""
    log = {f"{n:07d}": [] if each is None else [f"{n:010d}"] for n, each in enumerate(rules)}
    nodes = {
        f"/log/{n:07d}/{n:010d}": b'{"format":7,"entries":[],"rules":%d}' % each for n, each in enumerate(rules) if each
    }
    lists = {"/log": list(log), **{f"/log/{bucket}": names for bucket, names in log.items()}}
    zk = SimpleNamespace(children=lists.get, read=nodes.get)
    assert rules_in_force(cast("Any", zk)) == (rules[-1] if rules else 0)


def test_the_release_before_reads_no_rows_of_edges() -> None:
    """An event goes into the log without them as long as its coordinators may lead."""
    counts, old = Counts(9, 8, sent={"a.b": 3}), Counts(9, 8)
    for event, known in (
        (Completed(peer="p", assignment=1, counts=counts), Completed(peer="p", assignment=1, counts=old)),
        (LinksRead(job="j", counts={"a": counts}), LinksRead(job="j", counts={"a": old})),
        (LinksDeleted(job="j", counts={"a": counts}), LinksDeleted(job="j", counts={"a": old})),
    ):
        assert for_rules_3(event) == known
