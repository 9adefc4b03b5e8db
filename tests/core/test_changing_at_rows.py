"""While a job is changed at a time: each row goes the old way or the new one by its own time, and the old way is open until its
last window has closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from changed_at_jobs import AT, MINUTE, NOON, a_job, over, table
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer.row_times import timed
from queues.batch import Batch
from sardonyx.client.clocks import JobClock, Lack, Positions, TaskClock, clocks_of, lacking, sizes_of
from sardonyx.core.changing_at import closed, complete, going, pending, side_by_side
from sardonyx.core.clocks import SourceClock
from sardonyx.core.errors import FunctionError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, graph_of
from sardonyx.core.joining import RelationSpec
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec
from sardonyx.core.timing import WindowSpec
from sardonyx.state.last_results import due, last_results

TIMES = st.lists(st.lists(st.integers(AT - 60, AT + 60), max_size=20), min_size=1, max_size=3)
"""Of the rows of each partition, in their order."""


@given(TIMES, st.integers(1, 7), st.randoms(use_true_random=False))
def test_each_row_goes_one_way_by_its_time(times: list[list[int]], size: int, rng: Any) -> None:
    """In any order, over any partitions, in batches of any size that are worked again and again: the old way gives exactly the
    rows before the time, and the new one the others. Rows that are late when the old way is closed go the new one.
    """
    before, after = a_job("old"), a_job("new")
    both = side_by_side(before, after, AT)
    ways = [(over(both, "label.old"), over(both, "label.new"))]
    shut = closed(both, after)
    ways.append((over(shut, "label.old"), over(shut, "label.new")))
    waiting = [[(place * 1000 + n, at) for n, at in enumerate(found)] for place, found in enumerate(times)]
    clocks, given_, late = [SourceClock()] * len(times), ([], []), set()
    step = 0
    while any(waiting):
        place = rng.choice([place for place, rows in enumerate(waiting) if rows])
        batch, waiting[place] = waiting[place][:size], waiting[place][size:]
        clock = min(each.value for each in clocks)
        step = step or int(clock >= AT and rng.random() < 0.5)  # at some time after the clock has passed
        late |= {n for n, at in batch if step and at < AT}
        for _ in range(rng.randint(1, 3)):  # what is worked again gives the same
            one, two = (each.rows(table(batch), None, None)["n"].to_pylist() for each in ways[step])
            assert sorted([*one, *two]) == sorted(n for n, _ in batch)
        given_[0].extend(one)
        given_[1].extend(two)
        clocks[place] = clocks[place].after(max(at for _, at in batch), 10)
    rows = {place * 1000 + n: at for place, found in enumerate(times) for n, at in enumerate(found)}
    assert sorted(given_[0]) == sorted(n for n, at in rows.items() if at < AT and n not in late)
    assert sorted(given_[1]) == sorted(n for n, at in rows.items() if at >= AT or n in late)


def test_rows_without_a_time_fail_the_job() -> None:
    """A function has dropped the column, or left it empty: which way would such a row go?"""
    both = side_by_side(a_job(), a_job("new"), AT)
    way = over(both, "label.new")
    with pytest.raises(FunctionError, match="SX-TIME-COLUMN"):
        way.rows(pa.table({"n": [1]}), None, None)
    with pytest.raises(FunctionError, match="SX-TIME-VALUE"):
        way.rows(pa.table({"n": [1], "at": pa.array([None], pa.int64())}), None, None)
    assert way.rows(pa.table({"n": pa.array([], pa.int64())}), None, None).num_rows == 0


@given(st.lists(st.integers(AT - 60, AT + 60), min_size=1, max_size=30))
def test_readers_of_one_topic_share_its_rows(times: list[int]) -> None:
    """Each leaves out what is the other's, and both clocks go on alike. When the change is complete, the new one still leaves out
    what is older, since the old one may have worked it.
    """
    before, after = a_job("plain", "copy"), a_job("plain", "copy2")
    both = side_by_side(before, after, AT)
    shut = closed(both, after)

    def read(spec: JobSpec, task: str) -> tuple[list[int], SourceClock]:
        link: Link = graph_of(spec, "", "").stage(task).ingress[0]
        assert link.time is not None
        partition = Partition("plain", 0)
        batch = Batch()
        batch.spans[link.name] = [(partition, len(times))]
        rows = table(list(enumerate(times)))
        found = timed(link, link.time, rows, [None] * len(times), np.ones(len(times), np.bool_), batch, 0.0)
        return found.table["n"].to_pylist(), found.clocks[partition]

    old, new = read(both, "copy"), read(both, "copy2")
    assert old[0] == [n for n, at in enumerate(times) if at < AT]
    assert new[0] == [n for n, at in enumerate(times) if at >= AT]
    assert old[1] == new[1]
    assert read(both, "keep")[0] == [*range(len(times))]
    assert read(shut, "copy")[0] == []
    assert read(shut, "copy2") == read(complete(shut, after), "copy2") == new


@pytest.mark.parametrize(
    ("window", "at", "clock", "after"),
    [
        (WindowSpec(kind="tumbling", size="1 h"), NOON, NOON, NOON),
        (WindowSpec(kind="tumbling", size="1 h", grace="1 min"), NOON, NOON + MINUTE, NOON),
        (WindowSpec(kind="tumbling", size="1 h"), NOON + 1, NOON + 60 * MINUTE, NOON + 60 * MINUTE),
        (WindowSpec(kind="hopping", size="10 min", every="1 min"), NOON, NOON + 9 * MINUTE, NOON + 9 * MINUTE),
        (WindowSpec(kind="session", gap="1 min"), NOON, NOON + MINUTE - 1, NOON + MINUTE - 1),
        (WindowSpec(kind="calendar", unit="day"), NOON, NOON + 720 * MINUTE, NOON + 720 * MINUTE),
        (WindowSpec(kind="counted", size=3), NOON, NOON, NOON),
    ],
)
def test_the_old_way_is_open_until_its_last_window_has_closed(
    window: WindowSpec, at: int, clock: int, after: int
) -> None:
    """A window that holds a row before the time gives its result, also if it ends after that time."""
    spec = a_job("counted")
    stage = graph_of(spec, "", "").stage("counted")
    found = last_results(replace(stage, task=replace(stage.task, window=window)), at)
    assert (found.clock, found.after) == (clock, after)


def test_a_join_gives_its_last_results_when_no_partner_may_come() -> None:
    """A row waits for one as long as the bounds of the join say, and its grace."""
    stage = graph_of(a_job("old"), "", "").stage("old")
    for within, clock in (("1 min", 3), (["-5 min", "1 min"], 7), (["1 min", "2 min"], 4)):
        relation = RelationSpec(kind="join", within=within, grace="2 min")
        found = last_results(replace(stage, task=replace(stage.task, relation=relation)), NOON)
        assert found.clock == found.after == NOON + clock * MINUTE


def test_a_change_waits_for_partitions_that_a_user_adds_to_a_topic() -> None:
    """Their rows from before the time may come yet: when the old way is closed, readers of the topic leave them out."""
    both = side_by_side(a_job("plain", "copy"), a_job("plain", "copy2"), AT)
    graph, waits = graph_of(both, "", ""), pending(both)
    facts = {link.name: LinkFacts(2) for link in graph.links}
    passed = Position(5, clock=SourceClock(AT + 9, AT + 9))

    def lack(partitions: int) -> Lack | None:
        there = {"plain": range(partitions)}
        known: dict[str, Positions] = {
            stage.name: {
                Partition(topic, number): passed if number < 2 else None
                for topic, size in sizes_of(stage, facts, there).items()
                for number in range(size)
            }
            for stage in graph.stages
        }
        assert waits is not None
        return lacking(both, waits, clocks_of("j", graph, known, None, facts))

    assert lack(2) is None
    found = lack(3)
    assert found is not None
    assert found.task.held_by == ["plain[2]"]


def test_what_a_change_waits_for_is_told() -> None:
    """The first task whose clock is not far enough, how far it is, and which partition holds it."""
    before, after = a_job("counted"), a_job()
    both = side_by_side(before, after, NOON + 1)
    graph, found = graph_of(both, "", ""), pending(both)
    assert found is not None
    assert due(graph, going(both), NOON + 1) == {"counted": NOON + MINUTE}

    def clocks(label: int | None, counted: int | None, *, ended: bool = False) -> JobClock:
        tasks = [
            TaskClock(task="read", clock=NOON),
            TaskClock(task="label", clock=label, held_by=["in[2]"], why="no later row of it was read"),
            TaskClock(task="counted", clock=counted, ended=ended, held_by=["label.counted[0]"]),
        ]
        return JobClock(job="j", clock=None, ended=False, behind_seconds=None, tasks=tasks)

    lack = lacking(both, found, clocks(NOON, None))
    assert lack is not None
    assert lack.text(found) == (
        "it waits until the clock of task label has passed 2026-11-27T12:00:00.000001Z; it stands at 2026-11-27T12:00:00Z, and "
        "in[2] holds it: no later row of it was read"
    )
    lack = lacking(both, found, clocks(NOON + 1, NOON + MINUTE - 1))
    assert lack is not None
    assert (lack.task.task, lack.due) == ("counted", NOON + MINUTE)
    assert lacking(both, found, clocks(NOON + 1, NOON + MINUTE)) is None
    assert lacking(both, found, clocks(NOON + 1, None, ended=True)) is None
